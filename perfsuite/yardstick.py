"""Finds what a run is compared with, and what no result may exceed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfsuite.baselines import Baselines
from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    Result,
    Run,
    Status,
    Variant,
    Word,
)
from perfsuite.roofline import Peaks, efficiency, peaks_of
from perfsuite.runs import entries_of, last_run
from perfsuite.stats import process_value

# More than this share of a measured ceiling is a mistake of the case, not a record.
PLAUSIBLE = 1.05
# A variant that none of this many runs has measured is new.
RUNS_BACK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What a run is compared with: entries by variant id, where they come from, and doubts."""

    entries: Mapping[str, BaselineEntry]
    source: str = ""
    mismatch: str = ""
    notes: tuple[str, ...] = ()
    previous: Run | None = None
    peaks: Peaks
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def plausible(self, result: Result) -> Result:
        """Return the result, as an error if it is faster than the hardware can be."""
        variant = self.variants.get(result.variant)
        if result.status is not Status.OK or variant is None or variant.work is None:
            return result
        values = [process_value(e.samples("time_us")) for e in result.evidence if e.blocks]
        share = efficiency(variant.work, self.peaks, min(values)) if values else None
        if share is None or share <= PLAUSIBLE or not variant.case.cold:
            return result
        return replace(
            result,
            status=Status.ERROR,
            reason=f"{share:.0%} of the measured ceiling: the work formula counts too much, the "
            "launch does too little, or its inputs were not cold",
        )

    def excused(
        self, claims: Sequence[ClaimVerdict], instances: Sequence[ClaimInstance]
    ) -> tuple[ClaimVerdict, ...]:
        """Let a broken claim fail the run only if it held in what the run is compared with."""
        sides = {instance.id: instance for instance in instances}
        return tuple(
            replace(claim, fails=claim.fails and self._held(sides[claim.claim])) for claim in claims
        )

    def _held(self, claim: ClaimInstance) -> bool:
        than, faster = (
            entry.metrics["time_us"].center
            if entry is not None and "time_us" in entry.metrics
            else None
            for entry in (self.entries.get(claim.than), self.entries.get(claim.faster))
        )
        return than is not None and faster is not None and than >= claim.by * faster


def find_yardstick(roots: Sequence[Path], folder: Path, *, run: Run) -> Yardstick:
    """Return the SKU's baselines; where there are none, the last run on this very unit."""
    peaks = peaks_of(run.sku.slug)
    variants = {variant.id: variant for variant in run.variants}
    baselines = Baselines.load(roots, run.sku)
    previous = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=run.id)
    entries = {v.id: baselines.entry(v.id) for v in run.variants}
    known = {name: entry for name, entry in entries.items() if entry is not None}
    if known or baselines.fingerprint_problem:
        without = len(variants) - len(known)
        note = f"{without} of {len(variants)} have no baseline entry yet: accept them as well"
        return Yardstick(
            entries=known,
            notes=(note,) if without and not baselines.fingerprint_problem else (),
            source=f"baseline {run.sku.slug}",
            mismatch=baselines.fingerprint_problem,
            previous=previous,
            peaks=peaks,
            variants=variants,
        )
    earlier = list(_earlier_runs(folder, previous))
    if previous is None:
        note = f"no baseline for {run.sku.slug} and no earlier run on this unit: all is new"
        return Yardstick(entries={}, notes=(note,), peaks=peaks, variants=variants)
    note = f"no baseline for {run.sku.slug}: compared with the last runs on this unit"
    return Yardstick(
        entries=_latest(earlier, variants),
        source=f"runs up to {previous.id}",
        notes=(note,),
        previous=previous,
        peaks=peaks,
        variants=variants,
    )


def _earlier_runs(folder: Path, newest: Run | None) -> Iterator[Run]:
    """Yield the last runs on a unit, newest first."""
    run = newest
    for _ in range(RUNS_BACK):
        if run is None:
            return
        yield run
        run = last_run(folder, sku=run.sku.slug, unit=run.facts.unit, before=run.id)


def _latest(runs: Sequence[Run], variants: Mapping[str, Variant]) -> dict[str, BaselineEntry]:
    """Return each variant's newest entry; what was found slower is no yardstick later."""
    found: dict[str, BaselineEntry] = {}
    for run in runs:
        slower = {v.variant for v in run.verdicts if v.word is Word.SLOWER}
        for name, entry in entries_of(run).items():
            if name in variants and name not in slower:
                found.setdefault(name, entry)
        if len(found) == len(variants):
            break
    return found
