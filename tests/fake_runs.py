"""A dozen runs on the scripted device, as their verdict.json has them.

``python tests/fake_runs.py STORY FOLDER`` plays one story in a folder and writes what it told: one
process imports everything once, and runs pytest in itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from perfsuite.cli import commands

ROOT = Path(__file__).parents[1]
PACK = Path(__file__).parent / "packs" / "nets.py"
MOVED = {
    "slow": 1.05, "fast": 0.95, "hidden": 1.006, "small": 1.002, "throttled": 1.0, "noisy": 1.02,
    "budgeted": 1.6, "bytes1": 1.1, "bytes2": 0.9, "share": 1.02, "launches": 1.5,
    "sustained": 1.03, "awaited": 1.5, "ttft": 1.3, "together": 1.1, "interrupted": 1.04,
}  # fmt: skip
# The session tells the variant that interrupts it which process it is.
CONFTEST = """
import os, pathlib
asked = pathlib.Path("interrupt")
if asked.exists():
    asked.write_text(str(os.getpid()), encoding="ascii")
"""
EXCEPTIONS = """
[[waiver]]
select = "nets.double[impl=slow]"
reason = "the price of a fix"
issue = "https://example.org/issues/7"
up_to = "+8 %"
expires = 2199-12-01

[[quarantine]]
select = "nets.mixed[*]"
reason = "flaky"
expires = 2199-12-01
"""
DOUBLE = "--perf-select=case=double,impl!=canary"
FEW = ("-k", "not (ends or together or served or sustained or awaited or steady or close or open)")
GANG = {"PERFSUITE_FAKE_GPUS": "A,A"}
# What is another each time, and sentences: only whether there is one is kept.
MASKED = frozenset(
    {"run", "started", "commit", "compared_with", "headline", "reason", "reasons", "why", "source",
     "confirmation", "notes", "gaps"}
)  # fmt: skip


class Project:
    """A repository with the pack, which is the current folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        os.chdir(folder)
        self.folder = folder
        self._write("nets.py", PACK.read_text("utf-8"))
        self._write("conftest.py", CONFTEST)
        self._write(".gitignore", ".perfsuite/\nreports/\n__pycache__/\ninterrupt\n")
        self.move({})
        self.git("init", "--quiet", "-b", "main")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "made up")

    def git(self, *words: str) -> None:
        """Run git as somebody made up."""
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *who, *words], check=True, stdout=sys.stderr)

    def move(self, factors: Mapping[str, float]) -> None:
        """Make variants slower by these factors from now on."""
        self._write("speed.py", f"FACTORS = {dict(factors)!r}\n")

    def except_(self) -> None:
        """Waive one variant and quarantine another."""
        self._write("baselines/exceptions.toml", EXCEPTIONS)

    def interrupt(self, *words: str) -> None:
        """Measure until a variant interrupts the session."""
        (self.folder / "interrupt").touch()
        self._pytest(*words)

    def perf(self, *words: str, **environment: str) -> Any:
        """Measure and return the outcome."""
        return self._told(lambda: self._pytest(*words, **environment))

    def accept(self) -> None:
        """Make the last run's numbers the baseline."""
        (*_, path) = sorted((self.folder / ".perfsuite" / "runs").glob("*.jsonl"))
        words = ["baseline", "accept", path.stem, "--reason=first"]
        commands()(words, standalone_mode=False)

    def merge(self, count: int) -> Any:
        """Join the last runs and return the outcome."""
        paths = sorted((self.folder / ".perfsuite" / "runs").glob("*.jsonl"))
        words = ["merge", *(path.stem for path in paths[-count:]), "--packs=nets.py"]
        return self._told(lambda: _ended(commands()(words, standalone_mode=False)))

    def _pytest(self, *words: str, **environment: str) -> None:
        # The one of pytest's plugins that collects garbage takes longer than some runs.
        without = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
        own = (*without, "-p", "perfsuite.plugin", "--perf", "-operf_seed=7", "--perf-processes=3")
        only = ("--perf-packs=nets.py", "--perf-device=fake")
        with mock.patch.dict(os.environ, environment):
            _ended(pytest.main([*own, *only, *words]))

    def _told(self, act: Callable[[], None]) -> Any:
        before = set(self.folder.glob("reports/*/verdict.json"))
        act()
        (new,) = set(self.folder.glob("reports/*/verdict.json")) - before
        return masked(json.loads(new.read_text("utf-8")))

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _ended(status: int | None) -> None:
    if status not in {None, 0, 1, 2, 14}:
        raise RuntimeError(f"it ended {status}")


def masked(value: Any, key: str = "") -> Any:
    """Return what is to stay: of sentences, ids and times only whether there is one."""
    if key in MASKED:
        return bool(value)
    if isinstance(value, dict):
        # A claim's source and an exception's reason are not ours.
        return {name: masked(item, name) for name, item in value.items()}
    return [masked(item) for item in value] if isinstance(value, list) else value


def against_the_last_run(folder: Path) -> dict[str, Any]:
    """Everything once, then with planted changes, then with other limits."""
    project = Project(folder)
    found = {"first": project.perf(**GANG)}
    project.move(MOVED)
    found["changed"] = project.perf(**GANG)
    limits = ("-operf_threshold=2", "-operf_gate=6", "--perf-fail-on=unclear,faster,wrong")
    found["limits"] = project.perf("-k", "slow or fast or hidden or noisy", *limits)
    found["checked"] = project.perf("--perf-check", "-k", "ends or counted or mixed or held")
    return found


def against_a_baseline(folder: Path) -> dict[str, Any]:
    """Accepted numbers; a shifted machine, exceptions, an interruption, shards."""
    project = Project(folder)
    found = {"accepted": project.perf(*FEW)}
    project.accept()
    project.move({"all": 1.05})
    found["shifted"] = project.perf(DOUBLE)
    project.move(MOVED)
    project.interrupt(*FEW)
    found["resumed"] = project.perf(*FEW, "--perf-resume")
    project.except_()
    # Shards agree on a commit.
    project.git("add", ".")
    project.git("commit", "--quiet", "-am", "slower")
    found |= {f"shard {k}": project.perf(*FEW, f"--perf-shard={k}/2") for k in (1, 2)}
    found["merged"] = project.merge(count=2)
    return found


def against_a_revision(folder: Path) -> dict[str, Any]:
    """The working tree in turns with a commit."""
    project = Project(folder)
    project.move(MOVED)
    return {"revision": project.perf(*FEW, "--perf-against=HEAD")}


STORIES = {
    each.__name__: each for each in (against_the_last_run, against_a_baseline, against_a_revision)
}


def play(story: str, folder: Path) -> Any:
    """Return the outcomes of a story's runs by name, played by a process of its own."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "PERFSUITE_LOCKS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, __file__, story, str(folder)]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    return json.loads((folder / "told.json").read_text("utf-8"))


if __name__ == "__main__":
    name, place = sys.argv[1:]
    found = STORIES[name](Path(place))
    Path(place, "told.json").write_text(json.dumps(found), encoding="utf-8")
