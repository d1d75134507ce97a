"""What results are compared with: accepted entries, or else the last run on this unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import structs

from perfsuite.judge.noise import entries_of
from perfsuite.judge.peaks import Peaks, efficiency, peaks_of, with_measured
from perfsuite.model import (
    Arm,
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    Expected,
    Pack,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    VariantRun,
    Word,
)
from perfsuite.stats import estimate
from perfsuite.store.baselines import Baselines, Root
from perfsuite.store.runs import last_run
from perfsuite.store.sku import sku_for

# A variant that none of this many runs has measured is new; one that had no room for
# all does not count among them, up to so many.
RUNS_BACK, MOST_BACK = 10, 30


def earlier_runs(folder: Path, newest: Run | None) -> Iterator[Run]:
    """Yield the last runs on a unit, newest first."""
    run, whole, back = newest, 0, 0
    while run is not None and whole < RUNS_BACK and back < MOST_BACK:
        yield run
        whole, back = whole + (not run.left_out), back + 1
        run = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=run.id)


def latest_entries(runs: Sequence[Run], variants: Collection[str]) -> dict[str, BaselineEntry]:
    """Return each variant's newest entry; what was found slower is no yardstick later.

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
            latest[name] = structs.replace(latest[name], kernels=known.kernels, codes=known.codes)
    return latest


# More than this share of a measured ceiling is a mistake of the case, not a record.
PLAUSIBLE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What a run is compared with: entries by variant id, where they come from, and doubts.

    ``sources`` and ``mismatches`` are by variant, ``source`` is that of the run's own SKU;
    ``known`` are all entries of its SKUs, of which the run may hold a few. ``arms`` are the
    variants whose entry is of this very run: A against B. ``environments`` and ``commits`` are
    those of the runs that entries come from, by run id. ``peaks`` are the product's, which no
    result may exceed; ``reached`` are what its baselines know, which a better kernel will.
    ``slugs`` has the SKU of each variant that may be compared with a baseline of it.
    """

    entries: Mapping[str, BaselineEntry]
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    mismatches: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    known: tuple[BaselineEntry, ...] = ()
    previous: Run | None = None
    peaks: Peaks
    reached: Peaks | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    arms: frozenset[str] = frozenset()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    commits: Mapping[str, str] = field(default_factory=dict)
    slugs: Mapping[str, str] = field(default_factory=dict)

    def beside(self, run: Run, stage: Stage | None = None) -> Yardstick:
        """Return the yardstick with what arm A of the run did in a stage, or last, in front."""
        if run.against is None:
            return self
        of_a = [r for r in run.aside if r.arm is Arm.A and stage in {None, r.stage}]
        entries, source = entries_of(run, {r.variant: r for r in of_a}.values()), str(run.against)
        if not entries:
            return self
        rest = {r.variant for r in run.results if r.status is Status.OK} - entries.keys()
        return replace(
            self,
            entries={**self.entries, **entries},
            source="; ".join([source, *([self.source] if rest and self.source else [])]),
            sources={**self.sources, **dict.fromkeys(entries, source)},
            mismatches={k: why for k, why in self.mismatches.items() if k not in entries},
            notes=self.notes if rest else (),
            previous=structs.replace(
                run.having(results=[structs.replace(r, arm=Arm.B) for r in of_a]),
                commit=run.against.commit,
            ),
            arms=frozenset(entries),
        )

    def held(self, one: VariantRun) -> VariantRun:
        """Return a variant of a run with what it is held against."""
        entry = self.entries.get(one.id)
        run = entry.run if entry else ""
        expected = Expected(
            entry=entry,
            source=self.sources.get(one.id, self.source),
            commit=self.commits.get(run, ""),
            environment=self.environments.get(run, {}),
            slug=self.slugs.get(one.id, ""),
            in_turns=one.id in self.arms,
        )
        return structs.replace(one, expected=expected)

    def plausible(self, result: Result) -> Result:
        """Return the result, as an error if it is faster than the hardware can be."""
        variant = self.variants.get(result.variant)
        if result.status is not Status.OK or variant is None or variant.work is None:
            return result
        if variant.is_gang:  # a switch may sum on the way, and carry less than the formula says
            return result
        values = [estimate(e.samples("time_us")) for e in result.evidence if e.blocks]
        share = efficiency(variant.work, self.peaks, min(values)) if values else None
        if share is None or share <= PLAUSIBLE or not variant.case.cold:
            return result
        return structs.replace(
            result,
            status=Status.ERROR,
            reason=f"{share:.0%} of the measured ceiling: the work formula counts too much, the "
            "launch does too little, or its inputs were not cold",
        )

    def unaccepted(self, run: Run) -> tuple[str, ...]:
        """Say per SKU how much of what ended ok its baselines lack: the rest has no numbers."""
        if run.settings.check_only:
            return ()
        failed = {result.variant for result in run.results if result.status is not Status.OK}
        measured = {r.variant for r in run.results if r.variant in self.slugs} - failed
        whole = Counter(self.slugs[name] for name in measured)
        without = Counter(self.slugs[name] for name in measured - self.entries.keys())
        return tuple(
            f"{count} of {whole[slug]} measured have no baseline entry for {slug} yet: "
            "accept them as well"
            for slug, count in sorted(without.items())
        )

    def rank(self, screened: Result | None, unit: str) -> int:
        """Say how unwelcome a variant is on a unit that was ``screened`` before, if it was.

        The baseline's own unit is best, for its level cancels; then another than the screen's.
        """
        if screened is None:
            return 0
        entry = self.entries.get(screened.variant)
        if entry is not None and any(unit in each.values for each in entry.metrics.values()):
            return 0
        return 1 + any(item.unit == unit for item in screened.evidence)

    def excused(
        self, claims: Sequence[ClaimVerdict], instances: Sequence[ClaimInstance]
    ) -> tuple[ClaimVerdict, ...]:
        """Let a broken claim fail the run only if it held in what the run is compared with."""
        sides = {instance.id: instance for instance in instances}
        return tuple(
            structs.replace(claim, fails=claim.fails and self._held(sides[claim.claim]))
            for claim in claims
        )

    def _held(self, claim: ClaimInstance) -> bool:
        metric = claim.metric or "time_us"
        than, faster = (
            entry.metrics[metric].center if entry is not None and metric in entry.metrics else None
            for entry in (self.entries.get(claim.than), self.entries.get(claim.faster))
        )
        return than is not None and faster is not None and than >= claim.by * faster


def find_yardstick(
    roots: Sequence[Root], folder: Path, *, run: Run, packs: Sequence[Pack] = (), before: str = ""
) -> Yardstick:
    """Return the baselines of each variant's SKU; where a SKU has none, the last runs on this unit.

    A run has several SKUs when it holds gangs or compilation targets. ``previous`` is the last
    run, but with the results that the entries come from. ``packs`` say which variants are ceilings.
    Only runs ``before`` an id count, or before this one.
    """
    variants = {one.id: one.variant for one in (*run.canaries, *run.variants)}
    skus = {name: sku_for(variant, run.facts, own=run.sku) for name, variant in variants.items()}
    stored = Baselines.load_each(roots, (run.sku, *skus.values()))
    baselines = {name: stored[sku.slug] for name, sku in skus.items()}
    covered = {n: each.name_of(n) for n, each in baselines.items() if each.covers(n)}
    mismatches = {n: why for n, each in baselines.items() if (why := each.fingerprint_problem)}

    previous = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=before or run.id)
    runs = list(earlier_runs(folder, previous))
    uncovered = [name for name in variants if name not in covered]
    latest = latest_entries(runs, uncovered)
    last = f"runs up to {previous.id}" if previous else ""
    accepted = {n: entry for n, each in baselines.items() if (entry := each.entry(n)) is not None}
    entries = {**latest, **accepted}
    if previous:  # a report draws the results that entries come from as before
        ids = {one.id for one in previous.every}
        of_run = {name: entry.run for name, entry in entries.items()}
        behind = (r for each in runs for r in each.results if of_run.get(r.variant) == each.id)
        previous = previous.having(results=[r for r in behind if r.variant in ids])

    facts = {each.id: (each.facts.environment, each.commit) for each in runs}
    for each in (facts for known in stored.values() for facts in known.runs.values()):
        facts[each.run] = (each.environment, each.commit)
    origins = [name for name in dict.fromkeys(e.run for e in entries.values()) if name in facts]
    # What comes with a pack was measured in the pack's repository.
    shipped = {each.entries[name].run for each in stored.values() for name in each.shipped}

    comparable = {s: known for s, known in stored.items() if not known.fingerprint_problem}
    known = [entry for each in comparable.values() for entry in each.entries.values()]
    own = comparable[run.sku.slug].entries.values() if run.sku.slug in comparable else ()
    peaks = peaks_of(run.sku.slug)
    return Yardstick(
        entries=entries,
        source="; ".join(dict.fromkeys([*([last] if latest else []), *covered.values()])),
        sources={**dict.fromkeys(uncovered, last), **covered},
        mismatches=mismatches,
        notes=_notes(baselines, covered, previous),
        known=(*latest.values(), *known),
        previous=previous,
        peaks=peaks,
        reached=with_measured(peaks, own, packs),
        variants=variants,
        environments={name: facts[name][0] for name in origins},
        commits={name: facts[name][1] for name in origins if name not in shipped},
        slugs={n: skus[n].slug for n in covered if n not in mismatches},
    )


def _notes(
    baselines: Mapping[str, Baselines], covered: Collection[str], previous: Run | None
) -> tuple[str, ...]:
    """Say what is compared with no baseline, once per SKU."""
    notes = list(dict.fromkeys(note for each in baselines.values() for note in each.notes))
    whole = Counter(each.sku.slug for each in baselines.values())
    bare = Counter(each.sku.slug for name, each in baselines.items() if name not in covered)
    for slug, count in sorted(bare.items()):
        what, are = slug, "all is"
        if count < whole[slug]:
            what, are = f"{count} of {whole[slug]} variants on {slug}", "they are"
        instead = f" and no earlier run on this unit: {are} new"
        if previous:
            instead = ": compared with the last runs on this unit"
        notes.append(f"no baseline for {what}{instead}")
    return tuple(notes)
