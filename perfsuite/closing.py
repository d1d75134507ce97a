"""After the last measurement: write the report, accept the numbers, say what to do next."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from pathlib import Path

from perfsuite.baselines import accept
from perfsuite.errors import PerfError
from perfsuite.model import Status, Word
from perfsuite.report import write_report
from perfsuite.request import Options
from perfsuite.runner import Outcome


def close(outcome: Outcome, options: Options) -> tuple[str, ...]:
    """Write what a run leaves behind; return the closing lines of the summary."""
    page = write_report(
        outcome.run,
        baselines=outcome.baselines,
        source=outcome.source,
        folder=options.report,
        previous=outcome.previous,
    )
    lines = [f"report: {short(page)}", f"run: {short(outcome.run_file)}"]
    if options.accept:
        return (*lines, *_accepted(outcome, options))
    return (*lines, *_next(outcome))


def _accepted(outcome: Outcome, options: Options) -> Iterator[str]:
    """Accept the run unless something of it is not right; what is right in it can wait."""
    bad = {Status.WRONG, Status.CRASHED, Status.TIMED_OUT, Status.ERROR, Status.DISTURBED}
    wrong = sorted({result.variant for result in outcome.run.results if result.status in bad})
    if wrong:
        yield f"not accepted: {len(wrong)} did not end ok, {wrong[0]} the first of them"
        return
    if options.check:
        yield "not accepted: --perf-check measures nothing"
        return
    try:
        accepted = accept(
            outcome.run, options.baselines[0], reason=options.reason, by=getpass.getuser()
        )
    except PerfError as error:
        yield f"not accepted: {error}"
    else:
        yield f"accepted: {accepted}"


def _next(outcome: Outcome) -> Iterator[str]:
    words = {verdict.word for verdict in outcome.run.verdicts}
    if not words:
        return
    if words == {Word.NEW}:
        yield "next: run again to compare with this run, or accept it:"
    else:
        yield "next: to accept these numbers for this SKU:"
    yield f'  perfsuite baseline accept {outcome.run.id} --reason "..."'


def short(path: Path) -> str:
    """Return a path as it is typed from here, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
