"""What stands around a run: users, limits, streams, folders, variables, other runs, secrets."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from faults.lab import BOUND, CHECK, FIRST, Done, Scene, Stage, pack
from faults.rows import Fault, ending, exits, of

GROUP = "around"
SECRET = "s3cr3t"  # noqa: S105 - looked for in all that is written
ASCII: Mapping[str, str | None] = {
    "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}  # fmt: skip
# Says where it runs, and waits there until it may go on.
SLOW = """if not os.path.exists("HERE/go"):
    own = f"HERE/at.{os.getpid()}"
    with open(own, "w") as file:
        file.write(str(os.getpid()))
    os.rename(own, "HERE/at")
ACT
until = time.monotonic() + 90
while not os.path.exists("HERE/go") and time.monotonic() < until:
    time.sleep(0.02)
return double(values)"""


def with_slow(stage: Stage, act: str = "pass") -> None:
    """Add a pack whose variant waits until it may go on."""
    launch = SLOW.replace("ACT", act).replace("HERE", str(stage.project))
    stage.write("slow.py", pack("wait", launch))


def reached(stage: Stage) -> int:
    """Wait until the slow variant runs; return its process."""
    path, until = stage.project / "at", time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, "the slow variant never began"
        time.sleep(0.05)
    return int(path.read_text(encoding="ascii"))


def check(stage: Stage, *options: str, **given: Any) -> Done:
    """Check the good pack in surroundings of some kind."""
    return stage.perf(*CHECK, *options, **given)


def limited(*limits: str) -> Callable[[Stage], Done]:
    """Check the good pack under resource limits."""
    return lambda stage: check(stage, wrap=("prlimit", *limits))


def given(**env: str | None) -> Callable[[Stage], Done]:
    """Check the good pack with these variables."""
    return lambda stage: check(stage, env=env)


def read_only(stage: Stage) -> Done:
    """Run where nothing may be written."""
    stage.project.chmod(0o555)
    done = check(stage, wrap=BOUND)
    stage.project.chmod(0o755)
    return done


def full_tmp(stage: Stage) -> Done:
    """Run with 4 KiB left for temporary files, with a variant that is wrong and says much."""
    launch = "try:\n    print('x' * 100_000, flush=True)\nexcept OSError:\n    pass\nreturn values"
    stage.write("bad.py", pack("w", launch))
    mount = 'mount -t tmpfs -o size=64k none "$TMPDIR" && head -c 60k /dev/zero > "$TMPDIR/fill"'
    probe = stage.call("unshare", "-m", "sh", "-c", mount)
    if probe.code:
        pytest.skip(f"no file system can be mounted here: {probe.out.strip()}")
    inside = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    return stage.perf("+bad", *CHECK, wrap=inside)


def telling(stage: Stage) -> dict[str, str]:
    """Run with a password on the command line; return what holds it."""
    url = f"perf_history=postgresql://ci:{SECRET}@127.0.0.1:1/db"
    done = stage.perf("--perf-processes=1", "-o", url, "--junitxml=junit.xml")
    assert done.code in {0, 1}, done.out
    found = {"output": SECRET if SECRET in done.out else ""}
    stage.cli("baseline", "accept", str(stage.run_file()), "--reason=first")
    for place in (".perfsuite", "reports", "baselines", "junit.xml"):
        top = stage.project / place
        files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        assert files, f"{place} is not there: {done.out}"
        held = [path.name for path in files if SECRET.encode() in path.read_bytes()]
        found[place] = " ".join([SECRET, *held]) if held else ""
    return found


def holds_no_secret(found: str, see: str) -> None:
    """Look at what holds the password."""
    assert not found, f"{see}: {found}"


def workflow(stage: Stage) -> Done:
    """Run in a workflow of GitHub's with a worker that prints commands."""
    lines = [r"::stop-commands::x\n", r"  ::error::forged\n", r"##[error]forged\n",
             r"::set-output name=a::b\n", r"\r::add-mask::a\n", r"a ##[error]forged\n",
             r"\u3000 ::error::forged\n"]  # fmt: skip
    launch = f"""print("{"".join(lines)}")\nraise ValueError("::warning::forged")"""
    stage.write("bad.py", pack("w", launch))
    return stage.perf("+bad", *CHECK, env={"GITHUB_ACTIONS": "true"})


def commands(done: Done, see: str) -> None:
    """Look at the lines that GitHub would act on: they are perfsuite's own."""
    found = [line.strip() for line in re.split(r"[\r\n]", done.out)
             if re.match(r"\s*::[a-z-]+( [^:]*)?::|.*##\[[a-z]+\]", line)]  # fmt: skip
    own = [line for line in found if line.startswith(("::error file=", "::error title="))]
    assert own, f"{see}: no annotation: {done.out[-500:]}"
    assert found == own, f"{see}: {sorted(set(found) - set(own))}"


def gone(stage: Stage) -> Done:
    """Ask a command in a folder that was removed."""
    leave = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    return stage.cli("history", FIRST, wrap=("sh", "-c", leave, "sh"))


def on_terminal(stage: Stage) -> Done:
    """Run on a terminal, where progress is shown."""
    launch = "time.sleep(0.5)\nreturn double(values)"
    stage.write("slow.py", pack("wait", launch, axes='{"n": ["a"]}'))
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


OK = "exit 0: 2 checked"
ROWS: tuple[tuple[str, str, Callable[[Stage], Any]], ...] = (
    ("1 GiB of data: ulimit -d (D12)", OK, limited(f"--data={1 << 30}")),
    ("files of 32 MiB: ulimit -f (D12)", OK, limited(f"--fsize={32 << 20}")),
    ("no HOME, ASCII only, PYTHONHASHSEED=1, COLUMNS=1", "exit 0: checked",
     given(HOME=None, PYTHONHASHSEED="1", PYTHONWARNINGS="error", COLUMNS="1", **ASCII)),
    ("a project that cannot be written", "exit 4: do:", read_only),
    ("a command in a folder that was removed", "exit 2: current folder; do:", gone),
)  # fmt: skip
TOLD, FULL = Scene("secret", telling), Scene("full", full_tmp)
FAULTS = (
    *(Fault(GROUP, done, see, Scene(f"around {done}", act), exits, is_alone=True)
      for done, see, act in ROWS),
    Fault(GROUP, "TMPDIR has 4 KiB left: a wrong result (D13)", "wrong: differs", FULL,
          ending("bad.w[n=1]")),
    Fault(GROUP, "TMPDIR has 4 KiB left: a right result", "checked", FULL, ending(FIRST)),
    *(Fault(GROUP, f"a password on the command line: {name} (D9)", "it is not there", TOLD,
            of(name, holds_no_secret))
      for name in ("output", ".perfsuite", "reports", "baselines", "junit.xml")),
    Fault(GROUP, "an id on a terminal while it runs (D29)", "slow.wait[n=a]",
          Scene("terminal", on_terminal), in_progress, is_alone=True),
    Fault(GROUP, "a worker prints GitHub's commands (D28)", "no line but perfsuite's own acts",
          Scene("workflow", workflow), commands, is_alone=True),
)  # fmt: skip
