"""Signals at a run, its workers and their server; then the run goes on: nothing lost or twice."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.lab import CHECK, FIRST, QUICK, SECOND, Done, Scene, Stage, gone_on
from faults.rows import Fault, ends, of
from faults.surroundings import reached, with_slow

GROUP = "signal"
WAIT = "slow.wait[n=1]"
END_S = 15.0
# A message is one packet, so that half of one cannot be sent: the worker stops instead.
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
Hit = Callable[[subprocess.Popen[bytes], int], None]


def to_run(*signals: signal.Signals) -> Hit:
    """Send signals to pytest, a tenth of a second apart."""

    def act(run: subprocess.Popen[bytes], worker: int) -> None:
        for number in signals:
            run.send_signal(number)
            time.sleep(0.1)

    return act


def to_all(run: subprocess.Popen[bytes], worker: int) -> None:
    """Kill pytest, the server and the worker, as a lost machine does."""
    server = parent_of(worker)
    for pid in (run.pid, server, worker):
        os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    """Return the parent's process id."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def hit(act: Hit, does: str, stage: Stage) -> dict[str, Done]:
    """Hit a run while a worker waits; see it end; let it go on."""
    with_slow(stage, does)
    how = CHECK if does != "pass" or act is to_all else QUICK
    stage.limit_s = END_S
    run = stage.start(stage.command("+slow", *how))
    worker = reached(stage)
    act(run, worker)
    first = stage.ended(run)
    stage.limit_s = 60.0
    stage.write("go", "")
    return {"first": first, "then": gone_on(stage.perf("+slow", *how, "--perf-resume"))}


def not_collected(stage: Stage) -> Done:
    """Let the collection fail: there is nothing to keep."""
    stage.write("cases/test_broken.py", "1 / 0\n")
    stage.write("pytest.ini", "[pytest]\nperf_cases = cases\ntestpaths = cases\n")
    return stage.perf(*QUICK)


ALL = f"exit 0: 1 result of {FIRST}; 1 result of {SECOND}; 1 result of {WAIT}; 1 run file"
HITS: tuple[tuple[str, str, Hit, str], ...] = (
    ("SIGTERM to the run", "exit -15|exit 143|exit 2", to_run(signal.SIGTERM), "pass"),
    ("SIGKILL to the run, its server and worker", "exit -9", to_all, "pass"),
    ("Ctrl-C where a worker stops before it answers (D3)", "exit 2", to_run(signal.SIGINT),
     f"os.path.exists('HERE/go') or {STOP}"),
)  # fmt: skip
SCENES = [Scene(f"signal {done}", partial(hit, act, does)) for done, _, act, does in HITS]
FAULTS = (
    *(
        fault
        for scene, (done, see, _, _) in zip(SCENES, HITS, strict=True)
        for fault in (
            Fault(GROUP, done, see, scene, of("first")),
            Fault(GROUP, f"{done}, and resumed", ALL, scene, of("then"), is_alone=True),
        )
    ),
    Fault(GROUP, "collection fails: no command to keep what was measured (D19)",
          "exit 2: test_broken; not --perf-resume", Scene("not collected", not_collected), ends),
)  # fmt: skip
