"""Compares the processes of two runs of one variant: how far its code moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from perfsuite import stats
from perfsuite.judge.components import between_units, by_unit, with_beta
from perfsuite.judge.policy import Policy
from perfsuite.judge.timings import DEVICE_TIME, TIME, Timing
from perfsuite.model import Change, Metric
from perfsuite.noise import LACK_OF_FIT, NoisePrior

# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# Before a change is called the same, all but a majority may stand apart: one in so many.
MAJORITY = 2
# Where two variances with other degrees of freedom are compared by the interval they make.
WIDE = 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The log change of the code. ``strict`` decides what moved, ``lenient`` what did not.

    Each holds one difference, or one for every extreme of beta where the clock moved too far.
    ``time`` and ``clock`` are the log changes of time and SM clock; ``strays`` counts processes
    that stand apart from the others of their side, out of ``processes`` (before, now).
    ``values`` are the processes' log values where quantiles of them decide (distributions).
    """

    strict: tuple[stats.Difference, ...]
    lenient: tuple[stats.Difference, ...]
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
    metric: Metric = TIME
    values: tuple[Sequence[float], Sequence[float]] | None = None

    @property
    def is_clock_lost(self) -> bool:
        """Say whether the SM clock moved further than beta is known for."""
        return len(self.strict) > 1

    def interval(self, alpha: float, *, lenient: bool = False) -> tuple[float, float]:
        """Return the hull of the two-sided intervals of the log change."""
        chosen = self.lenient if lenient else self.strict
        if self.values and (ranked := stats.rank_interval(*self.values, alpha)):
            level = stats.Difference(0.0, chosen[0].parts[1:]).reach(1 - alpha / 2)
            return ranked[0] - level, ranked[1] + level
        found = [item.interval(alpha) for item in chosen]
        return min(low for low, _ in found), max(high for _, high in found)

    def p_value(self) -> float:
        """Return the p-value of a change beyond the threshold, whatever beta is."""
        if len({math.copysign(1, item.theta) for item in self.strict}) > 1:
            return 1.0
        return max(item.p_beyond(math.log1p(self.threshold)) for item in self.strict)

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
            theta=math.expm1(theta),
            low=math.expm1(low),
            high=math.expm1(high),
            threshold=self.threshold,
            gate=self.gate,
            detectable=math.expm1(found),
            p_value=self.p_value(),
            time_change=self.time,
            clock_change=self.clock,
            beta=self.beta,
            degrees=min(item.degrees for item in chosen),
        )


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
    stale = [item for item in now if not item.is_fresh]
    now = [item for item in now if item.is_fresh]
    units = {item.unit for item in now}
    screened = [item for item in stale if item.unit not in units]
    common = {item.unit for item in before} & units - {""}
    if common:
        before, now = ([item for item in side if item.unit in common] for side in (before, now))
    if not all(item.cycles for item in (*before, *now)):
        prior = replace(prior, beta=0.0, beta_sd=0.0)
    prior = with_beta(prior, before)
    clock = _clock_change(before, now) if prior.beta or prior.beta_sd else 0.0
    priors = [prior]
    if abs(clock) > CLOCK_LIMIT:
        priors = [replace(prior, beta=beta, beta_sd=0.0) for beta in (0.0, 1.0)]
    pairs = [_Pair(before, now, screened, each, clock, bool(common)) for each in priors]
    center = [median([item.time_us for item in side]) for side in (before, now)]
    floor_us = policy.floor_us if metric is TIME else 0.0
    least = 0.0 if common else 2 * pairs[0].unit_of_baseline()
    chosen = prior.threshold if policy.threshold is None else policy.threshold
    threshold = max(chosen, least, floor_us / center[0])
    gate = max(prior.gate, 2 * threshold) if policy.gate is None else policy.gate
    return Shift(
        strict=tuple(each.strict() for each in pairs),
        lenient=tuple(each.lenient() for each in pairs),
        before=center[0],
        now=center[1],
        time=math.log(center[1] / center[0]),
        clock=clock,
        beta=prior.beta,
        threshold=threshold,
        gate=gate,
        same_unit=bool(common),
        processes=(len(before), len(now)),
        strays=pairs[0].strays(),
        metric=metric,
        values=None if metric in {TIME, DEVICE_TIME} else (_logs(before), _logs(now)),
    )


def _logs(timings: Sequence[Timing]) -> list[float]:
    return [one.y(0.0) for one in timings]


@dataclass(frozen=True, slots=True)
class _Pair:
    before: Sequence[Timing]
    now: Sequence[Timing]
    screened: Sequence[Timing]
    prior: NoisePrior
    clock: float
    same_unit: bool

    def strict(self) -> stats.Difference:
        """Return the change with every process: what stands apart may be a mode of the code.

        Means, for the error of a mean holds with two modes as well; that of a median does not.
        """
        sides = [by_unit(side, self.prior.beta) for side in (self.before, self.now, self.screened)]
        centers = [fmean(map(fmean, units)) for units in sides[:2]]
        return self.difference(sides[:2], centers, self.level(sides))

    def lenient(self) -> stats.Difference:
        """Return the change of the processes that a majority of their unit's agree with.

        The screen was odd, or it were not confirmed: it keeps no ``same`` from fresh data.
        """
        sides = [self.modes(side) for side in (self.before, self.now)]
        centers = [fmean(map(stats.hodges_lehmann, units)) for units in sides]
        return self.difference(sides, centers, self.level([*sides, []]))

    def modes(self, side: Sequence[Timing]) -> list[list[float]]:
        """Return y by unit without the processes that stand apart."""
        variance = stats.Variance(self.prior.between**2, self.prior.degrees)
        return [
            stats.main_mode(values, prior=variance, most=(len(values) - 1) // MAJORITY)
            for values in by_unit(side, self.prior.beta)
        ]

    def difference(
        self, sides: Sequence[list[list[float]]], centers: Sequence[float], level: stats.Variance
    ) -> stats.Difference:
        """Return the change with the variances of processes, units and clock."""
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts = (
            self.variance_of_processes(sides),
            replace(level, value=level.value * sum(1 / len(side) for side in sides)),
            stats.Variance(clock, math.inf),
        )
        return stats.Difference(centers[1] - centers[0], parts)

    def level(self, sides: Sequence[list[list[float]]]) -> stats.Variance:
        """Return the variance of a side's level: between runs of one unit, or between units.

        The baseline's units tell of it. Those of this run share a host and agree better than
        units do, so that they may widen the interval, but never narrow it.
        """
        if self.same_unit:
            return stats.Variance(self.prior.run**2, self.prior.run_degrees)
        before, now, screened = sides
        levels = [self.variance_of_units(each) for each in ([before], [before, now + screened])]
        return max(levels, key=lambda each: stats.Difference(0.0, (each,)).reach(WIDE))

    def shared_variance(self, sides: Sequence[Sequence[Sequence[float]]]) -> stats.Variance:
        return stats.moderated(
            stats.pooled([unit for units in sides for unit in units]),
            stats.Variance(self.prior.between**2, self.prior.degrees),
        )

    def variance_of_units(self, sides: Sequence[Sequence[Sequence[float]]]) -> stats.Variance:
        """Return the variance between units: the prior's, and what each side's own units add."""
        own = between_units(sides, self.shared_variance(sides).value).variance
        return stats.moderated(own, stats.Variance(self.prior.unit**2, self.prior.unit_degrees))

    def unit_of_baseline(self) -> float:
        """Return the standard deviation between units as the baseline alone knows it."""
        return math.sqrt(self.variance_of_units([self.modes(self.before)]).value)

    def variance_of_processes(self, sides: Sequence[Sequence[Sequence[float]]]) -> stats.Variance:
        """Return the part of the processes in the variance of the change.

        The prior lifts a spread that is small by luck; a side whose own spread is larger keeps
        it, or three processes in two modes would be calmed by the other side's one mode.
        """
        shared = self.shared_variance(sides)
        value = 0.0
        for units in sides:
            own = max(shared.value, stats.pooled(units).value)
            value += own * sum(1 / len(unit) for unit in units) / len(units) ** 2
        return stats.Variance(value, shared.degrees)

    def strays(self) -> int:
        sides = self.before, self.now
        return sum(len(side) - sum(map(len, self.modes(side))) for side in sides)


def _clock_change(before: Sequence[Timing], now: Sequence[Timing]) -> float:
    clocks = [median([item.y(1.0) - item.y(0.0) for item in side]) for side in (before, now)]
    return clocks[1] - clocks[0]
