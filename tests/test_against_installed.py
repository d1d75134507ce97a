"""A against B from outside: packs of a repository as they are installed, files and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from against_data import PACK, ROOT, commit, git

from perfsuite.cli import new_pack

# What a pack measures lies in its own package, and in another of the repository.
OURS = PACK.replace("import speed", "import rows\nfrom acme_perf import speed").replace(
    "speed.US[impl]", "(speed.US | rows.US)[impl]"
)
AHEAD = """
import importlib.util, sys

class Ahead:
    def find_spec(name, path=None, target=None):
        file = r"{}/kernels/src/rows/__init__.py"
        return importlib.util.spec_from_file_location(name, file) if name == "rows" else None

sys.meta_path.insert(0, Ahead)
"""
ROWS = '[project]\nname = "rows"\nversion = "1"\n'
KEPT = ("HOME", "LANG", "PATH", "PERFSUITE_LOCKS", "TMPDIR")
FAST, PLANTED = 100.0, 115.0


@dataclass
class Installed:
    """A repository whose packages lie in its subfolders, installed editable."""

    folder: Path
    python: Path

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        env = {**kept, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command, pipe = [str(self.python), "-m", *words], subprocess.PIPE
        return subprocess.run(
            command, cwd=self.folder, env=env, check=False, text=True, stdout=pipe, stderr=pipe
        )

    def write(self, one: float = FAST, two: float = FAST) -> None:
        package = self.folder / "acme-perf" / "acme_perf"
        (package / "__init__.py").write_text(OURS, encoding="utf-8")
        (package / "speed.py").write_text(f"US = {{'one': {one}}}\n", encoding="utf-8")
        rows = self.folder / "kernels" / "src" / "rows"
        (rows / "__init__.py").write_text(f"US = {{'two': {two}}}\n", encoding="utf-8")
        # A file of the same second and size would count as the one that was compiled.
        for place in (package, rows):
            shutil.rmtree(place / "__pycache__", ignore_errors=True)

    def against(self, side: str, *more: str) -> Told:
        own = ("-p", "no:cacheprovider", "-p", "perfsuite.plugin")
        asked = ("--perf-device=fake", "--perf-packs=acme", f"--perf-against{side}", *more)
        done = self.call("pytest", *own, "--perf", *asked)
        (report,) = (self.folder / "reports").iterdir()
        verdict = json.loads((report / "verdict.json").read_text("utf-8"))
        shutil.rmtree(report)
        return Told(done.returncode, done.stdout, verdict)


@dataclass
class Told:
    """What a run left behind."""

    code: int
    text: str
    verdict: dict[str, Any]

    @property
    def words(self) -> dict[str, str]:
        return {
            each["variant"].partition("impl=")[2].rstrip("]"): each["word"]
            for each in self.verdict["variants"]
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("installed")
    venv = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    paths = {"base": str(venv), "platbase": str(venv)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    # Its packages are those of these tests; their own .pth files are not read.
    (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    found = Installed(home / "project", venv / "bin" / "python")
    (found.folder / "kernels" / "src" / "rows").mkdir(parents=True)
    (found.folder / "kernels" / "pyproject.toml").write_text(ROWS, encoding="utf-8")
    new_pack("acme", found.folder / "acme-perf")
    found.write()
    ignored = ".perfsuite/ reports/ __pycache__/ *.egg-info/"
    (found.folder / ".gitignore").write_text(ignored.replace(" ", "\n"), encoding="utf-8")
    git(found.folder, "init", "--quiet", "-b", "main")
    commit(found.folder)
    git(found.folder, "tag", "first")
    # As new-pack prints, without a network.
    without = ("--quiet", "--no-index", "--no-build-isolation", "--no-deps")
    done = found.call("pip", "install", *without, "-e", "./acme-perf", "-e", "./kernels")
    assert done.returncode == 0, done.stderr
    (finder,) = site.glob("__editable___*_finder.py")
    assert "acme_perf" in finder.name  # rows has a .pth file that names its folder
    return found


@pytest.fixture
def installed(made: Installed) -> Iterator[Installed]:
    """As it was made."""
    yield made
    git(made.folder, "checkout", "--quiet", "--force", "-B", "main", "first")
    git(made.folder, "clean", "-ffdq")


def test_a_change_of_what_is_installed_editable_is_seen(installed: Installed) -> None:
    installed.write(one=PLANTED, two=PLANTED)
    told = installed.against("=main")
    assert told.words == {"one": "slower", "two": "slower"}
    assert told.code == 1
    short = git(installed.folder, "rev-parse", "--short=7", "first")
    assert told.verdict["compared_with"] == f"revision {short} (main)"
    assert told.verdict["gaps"] == []
    assert "baseline accept" not in told.text


def test_another_environment_is_side_a(installed: Installed) -> None:
    env = installed.folder.parent / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    (site,) = env.glob("lib/python*/site-packages")
    (site / "rows.py").write_text(f"US = {{'two': {FAST}}}\n", encoding="utf-8")
    (site / "rows-0.dist-info").mkdir()
    (site / "rows-0.dist-info" / "METADATA").write_text("Name: rows\nVersion: 0\n", "utf-8")
    # What is installed here for development may be found by a hook ahead of all others.
    (here,) = installed.python.parents[1].glob("lib/python*/site-packages")
    (here / "ahead.pth").write_text("import ahead", "utf-8")
    (here / "ahead.py").write_text(AHEAD.format(installed.folder), "utf-8")
    installed.write(one=PLANTED, two=PLANTED)
    told = installed.against(f"-env={env}")
    assert told.words == {"one": "same", "two": "slower"}
    assert told.verdict["compared_with"] == f"the same code in {env}"
    assert f"note: {env}: rows 0 -> 1" in told.text
    assert f"--perf-against-env={env}" in told.text.partition("next:")[2]
    # A revision is measured there, too.
    told = installed.against("=main", f"--perf-against-env={env}")
    assert told.words == {"one": "slower", "two": "slower"}
    assert str(told.verdict["compared_with"]).endswith(f"(main) in {env}")
    (here / "ahead.pth").unlink()
