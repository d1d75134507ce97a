"""What results are compared with: accepted entries, or else the last run on this unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Pack,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    Word,
)
from perfsuite.stats import process_value
from perfsuite.store.baselines import Baselines, Root
from perfsuite.store.runs import last_run
from perfsuite.store.sku import sku_for

# What the last runs on a unit say of variants that have no baseline.


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


def behind(entries: Mapping[str, BaselineEntry], runs: Iterable[Run]) -> Iterator[Result]:
    """Yield the results that entries come from; a report draws them as before."""
    for run in runs:
        names = {name for name, entry in entries.items() if entry.run == run.id}
        yield from (result for result in run.results if result.variant in names)


def latest_entries(
    runs: Sequence[Run], variants: Mapping[str, Variant]
) -> dict[str, BaselineEntry]:
    """Return each variant's newest entry; what was found slower is no yardstick later.

    Nor is what was unclear, where anything else is: code would be compared with itself.
    """
    found: dict[str, BaselineEntry] = {}
    unclear: dict[str, BaselineEntry] = {}
    traced: dict[str, BaselineEntry] = {}
    for entry, word in _usable(runs, variants):
        kind = unclear if word is Word.UNCLEAR else found
        kind.setdefault(entry.variant, entry)
        if entry.kernels and kind is found:
            traced.setdefault(entry.variant, entry)
    return {name: _traced(entry, traced) for name, entry in {**unclear, **found}.items()}


def _usable(
    runs: Sequence[Run], variants: Mapping[str, Variant]
) -> Iterator[tuple[BaselineEntry, Word | None]]:
    for run in runs:
        words = {verdict.variant: verdict.word for verdict in run.verdicts}
        if run.shift is not None:  # nor is what a changed machine measured
            continue
        for name, entry in entries_of(run).items():
            if name in variants and words.get(name) is not Word.SLOWER:
                yield entry, words.get(name)


def _traced(entry: BaselineEntry, traced: Mapping[str, BaselineEntry]) -> BaselineEntry:
    """Return the entry with the kernels of an older one: who did not move was not traced again."""
    known = traced.get(entry.variant)
    if entry.kernels or known is None:
        return entry
    return structs.replace(entry, kernels=known.kernels, codes=known.codes)


# Finds what a run is compared with, and what no result may exceed.


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
        other = structs.replace(run, results=tuple({r.variant: r for r in of_a}.values()), aside=())
        entries, source = entries_of(other), str(run.against)
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
            previous=structs.replace(other, commit=run.against.commit),
            arms=frozenset(entries),
        )

    def plausible(self, result: Result) -> Result:
        """Return the result, as an error if it is faster than the hardware can be."""
        variant = self.variants.get(result.variant)
        if result.status is not Status.OK or variant is None or variant.work is None:
            return result
        if variant.is_gang:  # a switch may sum on the way, and carry less than the formula says
            return result
        values = [process_value(e.samples("time_us")) for e in result.evidence if e.blocks]
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
    variants = {variant.id: variant for variant in (*run.canaries, *run.variants)}
    skus = {name: sku_for(variant, run.facts, own=run.sku) for name, variant in variants.items()}
    stored = Baselines.load_each(roots, (run.sku, *skus.values()))
    known = _Known({name: stored[sku.slug] for name, sku in skus.items()})
    previous = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=before or run.id)
    earlier = {name: variants[name] for name in known.without_sku}
    runs = list(earlier_runs(folder, previous))
    latest = latest_entries(runs, earlier)
    entries = {**latest, **known.entries}
    last = f"runs up to {previous.id}" if previous else ""
    # What comes with a pack was measured in the pack's repository.
    shipped = {each.entries[name].run for each in stored.values() for name in each.shipped}
    behind_them = _behind(entries.values(), runs, stored.values())
    return Yardstick(
        entries=entries,
        source="; ".join(dict.fromkeys([*([last] if latest else []), *known.sources.values()])),
        sources={**dict.fromkeys(earlier, last), **known.sources},
        mismatches=known.mismatches,
        notes=known.notes(previous),
        known=(*latest.values(), *_comparable(stored.values())),
        previous=previous and structs.replace(previous, results=tuple(behind(entries, runs))),
        peaks=peaks_of(run.sku.slug),
        reached=with_measured(peaks_of(run.sku.slug), _comparable([stored[run.sku.slug]]), packs),
        variants=variants,
        environments={name: environment for name, (environment, _) in behind_them.items()},
        commits={name: behind_them[name][1] for name in behind_them.keys() - shipped},
        slugs=known.slugs,
    )


def _behind(
    entries: Iterable[BaselineEntry], runs: Iterable[Run], stored: Iterable[Baselines]
) -> dict[str, tuple[Mapping[str, str], str]]:
    """Return environment and commit of the runs that entries come from."""
    known = {run.id: (run.facts.environment, run.commit) for run in runs}
    for each in (facts for baselines in stored for facts in baselines.runs.values()):
        known[each.run] = (each.environment, each.commit)
    return {entry.run: known[entry.run] for entry in entries if entry.run in known}


def _comparable(stored: Iterable[Baselines]) -> Iterator[BaselineEntry]:
    for baselines in (each for each in stored if not each.fingerprint_problem):
        yield from baselines.entries.values()


@dataclass(frozen=True, slots=True)
class _Known:
    """What the baselines of each variant's own SKU know of it."""

    baselines: Mapping[str, Baselines]

    @property
    def slugs(self) -> dict[str, str]:
        """The SKU of each variant that may be compared with a baseline of it."""
        comparable = self.sources.keys() - self.mismatches.keys()
        return {name: self.baselines[name].sku.slug for name in comparable}

    @property
    def without_sku(self) -> list[str]:
        """The variants whose SKU has no baseline at all, neither the project's nor their pack's."""
        return [name for name, each in self.baselines.items() if not each.covers(name)]

    @property
    def entries(self) -> dict[str, BaselineEntry]:
        """The entries by variant."""
        found = {name: each.entry(name) for name, each in self.baselines.items()}
        return {name: entry for name, entry in found.items() if entry is not None}

    @property
    def sources(self) -> dict[str, str]:
        """The SKU's baseline in words, by variant."""
        return {
            name: each.name_of(name) for name, each in self.baselines.items() if each.covers(name)
        }

    @property
    def mismatches(self) -> dict[str, str]:
        """Why a variant may not be compared with its SKU's baseline."""
        return {
            name: each.fingerprint_problem
            for name, each in self.baselines.items()
            if each.fingerprint_problem
        }

    def notes(self, previous: Run | None) -> tuple[str, ...]:
        """Say what is compared with no baseline, once per SKU."""
        notes = list(dict.fromkeys(note for each in self.baselines.values() for note in each.notes))
        for slug in sorted({each.sku.slug for each in self.baselines.values()}):
            of_sku = {name: each for name, each in self.baselines.items() if each.sku.slug == slug}
            covered = {name for name, each in of_sku.items() if each.covers(name)}
            if bare := len(of_sku) - len(covered):
                what = f"{bare} of {len(of_sku)} variants on {slug}" if covered else slug
                none = (
                    f" and no earlier run on this unit: {'they are' if covered else 'all is'} new"
                )
                instead = ": compared with the last runs on this unit"
                notes.append(f"no baseline for {what}{instead if previous else none}")
        return tuple(notes)
