"""Runs perfsuite from outside, in folders of their own: processes, files, exit codes, output."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

LIMIT_S = 100.0
# A server that lost its run ends its workers, with a grace for each.
LEAVE_S = 10.0
# Whatever a process starts inherits it: what is left behind is found by it.
MARK = "FAULT_SCENE"
NOT_INHERITED = ("PYTEST", "PERFSUITE", "GITHUB", "GIT_", "COV_", "COVERAGE", "CUDA_", "FAULT_")
NOT_INHERITED_EITHER = {"COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE", "TMPDIR"}
PYTEST = (sys.executable, "-P", "-m", "pytest", "-p", "perfsuite.plugin", "-p", "no:cacheprovider")
# As root rights do not count; without these two they do, as for anybody else.
AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
BOUND = AS_ANYBODY if os.getuid() == 0 else ()
CLI = (sys.executable, "-P", "-m", "perfsuite.cli")
# One process a variant, and no history: nearly all faults are seen without them.
QUICK = ("--perf-processes=1", "-o", "perf_history=")
CHECK = ("--perf-check", "--perf-processes=1", "-o", "perf_history=")
HEAD = """
import os, signal, socket, stat, subprocess, sys, threading, time
import perfsuite
from perfsuite import Workload

def double(values):
    return [2 * value for value in values]

def workload(fn=double, **given):
    parts = dict(
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )
    return Workload(fn=fn, **{**parts, **given})
"""


def pack(name: str, launch: str, axes: str = '{"n": [1]}') -> str:
    """Return a pack of one case that doubles eight numbers, whose launch has these statements."""
    return f'''{HEAD}
@perfsuite.case(smoke={axes}, source="made up")
def {name}(ctx, n):
    """Double eight numbers."""
    def fn(values):
{indent(launch, 8 * " ")}
    return workload(fn)

@perfsuite.hookimpl
def perf_cases():
    return [{name}]
'''


GOOD = pack("double_it", "ctx.spend(100.0 * n)\nreturn double(values)", axes='{"n": [1, 2]}')
FIRST, SECOND = "good.double_it[n=1]", "good.double_it[n=2]"


class Ending(NamedTuple):
    """How a variant ended, by verdict.json."""

    word: str
    reason: str


@dataclass(frozen=True)
class Done:
    """What is to be seen of processes that ran: the last exit code, all output, all files."""

    code: int
    out: str
    project: Path

    def endings(self) -> Mapping[str, Ending]:
        """Return how each variant ended, by the newest report."""
        found = max(self.project.glob("reports/*/verdict.json"), default=None)
        assert found, f"no verdict.json; exit code {self.code}: {self.out[-1000:]}"
        read = json.loads(found.read_text(encoding="utf-8"))
        return {each["variant"]: Ending(each["word"], each["reason"]) for each in read["variants"]}

    def results(self) -> list[str]:
        """Return the variants whose results the newest run file holds, in order."""
        path = max(self.project.glob(".perfsuite/runs/*.jsonl"))
        lines = path.read_bytes().decode(errors="replace").splitlines()
        read = [json.loads(line) for line in lines if line.startswith('{"kind":"result"')]
        return [each["variant"] for each in read]


def gone_on(done: Done) -> Done:
    """Say behind the output what the run's file holds now, and whether it was gone on with."""
    counts = Counter(done.results()) if done.code == 0 else Counter()
    files = len(list(done.project.glob(".perfsuite/runs/*")))
    told = "".join(f"\n{n} result of {name}" for name, n in counts.items())
    return Done(done.code, f"{done.out}{told}\n{files} run file", done.project)


@dataclass
class Stage:
    """A folder with a project, and the processes that are run there."""

    root: Path
    token: str
    cache: Path
    limit_s: float = LIMIT_S

    def __post_init__(self) -> None:
        for folder in (self.project, self.root / "tmp", self.root / "home"):
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # another user is one of the faults
        # Folders without rights are perfsuite's to meet, not pytest's.
        self.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
        self.write("tests/README", "no tests\n")
        self.write("good.py", GOOD)

    @property
    def project(self) -> Path:
        """The folder that processes start in."""
        return self.root / "project"

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def environment(self, given: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """Return what a process is given, without what stands around the tests."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_INHERITED) and name not in NOT_INHERITED_EITHER
        }
        kept |= {
            MARK: self.token,
            # Scenes are played side by side, and all on the same made-up device.
            "PERFSUITE_LOCKS": self.token,
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # xdist's ends in a colon: the current folder would stand before Python's own modules.
            "PYTHONPATH": kept.get("PYTHONPATH", "").strip(os.pathsep),
        }
        if sys.dont_write_bytecode:  # each process would compile for seconds
            kept["PYTHONPYCACHEPREFIX"] = str(self.cache)
        changed = kept | dict(given or {})
        return {name: value for name, value in changed.items() if value is not None}

    def start(
        self, command: Sequence[str], env: Mapping[str, str | None] | None = None, **given: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process in the project; its output goes to a file."""
        with (self.root / "output").open("ab") as output:
            given = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **given}
            return subprocess.Popen(
                command, cwd=given.pop("cwd", self.project), env=self.environment(env), **given
            )

    def call(
        self, *command: str, env: Mapping[str, str | None] | None = None, **given: Any
    ) -> Done:
        """Run a process to its end."""
        (self.root / "output").write_bytes(b"")
        return self.ended(self.start(command, env, **given))

    def ended(self, process: subprocess.Popen[bytes]) -> Done:
        """Wait for a process; one that does not end is killed, with the exit code 124."""
        try:
            code = process.wait(self.limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = 124
        text = (self.root / "output").read_bytes()[: 64 << 20].decode(errors="replace")
        return Done(code, text, self.project)

    def perf(self, *options: str, wrap: Sequence[str] = (), **given: Any) -> Done:
        """Run ``pytest --perf`` over the project's good pack and others that are named."""
        return self.call(*wrap, *self.command(*options), **given)

    def command(self, *options: str) -> tuple[str, ...]:
        """Return the command of ``pytest --perf``; ``+name`` is one more pack."""
        packs = ["good", *(each[1:] for each in options if each.startswith("+"))]
        rest = (each for each in options if not each.startswith("+"))
        device = () if any(o.startswith("--perf-device") for o in options) else ("fake",)
        where = [f"--perf-device={name}" for name in device]
        only = f"--perf-packs={','.join(f'{name}.py' for name in packs)}"
        return (*PYTEST, "--perf", "--color=no", *where, only, *rest)

    def cli(self, *words: str, wrap: Sequence[str] = (), **given: Any) -> Done:
        """Run a command of perfsuite's."""
        return self.call(*wrap, *CLI, *words, **given)

    def run_file(self) -> Path:
        """Return the newest run file."""
        return max(self.project.glob(".perfsuite/runs/*.jsonl"))

    def strangers(self) -> list[str]:
        """Return what lies beside the project and was not put there by the stage."""
        own = {"project", "tmp", "home", "output"}
        return sorted(path.name for path in self.root.iterdir() if path.name not in own)


def marked(token: str) -> Iterable[tuple[int, str]]:
    """Yield the live processes with a scene's mark, and their command lines."""
    mark = f"{MARK}={token}".encode()
    for folder in Path("/proc").iterdir():
        try:  # of one that is dead, or gone meanwhile, nothing is read
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                yield int(folder.name), line.decode(errors="replace")
        except OSError:
            continue


@dataclass(frozen=True)
class Scene:
    """Something that is done once, and looked at by one row or many."""

    name: str
    play: Callable[[Stage], Any]


@dataclass
class Played:
    """What a scene showed, and what it left behind."""

    seen: Any
    error: BaseException | None
    left: str


class Lab:
    """Plays each scene once, when the first row asks for it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cache = root / "pyc"
        self._cache.mkdir(mode=0o777)
        self._cache.chmod(0o777)
        self._played: dict[str, Played] = {}

    def played(self, scene: Scene) -> Played:
        """Return what a scene showed."""
        if scene.name not in self._played:
            self._played[scene.name] = self._play(scene)
        return self._played[scene.name]

    def close(self) -> None:
        """Let go of everything."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _play(self, scene: Scene) -> Played:
        stage = self._stage(scene.name)
        seen, error = None, None
        try:
            seen = scene.play(stage)
        except BaseException as raised:  # noqa: BLE001 - each row that looks at it tells it
            error = raised
        left = _left_behind(stage)
        return Played(seen, error, left)

    def _stage(self, name: str) -> Stage:
        token = uuid.uuid4().hex
        place = f"{re.sub(r'[^0-9A-Za-z]+', '-', name)[:30]}-{token[:6]}"
        return Stage(self._root / place, token, self._cache)


def _left_behind(stage: Stage) -> str:
    """Say what a scene left beside its project, and end what still runs."""
    deadline = time.monotonic() + LEAVE_S
    while (alive := list(marked(stage.token))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid, _ in alive:
        _kill(pid)
    told = [f"process {line.strip()[:100]!r} is left" for _, line in alive]
    return "; ".join(told + [f"{name} lies outside of the project" for name in stage.strangers()])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
