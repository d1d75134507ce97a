"""After the last measurement: write the report, accept the numbers, say what to do next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfsuite.baselines import accept, moves_of
from perfsuite.boundary import user_name
from perfsuite.errors import PerfError
from perfsuite.files import refusing
from perfsuite.model import Pack, Run, Series, Word
from perfsuite.packs import Listeners
from perfsuite.report import append_summary, commands_of, write_report
from perfsuite.report.book import Book, read
from perfsuite.request import Options
from perfsuite.runner import Outcome

# A report of more variants tells those in short that need no reader.
MOST_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a run in the history: what this says of its variants, or why it failed."""

    series: Mapping[str, Series] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


NOTHING_KEPT = Kept()


def keep(outcome: Outcome, options: Options) -> Kept:
    """Store the run and what it is compared with in the history; read its variants' there."""
    run = outcome.run
    later = f"perfsuite history import {run.id} later"
    try:
        from perfsuite.history import History, recent, stored_of, url_of

        url = url_of(options.root, options.history)
        if not url or run.settings.check_only:
            return Kept()
        with History(url, options.root) as history:
            history.add(stored_of(run))
            history.add_moves(moves_of(run, options.baselines))
            return Kept(recent(history, run, _shown(run)))
    except ImportError as error:
        return Kept(lines=(f"history not stored: install {error.name}; {later}",))
    except PerfError as error:
        return Kept(lines=(f"history not stored: {' '.join(str(error).split())}; {later}",))


def _shown(run: Run) -> list[str]:
    """Return the variants whose history the report shows: of very many those that changed."""
    found = [variant.id for variant in run.variants]
    if len(found) <= MOST_SHOWN:
        return found
    return [each.variant for each in run.verdicts if each.word not in {Word.SAME, Word.NEW}]


def book_of(
    outcome: Outcome,
    packs: Sequence[Pack],
    *,
    history: Mapping[str, Series],
    is_new: bool = True,
) -> Book:
    """Read a run for reporting with what packs add to it; tell them of it if it is new."""
    run, listeners = outcome.run, Listeners(packs)
    if is_new:
        listeners.tell(run)
    sections = listeners.sections(run)
    return read(
        replace(run, notes=(*run.notes, *listeners.notes)),
        baselines=outcome.baselines,
        source=outcome.source,
        previous=outcome.previous,
        history=history,
        peaks=outcome.peaks,
        sections=sections,
    )


@dataclass(frozen=True, slots=True)
class Closing:
    """The last lines of the summary, whether all was done, and what writing the report took.

    ``annotations`` are commands to GitHub, where a workflow of it runs.
    """

    lines: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    is_done: bool = True
    report_s: float = 0.0


def close(outcome: Outcome, book: Book, options: Options, *, kept: Kept = NOTHING_KEPT) -> Closing:
    """Write the report, tell GitHub if it is there, and accept the run if that was asked for.

    A failure of any is a line: what was measured is still to be reported, item by item.
    """
    started = time.monotonic()
    written = _told(lambda: f"report: {short(write_report(book, options.report))}", "report: ")
    lines = [written, (f"run: {short(outcome.run_file)}", True)]
    lines += [(line, True) for line in kept.lines]
    found, told = tell_github(book, options.root)
    lines += told
    report_s = time.monotonic() - started
    if options.accept:
        lines.append(_told(lambda: _accept(outcome, options), "not accepted: "))
        if lines[-1][1] and not kept.lines:
            keep(outcome, options)  # with what was accepted just now
    else:
        lines += [(line, True) for line in _next(book)]
    return Closing(
        lines=tuple(line for line, _ in lines if line),
        annotations=found,
        is_done=all(is_done for _, is_done in lines),
        report_s=report_s,
    )


def tell_github(book: Book, root: Path) -> tuple[tuple[str, ...], list[tuple[str, bool]]]:
    """Append to the step's summary; return its annotations, and lines with whether all was done."""
    found: tuple[str, ...] = ()
    if os.environ.get("GITHUB_ACTIONS") == "true":
        workspace = Path(os.environ.get("GITHUB_WORKSPACE") or root)
        found = tuple(commands_of(book, here=Path.cwd(), workspace=workspace))
    step = os.environ.get("GITHUB_STEP_SUMMARY")
    return found, [_told(lambda: _tell_step(book, Path(step or "")), "")] if step else []


def _told(act: Callable[[], str], failed: str) -> tuple[str, bool]:
    """Return what an act has to say, or why it failed, and whether it was done."""
    try:
        return act(), True
    except PerfError as error:
        return f"{failed}{error}", False


def _tell_step(book: Book, path: Path) -> str:
    with refusing("cannot append to the step's summary", path, remedy="unset GITHUB_STEP_SUMMARY"):
        append_summary(book, path)
    return ""


def _accept(outcome: Outcome, options: Options) -> str:
    root, by = options.baselines[0], user_name()
    accepted = accept(outcome.run, root, reason=options.reason, by=by)
    places = sorted({short(path.parent) for path in accepted.written if path.parent.name != "runs"})
    return f"accepted: {accepted}{' in ' if places else ''}{', '.join(places)}"


def _next(book: Book) -> Iterator[str]:
    run = book.run
    words = {verdict.word for verdict in run.verdicts}
    if book.counts["disturbed"]:
        yield "next: end other work on this machine and measure again what was disturbed:"
        yield f"  {run.command}"
    if not words:
        return
    if Word.UNCLEAR in words and run.against is None:
        yield "next: to decide what is unclear, measure the revision before and this tree in turns:"
        yield f"  {run.command} --perf-against=REV"
    if book.counts["disturbed"]:  # such a run is not accepted whole
        return
    fails = any(subject.fails for subject in book.subjects)
    if words == {Word.NEW} and not fails:
        yield "next: run again to compare with this run, or accept it:"
    elif any(subject.mark.tone == "fail" for subject in book.subjects):
        yield "next: repair what fails; what is not right cannot be accepted"
        return
    elif fails:
        yield "next: repair what fails; only if it is meant to be so, accept these numbers:"
    else:
        yield "next: to accept these numbers for this SKU:"
    yield f'  perfsuite baseline accept {run.id} --reason "..."'


def short(path: Path) -> str:
    """Return a path as it is typed from here, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
