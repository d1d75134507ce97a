"""What stands around a run: users, limits, streams, folders, variables, other runs, secrets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faults.bad_baselines import BOUND
from faults.bad_runs import RIGHT, gone_on
from faults.lab import CHECK, FIRST, GOOD, HEAD, QUICK, Done, Scene, Stage
from faults.rows import Fault, ending, exits, of

GROUP = "around"
# It may read all: where the interpreter lies is no matter here.
STRANGER = (
    "setpriv", "--reuid=54321", "--regid=54321", "--clear-groups",
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)  # fmt: skip
IS_ROOT = os.getuid() == 0
SECRET = "s3cr3t"  # noqa: S105 - looked for in all that is written
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
ASCII: Mapping[str, str | None] = {
    "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}  # fmt: skip
# Says where it runs, and waits there until it may go on.
SLOW = (
    HEAD
    + '''
@perfsuite.case(axes={"n": [1]}, source="made up")
def wait(ctx, n):
    """Wait for a file, then double eight numbers."""
    def fn(values):
        if not os.path.exists("HERE/go"):
            own = f"HERE/at.{os.getpid()}"
            with open(own, "w") as file:
                file.write(str(os.getpid()))
            os.rename(own, "HERE/at")
        ACT
        until = time.monotonic() + 90
        while not os.path.exists("HERE/go") and time.monotonic() < until:
            time.sleep(0.02)
        return double(values)
    return workload(fn)

@perfsuite.hookimpl
def perf_cases():
    return [wait]
'''
)


def with_slow(stage: Stage, act: str = "pass") -> None:
    """Add a pack whose variant waits until it may go on."""
    stage.write("slow.py", SLOW.replace("ACT", act).replace("HERE", str(stage.project)))


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


def no_utf8(stage: Stage) -> Done:
    """Check the good pack in a folder whose name has a byte that is no UTF-8."""
    place = stage.project / "caf\udce9"
    place.mkdir()
    for each in ("good.py", "pytest.ini", "tests"):
        shutil.move(stage.project / each, place)
    return check(stage, cwd=place)


def read_only(stage: Stage) -> Done:
    """Run where nothing may be written."""
    stage.project.chmod(0o555)
    done = check(stage, wrap=BOUND)
    stage.project.chmod(0o755)
    return done


def full_tmp(stage: Stage) -> Done:
    """Run with 4 KiB left for temporary files, with a variant that is wrong and says much."""
    stage.write(
        "bad.py",
        HEAD
        + '''
@perfsuite.case(axes={"n": [1]}, source="made up")
def w(ctx, n):
    """Be wrong."""
    def fn(values):
        try:
            print("x" * 100_000, flush=True)
        except OSError:
            pass
        return values
    return workload(fn)

@perfsuite.hookimpl
def perf_cases():
    return [w]
''',
    )
    mount = 'mount -t tmpfs -o size=64k none "$TMPDIR" && head -c 60k /dev/zero > "$TMPDIR/fill"'
    probe = stage.call("unshare", "-m", "sh", "-c", mount)
    if probe.code:
        pytest.skip(f"no file system can be mounted here: {probe.out.strip()}")
    inside = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    return stage.perf("+bad", *CHECK, wrap=inside)


def accepting_stranger(stage: Stage) -> Done:
    """Accept a run as a user that no file names."""
    _refuse_unless_root()
    stage.seeded()
    for path in (stage.project, *stage.project.rglob("*")):
        os.chown(path, 54321, 54321)
    run = str(stage.run_file())
    return stage.cli("baseline", "accept", run, "--reason=x", wrap=STRANGER)


def _refuse_unless_root() -> None:
    if not IS_ROOT or not shutil.which("setpriv"):
        pytest.skip("only root can be another user, by setpriv")


def repository(place: Path) -> str:
    """Make a repository with one commit of all that is there; return its id."""
    place.mkdir(exist_ok=True)
    (place / "name").write_text(place.name, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run((*GIT, *words), cwd=place, env=env, check=True, capture_output=True)
    found = subprocess.run((*GIT, "rev-parse", "HEAD"), cwd=place, env=env, check=True,
                           capture_output=True)  # fmt: skip
    return found.stdout.decode().strip()


def other_git(stage: Stage) -> Done:
    """Run in one repository while GIT_DIR names another."""
    own = repository(stage.project)
    other = repository(stage.root / "tmp" / "other")
    done = stage.perf(*CHECK, env={"GIT_DIR": str(stage.root / "tmp" / "other" / ".git")})
    (path,) = stage.project.glob("reports/*/verdict.json")
    commit = json.loads(path.read_text(encoding="utf-8"))["commit"].removesuffix("-dirty")
    said = "its own" if commit and own.startswith(commit) else f"{commit} is of {other}: no"
    return Done(done.code, f"{done.out}\n{said} commit", done.project)


def moved(stage: Stage) -> Done:
    """Move a project whose run was interrupted, and go on."""
    stage.perf(*QUICK)
    path = stage.run_file()
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    place = stage.root / "tmp" / "moved"
    shutil.move(stage.project, place)
    done = stage.call(*stage.command(*QUICK, "--perf-resume"), cwd=place)
    return gone_on(Done(done.code, done.out, place))


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


def two_runs(stage: Stage) -> dict[str, Done]:
    """Run while another run of the same unit measures, with the same TMPDIR and with another."""
    with_slow(stage)
    first = stage.start(stage.command("+slow", *QUICK, "--perf-select=pack=slow"))
    try:
        reached(stage)
        other = stage.root / "home"
        found = {"same": stage.perf(*CHECK)}
        found["other"] = stage.perf(*CHECK, env={"TMPDIR": str(other)})
    finally:
        stage.write("go", "")
        stage.ended(first)
    return found


def foreign_lock(stage: Stage) -> Done:
    """Put a link in the place of what a run leaves among the temporary files; run again."""
    check(stage)
    for path in (stage.root / "tmp").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to("nowhere")
    return check(stage)


def workflow(stage: Stage) -> Done:
    """Run in a workflow of GitHub's with a worker that prints commands."""
    lines = [r"::stop-commands::x\n", r"  ::error::forged\n", r"##[error]forged\n",
             r"::set-output name=a::b\n", r"\r::add-mask::a\n"]  # fmt: skip
    stage.write(
        "bad.py",
        HEAD
        + f'''
@perfsuite.case(axes={{"n": [1]}}, source="made up")
def w(ctx, n):
    """Print and fail."""
    def fn(values):
        print("{"".join(lines)}")
        raise ValueError("::warning::forged")
    return workload(fn)

@perfsuite.hookimpl
def perf_cases():
    return [w]
''',
    )
    return stage.perf("+bad", *CHECK, env={"GITHUB_ACTIONS": "true"})


def commands(done: Done, see: str) -> None:
    """Look at the lines that GitHub would act on: they are perfsuite's own."""
    found = [line.strip() for line in re.split(r"[\r\n]", done.out)
             if re.match(r"\s*(::[a-z-]+( [^:]*)?::|##\[[a-z]+\])", line)]  # fmt: skip
    own = [line for line in found if line.startswith(("::error file=", "::error title="))]
    assert own, f"{see}: no annotation: {done.out[-500:]}"
    assert found == own, f"{see}: {sorted(set(found) - set(own))}"


def history_in_ascii(stage: Stage) -> Done:
    """Ask for a variant's history where only ASCII can be written."""
    stage.seeded()
    return stage.cli("history", FIRST, env=ASCII)


def gone(stage: Stage) -> Done:
    """Ask a command in a folder that was removed."""
    leave = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    return stage.cli("history", FIRST, wrap=("sh", "-c", leave, "sh"))


def endless(stage: Stage) -> Done:
    """Measure on a device that says 1e200 us."""
    stage.write("bad.py", GOOD.replace("100.0", "1e200"))
    return stage.perf("+bad", *QUICK)


OK = "exit 0: 2 checked"
ROWS: tuple[tuple[str, str, Callable[[Stage], Any]], ...] = (
    ("a user that no file names: baseline accept (D7)", "exit 0: accepted", accepting_stranger),
    ("GIT_DIR names another repository (D21)", "exit 0: its own commit", other_git),
    ("1 GiB of data: ulimit -d (D12)", OK, limited(f"--data={1 << 30}")),
    ("files of 32 MiB: ulimit -f (D12)", OK, limited(f"--fsize={32 << 20}")),
    ("20 open files (D23)", "exit 0|exit 4", limited("--nofile=20:20")),
    ("no HOME, ASCII only, PYTHONHASHSEED=1, COLUMNS=1", "exit 0: checked",
     given(HOME=None, PYTHONHASHSEED="1", PYTHONWARNINGS="error", COLUMNS="1", **ASCII)),
    ("ASCII only: history VARIANT (D17)", "exit 0: double_it", history_in_ascii),
    ("a project that cannot be written", "exit 4: do:", read_only),
    ("a folder's name is no UTF-8 (D22)", "exit 4: no UTF-8; do:", no_utf8),
    ("a command in a folder that was removed", "exit 2: current folder; do:", gone),
    ("a dangling link where the lock was (D11)", "exit 0|exit 4", foreign_lock),
    ("a moved project goes on (D26)", RIGHT, moved),
)  # fmt: skip
TWO, TOLD, FULL = Scene("two runs", two_runs), Scene("secret", telling), Scene("full", full_tmp)
HELD = "exit 4: taken by; do:"
FAULTS = (
    *(Fault(GROUP, done, see, Scene(f"around {done}", act), exits, is_alone=True)
      for done, see, act in ROWS),
    Fault(GROUP, "TMPDIR has 4 KiB left: a wrong result (D13)", "wrong: differs", FULL,
          ending("bad.w[n=1]")),
    Fault(GROUP, "TMPDIR has 4 KiB left: a right result", "checked", FULL, ending(FIRST)),
    Fault(GROUP, "a device says 1e200 us", "error: device 'fake' returned; beyond 1e+100",
          Scene("endless", endless), ending("bad.double_it[n=1]"), is_alone=True),
    Fault(GROUP, "a second run of a unit", HELD, TWO, of("same")),
    Fault(GROUP, "a second run of a unit, with another TMPDIR (D11)", HELD, TWO, of("other")),
    *(Fault(GROUP, f"a password on the command line: {name} (D9)", "it is not there", TOLD,
            of(name, holds_no_secret))
      for name in ("output", ".perfsuite", "reports", "baselines", "junit.xml")),
    Fault(GROUP, "a worker prints GitHub's commands (D28)", "no line but perfsuite's own acts",
          Scene("workflow", workflow), commands, is_alone=True),
)  # fmt: skip
