"""Starts a night; joins the runs of shards into one run, judges it as a whole and reports it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from perfsuite.boundary import UsageError
from perfsuite.judge.noise import ENDS
from perfsuite.judge.rule import needs_pairs
from perfsuite.model import Pack, Part, Run, Stage, VariantRun
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.run.config import EXIT_MACHINE
from perfsuite.run.expected import find_expected, joined
from perfsuite.run.project import (
    BaselinesOption,
    Packs,
    console,
    find_project,
    say,
    stored_run,
    with_baselines,
)
from perfsuite.run.run import Judging, Outcome
from perfsuite.stats import grouped
from perfsuite.store.baselines import Root
from perfsuite.store.files import refusing
from perfsuite.store.runs import RunFile, run_path, unfinished

# What all shards of a run share, in the words of who is told that they do not. A commit names the
# code unless the tree was changed: a digest of the code has a checkout's paths in it.
_ALIKE: Mapping[str, Callable[[Run], object]] = {
    "commits": lambda run: run.commit,
    "SKUs": lambda run: run.sku.slug,
    "facts of their SKU": lambda run: dict(run.sku.facts),
    "states of their devices": lambda run: dict(run.facts.state),
    "numbers of shards": lambda run: run.shard and run.shard.count,
    "tiers": lambda run: run.shard and run.shard.tier,
    "seeds": lambda run: run.settings.seed,
    "words of --perf-fail-on": lambda run: run.settings.asked["--perf-fail-on"],
    "values of perf_threshold": lambda run: run.settings.asked["perf_threshold"],
    "values of perf_gate": lambda run: run.settings.asked["perf_gate"],
    "ways to measure": lambda run: run.settings,
    "selections of variants": lambda run: run.shard and run.shard.whole,
    "uncommitted changes": lambda run: "" if run.commit and not run.is_dirty else run.code,
}

ANY_OPTION = {"ignore_unknown_options": True, "allow_extra_args": True}


def nightly(context: typer.Context) -> None:
    """Run one night: measure, report, and propose baselines.

    It checks the machine first, and goes on with a night that was stopped.

    Further options go to pytest, as in: perfsuite nightly -k softmax --perf-packs acme

    It is set up by these environment variables:

    PERF_OUT: the folder for reports and proposals (perf-night)

    PERF_TIER: smoke, nightly or full (nightly)

    PERF_TIME: how long it may take, as in 2h; later nights measure the rest

    PERF_SHARD: K/N, where several machines share a night

    PERF_DEVICE: auto, cuda or cpu (auto)

    PERF_DOCTOR: stop, or warn and measure on a busy machine as well (stop)

    PERF_NIGHTS: how many nights must agree before a moved level is proposed; 0 proposes nothing (5)

    PERFSUITE_HISTORY: the URL of the history, which may hold a password

    It ends with pytest's exit code. It ends with 20 on a busy machine, with 4 for a wrong setting,
    and with 21 if the machine cannot be checked or another night writes to PERF_OUT. A night that
    was stopped ends with 2: start it again, and it goes on.
    """
    script = Path(__file__).with_name("nightly.sh")
    with refusing("cannot start bash", script, remedy="install bash", kind=UsageError):
        # In place of this process: who stops it speaks to the script.
        os.environ["PYTHON"] = sys.executable
        os.execvp("bash", ["bash", str(script), *context.args])  # noqa: S606 - bash is the shell


def merged(runs: Sequence[Run]) -> Run:
    """Return the shards' measurements as one run that is not judged; ``UsageError`` if none is one.

    A missing or interrupted shard is told of in its notes, and ``gaps`` names it.
    """
    for run in runs:
        if run.shard is None:
            raise UsageError(f"run {run.id!r} is no shard", remedy="measure with --perf-shard=K/N")
        if run.against is not None:
            why = f"run {run.id!r} was measured beside {run.against}, each variant on one machine"
            raise UsageError(why, remedy="read the shards' own reports: perfsuite report RUN")
    runs = sorted(runs, key=lambda run: run.shard.index if run.shard else 0)
    _refuse_strangers(runs)
    ids = [run.id for run in runs]
    digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:8]
    canaries = grouped((one for run in runs for one in run.canaries), lambda one: one.id)
    whole = replace(
        runs[0],
        id=f"{max(ids)}-merged-{digest}",
        started=min(run.started for run in runs),
        command=f"perfsuite merge {' '.join(ids)}",
        variants=tuple(one for run in runs for one in run.variants),
        canaries=tuple(map(_on_all, canaries.values())),
        instances=tuple(claim for run in runs for claim in run.instances),
        claims=tuple(claim for run in runs for claim in run.claims),
        boards={unit: board for run in runs for unit, board in run.boards.items()},
        units={unit: name for run in runs for unit, name in run.units.items()},
        wall_s=max(run.wall_s for run in runs),
        phases_s={},
        forecasts=(),
        shard=None,
        parts=tuple(
            Part(
                run=run.id,
                shard=run.shard,
                facts=run.facts,
                units=run.units,
                wall_s=run.wall_s,
                is_whole=bool(run.finished),
            )
            for run in runs
            if run.shard
        ),
        finished="",
    )
    notes = [f"shard {run.shard}: {note}" for run in runs for note in run.notes]
    return replace(whole.having(verdicts=()), notes=(*whole.gaps, *_environments(runs), *notes))


def _on_all(ones: Sequence[VariantRun]) -> VariantRun:
    """Return a canary of all machines as one: it was one on all units."""
    ends = ([one.result(stage) for one in ones] for stage in ENDS)
    found = ([result for result in end if result] for end in ends)
    return replace(ones[0], results=tuple(joined(end) for end in found if end))


def conclude(
    run: Run, *, folder: Path, roots: Sequence[Root], exceptions: Exceptions, packs: Sequence[Pack]
) -> Outcome:
    """Judge a merged run and store it; a change that no shard confirmed is unclear."""
    path = run_path(folder, run.id)
    if path in unfinished(folder):  # by a merge that was stopped: nobody can go on with it
        path.unlink()
    if path.exists():
        raise UsageError(
            "these runs were merged before", where=run.id, remedy=f"perfsuite report {run.id}"
        )
    basis = find_expected(roots, folder, run=run, packs=packs)
    judging, run = Judging(basis, exceptions=exceptions), basis.hold(run)
    verdicts = judging.stage(run, Stage.SCREEN)
    again = {result.variant for result in run.results if result.stage is Stage.CONFIRM}
    runs = {one.id: one for one in run.variants}
    for name, verdict in list(verdicts.items()):
        if name in again:
            del verdicts[name]
        elif needs_pairs(verdict) and not judging.settled(verdict, runs[name], run).word.stayed:
            verdicts[name] = judging.unconfirmed(verdict, run, "its shard saw no need to")
    verdicts |= judging.stage(run, Stage.CONFIRM)
    judged = judging.whole(run, verdicts, run.claims)
    with RunFile.create(folder, judged) as file:
        for result in (*judged.results, *judged.aside):
            file.append(result)
        for trace in judged.traces:
            file.append_trace(trace)
        return Outcome(file.finish(judged), path, basis)


def _refuse_strangers(runs: Sequence[Run]) -> None:
    """Refuse runs that are no shards of one whole."""
    first = runs[0]
    for words, fact in _ALIKE.items():
        for run in runs:
            if fact(run) != fact(first):
                raise UsageError(
                    f"shards {first.shard} and {run.shard} have different {words}: "
                    f"{str(fact(first)) or 'none'} and {str(fact(run)) or 'none'}",
                    where=f"runs {first.id} and {run.id}",
                    remedy="measure all shards at one commit, on one SKU, with the same options",
                )
    owners: dict[str, Run] = {}
    for run in runs:
        for variant in run.variants:
            other = owners.setdefault(variant.id, run)
            if other is not run:
                raise UsageError(
                    f"{variant.id!r} is in two runs, of shards {other.shard} and {run.shard}",
                    where=f"runs {other.id} and {run.id}",
                    remedy="name one run of each shard",
                )


def _environments(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what of the software differs between shards."""
    for name in sorted({name for run in runs for name in run.facts.environment}):
        values = [(run.facts.environment.get(name, "none"), str(run.shard)) for run in runs]
        shards = grouped(values, lambda one: one[0])
        if len(shards) > 1:
            told = (
                f"{value} (shard {', '.join(s for _, s in some)})" for value, some in shards.items()
            )
            yield f"environment differs between shards: {name} is {', '.join(told)}"


def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="One run file or id a shard")],
    *,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Of the report")] = Path("reports"),
    baselines: BaselinesOption = None,
    only: Packs = None,
) -> None:
    """Join the runs of --perf-shard into one, judge and report it.

    Exit code 1 if it fails. What the shards stored in the history is not stored again.
    """
    from perfsuite.report.terminal import summary
    from perfsuite.run.finish import run_view_of, tell_github, write

    project = with_baselines(find_project(only), baselines)
    whole = merged([stored_run(project, name) for name in runs])
    project = project.chosen()
    roots, packs = project.baseline_roots, project.packs
    rules = Exceptions.load(roots, datetime.now(UTC).date())
    outcome = conclude(whole, folder=project.folder, roots=roots, exceptions=rules, packs=packs)
    steps = outcome.steps
    run_view = run_view_of(outcome, project)
    lines = [*write(run_view, folder, steps), f"run: {outcome.run_file}"]
    annotations = tell_github(run_view, project.root, steps)
    for line in (*summary(run_view), *lines, *steps.notes):
        say(line)
    for line in annotations:  # which GitHub's runner is to obey
        console().print(line, soft_wrap=True)
    for text in steps.tracebacks:
        say(text)
    is_machine = run_view.is_environment and steps.are_done
    raise typer.Exit(EXIT_MACHINE if is_machine else int(run_view.fails or not steps.are_done))
