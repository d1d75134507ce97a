"""After the last measurement: write the report, accept the numbers, say what to do next."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfsuite.baselines import accept
from perfsuite.errors import PerfError
from perfsuite.model import Word
from perfsuite.report import write_report
from perfsuite.request import Options
from perfsuite.runner import Outcome


@dataclass(frozen=True, slots=True)
class Closing:
    """The last lines of the summary, whether all was done, and what writing the report took."""

    lines: tuple[str, ...] = ()
    is_done: bool = True
    report_s: float = 0.0


def close(outcome: Outcome, options: Options) -> Closing:
    """Write the report, and accept the run if that was asked for.

    A failure of either is a line: what was measured is still to be reported, item by item.
    """
    started = time.monotonic()
    try:
        page = short(_write(outcome, options))
        is_written = True
    except PerfError as error:
        page, is_written = str(error), False
    report_s = time.monotonic() - started
    written = (f"report: {page}", f"run: {short(outcome.run_file)}")
    if not options.accept:
        return Closing((*written, *_next(outcome)), is_done=is_written, report_s=report_s)
    try:
        accepted = accept(
            outcome.run, options.baselines[0], reason=options.reason, by=getpass.getuser()
        )
    except PerfError as error:
        return Closing((*written, f"not accepted: {error}"), is_done=False, report_s=report_s)
    return Closing(
        (*written, f"accepted: {accepted}", *map(short, accepted.written)),
        is_done=is_written,
        report_s=report_s,
    )


def _write(outcome: Outcome, options: Options) -> Path:
    return write_report(
        outcome.run,
        baselines=outcome.baselines,
        source=outcome.source,
        folder=options.report,
        previous=outcome.previous,
    )


def _next(outcome: Outcome) -> Iterator[str]:
    run = outcome.run
    words = {verdict.word for verdict in run.verdicts}
    if not words:
        return
    if Word.UNCLEAR in words and run.against is None:
        yield "next: to decide what is unclear, measure the revision before and this tree in turns:"
        yield f"  {run.command} --perf-against=REV"
    if words == {Word.NEW}:
        yield "next: run again to compare with this run, or accept it:"
    elif any(verdict.fails for verdict in run.verdicts):
        yield "next: repair what fails; only if it is meant to be so, accept these numbers:"
    else:
        yield "next: to accept these numbers for this SKU:"
    yield f'  perfsuite baseline accept {outcome.run.id} --reason "..."'


def short(path: Path) -> str:
    """Return a path as it is typed from here, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
