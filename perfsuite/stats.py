"""Robust centres, variances that are known to some degree, and the intervals made of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

# Turns numbers into one.

# Scales a median absolute deviation to a normal distribution's standard deviation.
MAD_TO_SD = 1.4826
# A process this many standard deviations from the others is another mode, not the tail of this
# one. Low enough for a graph's node gap (0.35 us of 20 us: 7 sd), high enough that the noise
# of an ordinary kernel is never trimmed (simulated in tests/test_judge_noise.py).
APART = 6.0


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of all pairwise means, each value with itself included."""
    pairs = itertools.combinations_with_replacement(values, 2)
    return median([(first + second) / 2 for first, second in pairs])


def estimate(blocks: Sequence[Sequence[float]]) -> float:
    """Return one process's estimate: the median in each block, Hodges-Lehmann over the blocks.

    No sample at all, and one that is not finite, is a ValueError.
    """
    _refuse_infinite(blocks)
    return hodges_lehmann([median(block) for block in blocks if block])


def least(blocks: Sequence[Sequence[float]]) -> float:
    """Return the least sample: what else a host runs adds to a time, and takes nothing off.

    Of two cores beside three busy processes it scatters a tenth as much as a median. No sample
    at all, and one that is not finite, is a ValueError.
    """
    _refuse_infinite(blocks)
    return min(itertools.chain.from_iterable(blocks))


def _refuse_infinite(blocks: Sequence[Sequence[float]]) -> None:
    for value in itertools.chain.from_iterable(blocks):
        if not math.isfinite(value):
            raise ValueError(f"values must be finite, not {value!r}")


def rank_interval(
    before: Sequence[float], now: Sequence[float], alpha: float
) -> tuple[float, float] | None:
    """Return the ``1 - alpha`` interval of a shift whatever the distribution, None of too few.

    Order statistics of all differences, by the exact distribution of Mann and Whitney's U.
    """
    import numpy as np

    many, few = len(now), len(before)
    ways = np.zeros(many * few + 1)
    ways[0] = 1.0
    for each in range(1, few + 1):  # the Gaussian binomial coefficient, factor by factor
        ways[many + each :] -= ways[: -(many + each)].copy()
        for power in range(each, len(ways)):
            ways[power] += ways[power - each]
    left_out = int(np.searchsorted(np.cumsum(ways) / ways.sum(), alpha / 2, side="right"))
    if not left_out:
        return None
    differences = np.sort(np.subtract.outer(now, before), axis=None)
    return float(differences[left_out - 1]), float(differences[-left_out])


# Variances that are known to some degree: by their own samples, and by their class.

# A class's standard deviation and degrees of freedom before any was measured are guesses: half or
# twice as much is one standard deviation off.
GUESS = 2.0
DEGREES = (1.0, 1.4, 2.0, 2.8, 4.0, 6.0, 8.0, 12.0, 16.0)
# Keeps a variance beyond the grid from being impossible.
LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Variance:
    """A variance and the degrees of freedom it is known to.

    A mean square may be expected to have ``noise`` in it beside the variance.
    """

    value: float
    degrees: float
    noise: float = 0.0

    def times(self, factor: float) -> Variance:
        """Return the variance of ``factor`` such parts."""
        return Variance(self.value * factor, self.degrees)

    def reach(self, share: float) -> float:
        """Return the quantile of a variable whose variance this is (Student's t)."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, share)) * math.sqrt(self.value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture(Variance):
    """A variance that is one of several, each with its weight; ``value`` is the expected one.

    ``degrees`` are those of a chi-square that is as uncertain, ``middle`` is as likely too large
    as too small. Of a normal variable with this variance, ``tails`` are minus the logs of the
    shares that lie beyond ``reaches`` (their logs).
    """

    middle: float
    tails: Any
    reaches: Any

    def times(self, factor: float) -> Mixture:
        """Return the variance of ``factor`` such parts."""
        return Mixture(
            self.value * factor,
            self.degrees,
            middle=self.middle * factor,
            tails=self.tails,
            reaches=self.reaches + math.log(factor) / 2,
        )

    def reach(self, share: float) -> float:
        """Return the quantile of a normal variable whose variance this is."""
        import numpy as np

        return math.exp(float(np.interp(-math.log(1 - share), self.tails, self.reaches)))


@functools.lru_cache(maxsize=1024)
def mixture(middle: float, spread: float, own: Variance) -> Mixture:
    """Return what a variant's own mean square leaves of its class's variances.

    The log of a class's standard deviations is normal around that of ``middle``, by ``spread``.
    Its tails are what units of GPUs show: most variants agree within a tenth of what a few differ
    by, and none by percents. A scaled inverse chi-square with as much in its middle would say that
    one in a hundred does.
    """
    import numpy as np
    from scipy.special import log_ndtr

    steps = np.linspace(-4.0, 4.0, 33)
    variances = (middle * np.exp(spread * steps)) ** 2
    logs = _log_likely(own, variances) - steps**2 / 2
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    expected = float(weights @ variances)
    uncertain = float(weights @ (variances - expected) ** 2)
    widths = np.sqrt(variances)
    reaches = np.geomspace(widths[0] / 100, widths[-1] * 9, 100)
    beyond = np.exp(log_ndtr(-reaches[:, None] / widths)) @ weights
    return Mixture(
        expected,
        2 * expected**2 / uncertain if uncertain else math.inf,
        middle=float(variances[np.searchsorted(np.cumsum(weights), 0.5, side="right")]),
        tails=-np.log(beyond + LEAST),
        reaches=np.log(reaches),
    )


def pooled(groups: Sequence[Sequence[float]]) -> Variance:
    """Return the variance inside groups of one common variance."""
    squares, degrees = 0.0, 0.0
    for group in groups:
        middle = fmean(group)
        squares += sum((value - middle) ** 2 for value in group)
        degrees += len(group) - 1
    return Variance(squares / degrees if degrees else 0.0, degrees)


def between(sides: Sequence[Sequence[Sequence[float]]], variance: float) -> Variance:
    """Return the mean square between the centres of a side's groups, over all sides.

    ``variance`` is that of the values in a group, of which each centre has its part as noise.
    """
    sides = [side for side in sides if len(side) > 1]
    if not sides:
        return Variance(0.0, 0.0)
    centers = pooled([list(map(fmean, side)) for side in sides])
    noise = variance * fmean(1 / len(group) for side in sides for group in side)
    return Variance(centers.value, centers.degrees, noise)


def moderated(sample: Variance, prior: Variance) -> Variance:
    """Shrink a sample's variance to its prior: the degrees of freedom add up (Smyth 2004).

    What its noise explains of the sample is no part of it.
    """
    degrees = sample.degrees + prior.degrees
    own = max(0.0, sample.value - sample.noise)
    total = sample.degrees * own + prior.degrees * prior.value
    return Variance(total / degrees, degrees)


def main_mode(values: Sequence[float], prior: Variance) -> list[float]:
    """Return the values without the minority that stands apart from all others, order kept.

    The spread that decides is that of the values nearest to the median, so that two strays
    cannot hide each other.
    """
    middle = median(values)
    majority = len(values) - (len(values) - 1) // 2
    core = sorted(values, key=lambda value: abs(value - middle))[:majority]
    reach = APART * math.sqrt(moderated(pooled([core]), prior).value)
    kept = [value for value in values if abs(value - median(core)) <= reach]
    return kept if len(kept) >= len(core) else core


def learned(squares: Sequence[Variance], prior: Variance) -> Variance:
    """Return what a class's variances scatter around, and the degrees of freedom that is worth.

    Smyth's hierarchy (2004): each variance is ``value * degrees / chi2(degrees)``. Both are
    averaged over their posterior; ``prior`` is a guess to within a factor of ``GUESS``.
    """
    if not squares:
        return prior
    import numpy as np
    from scipy.special import gammaln

    guess = math.log(prior.value)
    centers, degrees = np.meshgrid(
        guess + np.linspace(-6, 6, 49), np.log(DEGREES), indexing="ij", sparse=True
    )
    half = np.exp(degrees)[..., None] / 2
    variances = guess + np.linspace(-10, 14, 121)
    # The density of the log of a scaled inverse chi-square.
    scaled = np.log(half) + centers[..., None] - variances
    weights = np.exp(half * scaled - np.exp(scaled) - gammaln(half))
    weights /= weights.sum(axis=-1, keepdims=True)
    off = (centers - guess) ** 2 / 4 + (degrees - math.log(prior.degrees)) ** 2
    guessed = -off / (2 * math.log(GUESS) ** 2)
    center, degree = _averaged(squares, np.exp(variances), weights, guessed, (centers, degrees))
    return Variance(math.exp(center), math.exp(degree))


def scattered(squares: Sequence[Variance], middle: float, spread: float) -> tuple[float, float]:
    """Return how a class's standard deviations scatter: their middle, and the spread of their log.

    Learned from its mean squares; a guess is given, its middle to within a factor of ``GUESS``.
    """
    import numpy as np

    steps = np.linspace(-4.0, 4.0, 33)
    weights = np.exp(-(steps**2) / 2) / np.exp(-(steps**2) / 2).sum()
    middles, spreads = np.meshgrid(
        math.log(middle) + np.linspace(-4, 4, 49), np.linspace(0.1, 1.5, 29), indexing="ij"
    )
    off = ((middles - math.log(middle)) / math.log(GUESS)) ** 2 + ((spreads - spread) / 0.3) ** 2
    variances = np.exp(2 * (middles[..., None] + spreads[..., None] * steps))
    center, found = _averaged(squares, variances, weights, -off / 2, (middles, spreads))
    return math.exp(center), found


def _averaged(
    squares: Sequence[Variance], variances: Any, weights: Any, guessed: Any, grids: Sequence[Any]
) -> list[float]:
    """Return the mean of each grid over its posterior, whose log prior is ``guessed``."""
    import numpy as np

    posterior = guessed
    for square in squares:
        # Of many degrees of freedom a likelihood is below ``LEAST`` everywhere, or beyond what a
        # float holds: shares of the greatest are neither.
        logs = _log_likely(square, variances)
        likely = np.exp(logs - logs.max())
        posterior = posterior + np.log((likely * weights).sum(axis=-1) + LEAST)
    share = np.exp(posterior - posterior.max())
    share /= share.sum()
    return [float((share * grid).sum()) for grid in grids]


def _log_likely(square: Variance, variances: Any) -> Any:
    """Return the log likelihood of a mean square by variance, up to a constant of the square."""
    import numpy as np

    whole = variances + square.noise
    scale = square.value or 1.0
    return -square.degrees / 2 * (np.log(whole / scale) + square.value / whole)


# A change with the variances that make it uncertain: intervals and p-values.

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
    parts: tuple[Variance, ...]

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
        excess = abs(self.theta) - threshold
        low, high = math.log(SMALLEST_P), math.log(0.5)
        for _ in range(40):
            middle = (low + high) / 2
            is_within = self.reach(1 - math.exp(middle)) < abs(excess)
            low, high = (low, middle) if is_within else (middle, high)
        return math.exp(high) if excess > 0 else 1 - math.exp(high)

    def detectable(self, threshold: float, alpha: float) -> float:
        """Return the smallest log change called slower or faster nine times of ten."""
        return threshold + self.reach(1 - alpha / 2) + self.reach(POWER)
