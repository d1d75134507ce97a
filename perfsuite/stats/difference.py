"""A change with the variances that make it uncertain: intervals and p-values."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from perfsuite.stats.variances import Mixture, Variance

# How often a change is found that is called detectable.
POWER = 0.9
SMALLEST_P = 1e-9


@dataclass(frozen=True, slots=True)
class Difference:
    """The log change of a centre with the independent variances that make it uncertain.

    Reaches of the parts are added in squares, each with its own degrees of freedom: one common t
    (Satterthwaite) would lend the tail of units, of which few are known, the many processes'.
    """

    theta: float
    parts: tuple[Variance | Mixture, ...]

    @property
    def degrees(self) -> float:
        """The degrees of freedom of the whole variance (Satterthwaite)."""
        uncertain = sum(part.value**2 / part.degrees for part in self.parts)
        return sum(part.value for part in self.parts) ** 2 / uncertain if uncertain else math.inf

    def reach(self, share: float) -> float:
        """Return how far this quantile lies from theta."""
        return math.hypot(*(part.reach(share) for part in self.parts))

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided ``1 - alpha`` interval."""
        reach = self.reach(1 - alpha / 2)
        return self.theta - reach, self.theta + reach

    def p_beyond(self, threshold: float) -> float:
        """Return the one-sided p-value of a change beyond ``threshold`` in theta's direction."""
        return _p_beyond(self, threshold)

    def detectable(self, threshold: float, alpha: float) -> float:
        """Return the smallest log change called slower or faster nine times of ten."""
        return threshold + self.reach(1 - alpha / 2) + self.reach(POWER)


# A judgement asks twice: for the family that its change belongs to, and for the verdict.
@functools.lru_cache(maxsize=1024)
def _p_beyond(difference: Difference, threshold: float) -> float:
    excess = abs(difference.theta) - threshold
    low, high = math.log(SMALLEST_P), math.log(0.5)
    for _ in range(40):
        middle = (low + high) / 2
        is_within = difference.reach(1 - math.exp(middle)) < abs(excess)
        low, high = (low, middle) if is_within else (middle, high)
    return math.exp(high) if excess > 0 else 1 - math.exp(high)
