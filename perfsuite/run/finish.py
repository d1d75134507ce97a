"""After the last measurement: write the report, accept the numbers, say what to do next."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from perfsuite.boundary import from_environment, user_name
from perfsuite.history.store import moves_of
from perfsuite.model import Pack, Run, Section, Series, Word
from perfsuite.packs.load import Listeners
from perfsuite.report.data import RunView, read
from perfsuite.report.html import FILES, PAGE, VERDICT, write_report
from perfsuite.report.text import append_summary, commands_of
from perfsuite.run.accept import accept
from perfsuite.run.config import Options
from perfsuite.run.run import Outcome, Steps
from perfsuite.store.files import refusing

# A report of more variants tells those in short that need no reader.
MOST_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """What the history says of a run's variants, and what of it was damaged."""

    series: Mapping[str, Series] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def keep(outcome: Outcome, options: Options) -> Kept:
    """Store the run and what it is compared with in the history; read its variants' there."""
    run, steps = outcome.run, outcome.steps

    def kept() -> Kept:
        from perfsuite.history.store import History, recent, stored_of, url_of

        url = url_of(options.root, options.history)
        if not url or run.settings.check_only:
            return Kept()
        with History(url, options.root) as history:
            history.add(stored_of(run))
            history.add_moves(moves_of(run, options.baselines))
            nothing: Mapping[str, Series] = {}
            found = partial(recent, history, run, _shown(run))
            return Kept(steps.take("history not shown", found, nothing), history.notes)

    later = f"perfsuite history import {run.id} later"
    return steps.take("history not stored", kept, Kept(), remedy=later)


def _shown(run: Run) -> list[str]:
    """Return the variants whose history the report shows: of very many those that changed."""
    found = [variant.id for variant in run.variants]
    if len(found) <= MOST_SHOWN:
        return found
    return [each.variant for each in run.verdicts if each.word not in {Word.SAME, Word.NEW}]


def book_of(
    outcome: Outcome, packs: Sequence[Pack], *, history: Mapping[str, Series], is_new: bool = False
) -> RunView:
    """Read a run for reporting with what packs add to it; tell them of it if it is new."""

    def told() -> tuple[tuple[Section, ...], list[str]]:
        listeners = Listeners(packs)
        if is_new:
            listeners.tell(outcome.run)
        return listeners.sections(outcome.run), listeners.notes

    nothing: tuple[tuple[Section, ...], list[str]] = (), []
    sections, notes = outcome.steps.take("packs were not asked for sections", told, nothing)
    for note in notes:
        outcome.steps.add("a pack's hook failed", note)
    run = replace(outcome.run, notes=(*outcome.run.notes, *notes))
    return _book(replace(outcome, run=run), history, sections)


def _book(
    outcome: Outcome, history: Mapping[str, Series], sections: tuple[Section, ...] = ()
) -> RunView:
    return read(
        outcome.run,
        baselines=outcome.baselines,
        source=outcome.source,
        previous=outcome.previous,
        history=history,
        peaks=outcome.peaks,
        sections=sections,
    )


@dataclass(frozen=True, slots=True)
class Closing:
    """A run as it is reported, if it can be, the last lines of the summary, what writing took.

    ``annotations`` are commands to GitHub, where a workflow of it runs.
    """

    book: RunView | None
    lines: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    report_s: float = 0.0


def close(outcome: Outcome, packs: Sequence[Pack], options: Options) -> Closing:
    """Report the run, tell GitHub if it is there, and accept the run if that was asked for.

    Each is a step of ``outcome.steps``. The verdicts are on disk before a pack's hook is called,
    which may never return.
    """
    steps, started = outcome.steps, time.monotonic()
    folder, book = options.report, steps.take("report not made", lambda: _book(outcome, {}), None)
    if book is not None:
        write(book, folder, steps, [VERDICT])
    kept = keep(outcome, options)
    if book is not None:
        whole = partial(book_of, outcome, packs, history=kept.series, is_new=True)
        book = steps.take("report without history and sections", whole, book)
    lines = write(book, folder, steps) if book else []
    lines += [f"run: {short(outcome.run_file)}", *(f"note: {note}" for note in kept.notes)]
    found = tell_github(book, options.root, steps) if book else ()
    report_s = time.monotonic() - started
    if options.accept:
        if accepted := steps.take("not accepted", lambda: _accept(outcome, options), ""):
            lines.append(accepted)
            keep(outcome, options)  # with what was accepted just now
    elif book:
        lines += steps.take("advice left out", lambda: list(_next(book)), [])
    return Closing(book, tuple(lines), found, report_s)


def write(
    book: RunView, folder: Path, steps: Steps, names: Sequence[str] = tuple(FILES)
) -> list[str]:
    """Write files of a report, each a step of its own; return a line that says where it is."""
    lines = []
    for name in names:
        written = partial(write_report, book, folder, name)
        page = steps.take(f"{name} not written", written, None)
        lines += [f"report: {short(page)}"] if page and name == PAGE else []
    return lines


def tell_github(book: RunView, root: Path, steps: Steps) -> tuple[str, ...]:
    """Append to the step's summary; return its annotations."""

    def commands() -> tuple[str, ...]:
        workspace = Path(from_environment("GITHUB_WORKSPACE") or root)
        return tuple(commands_of(book, here=Path.cwd(), workspace=workspace))

    def tell(path: Path) -> None:
        remedy = "unset GITHUB_STEP_SUMMARY"
        with refusing("cannot append to the step's summary", path, remedy=remedy):
            append_summary(book, path)

    if step := from_environment("GITHUB_STEP_SUMMARY"):
        steps.take("no summary of the step", lambda: tell(Path(step)), None)
    is_there = from_environment("GITHUB_ACTIONS") == "true"
    return steps.take("no annotations", commands, ()) if is_there else ()


def _accept(outcome: Outcome, options: Options) -> str:
    root = options.baselines[0]
    accepted = accept(outcome.run, root, reason=options.reason, by=user_name())
    places = sorted({short(path.parent) for path in accepted.written if path.parent.name != "runs"})
    return f"accepted: {accepted}{' in ' if places else ''}{', '.join(places)}"


def _next(book: RunView) -> Iterator[str]:
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
    fails = any(subject.fails for subject in book.variants)
    if words == {Word.NEW} and not fails:
        yield "next: run again to compare with this run, or accept it:"
    elif any(subject.mark.tone == "fail" for subject in book.variants):
        yield "next: repair what fails; what is not right cannot be accepted"
        return
    elif fails:
        yield "next: repair what fails; only if it is meant to be so, accept these numbers:"
    else:
        yield "next: to accept these numbers for this SKU:"
    yield f'  perfsuite baseline accept {run.id} --reason "..."'


def short(path: Path) -> str:
    """Return a path as it is typed from here, if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # somebody removed the folder that this process is in
        return str(path)
    return relative if len(relative) < len(str(path)) else str(path)
