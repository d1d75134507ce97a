"""Compares one variant before and now: how far each of its metrics moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean, median

from perfsuite.boundary import MAGNITUDE, is_measurable
from perfsuite.judge.noise import (
    BY_NOISE,
    CLOCK_PRIOR,
    ENERGY_PRIOR,
    LACK_OF_FIT,
    NoisePrior,
    prior_for,
    service_prior,
)
from perfsuite.judge.peaks import class_of
from perfsuite.model import (
    CYCLES,
    DEVICE_TIME,
    ENERGY,
    METRICS,
    PEAK_BYTES,
    TIME,
    BaselineEntry,
    BaselineMetric,
    Budget,
    Change,
    DeviceFacts,
    Metric,
    Reason,
    Regime,
    Result,
    Run,
    Status,
    Variant,
    Word,
    because,
)
from perfsuite.stats import (
    Difference,
    MeanSquare,
    Mixture,
    Scatter,
    Variance,
    estimate,
    hodges_lehmann,
    learned,
    main_mode,
    moderated,
    pooled,
    rank_interval,
    scattered,
    spread,
)

# Time with what the SM clock did to it, beside the code's own change: in A against B both count.
ELAPSED = Metric("elapsed_us", "us")
# The SM clock as a multiple of the clock that the canary had in the same run.
CLOCK = Metric("clock_ratio", "x", better="higher")
TIMES = frozenset({TIME, DEVICE_TIME, ELAPSED})
# What --perf-fail-on may name besides words of variants.
BROKEN, SHIFTED = "broken", "machine-shift"
FAIL_WORDS = (*(word.value for word in Word if word is not Word.SAME), BROKEN, SHIFTED)
# Below this the SM clock has not moved: its noise, shared with time, would set the slope to 0.5.
CLOCK_MOVED = 0.01
# Processes from which a slope and a residual can be told.
FEWEST = 3
# Entries of several units from which a class is told: the first ones are those whose screen was
# doubtful and whose confirmation ran on another GPU, which are not like the others.
FEWEST_ENTRIES = 20
# Before a change is called the same, all but a majority may stand apart: one in so many.
MAJORITY = 2
# Where two variances with other degrees of freedom are compared by the interval they make.
WIDE = 0.995
# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# A greater change has no share of 1 that a run file can hold.
MOST_LOG = math.log(MAGNITUDE) - 1
# A greater change of an exact metric says no more, and what is not finite cannot be stored.
MOST_CHANGE = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of the decision, as shares of 1; None takes the device's own.

    The two errors have different prices. A false ``slower`` stops a team, so a change is called
    only where a ``1 - alpha`` interval lies beyond the threshold. A ``same`` that hides a change
    as large as the gate costs one night, so ``alpha_same`` on each side is enough for it: with
    5 % instead of 10 %, a quarter of unchanged GEMMs are unclear against another unit (H200).

    Slower fails beyond the gate only. A shifted machine fails a run once, whichever way it went: a
    night that judged nothing must not look like one that found nothing.
    """

    threshold: float | None = None
    gate: float | None = None
    floor_us: float = 0.02
    alpha: float = 0.01
    alpha_same: float = 0.1
    false_discovery_rate: float = 0.05
    fail_on: tuple[str, ...] = (*(w.value for w in Word if w.fails_by_default), BROKEN, SHIFTED)

    def __post_init__(self) -> None:
        for name in ("threshold", "gate", "floor_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"Policy.{name} must be a share >= 0, not {value!r}")
        for name in ("alpha", "alpha_same", "false_discovery_rate"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"Policy.{name} must be in (0, 1), not {getattr(self, name)!r}")
        if unknown := sorted(set(self.fail_on) - set(FAIL_WORDS)):
            raise ValueError(f"Policy.fail_on knows {', '.join(FAIL_WORDS)}, not {unknown[0]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The circumstances all variants of a run share.

    ``slug`` is the SKU's, ``source`` names what entries come from ("baseline nvidia-h200", "last
    run ..."). By variant, ``sources`` names what its entry comes from where that is another, and
    ``mismatches`` says why it may not be compared (another fingerprint). The entries of ``arms``
    are of the same run: A against B, measured in turns on one unit.
    ``known`` are all entries of the SKU, run or not: from them ``priors`` are learned. ``screened``
    are the results that a confirmation confirms.
    ``clocks_before`` and ``clocks_now`` are the compute canary's SM clock in MHz by unit.
    """

    facts: DeviceFacts
    slug: str
    policy: Policy = Policy()
    source: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    mismatches: Mapping[str, str] = field(default_factory=dict)
    arms: frozenset[str] = frozenset()
    known: Sequence[BaselineEntry] = ()
    screened: Mapping[str, Result] = field(default_factory=dict)
    priors: Mapping[NoisePrior, NoisePrior] = field(default_factory=dict)
    clocks_before: Mapping[str, float] = field(default_factory=dict)
    clocks_now: Mapping[str, float] = field(default_factory=dict)

    def prior(self, of_class: NoisePrior, variant: str) -> NoisePrior:
        """Return a class's prior as it was learned; both arms of one run are of one run."""
        prior = self.priors.get(of_class, of_class)
        return replace(prior, run=0.0) if variant in self.arms else prior

    def source_of(self, variant: str) -> str:
        """Return what a variant's entry comes from, in words."""
        return self.sources.get(variant, self.source)


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's estimate of a metric per launch, and the unit it ran on ("" if not known).

    A metric of which more is better stands here as its reciprocal: longer is always worse.
    ``is_fresh`` is false for a screen's process beside a confirmation: it was chosen for its time.
    """

    unit: str
    time_us: float
    cycles: float | None = None
    is_fresh: bool = True

    def y(self, beta: float) -> float:
        """Return the log duration in which a change of the SM clock alone cancels."""
        time = (1 - beta) * math.log(self.time_us)
        return time + beta * math.log(self.cycles) if self.cycles else time


def values_of(result: Result, metric: Metric = TIME) -> list[Timing]:
    """Return one value per process that has samples; one that is not positive is a ValueError."""
    found = []
    for process in result.evidence:
        blocks, clock = process.samples(metric.name), process.samples(CYCLES.name)
        if any(blocks):
            cycles = estimate(clock) if metric is TIME and any(clock) else None
            found.append(_value(process.unit, metric, estimate(blocks), cycles))
    return found


def values_of_entry(entry: BaselineEntry, metric: Metric = TIME) -> list[Timing]:
    """Return the baseline's processes; the centre of a time that lists none stands for one."""
    stored = entry.metrics.get(metric.name)
    if stored is None:
        return []
    clock = entry.metrics.get(CYCLES.name) if metric is TIME else None
    if metric is TIME and not stored.values:
        return [_value("", metric, stored.center, clock.center if clock else None)]
    found = []
    for unit, row in stored.values.items():
        cycles: Sequence[float | None] = clock.values.get(unit, ()) if clock else ()
        if len(cycles) != len(row):
            cycles = (None,) * len(row)
        found += [_value(unit, metric, *both) for both in zip(row, cycles, strict=True)]
    return found


def _value(unit: str, metric: Metric, value: float, cycles: float | None) -> Timing:
    for name, each in ((metric.name, value), (CYCLES.name, cycles)):
        if each is not None and not 0 < each < math.inf:
            raise ValueError(f"{name} must be a positive number, not {each!r}")
    return Timing(unit, 1 / value if metric.better == "higher" else value, cycles)


# Priors, as the entries of a SKU teach them: by class, and by variant beyond that.


def priors_of(
    entries: Sequence[BaselineEntry], variants: Sequence[Variant], against: Against
) -> dict[NoisePrior, NoisePrior]:
    """Return what the entries of a SKU make of each class's prior, by the prior."""
    known = {variant.id: variant for variant in variants}
    samples: dict[NoisePrior, list[Sequence[Timing]]] = {}
    for entry in entries:
        with suppress(ValueError):  # a value that is no number to learn from
            for prior, values in _samples(entry, known.get(entry.variant), against):
                samples.setdefault(prior, []).append(values)
    return {prior: _learned(prior, each) for prior, each in samples.items()}


def _samples(
    entry: BaselineEntry, variant: Variant | None, against: Against
) -> Iterator[tuple[NoisePrior, Sequence[Timing]]]:
    # An entry of a regime that this version does not know is incomparable, not an error.
    if TIME.name not in entry.metrics or entry.regime not in {*Regime}:
        return
    time_us = entry.metrics[TIME.name].center
    work = class_of(variant, against.slug, time_us) if variant else entry.work_class
    if work:
        yield _prior_of_class(work, entry, against), values_of_entry(entry)
    own = {metric.name: metric for metric in METRICS}
    for name, stored in entry.metrics.items():
        metric = own.get(name) or Metric(name, stored.unit, stored.better)
        prior = (
            BY_NOISE.get(own[name].noise) if name in own else service_prior(against.facts.device)
        )
        if prior and stored.values:
            yield prior, values_of_entry(entry, metric)


def prior_of(variant: Variant, entry: BaselineEntry, against: Against) -> NoisePrior:
    """Return the prior of a variant's time, as it was learned."""
    work_class = class_of(variant, against.slug, entry.metrics[TIME.name].center)
    return against.prior(_prior_of_class(work_class, entry, against), variant.id)


def _prior_of_class(work_class: str, entry: BaselineEntry, against: Against) -> NoisePrior:
    return prior_for(
        against.facts.device,
        work_class,
        regime=Regime(entry.regime),
        time_us=entry.metrics[TIME.name].center,
        has_cycles=CYCLES.name in entry.metrics and CYCLES.name in against.facts.clocks,
    )


def _learned(prior: NoisePrior, samples: Sequence[Sequence[Timing]]) -> NoisePrior:
    units = [by_unit(values, prior.beta) for values in samples]
    processes = [pooled(each) for each in units]
    between = learned(
        [MeanSquare(each.value, each.degrees) for each in processes if each.degrees],
        Variance(prior.between**2, prior.degrees),
    )
    squares = [
        between_units([each], moderated(own, between).value)
        for each, own in zip(units, processes, strict=True)
    ]
    of_units = [square for square in squares if square.degrees]
    unit = Scatter(prior.unit, prior.unit_spread)
    if len(of_units) >= FEWEST_ENTRIES:
        unit = scattered(of_units, unit)
    return replace(
        prior,
        between=math.sqrt(between.value),
        degrees=between.degrees,
        unit=unit.middle,
        unit_spread=unit.spread,
    )


def by_unit(timings: Sequence[Timing], beta: float) -> list[list[float]]:
    """Return the log durations of each unit's processes."""
    ordered = sorted(timings, key=attrgetter("unit"))
    return [[one.y(beta) for one in own] for _, own in groupby(ordered, key=attrgetter("unit"))]


def between_units(sides: Sequence[Sequence[Sequence[float]]], variance: float) -> MeanSquare:
    """Return the mean square between units' centres inside each side.

    ``variance`` is that of processes, of which each centre has its part.
    """
    sides = [side for side in sides if len(side) > 1]
    if not sides:
        return MeanSquare(0.0, 0.0)
    centers = pooled([list(map(fmean, side)) for side in sides])
    noise = variance * fmean(1 / len(unit) for side in sides for unit in side)
    return MeanSquare(centers.value, centers.degrees, noise)


def with_beta(prior: NoisePrior, before: Sequence[Timing]) -> NoisePrior:
    """Return the prior with the share of time that follows the clock, where the clock moved.

    The slope of log time over log frequency is -beta. The prior is one more observation of it.
    """
    if not prior.beta_sd or not all(one.cycles for one in before):
        return prior
    clocks = [one.y(1.0) - one.y(0.0) for one in before]
    if len(before) < FEWEST or spread(clocks) < CLOCK_MOVED:
        return prior
    times = [one.y(0.0) for one in before]
    middle, level = fmean(clocks), fmean(times)
    moved = sum((clock - middle) ** 2 for clock in clocks)
    slope = sum((c - middle) * (t - level) for c, t in zip(clocks, times, strict=True)) / moved
    left = [t - level - slope * (c - middle) for c, t in zip(clocks, times, strict=True)]
    residual = moderated(
        Variance(sum(each**2 for each in left) / (len(left) - 2), len(left) - 2),
        Variance(prior.between**2 + prior.unit**2, prior.degrees),
    )
    weights = moved / residual.value, 1 / prior.beta_sd**2
    beta = (-slope * weights[0] + prior.beta * weights[1]) / sum(weights)
    return replace(prior, beta=beta, beta_sd=1 / math.sqrt(sum(weights)))


# The change of a metric with noise, from the processes of both sides.


@dataclass(frozen=True, slots=True)
class Pair:
    """The processes of both sides, and of a screen on other units; ``clock`` is its log change."""

    before: Sequence[Timing]
    now: Sequence[Timing]
    screened: Sequence[Timing]
    prior: NoisePrior
    clock: float
    same_unit: bool

    def strict(self) -> Difference:
        """Return the change with every process: what stands apart may be a mode of the code.

        Means, for the error of a mean holds with two modes as well; that of a median does not.
        """
        beta = self.prior.beta
        before, now, screened = (by_unit(s, beta) for s in (self.before, self.now, self.screened))
        centers = [fmean(map(fmean, units)) for units in (before, now)]
        return self._difference([before, now], centers, self.level([before, now, screened]))

    def lenient(self) -> Difference:
        """Return the change of the processes that a majority of their unit's agree with.

        The screen was odd, or it were not confirmed: it keeps no ``same`` from fresh data.
        """
        sides = [self.modes(self.before), self.modes(self.now)]
        centers = [fmean(map(hodges_lehmann, units)) for units in sides]
        return self._difference(sides, centers, self.level([*sides, []]))

    def modes(self, side: Sequence[Timing]) -> list[list[float]]:
        """Return y by unit without the processes that stand apart."""
        variance = Variance(self.prior.between**2, self.prior.degrees)
        return [
            main_mode(values, prior=variance, most=(len(values) - 1) // MAJORITY)
            for values in by_unit(side, self.prior.beta)
        ]

    def level(self, sides: Sequence[list[list[float]]]) -> Variance | Mixture:
        """Return the variance of a side's level: between runs of one unit, or between units.

        The baseline's units tell of it. Those of this run share a host and agree better than
        units do, so that they may widen the interval, but never narrow it.
        """
        if self.same_unit:
            return Variance(self.prior.run**2, self.prior.run_degrees)
        before, now, screened = sides
        levels = [self.between_units(each) for each in ([before], [before, now + screened])]
        return max(levels, key=lambda each: each.reach(WIDE))

    def between_units(self, sides: Sequence[Sequence[Sequence[float]]]) -> Mixture:
        """Return the variance between units: the prior's, and what each side's own units add."""
        own = between_units(sides, self._shared(sides).value)
        return Scatter(self.prior.unit, self.prior.unit_spread).known(own)

    def _shared(self, sides: Sequence[Sequence[Sequence[float]]]) -> Variance:
        """Return the variance of processes that all sides share."""
        prior = Variance(self.prior.between**2, self.prior.degrees)
        return moderated(pooled([unit for units in sides for unit in units]), prior)

    def _difference(
        self,
        sides: Sequence[list[list[float]]],
        centers: Sequence[float],
        level: Variance | Mixture,
    ) -> Difference:
        """Return the change with the variances of processes, units and clock.

        The prior lifts a spread of processes that is small by luck. A side whose own spread is
        larger keeps it, or three processes in two modes would be calmed by the other's one mode.
        """
        shared = self._shared(sides)
        processes = 0.0
        for units in sides:
            own = max(shared.value, pooled(units).value)
            processes += own * sum(1 / len(unit) for unit in units) / len(units) ** 2
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts = (
            Variance(processes, shared.degrees),
            level.times(sum(1 / len(side) for side in sides)),
            Variance(clock, math.inf),
        )
        return Difference(centers[1] - centers[0], parts)


def paired(before: Sequence[Timing], now: Sequence[Timing], prior: NoisePrior) -> Pair:
    """Return the two sides: on their common units if there are any, the screen apart."""
    stale = [item for item in now if not item.is_fresh]
    now = [item for item in now if item.is_fresh]
    units = {item.unit for item in now}
    screened = [item for item in stale if item.unit not in units]
    if not all(item.cycles for item in (*before, *now)):
        prior = replace(prior, beta=0.0, beta_sd=0.0)
    prior = with_beta(prior, before)
    common = {item.unit for item in before} & units - {""}
    if common:
        before, now = ([item for item in side if item.unit in common] for side in (before, now))
    clock = 0.0
    if prior.beta or prior.beta_sd:
        was, is_now = (median(one.y(1.0) - one.y(0.0) for one in side) for side in (before, now))
        clock = is_now - was
    return Pair(before, now, screened, prior, clock, bool(common))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The log change of the code. ``strict`` decides what moved, ``lenient`` what did not.

    Each holds one difference, or one for every extreme of beta where the clock moved too far.
    ``time`` and ``clock`` are the log changes of time and SM clock; ``strays`` counts processes
    that stand apart from the others of their side, out of ``processes`` (before, now).
    ``has_clock`` says whether the SM clock is known beside time.
    ``values`` are the processes' log values where quantiles of them decide (distributions).
    """

    strict: tuple[Difference, ...]
    lenient: tuple[Difference, ...]
    before: float
    now: float
    time: float
    clock: float
    beta: float
    threshold: float
    gate: float
    same_unit: bool
    processes: tuple[int, int]
    strays: int = 0
    has_clock: bool = True
    metric: Metric = TIME
    values: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def is_clock_lost(self) -> bool:
        """Say whether the SM clock moved further than beta is known for."""
        return len(self.strict) > 1

    def interval(self, alpha: float, *, lenient: bool = False) -> tuple[float, float]:
        """Return the hull of the two-sided intervals of the log change."""
        chosen = self.lenient if lenient else self.strict
        if self.values and (ranked := rank_interval(*self.values, alpha=alpha)):
            level = Difference(0.0, chosen[0].parts[1:]).reach(1 - alpha / 2)
            return ranked[0] - level, ranked[1] + level
        found = [item.interval(alpha) for item in chosen]
        return min(low for low, _ in found), max(high for _, high in found)

    def p_value(self) -> float:
        """Return the p-value of a change beyond the threshold, whatever beta is."""
        if len({math.copysign(1, item.theta) for item in self.strict}) > 1:
            return 1.0
        found = max(item.p_beyond(math.log1p(self.threshold)) for item in self.strict)
        return found if is_measurable(found) else 0.0

    def word(self, policy: Policy) -> Word:
        """Return a change beyond the threshold, none beyond the gate, or unclear.

        ``slower`` and ``faster`` need a strict interval beyond the threshold; ``same`` needs a
        lenient one inside the gate, and a clock that did not move too far.
        """
        low, high = self.interval(policy.alpha)
        if low > math.log1p(self.threshold):
            return Word.SLOWER
        if high < -math.log1p(self.threshold):
            return Word.FASTER
        low, high = self.interval(2 * policy.alpha_same, lenient=True)
        limit = math.log1p(self.gate)
        is_same = -limit < low and high < limit and not self.is_clock_lost
        return Word.SAME if is_same else Word.UNCLEAR

    def change(self, policy: Policy, *, lenient: bool = False) -> Change:
        """Return the change as it is stored: shares of 1 instead of logs."""
        chosen = self.lenient if lenient else self.strict
        theta = sum(item.theta for item in chosen) / len(chosen)
        alpha = 2 * policy.alpha_same if lenient else policy.alpha
        low, high = self.interval(alpha, lenient=lenient)
        threshold = math.log1p(self.threshold)
        found = max(item.detectable(threshold, policy.alpha) for item in self.strict)
        is_reciprocal = self.metric.better == "higher"
        return Change(
            metric=self.metric.name,
            unit=self.metric.unit,
            baseline=1 / self.before if is_reciprocal else self.before,
            current=1 / self.now if is_reciprocal else self.now,
            theta=_share(theta),
            low=_share(low),
            high=_share(high),
            threshold=self.threshold,
            gate=self.gate,
            detectable=_share(found),
            p_value=self.p_value(),
            time_change=self.time,
            clock_change=self.clock,
            beta=self.beta,
            degrees=min(item.degrees for item in chosen),
        )


def _share(log: float) -> float:
    found = math.expm1(min(log, MOST_LOG))
    return found if is_measurable(found) else 0.0


def shift_of(
    before: Sequence[Timing],
    now: Sequence[Timing],
    *,
    prior: NoisePrior,
    policy: Policy,
    metric: Metric = TIME,
) -> Shift:
    """Return how far the code moved from ``before`` to ``now``.

    Processes of units that both sides have are compared alone: a unit's own level cancels then.
    Those of ``now`` that are not fresh only tell how far units differ.
    """
    pair = paired(before, now, prior)
    pairs = [pair]
    if abs(pair.clock) > CLOCK_LIMIT:
        extremes = [replace(pair.prior, beta=beta, beta_sd=0.0) for beta in (0.0, 1.0)]
        pairs = [replace(pair, prior=each) for each in extremes]
    sides = pair.before, pair.now
    center = [median(item.time_us for item in side) for side in sides]
    own = max(prior.threshold, metric.threshold)
    floor = policy.floor_us / center[0] if metric in {TIME, ELAPSED} else 0.0
    # A unit's own level is no change, as far as the baseline alone knows how units differ.
    unit = 0.0 if pair.same_unit else pair.between_units([pair.modes(pair.before)]).middle
    threshold = max(
        own if policy.threshold is None else policy.threshold, 2 * math.sqrt(unit), floor
    )
    kept = sum(len(unit) for side in sides for unit in pairs[0].modes(side))
    return Shift(
        strict=tuple(each.strict() for each in pairs),
        lenient=tuple(each.lenient() for each in pairs),
        before=center[0],
        now=center[1],
        time=math.log(center[1] / center[0]),
        clock=pair.clock,
        beta=pair.prior.beta,
        threshold=threshold,
        gate=max(prior.gate, 2 * threshold) if policy.gate is None else policy.gate,
        same_unit=pair.same_unit,
        processes=(len(pair.before), len(pair.now)),
        strays=sum(map(len, sides)) - kept,
        has_clock=all(item.cycles for item in (*before, *now)),
        metric=metric,
        values=None
        if metric in TIMES
        else ([one.y(0.0) for one in pair.before], [one.y(0.0) for one in pair.now]),
    )


# Metrics without noise, and limits that a case's author set.


def exact_changes(
    result: Result, entry: BaselineEntry, declared: Sequence[Metric] = ()
) -> list[Change]:
    """Return the changes beyond tolerance on which all processes agree; worse is positive.

    A noisy metric of which more is better is one of them where no process has any left: nothing
    has no logarithm, so that no interval can be told; none is needed.
    """
    values: dict[str, list[float]] = {}
    for item in result.evidence:
        for name, value in item.exact.items():
            values.setdefault(name, []).append(value)
    found = moves(values, entry, declared)
    for metric in declared:
        stored = entry.metrics.get(metric.name)
        left = [v for item in result.evidence for block in item.samples(metric.name) for v in block]
        is_gone = metric.better == "higher" and left and max(left) <= 0
        if stored is not None and stored.values and is_gone:
            found.append(_exact_change(metric.name, stored, current=max(left), tolerance=0.0))
    return found


def moves(
    found_values: Mapping[str, Sequence[float]],
    entry: BaselineEntry,
    declared: Sequence[Metric] = (),
) -> list[Change]:
    """Return the changes beyond tolerance on which all values of a metric agree.

    ``declared`` are the case's own metrics, whose thresholds hold.
    """
    found = []
    tolerances = {metric.name: metric.threshold for metric in (PEAK_BYTES, *declared)}
    for name, metric in sorted(entry.metrics.items()):
        values = sorted(found_values.get(name, ()))
        if metric.values or not values:  # what has values by process has noise
            continue
        tolerance = tolerances.get(name, 0.0)
        worsened = [_worsening(metric, value) for value in values]
        if min(worsened) > tolerance or max(worsened) < -tolerance:
            current = values[len(values) // 2]
            found.append(_exact_change(name, metric, current=current, tolerance=tolerance))
    return found


def _worsening(metric: BaselineMetric, value: float) -> float:
    if value == metric.center:
        return 0.0
    change = (value - metric.center) / (abs(metric.center) or 1.0)
    change = max(-MOST_CHANGE, min(MOST_CHANGE, change))
    if metric.better == "equal":
        return abs(change)
    return -change if metric.better == "higher" else change


def _exact_change(name: str, metric: BaselineMetric, *, current: float, tolerance: float) -> Change:
    theta = _worsening(metric, current)
    return Change(
        metric=name,
        unit=metric.unit,
        baseline=metric.center,
        current=current,
        theta=theta,
        low=theta,
        high=theta,
        threshold=tolerance,
        gate=tolerance,
        detectable=tolerance,
        p_value=0.0,
    )


def over_budget(budgets: Sequence[Budget], result: Result) -> Reason | None:
    """Return the first budget that the centre of the processes exceeds."""
    for budget in budgets:
        exact = [e.exact[budget.metric] for e in result.evidence if budget.metric in e.exact]
        noisy = [process.samples(budget.metric) for process in result.evidence]
        values = exact or [estimate(blocks) for blocks in noisy if any(blocks)]
        now = hodges_lehmann(values) if values else -math.inf
        if now > budget.most:
            return because(
                "over_budget",
                metric=budget.metric,
                now=now,
                most=budget.most,
                why=budget.reason or "no reason is given",
            )
    return None


# What back-to-back launches do to the machine: their clock and their energy.


def power_shifts(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> list[Shift]:
    """Return how clock and energy of a sustained variant moved, where both sides have them."""
    if variant.case.regime is not Regime.SUSTAINED:
        return []
    clocks = (
        _ratios(values_of_entry(entry), against.clocks_before),
        _ratios(values_of(result), against.clocks_now),
    )
    energies = values_of_entry(entry, ENERGY), values_of(result, ENERGY)
    return [
        shift_of(
            *sides,
            prior=against.prior(prior, variant.id),
            policy=against.policy,
            metric=metric,
        )
        for metric, prior, sides in ((CLOCK, CLOCK_PRIOR, clocks), (ENERGY, ENERGY_PRIOR, energies))
        if all(sides)
    ]


def _ratios(timings: Sequence[Timing], clocks: Mapping[str, float]) -> list[Timing]:
    """Return each process's clock over the canary's, as a reciprocal: more of it is better."""
    return [
        Timing(item.unit, clocks[item.unit] * item.time_us / item.cycles)
        for item in timings
        if item.cycles and item.unit in clocks
    ]


def canary_clocks(
    run: Run, entries: Mapping[str, BaselineEntry]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[str, list[Timing]] = {}
    for result in run.results:
        entry = entries.get(result.variant)
        is_known = entry is not None and TIME.name in entry.metrics
        if result.stage.is_canary and result.status is Status.OK and is_known:
            with suppress(ValueError):  # a sample that is no duration: its own verdict says so
                measured.setdefault(result.variant, []).extend(values_of(result))
    rates = {
        canary.id: canary.work.flops / median(item.time_us for item in measured[canary.id])
        for canary in (one.variant for one in run.canaries)
        if canary.work and canary.work.flops and measured.get(canary.id)
    }
    if not rates:
        return {}, {}
    chosen = max(rates, key=rates.__getitem__)
    before, now = _clocks(values_of_entry(entries[chosen])), _clocks(measured[chosen])
    # A unit that the baseline does not know is held against those that it does.
    usual = dict.fromkeys(now, median(before.values())) if before else {}
    return {**usual, **before}, now


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for item in timings:
        if item.cycles:
            found.setdefault(item.unit, []).append(item.cycles / item.time_us)
    return {unit: median(values) for unit, values in found.items()}
