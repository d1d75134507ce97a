"""Merges the runs of several machines into one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from msgspec.structs import replace

from perfsuite.boundary import UsageError
from perfsuite.cli import (
    Baselines_commands,
    Packs,
    console,
    find_project,
    known_history,
    say,
)
from perfsuite.judge.compare import Policy
from perfsuite.judge.verdict import wants_confirmation
from perfsuite.model import Pack, Part, Result, Run, Stage, Tier, Verdict
from perfsuite.run.against import Arms
from perfsuite.run.config import EXIT_MACHINE
from perfsuite.run.expected import find_yardstick
from perfsuite.run.run import Judging, Outcome, joined
from perfsuite.store.baselines import Root
from perfsuite.store.exceptions import Exceptions
from perfsuite.store.runs import RunFile, run_path

# Joins the runs of shards into one run, and judges it as a whole.


T = TypeVar("T")

# What all shards of a run share, in the words of who is told that they do not.
_ALIKE: Mapping[str, Callable[[Run], object]] = {
    "commits": lambda run: run.commit,
    "SKUs": lambda run: run.sku.slug,
    "facts of their SKU": lambda run: dict(run.sku.facts),
    "states of their devices": lambda run: dict(run.facts.state),
    "numbers of shards": lambda run: run.shard and run.shard.count,
    "tiers": lambda run: run.shard and run.shard.tier,
    "seeds": lambda run: run.settings.seed,
    "ways to measure": lambda run: run.settings,
    "selections of variants": lambda run: run.shard and run.shard.whole,
}
ONE_COMMIT = "measure all shards at one commit, on one SKU, with the same options"


def merged(runs: Sequence[Run]) -> Run:
    """Return the shards' measurements as one run that is not judged; ``UsageError`` if none is one.

    A missing or interrupted shard is told of in its notes, and ``gaps`` names it.
    """
    for run in runs:
        _refuse(run)
    ordered = sorted(runs, key=lambda run: run.shard.index if run.shard else 0)
    _refuse_different(ordered)
    _refuse_overlap(ordered)
    first, ids = ordered[0], [run.id for run in ordered]
    digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:8]
    whole = replace(
        first,
        id=f"{max(ids)}-merged-{digest}",
        started=min(run.started for run in ordered),
        command=f"perfsuite merge {' '.join(ids)}",
        variants=_all(run.variants for run in ordered),
        instances=_all(run.instances for run in ordered),
        canaries=tuple({v.id: v for run in ordered for v in run.canaries}.values()),
        results=tuple(_results(ordered)),
        aside=_all(run.aside for run in ordered),
        traces=_all(run.traces for run in ordered),
        verdicts=(),
        claims=_all(run.claims for run in ordered),
        left_out=_all(run.left_out for run in ordered),
        units={unit: name for run in ordered for unit, name in run.units.items()},
        wall_s=max(run.wall_s for run in ordered),
        phases_s={},
        shift=None,
        shard=None,
        parts=tuple(map(_part, ordered)),
        finished="",
    )
    return replace(whole, notes=(*whole.gaps, *_environments(ordered), *_notes(ordered)))


def conclude(
    run: Run,
    *,
    folder: Path,
    roots: Sequence[Root],
    exceptions: Exceptions,
    packs: Sequence[Pack],
) -> Outcome:
    """Judge a merged run and store it; a change that no shard confirmed is unclear."""
    if run_path(folder, run.id).exists():
        raise UsageError(
            "these runs were merged before", where=run.id, remedy=f"perfsuite report {run.id}"
        )
    # Its own shards may lie in the folder: they are no yardstick for themselves.
    early = replace(run, id=min(part.run for part in run.parts))
    yardstick = find_yardstick(roots, folder, run=early, packs=packs)
    judging = Judging(yardstick, Policy(), Arms(), exceptions)
    judged = judging.whole(run, _verdicts(run, judging), run.claims)
    with RunFile.create(folder, judged) as file:
        for result in (*judged.results, *judged.aside):
            file.append(result)
        for trace in judged.traces:
            file.append_trace(trace)
        judged = file.finish(judged)
        path = file.path
    found = (yardstick.entries, yardstick.source, yardstick.previous, yardstick.commits)
    return Outcome(judged, path, *found, peaks=yardstick.reached)


def _verdicts(run: Run, judging: Judging) -> dict[str, Verdict]:
    screened = {verdict.variant: verdict for verdict in judging.stage(run, Stage.SCREEN)}
    confirmed = {verdict.variant: verdict for verdict in judging.stage(run, Stage.CONFIRM)}
    again = {result.variant for result in run.results if result.stage is Stage.CONFIRM}
    why = "its shard saw no need to"
    alone = {
        name: judging.unconfirmed(each, why) if wants_confirmation(each) else each
        for name, each in screened.items()
        if name not in again
    }
    return alone | confirmed


def _refuse(run: Run) -> None:
    if run.shard is None:
        raise UsageError(
            f"run {run.id!r} is no shard", remedy="measure shares of a run with --perf-shard=K/N"
        )
    if run.against is not None:
        raise UsageError(
            f"run {run.id!r} compares two revisions, each variant on one machine",
            remedy="read the shards' own reports: perfsuite report RUN",
        )


def _refuse_different(runs: Sequence[Run]) -> None:
    for words, fact in _ALIKE.items():
        _refuse_unlike(runs, words, fact)
    # A commit names the code, unless the tree was changed; a digest has a checkout's paths in it.
    if not runs[0].commit or runs[0].commit.endswith("-dirty"):
        _refuse_unlike(runs, "uncommitted changes", lambda run: run.code)


def _refuse_unlike(runs: Sequence[Run], words: str, fact: Callable[[Run], object]) -> None:
    first = runs[0]
    for run in runs:
        if fact(run) != fact(first):
            raise UsageError(
                f"shards {first.shard} and {run.shard} have different {words}: "
                f"{str(fact(first)) or 'none'} and {str(fact(run)) or 'none'}",
                where=f"runs {first.id} and {run.id}",
                remedy=ONE_COMMIT,
            )


def _refuse_overlap(runs: Iterable[Run]) -> None:
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


def _all(rows: Iterable[Iterable[T]]) -> tuple[T, ...]:
    return tuple(chain.from_iterable(rows))


def _results(runs: Sequence[Run]) -> Iterator[Result]:
    """Yield the results, those of a canary on all machines as one: it was one on all units."""
    canaries: dict[tuple[str, Stage], list[Result]] = {}
    for result in (result for run in runs for result in run.results):
        if result.stage.is_canary:
            canaries.setdefault((result.variant, result.stage), []).append(result)
    for (_, stage), some in canaries.items():
        if stage is Stage.CANARY_START:
            yield joined(some)
    for run in runs:
        yield from run.asked
    for (_, stage), some in canaries.items():
        if stage is Stage.CANARY_END:
            yield joined(some)


def _part(run: Run) -> Part:
    assert run.shard is not None  # noqa: S101 - refused before
    return Part(
        run=run.id,
        shard=run.shard,
        facts=run.facts,
        units=run.units,
        wall_s=run.wall_s,
        is_whole=bool(run.finished),
    )


def _environments(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what of the software differs between shards."""
    names = {name for run in runs for name in run.facts.environment}
    for name in sorted(names):
        shards: dict[str, list[str]] = {}
        for run in runs:
            shards.setdefault(run.facts.environment.get(name, "none"), []).append(str(run.shard))
        if len(shards) > 1:
            told = (f"{value} (shard {', '.join(some)})" for value, some in shards.items())
            yield f"environment differs between shards: {name} is {', '.join(told)}"


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        yield from (f"shard {run.shard}: {note}" for note in run.notes)


# The command that joins the runs of shards.


def merge(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="One run file or id a shard")],
    *,
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Of the report")] = Path("reports"),
    baselines: Baselines_commands = None,
    pack: Packs = None,
) -> None:
    """Join the runs of --perf-shard into one, judge and report it; exit code 1 if it fails.

    What the shards stored in the history is not stored again.
    """
    from perfsuite.report.terminal import summary
    from perfsuite.run.finish import book_of, tell_github, write
    from perfsuite.store.exceptions import Exceptions

    project = find_project()
    whole = merged([project.load_run(name) for name in runs])
    roots = project.baseline_roots(baselines, pack)
    exceptions = Exceptions.load(roots, datetime.now(UTC).date())
    packs = project.packs(pack, Tier.SMOKE)
    outcome = conclude(
        whole,
        folder=project.folder,
        roots=roots,
        exceptions=exceptions,
        packs=packs,
    )
    known = known_history(project, outcome.run)
    steps, book = outcome.steps, book_of(outcome, packs, history=known)
    lines = [*write(book, folder, steps), f"run: {outcome.run_file}"]
    annotations = tell_github(book, project.root, steps)
    lines += steps.notes
    for line in (*summary(book), *lines):
        say(line)
    for line in annotations:  # which GitHub's runner is to obey
        console().print(line, soft_wrap=True)
    for text in steps.tracebacks:
        say(text)
    is_machine = book.has_shifted and not book.is_broken
    raise typer.Exit(EXIT_MACHINE if is_machine else int(book.is_broken or not steps.are_done))
