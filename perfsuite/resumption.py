"""Opens the run file of a new run, or goes on with the one that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfsuite.errors import UsageError
from perfsuite.model import BaselineEntry, Run, Sampling
from perfsuite.runs import RunFile, load_run, run_path, unfinished


def interrupted_run(folder: Path) -> Run:
    """Return the newest interrupted run in ``.perfsuite``; raises UsageError if there is none."""
    for path in unfinished(folder):
        return load_run(path)
    raise UsageError(
        "no interrupted run to resume",
        where=str(folder),
        remedy="start a new run without --perf-resume",
    )


def open_run_file(folder: Path, run: Run, interrupted: Run | None) -> RunFile:
    """Create the file of ``run``, or open that of the interrupted run on the same unit."""
    if interrupted is None:
        return RunFile.create(folder, run)
    if (interrupted.sku.slug, interrupted.facts.unit) != (run.sku.slug, run.facts.unit):
        raise UsageError(
            f"run {interrupted.id!r} was measured on another unit of {interrupted.sku.slug!r}",
            where=str(folder),
            remedy="resume it there, or start a new run without --perf-resume",
        )
    if interrupted.against != run.against:
        raise UsageError(
            f"run {interrupted.id!r} was compared with {interrupted.against or 'no revision'}, "
            f"not with {run.against or 'none'}",
            where=str(folder),
            remedy="resume it with the same --perf-against, or start a new run",
        )
    # Files of before the digest have none.
    if interrupted.code and interrupted.code != run.code:
        raise UsageError(
            f"run {interrupted.id!r} was measured with other code: {_code_of(interrupted)}, "
            f"and now it is {_code_of(run)}",
            where=str(folder),
            remedy="bring that code back, or start a new run without --perf-resume",
        )
    strangers = sorted({v.id for v in run.variants} - {v.id for v in interrupted.variants})
    if strangers:
        raise UsageError(
            f"run {interrupted.id!r} was not asked for {strangers[0]!r}",
            where=str(folder),
            remedy="resume it with the selection it was started with, or start a new run",
        )
    return RunFile.resume(run_path(folder, interrupted.id))


def _code_of(run: Run) -> str:
    return f"commit {run.commit or 'unknown'} (code {run.code})"


def samplings_of(entries: Mapping[str, BaselineEntry], run: Run) -> dict[str, Sampling]:
    """Return how variants were sampled in the baseline, else earlier in this run."""
    found = {
        result.variant: result.evidence[0].sampling for result in run.results if result.evidence
    }
    found |= {name: entry.sampling for name, entry in entries.items() if entry.sampling}
    return {name: sampling for name, sampling in found.items() if sampling}
