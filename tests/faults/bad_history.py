"""Histories that hold something else, or are none: a run keeps its verdicts all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.lab import BOUND, FIRST, SECOND, Done, Scene, Stage
from faults.rows import Fault, ends

GROUP = "history"
DB = ".perfsuite/history.db"
Spoil = Callable[[Path], object]


def no_rights(path: Path) -> None:
    """Let it be read and not written, nor anything beside it."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    (path.parent / "runs").chmod(0o755)


def reason(path: Path) -> None:
    """Put half a character into the baseline's reason: it is stored with the history."""
    (file,) = path.parents[1].glob("baselines/fake/good.json")
    text = file.read_text(encoding="utf-8").replace("a seed", r"half \ud800")
    file.write_text(text, encoding="utf-8")


def dangling(path: Path) -> None:
    """Put a link in its place that leads to no file, out of the project."""
    path.unlink()
    path.symlink_to("../../elsewhere.db")


def kept(spoil: Spoil, stage: Stage) -> Done:
    """Damage the seed's history and run once more."""
    stage.seeded()
    spoil(stage.project / DB)
    done = stage.perf("--perf-processes=1", wrap=BOUND)
    (stage.project / ".perfsuite").chmod(0o755)
    return done


def verdicts(done: Done, see: str) -> None:
    """Look at the exit code, and at whether there is a verdict on each variant of this run."""
    ends(done, see)
    if "exit 4" in see and done.code == 4:
        return
    reports = list(done.project.glob("reports/*/verdict.json"))
    assert len(reports) == 2, f"{len(reports)} reports"
    assert set(done.endings()) == {FIRST, SECOND}, done.endings()


SPOILS: tuple[tuple[str, str, Spoil], ...] = (
    ("it cannot be written", "exit 0|exit 1", no_rights),
    (
        "a link in its place leads nowhere",
        "exit 0|exit 1: cannot open; leads nowhere; do:",
        dangling,
    ),
    ("a baseline's reason has half a character (D8)", "exit 0|exit 1|exit 4", reason),
)
FAULTS = tuple(
    Fault(GROUP, f"a run where {done}", see, Scene(f"history {done}", partial(kept, spoil)),
          verdicts, is_alone=True)
    for done, see, spoil in SPOILS
)  # fmt: skip
