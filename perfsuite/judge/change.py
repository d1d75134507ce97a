"""Compares the processes of two runs of one variant: how far its code moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfsuite import stats
from perfsuite.boundary import MAGNITUDE, is_measurable
from perfsuite.judge.pair import paired
from perfsuite.judge.policy import Policy
from perfsuite.judge.timings import ELAPSED, TIME, TIMES, Timing
from perfsuite.model import Change, Metric
from perfsuite.noise import NoisePrior

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
        if self.values and (ranked := stats.rank_interval(*self.values, alpha=alpha)):
            level = stats.Difference(0.0, chosen[0].parts[1:]).reach(1 - alpha / 2)
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
