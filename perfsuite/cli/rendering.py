"""Renders stored runs: one as its report, several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfsuite.cli.project import Project
from perfsuite.cli.store import known_history
from perfsuite.closing import book_of
from perfsuite.model import Tier
from perfsuite.report import write_beside, write_report
from perfsuite.runner import Outcome
from perfsuite.yardstick import find_yardstick


def rendered(project: Project, names: Sequence[str], folder: Path, baselines: Path | None) -> Path:
    """Write the page of the runs named and return it; ``UsageError`` if one is not there."""
    run, *others = [project.load_run(name) for name in names]
    if others:
        return write_beside((run, *others), folder)
    roots = project.baseline_roots(baselines)
    packs = project.packs(None, Tier.SMOKE)
    found = find_yardstick(roots, project.folder, run=run, packs=packs).beside(run)
    # Baselines may have been accepted since: what a run was compared with, its verdicts know.
    told = {verdict.source for verdict in run.verdicts if verdict.source}
    source = told.pop() if len(told) == 1 else found.source
    entries, peaks = found.entries, found.reached
    outcome = Outcome(run, project.folder, entries, source, found.previous, peaks=peaks)
    book = book_of(outcome, packs, history=known_history(project, run))
    return write_report(book, folder)
