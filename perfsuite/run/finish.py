"""After the last measurement: write the report, say what to do next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfsuite.boundary import from_environment
from perfsuite.hooks import features
from perfsuite.model import Run, Section, Side
from perfsuite.packs.load import Listeners
from perfsuite.report.data import RunView, read
from perfsuite.report.files import PAGE, VERDICT, append_summary, commands_of, files, write_report
from perfsuite.report.groups import Step, advice
from perfsuite.run.config import Config
from perfsuite.run.expected import Basis, beside, source_of
from perfsuite.run.run import Outcome, Steps, entries_in
from perfsuite.store.files import refusing


def run_view_of(outcome: Outcome, config: Config, *, is_new: bool = False) -> RunView:
    """Read a run for reporting, with what a feature knows of its past, and what packs add to it.

    A new run is kept first, and packs are told of it.
    """
    steps = outcome.steps if is_new else None
    past = features().hook.perf_past(run=outcome.run, config=config, steps=steps)
    history, damaged = past or ({}, ())

    def told() -> tuple[tuple[Section, ...], list[str]]:
        listeners = Listeners(config.packs)
        if is_new:
            listeners.tell(outcome.run)
        return listeners.sections(outcome.run), listeners.notes

    nothing: tuple[tuple[Section, ...], list[str]] = (), []
    sections, notes = outcome.steps.take("packs were not asked for sections", told, nothing)
    for note in notes:
        outcome.steps.add("a pack's hook failed", note)
    run = replace(outcome.run, notes=(*outcome.run.notes, *damaged, *notes))
    return _run_view(run, outcome.basis, history, sections)


def _run_view(
    run: Run, basis: Basis, history: Mapping[str, Any], sections: tuple[Section, ...] = ()
) -> RunView:
    held, previous = beside(run), basis.previous
    if run.against and any(one.expected.in_turns for one in held.variants):
        ended = filter(None, (one.ended(Side.A) for one in run.variants))
        of_a = [replace(result, side=Side.B) for result in ended]
        previous = replace(run.having(results=of_a), commit=run.against.commit)
    return read(
        held,
        baselines=entries_in(held),
        source=source_of(held),
        previous=previous,
        history=history,
        peaks=basis.reached,
        sections=sections,
    )


@dataclass(frozen=True, slots=True)
class Closing:
    """A run as it is reported, if it can be, the last lines of the summary.

    ``annotations`` are commands to GitHub, where a workflow of it runs.
    """

    run_view: RunView | None
    lines: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


def close(outcome: Outcome, config: Config) -> Closing:
    """Report the run, tell GitHub if it is there, and say what to do next.

    Each is a step of ``outcome.steps``. The verdicts are on disk before a pack's hook is called,
    which may never return.
    """
    steps, run, basis, folder = outcome.steps, outcome.run, outcome.basis, config.report
    run_view = steps.take("report not made", lambda: _run_view(run, basis, {}), None)
    if run_view is not None:
        write(run_view, folder, steps, [VERDICT])
    whole = partial(run_view_of, outcome, config, is_new=True)
    run_view = steps.take("report without history and sections", whole, run_view)
    lines = write(run_view, folder, steps) if run_view else []
    lines.append(f"run: {short(outcome.run_file)}")
    found = tell_github(run_view, config.root, steps) if run_view else ()
    if run_view:
        none: list[Step] = []
        advised = steps.take("advice left out", lambda: list(advice(run_view)), none)
        for text, command, _ in advised:
            lines += [f"next: {text}:", f"  {command}"]
    return Closing(run_view, tuple(lines), found)


def write(run_view: RunView, folder: Path, steps: Steps, names: Sequence[str] = ()) -> list[str]:
    """Write files of a report, each a step of its own; return a line that says where it is."""
    lines = []
    for name in names or files():
        written = partial(write_report, run_view, folder, name)
        page = steps.take(f"{name} not written", written, None)
        lines += [f"report: {short(page)}"] if page and name == PAGE else []
    return lines


def tell_github(run_view: RunView, root: Path, steps: Steps) -> tuple[str, ...]:
    """Append to the step's summary; return its annotations."""

    def commands() -> tuple[str, ...]:
        workspace = Path(from_environment("GITHUB_WORKSPACE") or root)
        return tuple(commands_of(run_view, here=Path.cwd(), workspace=workspace))

    def tell(path: Path) -> None:
        remedy = "unset GITHUB_STEP_SUMMARY"
        with refusing("cannot append to the step's summary", path, remedy=remedy):
            append_summary(run_view, path)

    if step := from_environment("GITHUB_STEP_SUMMARY"):
        steps.take("no summary of the step", lambda: tell(Path(step)), None)
    is_there = from_environment("GITHUB_ACTIONS") == "true"
    return steps.take("no annotations", commands, ()) if is_there else ()


def short(path: Path) -> str:
    """Return a path as it is typed from here, if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # somebody removed the folder that this process is in
        return str(path)
    return relative if len(relative) < len(str(path)) else str(path)
