"""examples/acme-perf from its wheel: a device, metric, section and baselines of a pack's own."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "acme-perf"
SHOWN = ("-m", "pytest", "--perf", "--perf-device=acme", "--perf-packs=acme")
NAIVE, FUSED = (f"acme.softscale[n=10007,impl={impl}]" for impl in ("naive", "fused"))


def environment(place: Path) -> Path:
    """Return the Python of a fresh environment with perfsuite installed; the rest is this one's."""
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "outside.pth").write_text("\n".join(lines), encoding="utf-8")
    # A copy: building leaves its traces beside the sources.
    copy = place / "perfsuite"
    shutil.copytree(
        ROOT / "perfsuite", copy / "perfsuite", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    install(python, copy)
    return python


def install(python: Path, what: Path) -> None:
    """Install a wheel or a folder, without a network: the tools to build it are here."""
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    call(*pip, *offline, str(what), cwd=what if what.is_dir() else what.parent)


def wheel_of(folder: Path, place: Path) -> Path:
    """Build the wheel of a copy of what lies in a folder, and return it."""
    copy = place / folder.name
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", "build"))
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    call(sys.executable, "-m", "pip", "wheel", *offline, "-w", "wheels", str(copy), cwd=place)
    (wheel,) = (place / "wheels").glob("*.whl")
    return wheel


def call(*command: str, cwd: Path, status: int = 0, **given: str) -> str:
    """Run a command as somebody else would; return what it said."""
    mine = ("PYTEST", "PYTHON", "PERFSUITE", "COV_", "COVERAGE", "PIP_CONSTRAINT")
    env = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**env, "TMPDIR": str(cwd), "PERFSUITE_LOCKS": str(cwd), **given},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("acme")
    python = environment(place)
    install(python, wheel_of(EXAMPLE, place))
    return python


def decision(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("reports/*/verdict.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def verdicts(folder: Path) -> dict[str, Any]:
    return {each["variant"]: each for each in decision(folder)["variants"]}


def test_its_device_is_told(python: Path, tmp_path: Path) -> None:
    told = call(str(python.with_name("perfsuite")), "doctor", "--device", "acme", cwd=tmp_path)
    assert "Device acme of the pack acme: this machine has a1-0" in told
    assert "Acme A1 (acme)" in told
    assert "Baselines: 8 variants of acme-a1" in told


def test_it_is_the_same_as_what_it_ships(python: Path, tmp_path: Path) -> None:
    said = call(str(python), *SHOWN, cwd=tmp_path)
    assert "4 same" in said
    assert "compared with baseline acme-a1 shipped by acme" in said
    (page,) = tmp_path.glob("reports/*/index.html")
    text = page.read_text("utf-8")
    assert "<h2>Acme A1: DMA engine</h2>" in text
    assert "bytes_per_burst <small>higher is better</small>" in text
    found = verdicts(tmp_path)[FUSED]
    assert found["word"] == "same", found
    bursts = {"name": "bytes_per_burst", "unit": "B", "better": "higher", "value": 4002.8}
    (section,) = decision(tmp_path)["sections"]
    assert section["title"] == "Acme A1: DMA engine"
    assert [FUSED, "20"] in section["rows"]
    assert {**bursts, "baseline": 4002.8} in found["metrics"]


def test_what_is_slower_and_a_metric_that_moved_fail_a_run_and_its_listener_is_told(
    python: Path, tmp_path: Path
) -> None:
    (package,) = python.parents[1].glob("lib/python*/site-packages/acme_perf")
    program, log = package / "softscale_fused.a1", tmp_path / "tickets"
    text = program.read_text("utf-8")
    program.write_text(text.replace("exp   v1", "store v1, y\nload  v1, y\nexp   v1"), "utf-8")
    planted = {"ACME_A1_SLOWDOWN": "1.03", "ACME_LOG": str(log)}
    call(str(python), *SHOWN, "--perf-select=n=10007", cwd=tmp_path, status=1, **planted)
    program.write_text(text, "utf-8")
    found = verdicts(tmp_path)
    assert found[NAIVE]["word"] == "slower"
    assert f"{NAIVE} slower " in log.read_text("utf-8")
    # 20 became 40 transfers; of what each carries more is better, so that half is worse.
    worse = {each["metric"]: each["theta"] for each in found[FUSED]["verdict"]["changes"]}
    assert worse["dma_bursts"] == 1.0
    assert worse["bytes_per_burst"] == 0.5


def test_its_own_tests_pass(python: Path, tmp_path: Path) -> None:
    call(
        str(python), "-m", "pytest", str(EXAMPLE / "tests"), "-p", "no:cacheprovider", cwd=tmp_path
    )


WHERE_SHIPPED = """
from perfsuite.store.baselines import shipped_by
from perfsuite.packs.find import discover
for each in shipped_by(discover(None, allow=["fresh"])):
    for file in each.folder.rglob("*.json"):
        print(each.pack, file.relative_to(each.folder))
"""


def test_a_new_pack_is_found_in_an_empty_folder_with_its_baselines(
    python: Path, tmp_path: Path
) -> None:
    call(str(python.with_name("perfsuite")), "new-pack", "fresh", cwd=tmp_path)
    numbers = tmp_path / "fresh-perf" / "fresh_perf" / "baselines" / "some-gpu" / "runs"
    numbers.mkdir(parents=True)
    (numbers / "1.json").write_text("{}", encoding="utf-8")
    install(python, tmp_path / "fresh-perf")
    empty = tmp_path / "empty"
    empty.mkdir()
    options = ("--perf", "--perf-device=cpu", "--perf-packs=fresh", "--collect-only", "-q")
    said = call(str(python), "-m", "pytest", *options, cwd=empty)
    assert "perf::test_variant[fresh.softmax[rows=1024,cols=1000,impl=torch]]" in said
    installed = call(str(python), "-c", WHERE_SHIPPED, cwd=empty)
    assert installed.splitlines() == ["fresh some-gpu/runs/1.json"]
