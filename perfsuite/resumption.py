"""Opens the run file of a new run, or goes on with the one that was interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.digest import code_digest
from perfsuite.errors import StoreError, UsageError
from perfsuite.model import BaselineEntry, DeviceFacts, Revision, Run, Sampling, Variant
from perfsuite.repository import git_commit
from perfsuite.requested import Request
from perfsuite.runs import RunFile, list_runs, load_run, next_run_id, run_path, unfinished
from perfsuite.sku import sku_of

_OTHER_CODE = "run {!r} was measured with other code: {}, and now it is {}"


def new_run(
    request: Request, facts: DeviceFacts, canaries: tuple[Variant, ...], *, against: Revision | None
) -> Run:
    """Return what a request makes on a device that was just opened, with nothing measured yet."""
    now = datetime.now(UTC)
    project = request.against.project if request.against else request.root
    return Run(
        id=next_run_id(request.folder, now),
        started=now.isoformat(timespec="seconds"),
        command=request.command,
        sku=sku_of(facts),
        facts=facts,
        settings=request.settings,
        variants=request.variants,
        instances=request.claims,
        commit=git_commit(request.root),
        code=code_digest(project, request.packs),
        against=against,
        canaries=() if against else canaries,  # in their minutes the machine is the same to both
        shard=request.shard,
    )


def interrupted_run(request: Request) -> Run | None:
    """Return the newest interrupted run, if it is to go on; UsageError if it must and is not there.

    Where it need not, it goes on only if nothing was run since, and if as much was asked for.
    """
    if not (request.resume or request.resume_if_any):
        return None
    found = unfinished(request.folder)[:1]
    if request.resume:
        if found:
            return load_run(found[0])
        raise UsageError(
            "no interrupted run to resume",
            where=str(request.folder),
            remedy="start a new run without --perf-resume",
        )
    try:
        run = load_run(found[0]) if found and found == list_runs(request.folder)[:1] else None
    except StoreError:  # damaged: there is nothing to go on with
        return None
    ids = {variant.id for variant in request.variants}
    is_same = run and run.settings == request.settings and {v.id for v in run.variants} == ids
    return run if is_same else None


def refusal(run: Run, interrupted: Run) -> tuple[str, str]:
    """Return why an interrupted run cannot go on as ``run``, and what to do; nothing if it can."""
    if (interrupted.sku.slug, interrupted.facts.unit) != (run.sku.slug, run.facts.unit):
        return (
            f"run {interrupted.id!r} was measured on another unit of {interrupted.sku.slug!r}",
            "resume it there, or start a new run without --perf-resume",
        )
    if interrupted.against != run.against:
        told = [each.against or "baselines" for each in (interrupted, run)]
        return (
            f"run {interrupted.id!r} was compared with {told[0]}, this one would be with {told[1]}",
            "resume it with the same --perf-against, or start a new run",
        )
    if interrupted.code != run.code:
        return (
            _OTHER_CODE.format(interrupted.id, _code_of(interrupted), _code_of(run)),
            "bring that code back, or start a new run without --perf-resume",
        )
    strangers = sorted({v.id for v in run.variants} - {v.id for v in interrupted.variants})
    if strangers:
        return (
            f"run {interrupted.id!r} was not asked for {strangers[0]!r}",
            "resume it with the selection it was started with, or start a new run",
        )
    return "", ""


def open_run_file(folder: Path, run: Run, interrupted: Run | None) -> RunFile:
    """Create the file of ``run``, or open that of the interrupted run on the same unit."""
    if interrupted is None:
        return RunFile.create(folder, run)
    what, remedy = refusal(run, interrupted)
    if what:
        raise UsageError(what, where=str(folder), remedy=remedy)
    return RunFile.resume(run_path(folder, interrupted.id))


def spent_s(run: Run, devices: int) -> float:
    """Return how long an interrupted run's measuring took on so many devices."""
    return sum(result.wall_s for result in (*run.results, *run.aside)) / devices


def _code_of(run: Run) -> str:
    return f"commit {run.commit or 'unknown'} (code {run.code})"


def samplings_of(entries: Mapping[str, BaselineEntry], run: Run) -> dict[str, Sampling]:
    """Return how variants were sampled in the baseline, else earlier in this run."""
    found = {
        result.variant: result.evidence[0].sampling for result in run.results if result.evidence
    }
    found |= {name: entry.sampling for name, entry in entries.items() if entry.sampling}
    return {name: sampling for name, sampling in found.items() if sampling}
