"""Compares the processes of two runs of one variant: how far its code moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfsuite import stats
from perfsuite.judge.components import between_units, by_unit, with_beta
from perfsuite.judge.policy import Policy
from perfsuite.judge.timings import TIME, Timing
from perfsuite.model import Change, Metric
from perfsuite.noise import LACK_OF_FIT, NoisePrior

# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# Modes of a few processes: dropped one in five before a change is called, and all but a majority
# before it is called the same.
STRICT, LENIENT = 5, 2
# Where two variances with other degrees of freedom are compared by the interval they make.
WIDE = 0.995


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The log change of the code. ``strict`` decides what moved, ``lenient`` what did not.

    Each holds one difference, or one for every extreme of beta where the clock moved too far.
    ``time`` and ``clock`` are the log changes of time and SM clock; ``strays`` counts processes
    that stand apart from the others of their side, out of ``processes`` (before, now).
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

    @property
    def is_clock_lost(self) -> bool:
        """Say whether the SM clock moved further than beta is known for."""
        return len(self.strict) > 1

    def interval(self, alpha: float, *, lenient: bool = False) -> tuple[float, float]:
        """Return the hull of the two-sided intervals of the log change."""
        found = [item.interval(alpha) for item in (self.lenient if lenient else self.strict)]
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
        strict=tuple(each.difference(STRICT) for each in pairs),
        lenient=tuple(each.difference(LENIENT) for each in pairs),
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
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    before: Sequence[Timing]
    now: Sequence[Timing]
    screened: Sequence[Timing]
    prior: NoisePrior
    clock: float
    same_unit: bool

    def modes(self, side: Sequence[Timing], share: int) -> list[list[float]]:
        """Return y by unit without the processes that stand apart, at most one in ``share``."""
        variance = stats.Variance(self.prior.between**2, self.prior.degrees)
        found = []
        for values in by_unit(side, self.prior.beta):
            most = (len(values) - 1) // 2 if share == LENIENT else len(values) // share
            found.append(stats.main_mode(values, prior=variance, most=most))
        return found

    def difference(self, share: int) -> stats.Difference:
        """Return the change of y with the variances of processes, units and clock added up."""
        sides = [self.modes(side, share) for side in (self.before, self.now)]
        centers = [sum(map(stats.hodges_lehmann, units)) / len(units) for units in sides]
        # The screen was confirmed because it was odd: its modes do not keep ``same`` from fresh data.
        screened = self.modes(self.screened, share) if share == STRICT else []
        level = self.level([*sides, screened])
        units = level.value * sum(1 / len(side) for side in sides)
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts = (
            self.variance_of_processes(sides),
            stats.Variance(units, level.degrees),
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
        return math.sqrt(self.variance_of_units([self.modes(self.before, LENIENT)]).value)

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
        return sum(
            len(side) - sum(map(len, self.modes(side, LENIENT))) for side in (self.before, self.now)
        )


def _clock_change(before: Sequence[Timing], now: Sequence[Timing]) -> float:
    clocks = [median([item.y(1.0) - item.y(0.0) for item in side]) for side in (before, now)]
    return clocks[1] - clocks[0]
