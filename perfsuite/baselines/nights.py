"""Tells which runs are nights that a baseline may be moved by, and why the others are none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfsuite.baselines.exceptions import Exceptions
from perfsuite.baselines.merge import other_kind, pooled_entry
from perfsuite.judge import IN_TURNS, Against, judge_machine
from perfsuite.model import BaselineEntry, Result, Run, Sku, Stage, Status, Variant, Verdict, Word
from perfsuite.runs import entries_of
from perfsuite.sku import blocked_by, fingerprint_differs, sku_for

# What a verdict with these words says is no level: the evidence did not decide, it is of another
# kind, or an author's limit is exceeded, which a new baseline would not repair.
NO_LEVEL = (Word.UNCLEAR, Word.INCOMPARABLE, Word.OVER_BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What the runs of one date say of a variant; ``verdict`` is the last one's."""

    date: str
    runs: tuple[Run, ...]
    variant: Variant
    entry: BaselineEntry
    verdict: Verdict

    @property
    def is_improvement(self) -> bool:
        """Say whether a faster level was confirmed, which needs no second night."""
        exact = any(change.theta < 0 and not change.degrees for change in self.verdict.changes)
        return self.verdict.word is Word.FASTER and (bool(self.verdict.confirmation) or exact)


def broken(run: Run, against: Against, entries: Mapping[str, BaselineEntry]) -> str:
    """Say why nothing of a run counts; nothing where it is a whole and quiet night.

    What was measured with changes that are in no commit cannot be measured again by anybody.
    """
    simple = {
        "it was interrupted": not run.finished,
        "it only checked": run.settings.check_only,
        f"it was a comparison with {run.against}": run.against is not None,
        f"its code is in no commit ({run.commit})": "dirty" in run.commit,
        f"machine-shift: {run.shift.reason if run.shift else ''}": run.shift is not None,
    }
    if found := next((why for why, is_so in simple.items() if is_so), ""):
        return found
    failed = [r for r in run.results if r.stage.is_canary and r.status not in _FINE]
    if failed:
        return f"canary {failed[0].variant} {failed[0].status}"
    return "; ".join(judge_machine(run, (), entries=entries, against=against).notes)


_FINE = (Status.OK, Status.SKIPPED)


def held_by_others(runs: Iterable[Run]) -> dict[str, str]:
    """Say which runs hold nothing of their own: shards whose merged run is among them as well.

    Of merged runs that share a shard the one of most shards counts.
    """
    found: dict[str, str] = {}
    wholes = sorted((run for run in runs if run.parts), key=lambda run: (len(run.parts), run.id))
    for run in reversed(wholes):
        parts = [part.run for part in run.parts]
        if shared := next((part for part in parts if part in found), ""):
            found[run.id] = f"of its shards {shared} counts already: {found[shared]}"
        else:
            found |= dict.fromkeys(parts, f"it is part of {run.id}")
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """What one whole run has to say: entries by variant, and why others have none."""

    run: Run
    entries: Mapping[str, BaselineEntry]
    left_out: Mapping[str, str]


def told_by(run: Run, exceptions: Exceptions, skus: Mapping[str, Mapping[str, str]]) -> Told:
    """Return what of a run counts; ``skus`` has the facts of each slug that has baselines."""
    variants = {variant.id: variant for variant in run.variants}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    away = exceptions.quarantined(run)
    left_out: dict[str, str] = {}
    asked = [result for result in run.asked if result.status is not Status.SKIPPED]
    for name in dict.fromkeys(result.variant for result in asked if result.variant in variants):
        sku = sku_for(variants[name], run.facts, own=run.sku)
        why = fingerprint_differs(sku, skus.get(sku.slug, {})) or _failure(name, asked)
        verdict = verdicts.get(name)
        if name in away:
            why = str(away[name].excepted)
        why = why or _no_level(verdict, asked)
        if why:
            left_out[name] = why
    entries = entries_of(replace(run, results=tuple(_evidence(asked))))
    kept = {name: e for name, e in entries.items() if name in variants and name not in left_out}
    return Told(run, kept, left_out)


def _no_level(verdict: Verdict | None, asked: Iterable[Result]) -> str:
    """Say why what was measured of a variant tells no level, or nothing."""
    if verdict is None:
        return "it was not judged"
    if verdict.word in NO_LEVEL:
        return f"{verdict.word}: {verdict.reason}"
    fresh = {result.variant for result in asked if result.stage is Stage.CONFIRM}
    if verdict.confirmation == IN_TURNS and verdict.variant not in fresh:
        return "decided in turns: its screen was chosen for its time"
    return ""


def _failure(name: str, asked: Iterable[Result]) -> str:
    """Return the first stage of a variant that did not end ok; measured again, it counts once."""
    last = {result.stage: result for result in asked if result.variant == name}
    bad = [result for result in last.values() if result.status is not Status.OK]
    return f"{bad[0].status}: {bad[0].reason}".rstrip(": ") if bad else ""


def _evidence(asked: Sequence[Result]) -> Iterator[Result]:
    """Yield the results that decide: of what was confirmed the screen was chosen for its time."""
    confirmed = {result.variant for result in asked if result.stage is Stage.CONFIRM}
    yield from (r for r in asked if r.variant not in confirmed or r.stage is Stage.CONFIRM)


def nights_of(told: Iterable[Told], slug: str, since: Mapping[str, str]) -> dict[str, list[Night]]:
    """Return the nights of each variant on a SKU, oldest first; runs of one date are one night.

    ``since`` is by variant the run that is known already: only later ones count.
    """
    found: dict[tuple[str, str], list[tuple[Run, Variant, BaselineEntry]]] = {}
    for each in sorted(told, key=lambda each: each.run.id):
        run = each.run
        for variant in run.variants:
            entry = each.entries.get(variant.id)
            is_later = run.id > since.get(variant.id, "")
            if entry and is_later and sku_for(variant, run.facts, own=run.sku).slug == slug:
                key = (variant.id, run.started.partition("T")[0])
                found.setdefault(key, []).append((run, variant, entry))
    nights: dict[str, list[Night]] = {}
    for (name, date), parts in sorted(found.items()):
        nights.setdefault(name, []).append(_night(name, date, parts))
    return nights


def before_entries(
    told: Sequence[Told], since: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Return which runs say nothing of entries for being no later, by the run those come from.

    ``since`` is by SKU what it is in ``nights_of``. Runs are ordered by the clock of their start:
    after one was set back a night looks earlier than what it should move.
    """
    found: dict[str, set[str]] = {}
    for each in told:
        for variant in (v for v in each.run.variants if v.id in each.entries):
            slug = sku_for(variant, each.run.facts, own=each.run.sku).slug
            entry_run = since.get(slug, {}).get(variant.id, "")
            if each.run.id < entry_run:
                found.setdefault(entry_run, set()).add(each.run.id)
    return {entry_run: tuple(sorted(runs)) for entry_run, runs in sorted(found.items())}


def skus_of(run: Run) -> list[Sku]:
    """Return the SKUs that a run measured; gangs and compilation targets have their own."""
    found = [run.sku, *(sku_for(variant, run.facts, own=run.sku) for variant in run.variants)]
    return list({sku.slug: sku for sku in found}.values())


def _night(name: str, date: str, parts: Sequence[tuple[Run, Variant, BaselineEntry]]) -> Night:
    run, variant, last = parts[-1]
    alike = [(each, entry) for each, _, entry in parts if not other_kind(entry, last)]
    return Night(
        date=date,
        runs=tuple(each for each, _ in alike),
        variant=variant,
        entry=pooled_entry([entry for _, entry in alike]),
        verdict=next(verdict for verdict in run.verdicts if verdict.variant == name),
    )


def state_differs(entry: BaselineEntry, run: Run) -> str:
    """Say which state of the device blocks a comparison with an entry."""
    return blocked_by(entry.state, run.facts)
