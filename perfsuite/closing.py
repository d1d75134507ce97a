"""After the last measurement: write the report, accept the numbers, say what to do next."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.baselines import accept, moves_of
from perfsuite.errors import PerfError
from perfsuite.model import Run, Series, Word
from perfsuite.report import write_report
from perfsuite.request import Options
from perfsuite.runner import Outcome

# A report of more variants tells those in short that need no reader.
MOST_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Closing:
    """The last lines of the summary, whether all was done, and what writing the report took."""

    lines: tuple[str, ...] = ()
    is_done: bool = True
    report_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What became of the run in the history: what this says of its variants, or why it failed."""

    series: Mapping[str, Series] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def close(outcome: Outcome, options: Options) -> Closing:
    """Store the run, write the report, and accept the run if that was asked for.

    A failure of any is a line: what was measured is still to be reported, item by item.
    """
    kept = _keep(outcome, options)
    started = time.monotonic()
    try:
        page = short(_write(outcome, options, kept.series))
        is_written = True
    except PerfError as error:
        page, is_written = str(error), False
    report_s = time.monotonic() - started
    written = (f"report: {page}", f"run: {short(outcome.run_file)}", *kept.lines)
    if not options.accept:
        return Closing((*written, *_next(outcome)), is_done=is_written, report_s=report_s)
    try:
        accepted = accept(
            outcome.run, options.baselines[0], reason=options.reason, by=getpass.getuser()
        )
    except PerfError as error:
        return Closing((*written, f"not accepted: {error}"), is_done=False, report_s=report_s)
    if not kept.lines:
        kept = _keep(outcome, options)  # with what was accepted just now
    return Closing(
        (*written, f"accepted: {accepted}", *map(short, accepted.written)),
        is_done=is_written,
        report_s=report_s,
    )


def _keep(outcome: Outcome, options: Options) -> _Kept:
    """Store the run and what it is compared with in the history; read its variants' there."""
    run = outcome.run
    later = f"perfsuite history import {run.id} later"
    try:
        from perfsuite.history import History, recent, stored_of, url_of

        url = url_of(options.root, options.history)
        if not url or run.settings.check_only:
            return _Kept()
        with History(url, options.root) as history:
            history.add(stored_of(run))
            history.add_moves(moves_of(run, options.baselines))
            return _Kept(recent(history, run, _told(run)))
    except ImportError as error:
        return _Kept(lines=(f"history not stored: install {error.name}; {later}",))
    except PerfError as error:
        return _Kept(lines=(f"history not stored: {' '.join(str(error).split())}; {later}",))


def _told(run: Run) -> list[str]:
    """Return the variants whose history the report shows: of very many those that changed."""
    found = [variant.id for variant in run.variants]
    if len(found) <= MOST_SHOWN:
        return found
    return [each.variant for each in run.verdicts if each.word not in {Word.SAME, Word.NEW}]


def _write(outcome: Outcome, options: Options, history: Mapping[str, Series]) -> Path:
    return write_report(
        outcome.run,
        baselines=outcome.baselines,
        source=outcome.source,
        folder=options.report,
        previous=outcome.previous,
        history=history,
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
