"""One variant before and now: pairs of timings, their shift and its interval."""

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
    AWAITED,
    CLOCK_PRIOR,
    ENERGY_PRIOR,
    LACK_OF_FIT,
    NoisePrior,
    prior_for,
    service_prior,
)
from perfsuite.judge.peaks import class_of
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Budget,
    Change,
    DeviceFacts,
    Metric,
    Regime,
    Result,
    Run,
    Status,
    Variant,
    Word,
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

# What one process has to say of a metric, as the decision reads it.


TIME = Metric("time_us", "us")
# What the device itself took for launches that the host issued and awaited.
DEVICE_TIME = Metric("device_us", "us")
# Time with what the SM clock did to it, beside the code's own change: in A against B both count.
ELAPSED = Metric("elapsed_us", "us")
# Of launches that follow each other without a gap.
ENERGY = Metric("energy_j", "J")
TIMES = frozenset({TIME, DEVICE_TIME, ELAPSED})


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's estimate per launch, and the unit it ran on ("" if not known).

    A metric of which more is better stands here as its reciprocal: longer is always worse.
    ``is_fresh`` is false for a screen's process beside a confirmation: it was chosen for its time.
    """

    unit: str
    time_us: float
    cycles: float | None = None
    is_fresh: bool = True

    def y(self, beta: float) -> float:
        """Return the log duration in which a change of the SM clock alone cancels."""
        return (1 - beta) * math.log(self.time_us) + (
            beta * math.log(self.cycles) if self.cycles else 0.0
        )


def timings_of(result: Result) -> list[Timing]:
    """Return one timing per process; a value that is no duration raises a ``ValueError``."""
    found = []
    for item in result.evidence:
        if not any(item.samples("time_us")):
            continue
        time = estimate(item.samples("time_us"))
        cycles = item.samples("cycles")
        found.append(_checked(Timing(item.unit, time, estimate(cycles) if any(cycles) else None)))
    return found


def values_of(result: Result, metric: Metric) -> list[Timing]:
    """Return one timing per process that has samples of a metric, however good more of it is."""
    sampled = [(item.unit, item.samples(metric.name)) for item in result.evidence]
    return [_valued(unit, estimate(blocks), metric) for unit, blocks in sampled if any(blocks)]


def values_of_entry(entry: BaselineEntry, metric: Metric) -> list[Timing]:
    """Return the baseline's processes as ``values_of`` does; empty if it lacks the metric."""
    stored = entry.metrics.get(metric.name)
    if stored is None:
        return []
    return [_valued(unit, value, metric) for unit, row in stored.values.items() for value in row]


def timings_of_entry(entry: BaselineEntry) -> list[Timing]:
    """Return the baseline's processes; its centre stands for one if it lists none."""
    time, cycles = entry.metrics["time_us"], entry.metrics.get("cycles")
    if not time.values:
        return [_checked(Timing("", time.center, cycles.center if cycles else None))]
    found = []
    for unit, values in time.values.items():
        other = cycles.values.get(unit, ()) if cycles else ()
        paired = other if len(other) == len(values) else (None,) * len(values)
        found += [_checked(Timing(unit, *pair)) for pair in zip(values, paired, strict=True)]
    return found


def _valued(unit: str, value: float, metric: Metric) -> Timing:
    if not 0 < value < math.inf:
        raise ValueError(f"{metric.name} must be a positive number, not {value!r}")
    return Timing(unit, 1 / value if metric.better == "higher" else value)


def _checked(timing: Timing) -> Timing:
    for name in ("time_us", "cycles"):
        value = getattr(timing, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, not {value!r}")
    return timing


# What a run's owner decides about verdicts, and what all variants of a run are judged against.


# What --perf-fail-on may name; "slower" fails beyond the gate only.
FAIL_WORDS = (
    "slower",
    "over-budget",
    "broken",
    "machine-shift",
    "unclear",
    "new",
    "incomparable",
    "faster",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of the decision, as shares of 1; None takes the device's own.

    The two errors have different prices. A false ``slower`` stops a team, so a change is called
    only where a ``1 - alpha`` interval lies beyond the threshold. A ``same`` that hides a change
    as large as the gate costs one night, so ``alpha_same`` on each side is enough for it: with
    5 % instead of 10 %, a quarter of unchanged GEMMs are unclear against another unit (H200).

    A shifted machine fails a run once, whichever way it went: a night that judged nothing must
    not look like one that found nothing.
    """

    threshold: float | None = None
    gate: float | None = None
    floor_us: float = 0.02
    alpha: float = 0.01
    alpha_same: float = 0.1
    false_discovery_rate: float = 0.05
    fail_on: tuple[str, ...] = ("slower", "over-budget", "broken", "machine-shift")

    def __post_init__(self) -> None:
        for name in ("threshold", "gate", "floor_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ValueError(f"Policy.{name} must be a share >= 0, not {value!r}")
        for name in ("alpha", "alpha_same", "false_discovery_rate"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"Policy.{name} must be in (0, 1), not {getattr(self, name)!r}")
        unknown = sorted(set(self.fail_on) - set(FAIL_WORDS))
        if unknown:
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


# Learns the components of noise from baselines: by class for the prior, by variant beyond it.


# Below this the SM clock has not moved: its noise, shared with time, would set the slope to 0.5.
CLOCK_MOVED = 0.01
# Processes from which a slope and a residual can be told.
FEWEST = 3
# Entries of several units from which a class is told: the first ones are those whose screen was
# doubtful and whose confirmation ran on another GPU, which are not like the others.
FEWEST_ENTRIES = 20
# What a shift's other metrics are not: clocks, which have priors of their own.
CLOCKS = (TIME.name, DEVICE_TIME.name, "cycles")
# An entry of a regime that this version does not know is incomparable, not an error.
REGIMES = {regime.value for regime in Regime}


def priors_of(
    entries: Sequence[BaselineEntry], variants: Sequence[Variant], against: Against
) -> dict[NoisePrior, NoisePrior]:
    """Return what the entries of a SKU make of each class's prior, by the prior."""
    known = {variant.id: variant for variant in variants}
    samples: dict[NoisePrior, list[Sequence[Timing]]] = {}
    for entry in entries:
        with suppress(ValueError):  # a value that is no number to learn from
            for prior, timings in _samples(entry, known.get(entry.variant), against):
                samples.setdefault(prior, []).append(timings)
    return {prior: _learned(prior, each) for prior, each in samples.items()}


def prior_of(variant: Variant, entry: BaselineEntry, against: Against) -> NoisePrior:
    """Return the prior of a variant's time, as it was learned."""
    time_us = entry.metrics["time_us"].center
    of_class = _of_class(class_of(variant, against.slug, time_us), entry, against)
    return against.prior(of_class, variant.id)


def _of_class(work_class: str, entry: BaselineEntry, against: Against) -> NoisePrior:
    return prior_for(
        against.facts.device,
        work_class,
        regime=Regime(entry.regime),
        time_us=entry.metrics["time_us"].center,
        has_cycles="cycles" in entry.metrics and "cycles" in against.facts.clocks,
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


def _samples(
    entry: BaselineEntry, variant: Variant | None, against: Against
) -> Iterator[tuple[NoisePrior, Sequence[Timing]]]:
    if "time_us" not in entry.metrics or entry.regime not in REGIMES:
        return
    time_us = entry.metrics["time_us"].center
    work_class = class_of(variant, against.slug, time_us) if variant else entry.work_class
    if work_class:
        yield _of_class(work_class, entry, against), timings_of_entry(entry)
    for name, metric in entry.metrics.items():
        if name == DEVICE_TIME.name:
            yield AWAITED, values_of_entry(entry, DEVICE_TIME)
        elif name == ENERGY.name:
            yield ENERGY_PRIOR, values_of_entry(entry, ENERGY)
        elif metric.values and name not in CLOCKS:
            own = Metric(name, metric.unit, metric.better)
            yield service_prior(against.facts.device), values_of_entry(entry, own)


def _learned(prior: NoisePrior, samples: Sequence[Sequence[Timing]]) -> NoisePrior:
    units = [by_unit(timings, prior.beta) for timings in samples]
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


# Turns the processes of two sides into a change with the variances that make it uncertain.


# Before a change is called the same, all but a majority may stand apart: one in so many.
MAJORITY = 2
# Where two variances with other degrees of freedom are compared by the interval they make.
WIDE = 0.995


@dataclass(frozen=True, slots=True)
class Pair:
    """The processes of both sides, and of a screen on other units; ``clock`` is its log change."""

    before: Sequence[Timing]
    now: Sequence[Timing]
    screened: Sequence[Timing]
    prior: NoisePrior
    clock: float
    same_unit: bool

    @property
    def sides(self) -> tuple[Sequence[Timing], Sequence[Timing]]:
        """Return both sides, before first."""
        return self.before, self.now

    def logs(self) -> tuple[list[float], list[float]]:
        """Return the log values of both sides."""
        return [one.y(0.0) for one in self.before], [one.y(0.0) for one in self.now]

    def strict(self) -> Difference:
        """Return the change with every process: what stands apart may be a mode of the code.

        Means, for the error of a mean holds with two modes as well; that of a median does not.
        """
        sides = [by_unit(side, self.prior.beta) for side in (*self.sides, self.screened)]
        centers = [fmean(map(fmean, units)) for units in sides[:2]]
        return self.difference(sides[:2], centers, self.level(sides))

    def lenient(self) -> Difference:
        """Return the change of the processes that a majority of their unit's agree with.

        The screen was odd, or it were not confirmed: it keeps no ``same`` from fresh data.
        """
        sides = [self.modes(side) for side in self.sides]
        centers = [fmean(map(hodges_lehmann, units)) for units in sides]
        return self.difference(sides, centers, self.level([*sides, []]))

    def modes(self, side: Sequence[Timing]) -> list[list[float]]:
        """Return y by unit without the processes that stand apart."""
        variance = Variance(self.prior.between**2, self.prior.degrees)
        return [
            main_mode(values, prior=variance, most=(len(values) - 1) // MAJORITY)
            for values in by_unit(side, self.prior.beta)
        ]

    def difference(
        self,
        sides: Sequence[list[list[float]]],
        centers: Sequence[float],
        level: Variance | Mixture,
    ) -> Difference:
        """Return the change with the variances of processes, units and clock."""
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts = (
            self.variance_of_processes(sides),
            level.times(sum(1 / len(side) for side in sides)),
            Variance(clock, math.inf),
        )
        return Difference(centers[1] - centers[0], parts)

    def level(self, sides: Sequence[list[list[float]]]) -> Variance | Mixture:
        """Return the variance of a side's level: between runs of one unit, or between units.

        The baseline's units tell of it. Those of this run share a host and agree better than
        units do, so that they may widen the interval, but never narrow it.
        """
        if self.same_unit:
            return Variance(self.prior.run**2, self.prior.run_degrees)
        before, now, screened = sides
        levels = [self.variance_of_units(each) for each in ([before], [before, now + screened])]
        return max(levels, key=lambda each: each.reach(WIDE))

    def shared_variance(self, sides: Sequence[Sequence[Sequence[float]]]) -> Variance:
        """Return the variance of processes that all sides share."""
        return moderated(
            pooled([unit for units in sides for unit in units]),
            Variance(self.prior.between**2, self.prior.degrees),
        )

    def variance_of_units(self, sides: Sequence[Sequence[Sequence[float]]]) -> Mixture:
        """Return the variance between units: the prior's, and what each side's own units add."""
        own = between_units(sides, self.shared_variance(sides).value)
        return Scatter(self.prior.unit, self.prior.unit_spread).known(own)

    def unit_of_baseline(self) -> float:
        """Return the standard deviation between units as the baseline alone knows it, 0 at home."""
        if self.same_unit:
            return 0.0
        return math.sqrt(self.variance_of_units([self.modes(self.before)]).middle)

    def variance_of_processes(self, sides: Sequence[Sequence[Sequence[float]]]) -> Variance:
        """Return the part of the processes in the variance of the change.

        The prior lifts a spread that is small by luck; a side whose own spread is larger keeps
        it, or three processes in two modes would be calmed by the other side's one mode.
        """
        shared = self.shared_variance(sides)
        value = 0.0
        for units in sides:
            own = max(shared.value, pooled(units).value)
            value += own * sum(1 / len(unit) for unit in units) / len(units) ** 2
        return Variance(value, shared.degrees)

    def strays(self) -> int:
        """Count the processes that stand apart from the others of their unit."""
        return sum(len(side) - sum(map(len, self.modes(side))) for side in self.sides)


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
    clock = _clock_change(before, now) if prior.beta or prior.beta_sd else 0.0
    return Pair(before, now, screened, prior, clock, bool(common))


def _clock_change(before: Sequence[Timing], now: Sequence[Timing]) -> float:
    clocks = [median([item.y(1.0) - item.y(0.0) for item in side]) for side in (before, now)]
    return clocks[1] - clocks[0]


# Compares the processes of two runs of one variant: how far its code moved, and how surely.


# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# A greater change has no share of 1 that a run file can hold.
_MOST_LOG = math.log(MAGNITUDE) - 1


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

    def change(self, policy: Policy, *, lenient: bool = False) -> Change:
        """Return the change as it is stored: shares of 1 instead of logs."""
        chosen = self.lenient if lenient else self.strict
        theta = sum(item.theta for item in chosen) / len(chosen)
        alpha = 2 * policy.alpha_same if lenient else policy.alpha
        low, high = self.interval(alpha, lenient=lenient)
        found = max(
            item.detectable(math.log1p(self.threshold), policy.alpha) for item in self.strict
        )
        ends = (self.before, self.now)
        if self.metric.better == "higher":
            ends = (1 / self.before, 1 / self.now)
        return Change(
            metric=self.metric.name,
            unit=self.metric.unit,
            baseline=ends[0],
            current=ends[1],
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
    found = math.expm1(min(log, _MOST_LOG))
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
    center = [median([item.time_us for item in side]) for side in pair.sides]
    own = max(prior.threshold, metric.threshold)
    chosen = own if policy.threshold is None else policy.threshold
    floor = policy.floor_us / center[0] if metric in {TIME, ELAPSED} else 0.0
    threshold = max(chosen, 2 * pair.unit_of_baseline(), floor)
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
        strays=pairs[0].strays(),
        has_clock=all(item.cycles for item in (*before, *now)),
        metric=metric,
        values=None if metric in TIMES else pair.logs(),
    )


# Judges metrics without noise, and limits that a case's author set.


# The allocator rounds and keeps blocks of its own; other exact metrics may not move at all.
TOLERANCE = {"peak_bytes": 0.01}
# A greater change says no more, and one that is no finite number cannot be stored.
MOST_CHANGE = 1e12


def exact_changes(
    result: Result, entry: BaselineEntry, declared: Sequence[Metric] = ()
) -> list[Change]:
    """Return the changes beyond tolerance on which all processes agree; worse is positive.

    ``declared`` are the case's own metrics, whose thresholds hold.
    """
    values: dict[str, list[float]] = {}
    for item in result.evidence:
        for name, value in item.exact.items():
            values.setdefault(name, []).append(value)
    return moves(values, entry, declared)


def moves(
    found_values: Mapping[str, Sequence[float]],
    entry: BaselineEntry,
    declared: Sequence[Metric] = (),
) -> list[Change]:
    """Return the changes beyond tolerance on which all values of a metric agree."""
    found = []
    tolerances = TOLERANCE | {metric.name: metric.threshold for metric in declared}
    for name, metric in sorted(entry.metrics.items()):
        values = found_values.get(name, ())
        if metric.values or not values:  # what has values by process has noise
            continue
        tolerance = tolerances.get(name, 0.0)
        worsened = [_worsening(metric, value) for value in values]
        if min(worsened) > tolerance or max(worsened) < -tolerance:
            current = sorted(values)[len(values) // 2]
            found.append(_change(name, metric, current=current, tolerance=tolerance))
    return found


def collapses(result: Result, entry: BaselineEntry, declared: Sequence[Metric]) -> list[Change]:
    """Return the noisy metrics of which more is better and of which every process has none left.

    Nothing has no logarithm, so that no interval can be told; none is needed.
    """
    found = []
    for name in [metric.name for metric in declared if metric.better == "higher"]:
        stored = entry.metrics.get(name)
        values = [value for item in result.evidence for b in item.samples(name) for value in b]
        if stored is not None and stored.values and values and max(values) <= 0:
            found.append(_change(name, stored, current=max(values), tolerance=0.0))
    return found


def over_budget(budgets: Sequence[Budget], result: Result, times: Sequence[float]) -> str:
    """Say which budget the centre of the processes exceeds, or ""."""
    for budget in budgets:
        values = _values(budget.metric, result, times)
        if values and hodges_lehmann(values) > budget.most:
            now = hodges_lehmann(values)
            reason = f" ({budget.reason})" if budget.reason else ""
            return f"{budget.metric} is {now:.6g}, its budget is {budget.most:.6g}{reason}"
    return ""


def _values(metric: str, result: Result, times: Sequence[float]) -> list[float]:
    if metric == "time_us":
        return list(times)
    if metric == "cycles":
        cycles = [item.samples("cycles") for item in result.evidence]
        return [estimate(blocks) for blocks in cycles if any(blocks)]
    exact = [item.exact[metric] for item in result.evidence if metric in item.exact]
    noisy = [item.samples(metric) for item in result.evidence]
    return exact or [estimate(blocks) for blocks in noisy if any(blocks)]


def _worsening(metric: BaselineMetric, value: float) -> float:
    if value == metric.center:
        return 0.0
    change = (value - metric.center) / (abs(metric.center) or 1.0)
    change = max(-MOST_CHANGE, min(MOST_CHANGE, change))
    if metric.better == "equal":
        return abs(change)
    return -change if metric.better == "higher" else change


def _change(name: str, metric: BaselineMetric, *, current: float, tolerance: float) -> Change:
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


# Judges what back-to-back launches do to the machine: their clock and their energy.


# The SM clock as a multiple of the clock that the canary had in the same run.
CLOCK = Metric("clock_ratio", "x", better="higher")


def power_shifts(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> list[Shift]:
    """Return how clock and energy of a sustained variant moved, where both sides have them."""
    if variant.case.regime is not Regime.SUSTAINED:
        return []
    pairs = (
        (
            CLOCK,
            CLOCK_PRIOR,
            _ratios(timings_of_entry(entry), against.clocks_before),
            _ratios(timings_of(result), against.clocks_now),
        ),
        (ENERGY, ENERGY_PRIOR, values_of_entry(entry, ENERGY), values_of(result, ENERGY)),
    )
    return [
        shift_of(
            before,
            now,
            prior=against.prior(prior, variant.id),
            policy=against.policy,
            metric=metric,
        )
        for metric, prior, before, now in pairs
        if before and now
    ]


def power_reason(shifts: Sequence[Shift], words: Sequence[Word]) -> str:
    """Say what it means when the code takes as long as before and the machine more power."""
    found = {shift.metric.name: word for shift, word in zip(shifts, words, strict=True)}
    is_same = found.get(TIME.name) is Word.SAME
    if is_same and found.get(ENERGY.name) is Word.SLOWER:
        return "same code, more power"
    return "same code, lower clock" if is_same and found.get(CLOCK.name) is Word.SLOWER else ""


def canary_clocks(
    run: Run, entries: Mapping[str, BaselineEntry]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[str, list[Timing]] = {}
    for result in run.results:
        entry = entries.get(result.variant)
        is_known = entry is not None and "time_us" in entry.metrics
        if result.stage.is_canary and result.status is Status.OK and is_known:
            measured.setdefault(result.variant, []).extend(_usable(result))
    rates = {
        canary.id: canary.work.flops / median(item.time_us for item in measured[canary.id])
        for canary in run.canaries
        if canary.work and canary.work.flops and measured.get(canary.id)
    }
    if not rates:
        return {}, {}
    chosen = max(rates, key=rates.__getitem__)
    before = _clocks(timings_of_entry(entries[chosen]))
    now = _clocks(measured[chosen])
    # A unit that the baseline does not know is held against those that it does.
    usual = median(before.values()) if before else 0.0
    return {**(dict.fromkeys(now, usual) if usual else {}), **before}, now


def _usable(result: Result) -> list[Timing]:
    try:
        return timings_of(result)
    except ValueError:  # a sample that is no duration: its own verdict says so
        return []


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for item in timings:
        if item.cycles:
            found.setdefault(item.unit, []).append(item.cycles / item.time_us)
    return {unit: median(values) for unit, values in found.items()}


def _ratios(timings: Sequence[Timing], clocks: Mapping[str, float]) -> list[Timing]:
    """Return each process's clock over the canary's, as a reciprocal: more of it is better."""
    return [
        Timing(item.unit, clocks[item.unit] * item.time_us / item.cycles)
        for item in timings
        if item.cycles and item.unit in clocks
    ]
