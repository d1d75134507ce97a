"""Texts of others on a terminal."""

from __future__ import annotations

import os
import threading

from faults.lab import CHECK, HEAD, QUICK, Done, Scene, Stage
from faults.rows import Fault, ends
from faults.surroundings import repository

GROUP = "shown"
AT_ONCE = (
    HEAD
    + '''
@perfsuite.case(axes={"n": ["a"]}, source="made up")
def wait(ctx, n):
    """Take half a second."""
    def fn(values):
        time.sleep(0.5)
        return double(values)
    return workload(fn)

@perfsuite.hookimpl
def perf_cases():
    return [wait]
'''
)


def on_terminal(stage: Stage) -> Done:
    """Run on a terminal, where progress is shown."""
    stage.write("slow.py", AT_ONCE)
    ours, theirs = os.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 4096):
                shown.append(data)
        except OSError:  # the other side was closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    env = {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    run = stage.start(stage.command("+slow", *CHECK, "--perf-select=pack=slow"), env,
                      stdin=theirs, stdout=theirs, stderr=theirs)  # fmt: skip
    os.close(theirs)
    done = stage.ended(run)
    reader.join(10)
    os.close(ours)
    return Done(done.code, b"".join(shown).decode(errors="replace"), stage.project)


def in_progress(done: Done, see: str) -> None:
    """Look at what was shown while it ran: escape sequences are the terminal's there."""
    before = done.out.partition("perf .")[0]
    assert done.code == 0, done.out[-500:]
    assert "slow.wait[n=a]" in before, f"{see}: {before[-500:]!r}"


def by_build(stage: Stage) -> Done:
    """Compare with a revision whose build fails and prints escape sequences."""
    repository(stage.project)
    build = r"printf 'x\033[2J\033]0;title\007'; exit 3"
    return stage.perf(*QUICK, "--perf-against=HEAD", f"-operf_against_build={build}")


FAULTS = (
    Fault(GROUP, "an id on a terminal while it runs (D29)", "slow.wait[n=a]",
          Scene("terminal", on_terminal), in_progress, is_alone=True),
    Fault(GROUP, "a failing perf_against_build prints escape sequences (D10)", "exit 4|exit 1",
          Scene("build", by_build), ends, is_alone=True),
)  # fmt: skip
