"""Texts of others on a terminal, and options that are refused before anything is measured."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial

from faults.lab import CHECK, HEAD, QUICK, Done, Scene, Stage
from faults.rows import Fault, ends, exits
from faults.surroundings import repository

GROUP = "shown"
HOSTILE = "x\x1b[2J\x1b]0;title\x07\x9b31m\u202ey"
IN_JSON = json.dumps(HOSTILE)[1:-1]
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


def in_baseline(old: str, new: str, words: tuple[str, ...], stage: Stage) -> Done:
    """Put a text into the seed's baseline, keep the sound one as ``before``, and ask a command."""
    stage.seeded()
    shutil.copytree(stage.project / "baselines", stage.project / "before")
    for path in stage.project.glob("baselines/fake/*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    return stage.cli(*words)


ID = ("good.double_it[n=1]", f"good.{IN_JSON}[n=1]")
NAME = ('"name": "Fake Device"', f'"name": "{IN_JSON}"')
BEFORE = ("baseline", "diff", "before", "baselines")
TEXTS = (
    ("a product's name", NAME, ("baseline", "show")),
    ("a product's name", NAME, ("baseline", "show", "fake")),
    ("a variant's id", ID, ("baseline", "show", "fake")),
    ("a variant's id", ID, BEFORE),
    ("a variant's id", ID, (*BEFORE, "--markdown")),
)


def of_history(words: tuple[str, ...], stage: Stage) -> Done:
    """Import a benchmark with a hostile name, and ask for it."""
    named = {"fullname": f"it.py::{HOSTILE}", "stats": {"median": 0.001, "data": [0.001]}}
    file = {"datetime": "2026-01-01T00:00:00", "machine_info": {"cpu": {}}, "benchmarks": [named]}
    stage.write("one.json", json.dumps(file))
    done = stage.cli("history", "import", "one.json")
    assert done.code in {0, 1}, done.out
    return stage.cli("history", *words)


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


def refused(options: tuple[str, ...], stage: Stage) -> Done:
    """Run with options that cannot hold; say whether anything was measured."""
    done = stage.perf(*QUICK, *options)
    runs = list(stage.project.glob(".perfsuite/runs/*"))
    return Done(done.code, f"{done.out}\n{'MEASURED' if runs else ''}", done.project)


REFUSED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("perf_counters=maybe (D25)", "maybe", ("-o", "perf_counters=maybe")),
    ("--perf-time=soon", "soon", ("--perf-time=soon",)),
    ("perf_threshold=nan", "nan", ("-operf_threshold=nan",)),
    ("--perf-select='n=='", "n==", ("--perf-select=n==",)),
    ("--perf-packs names a file with escape sequences (D10)", "do:",
     (f"--perf-packs={HOSTILE}.py",)),
)  # fmt: skip


def accepted(stage: Stage) -> Done:
    """Accept the seed's run with a hostile reason."""
    stage.seeded()
    return stage.cli("baseline", "accept", str(stage.run_file()), f"--reason={HOSTILE}")


ANY = "exit 0|exit 1|exit 2"  # and nothing that acts on a terminal
WORDS: tuple[tuple[str, ...], ...] = (("it.py",), (f"it.py::{HOSTILE}",))


def alone(done: str, see: str, play: Callable[[Stage], Done]) -> Fault:
    """Return a row with a scene of its own."""
    return Fault(GROUP, done, see, Scene(f"shown {done}", play), exits, is_alone=True)


FAULTS = (
    *(
        alone(f"{' '.join(words[:5])}: {what} of hostile text (D10)", ANY,
              partial(in_baseline, *texts, words))
        for what, texts, words in TEXTS
    ),
    *(
        alone(f"history {words[0][:6]}: {number}, a name of hostile text (D10)", ANY,
              partial(of_history, words))
        for number, words in enumerate(WORDS)
    ),
    Fault(GROUP, "an id on a terminal while it runs (D29)", "slow.wait[n=a]",
          Scene("terminal", on_terminal), in_progress, is_alone=True),
    Fault(GROUP, "a failing perf_against_build prints escape sequences (D10)", "exit 4|exit 1",
          Scene("build", by_build), ends, is_alone=True),
    *(
        alone(f"{done} is refused at once", f"exit 4: {part}; not MEASURED",
              partial(refused, options))
        for done, part, options in REFUSED
    ),
    alone("baseline accept --reason with hostile text (D30)", "exit 2: do:", accepted),
)  # fmt: skip
