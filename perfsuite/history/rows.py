"""A run as a history keeps it: its points with what makes them count, their samples compressed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfsuite.codec import decode, encode
from perfsuite.errors import UsageError
from perfsuite.model import (
    Arm,
    BaselineEntry,
    BaselineMetric,
    Change,
    Point,
    Regime,
    Result,
    Run,
    SeriesKey,
    Status,
    Variant,
    Verdict,
)
from perfsuite.runs import entries_of
from perfsuite.sku import sku_for

ARM_A = "arm A"
MACHINE_SHIFT = "machine-shift"
TIME = "time_us"


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point, the series it belongs to, and its samples by process and block, compressed."""

    key: SeriesKey
    point: Point
    samples: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What is kept of a run: where it was made, and its points."""

    id: str
    started: str
    commit: str
    sku: str
    unit: str
    environment: Mapping[str, str] = field(default_factory=dict)
    points: tuple[StoredPoint, ...] = ()


def stored_of(run: Run) -> StoredRun:
    """Return what a history keeps of a run; one that was interrupted is a ``UsageError``."""
    if not run.finished:
        raise UsageError(
            f"run {run.id!r} was interrupted", remedy="finish it with pytest --perf --perf-resume"
        )
    return StoredRun(
        id=run.id,
        started=run.started,
        commit=run.commit,
        sku=run.sku.slug,
        unit=run.facts.unit,
        environment={**run.facts.environment, **run.facts.state},
        points=() if run.settings.check_only else tuple(_points(run)),
    )


def pack_samples(processes: Sequence[Sequence[Sequence[float]]]) -> bytes:
    """Return samples by process and block in few bytes."""
    return zlib.compress(encode(processes), 1)


def unpack_samples(data: bytes) -> list[list[list[float]]]:
    """Return what ``pack_samples`` packed."""
    return decode(zlib.decompress(data), list[list[list[float]]])


def _points(run: Run) -> Iterator[StoredPoint]:
    parts: dict[str, list[Result]] = {}
    for result in (*run.results, *run.aside):
        if result.status is not Status.SKIPPED:
            parts.setdefault(_part_of(result), []).append(result)
    variants = {variant.id: variant for variant in (*run.canaries, *run.variants)}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    for part, results in parts.items():
        # What failed is kept as far as it was measured: only its mark tells it from the rest.
        ended = tuple(replace(result, status=Status.OK) for result in results)
        entries = entries_of(replace(run, results=ended))
        found: dict[str, list[Result]] = {}
        for result in results:
            found.setdefault(result.variant, []).append(result)
        for name, own in found.items():
            if name not in variants:
                continue
            verdict = None if part else verdicts.get(name)
            blank = Point(run=run.id, started=run.started, commit=run.commit, part=part)
            point = replace(
                blank, why_not=_why_not(run, part, own), word=verdict.word.value if verdict else ""
            )
            told = _Told(run, variants[name], own, verdict, point)
            yield from told.points(entries.get(name))


def _part_of(result: Result) -> str:
    if result.claim:
        return f"claim {result.claim}"
    if result.arm is Arm.A:
        return ARM_A
    return result.stage.value if result.stage.is_canary else ""


def _why_not(run: Run, part: str, results: Sequence[Result]) -> str:
    """Say why what was measured is no point of the variant's history."""
    last = {result.stage: result.status for result in results}
    failed = [status.value for status in last.values() if status is not Status.OK]
    shifted = [MACHINE_SHIFT] if run.shift is not None else []
    return ", ".join([*([part] if part else []), *failed, *shifted])


@dataclass(frozen=True, slots=True)
class _Told:
    """One variant in one part of a run."""

    run: Run
    variant: Variant
    results: Sequence[Result]
    verdict: Verdict | None
    point: Point

    def points(self, entry: BaselineEntry | None) -> Iterator[StoredPoint]:
        """Yield a point per metric; of what yielded no number one that says why."""
        if entry is None:
            if self.point.why_not and self.variant.case.regime is not Regime.EXACT:
                yield StoredPoint(self._key(TIME, BaselineMetric(center=0, unit="us")), self.point)
            return
        changes = {change.metric: change for change in self._changes()}
        for name, metric in entry.metrics.items():
            point = replace(
                self.point,
                center=metric.center,
                values=metric.values,
                between=metric.between,
                word=self.point.word if name in changes or name == TIME else "",
            )
            if name in changes:
                change = changes[name]
                point = replace(point, theta=change.theta, low=change.low, high=change.high)
            yield StoredPoint(self._key(name, metric), point, self._samples(name, metric))

    def _changes(self) -> tuple[Change, ...]:
        return self.verdict.changes if self.verdict else ()

    def _key(self, name: str, metric: BaselineMetric) -> SeriesKey:
        return SeriesKey(
            sku=sku_for(self.variant, self.run.facts, own=self.run.sku).slug,
            variant=self.variant.id,
            metric=name,
            regime=self.variant.case.regime.value,
            case_version=self.results[-1].case_version,
            unit=metric.unit,
            better=metric.better,
        )

    def _samples(self, name: str, metric: BaselineMetric) -> bytes | None:
        if not metric.values:
            return None
        evidence = [process for result in self.results for process in result.evidence]
        return pack_samples([process.samples(name) for process in evidence])
