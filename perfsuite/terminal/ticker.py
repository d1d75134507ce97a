"""Live progress: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from perfsuite.files import Closable
from perfsuite.model import DeviceFacts, Result, Status
from perfsuite.report import view
from perfsuite.terminal.words import plain, shortened

# Without a terminal a quiet variant needs no line of its own.
QUIET_S = 10.0
MOST_PHASE = 20


class Ticker(Closable):
    """Tells of a run while it goes on: a bar on a terminal, else a line now and then.

    It ``has_begun`` to measure, and ``has_result`` of at least one variant.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._last = time.monotonic()
        self._task: TaskID | None = None
        self.has_begun = self.has_result = False
        # Redrawn on events only: a thread that draws would disturb what is measured on the CPU.
        self._bar = Progress(
            # Ids have brackets, which are no markup.
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stdout),
            auto_refresh=False,
            transient=True,
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._task is not None:
            self._bar.stop()

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        """Say what is about to run."""
        self.has_begun = True
        about = f", about {view.duration(estimate_s)}" if estimate_s else ""
        self._say(f"perfsuite: {view.count(total, 'variant')} on {facts.name}{about}")
        if self._bar.console.is_terminal:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._bar.start()
            self._task = self._bar.add_task("starting", total=total)

    def phase(self, variant: str, phase: str) -> None:
        """Show what is going on right now."""
        if self._task is not None:
            # A worker tells of its phase itself: it may be any text.
            told = f"{plain(phase)[:MOST_PHASE]:<8} {shortened(plain(variant))}"
            self._bar.update(self._task, description=told)
            self._bar.refresh()

    def finished(self, result: Result, done: int, total: int) -> None:
        """Tell of a variant that has ended; of one that ended badly at once."""
        self.has_result = True
        bad = result.status not in {Status.OK, Status.SKIPPED}
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
            self._bar.refresh()
        due = done == total or time.monotonic() - self._last > QUIET_S
        if bad or (self._task is None and due):
            self._last = time.monotonic()
            self._say(f"[{done}/{total}] {result.variant}: {result.status.value}")

    def note(self, text: str) -> None:
        """Tell what the run has to say about itself."""
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        line = plain(text)
        if self._task is None:
            self._write(line)
        else:
            self._bar.console.print(line, markup=False, highlight=False)
