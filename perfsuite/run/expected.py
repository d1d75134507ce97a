"""What results are compared with: accepted entries, or else the last runs on this unit."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from perfsuite.judge.noise import entries_of
from perfsuite.judge.peaks import Peaks, efficiency, peaks_of, with_measured
from perfsuite.model import (
    BaselineEntry,
    Expected,
    Pack,
    Result,
    Run,
    Side,
    Stage,
    Status,
    Variant,
    VariantRun,
    Word,
    because,
)
from perfsuite.stats import estimate
from perfsuite.store.baselines import Baselines, Root
from perfsuite.store.runs import last_run
from perfsuite.store.sku import skus_of

# A variant that none of this many runs has measured is new; one that had no room for
# all does not count among them, up to so many.
RUNS_BACK, MOST_BACK = 10, 30
# More than this share of a measured ceiling is a mistake of the case, not a record.
PLAUSIBLE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a run is compared with: what is ``expected`` of each variant, and of all together.

    ``known`` are all entries of the run's SKUs, of which it may hold a few. ``previous`` is the
    last run, with the results that entries come from. ``reached`` are the peaks that the baselines
    know.
    """

    expected: Mapping[str, Expected]
    known: tuple[BaselineEntry, ...] = ()
    notes: tuple[str, ...] = ()
    previous: Run | None = None
    reached: Peaks | None = None

    def hold(self, run: Run) -> Run:
        """Return the run with what is expected of each variant."""
        variants, canaries = (
            tuple(replace(one, expected=self.expected.get(one.id, Expected())) for one in side)
            for side in (run.variants, run.canaries)
        )
        return replace(run, variants=variants, canaries=canaries)


def find_expected(
    roots: Sequence[Root], folder: Path, *, run: Run, packs: Sequence[Pack] = (), before: str = ""
) -> Basis:
    """Return the baselines of each variant's SKU; where a SKU has none, the last runs on this unit.

    A run has several SKUs when it holds gangs or compilation targets. ``packs`` say which variants
    are ceilings. Only runs ``before`` an id count, or before this one.
    """
    skus = skus_of(run)
    stored = Baselines.load_each(roots, (run.sku, *skus.values()))
    previous = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=before or run.id)
    runs = list(earlier_runs(folder, previous))
    uncovered = [name for name, sku in skus.items() if not stored[sku.slug].covers(name)]
    latest = latest_entries(runs, uncovered)
    # Of runs by their id: what is stored of one that was accepted counts.
    facts = {each.id: (each.facts.environment, each.commit) for each in runs}
    for each in (known for baselines in stored.values() for known in baselines.runs.values()):
        facts[each.run] = (each.environment, each.commit)
    # What comes with a pack was measured in the pack's repository.
    shipped = {each.entries[name].run for each in stored.values() for name in each.shipped}
    expected = {}
    for name, sku in skus.items():
        baselines = stored[sku.slug]
        entry = baselines.entries.get(name) or latest.get(name)
        environment, commit = facts.get(entry.run, ({}, "")) if entry else ({}, "")
        source = f"runs up to {previous.id}" if previous else ""
        covers, problem = baselines.covers(name), baselines.fingerprint_problem
        expected[name] = Expected(
            entry=entry,
            source=baselines.name_of(name) if covers else source,
            commit="" if entry and entry.run in shipped else commit,
            environment=environment,
            why_not=because("other_kind", text=problem) if problem else None,
            slug=sku.slug if covers and not problem else "",
        )
    if previous:  # a report draws the results that entries come from as before
        of_run = {name: each.entry.run for name, each in expected.items() if each.entry}
        there = {one.id for one in previous.variants}
        more = [VariantRun(variant=one.variant) for one in run.variants if one.id not in there]
        previous = replace(previous, variants=(*previous.variants, *more))
        ids = {one.id for one in previous.every}
        behind = [r for each in runs for r in each.results if of_run.get(r.variant) == each.id]
        previous = previous.having(results=[r for r in behind if r.variant in ids])
    notes = [note for sku in skus.values() for note in stored[sku.slug].notes]
    whole = Counter(sku.slug for sku in skus.values())
    for slug, count in sorted(Counter(skus[name].slug for name in uncovered).items()):
        is_all = count == whole[slug]
        what = slug if is_all else f"{count} of {whole[slug]} variants on {slug}"
        instead = f" and no earlier run on this unit: {'all is' if is_all else 'they are'} new"
        instead = ": compared with the last runs on this unit" if previous else instead
        notes.append(f"no baseline for {what}{instead}")
    known = {
        slug: tuple(each.entries.values())
        for slug, each in stored.items()
        if not each.fingerprint_problem
    }
    return Basis(
        expected=expected,
        known=(*latest.values(), *itertools.chain(*known.values())),
        notes=tuple(dict.fromkeys(notes)),
        previous=previous,
        reached=with_measured(peaks_of(run.sku.slug), known.get(run.sku.slug, ()), packs),
    )


def earlier_runs(folder: Path, newest: Run | None) -> Iterator[Run]:
    """Yield the last runs on a unit, newest first."""
    run, whole, back = newest, 0, 0
    while run is not None and whole < RUNS_BACK and back < MOST_BACK:
        yield run
        whole, back = whole + (not run.left_out), back + 1
        run = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=run.id)


def latest_entries(runs: Sequence[Run], variants: Collection[str]) -> dict[str, BaselineEntry]:
    """Return each variant's newest entry; what was found slower is no measure later.

    Nor is what was unclear, where anything else is: code would be compared with itself. Kernels
    may be of an older entry: what did not move was not traced again.
    """
    found: dict[str, BaselineEntry] = {}
    unclear: dict[str, BaselineEntry] = {}
    traced: dict[str, BaselineEntry] = {}
    for run in (each for each in runs if each.shift is None):  # else another machine measured
        words = {verdict.variant: verdict.word for verdict in run.verdicts}
        for name, entry in entries_of(run).items():
            if name not in variants or words.get(name) is Word.SLOWER:
                continue
            if words.get(name) is Word.UNCLEAR:
                unclear.setdefault(name, entry)
                continue
            found.setdefault(name, entry)
            if entry.kernels:
                traced.setdefault(name, entry)
    latest = {**unclear, **found}
    for name, known in traced.items():
        if not latest[name].kernels:
            latest[name] = replace(latest[name], kernels=known.kernels, codes=known.codes)
    return latest


def beside(run: Run) -> Run:
    """Return the run with what side A did as what is expected of its code."""
    if run.against is None:
        return run
    entries = entries_of(run, [r for r in run.aside if r.side is Side.A and not r.claim])
    variants = []
    for one in run.variants:
        if entry := entries.get(one.id):
            held = Expected(
                entry=entry,
                source=str(run.against),
                commit=run.against.commit,
                slug=one.expected.slug,
                in_turns=True,
            )
            one = replace(one, expected=held)  # noqa: PLW2901 - the same variant
        variants.append(one)
    return replace(run, variants=tuple(variants))


def source_of(run: Run) -> str:
    """Return in words what a run is compared with; beside a revision, what else has a result."""
    held = [one for one in run.every if one.entry or one.expected.slug]
    if any(one.expected.in_turns for one in held):
        is_ok = {result.variant for result in run.results if result.status is Status.OK}
        held = [one for one in held if one.expected.in_turns or one.id in is_ok]
        held.sort(key=lambda one: not one.expected.in_turns)
    return "; ".join(dict.fromkeys(one.expected.source for one in held if one.expected.source))


def plausible(result: Result, variant: Variant, peaks: Peaks) -> Result:
    """Return the result, as an error if it is faster than the hardware can be."""
    # In a gang a switch may sum on the way, and carry less than the formula says.
    if result.status is not Status.OK or variant.work is None or variant.is_gang:
        return result
    values = [estimate(e.samples("time_us")) for e in result.evidence if e.blocks]
    share = efficiency(variant.work, peaks, min(values)) if values else None
    if share is None or share <= PLAUSIBLE or not variant.case.cold:
        return result
    return replace(
        result,
        status=Status.ERROR,
        reason=f"{share:.0%} of the measured ceiling: the work formula counts too much, the "
        "launch does too little, or its inputs were not cold",
    )


def rank(one: VariantRun, unit: str) -> int:
    """Say how unwelcome a variant is on a unit, where it was screened before.

    The baseline's own unit is best, for its level cancels; then another than the screen's.
    """
    screened = one.result(Stage.SCREEN)
    if screened is None:
        return 0
    if one.entry and any(unit in each.values for each in one.entry.metrics.values()):
        return 0
    return 1 + any(item.unit == unit for item in screened.evidence)


def unaccepted(run: Run) -> Iterator[str]:
    """Say per SKU how much of what ended ok its baselines lack: the rest has no numbers."""
    if run.settings.check_only:
        return
    failed = {result.variant for result in run.results if result.status is not Status.OK}
    measured = {result.variant for result in run.results} - failed
    held = {one.id: one.expected for one in run.every if one.id in measured and one.expected.slug}
    whole = Counter(each.slug for each in held.values())
    without = Counter(each.slug for each in held.values() if each.entry is None)
    for slug, count in sorted(without.items()):
        yield (
            f"{count} of {whole[slug]} measured have no baseline entry for {slug} yet: "
            "accept them as well"
        )
