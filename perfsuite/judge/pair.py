"""Turns the processes of two sides into a change with the variances that make it uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from perfsuite import stats
from perfsuite.judge.components import between_units, by_unit, with_beta
from perfsuite.judge.timings import Timing
from perfsuite.noise import LACK_OF_FIT, NoisePrior

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

    def strict(self) -> stats.Difference:
        """Return the change with every process: what stands apart may be a mode of the code.

        Means, for the error of a mean holds with two modes as well; that of a median does not.
        """
        sides = [by_unit(side, self.prior.beta) for side in (*self.sides, self.screened)]
        centers = [fmean(map(fmean, units)) for units in sides[:2]]
        return self.difference(sides[:2], centers, self.level(sides))

    def lenient(self) -> stats.Difference:
        """Return the change of the processes that a majority of their unit's agree with.

        The screen was odd, or it were not confirmed: it keeps no ``same`` from fresh data.
        """
        sides = [self.modes(side) for side in self.sides]
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
        self,
        sides: Sequence[list[list[float]]],
        centers: Sequence[float],
        level: stats.Variance | stats.Mixture,
    ) -> stats.Difference:
        """Return the change with the variances of processes, units and clock."""
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts = (
            self.variance_of_processes(sides),
            level.times(sum(1 / len(side) for side in sides)),
            stats.Variance(clock, math.inf),
        )
        return stats.Difference(centers[1] - centers[0], parts)

    def level(self, sides: Sequence[list[list[float]]]) -> stats.Variance | stats.Mixture:
        """Return the variance of a side's level: between runs of one unit, or between units.

        The baseline's units tell of it. Those of this run share a host and agree better than
        units do, so that they may widen the interval, but never narrow it.
        """
        if self.same_unit:
            return stats.Variance(self.prior.run**2, self.prior.run_degrees)
        before, now, screened = sides
        levels = [self.variance_of_units(each) for each in ([before], [before, now + screened])]
        return max(levels, key=lambda each: each.reach(WIDE))

    def shared_variance(self, sides: Sequence[Sequence[Sequence[float]]]) -> stats.Variance:
        """Return the variance of processes that all sides share."""
        return stats.moderated(
            stats.pooled([unit for units in sides for unit in units]),
            stats.Variance(self.prior.between**2, self.prior.degrees),
        )

    def variance_of_units(self, sides: Sequence[Sequence[Sequence[float]]]) -> stats.Mixture:
        """Return the variance between units: the prior's, and what each side's own units add."""
        own = between_units(sides, self.shared_variance(sides).value)
        return stats.Scatter(self.prior.unit, self.prior.unit_spread).known(own)

    def unit_of_baseline(self) -> float:
        """Return the standard deviation between units as the baseline alone knows it, 0 at home."""
        if self.same_unit:
            return 0.0
        return math.sqrt(self.variance_of_units([self.modes(self.before)]).middle)

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
