"""A repository whose pack imports the code under test, on the scripted device."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from test_runner import Log

from perfsuite.model import Run, Settings, Verdict
from perfsuite.run.config import Config
from perfsuite.run.run import Outcome, execute

ROOT = Path(__file__).parents[1]
PACK = '''
import perfsuite
from perfsuite import Workload
import speed

@perfsuite.case(smoke={"impl": ["one", "two"]}, source="made up")
def double(ctx, impl):
    """Double eight numbers."""
    def fn(values):
        ctx.spend(speed.US[impl])
        return [2 * value for value in values]
    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )

@perfsuite.hookimpl
def perf_cases():
    return [double]
'''
BEFORE, PLANTED = 'US = {"one": 100.0, "two": 100.0}\n', 'US = {"one": 100.0, "two": 130.0}\n'


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    # A file of the same second and size would count as the one that was compiled.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)


def commit(folder: Path, **files: str) -> str:
    write(folder, **files)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "made up")
    return git(folder, "rev-parse", "HEAD")


def repository_at(folder: Path) -> Path:
    """Make a repository with a pack that imports the code under test, all committed."""
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    ignored = ".perfsuite/\nreports/\ntmp/\n__pycache__/\n"
    (folder / ".gitignore").write_text(ignored, encoding="utf-8")
    commit(folder, acme=PACK, speed=BEFORE)
    return folder


@cache
def listed(pack: Path, text: str) -> Config:
    """Return what asks for all of a pack of this text."""
    del text
    return Config(root=pack.parent, device="fake", only=(str(pack),)).chosen()


def asked(folder: Path, *, against: str = "", build: str = "", **fields: Any) -> Config:
    """Return what measures the repository's pack, beside a revision if one is named."""
    pack = fields.pop("pack", folder / "acme.py")
    found = listed(pack, pack.read_text(encoding="utf-8"))
    config = replace(
        found,
        root=folder,
        against=against or None,
        against_build=build,
        baselines=(folder / "baselines",),
        **{"settings": Settings(samples=8), **fields},
    )
    return config.narrowed(config.variants, config.claims)


def measure(folder: Path, **fields: Any) -> Outcome:
    return execute(asked(folder, **fields), Log())


def verdicts(run: Run) -> dict[str, Verdict]:
    return {each.variant.partition("impl=")[2].rstrip("]"): each for each in run.verdicts}


def words(run: Run) -> dict[str, str]:
    return {name: each.word.value for name, each in verdicts(run).items()}
