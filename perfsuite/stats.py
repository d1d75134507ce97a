"""Robust centres, moderated variances and the intervals made of them."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

# Variances that are known to some degree: by their own samples, and by their class.


# A class's standard deviation and degrees of freedom before any was measured are guesses: half or
# twice as much is one standard deviation off.
GUESS = 2.0
DEGREES = (1.0, 1.4, 2.0, 2.8, 4.0, 6.0, 8.0, 12.0, 16.0)
# Keeps a variance beyond the grid from being impossible.
LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Variance:
    """A variance and the degrees of freedom it is known to."""

    value: float
    degrees: float

    def times(self, factor: float) -> Variance:
        """Return the variance of ``factor`` such parts."""
        return Variance(self.value * factor, self.degrees)

    def reach(self, share: float) -> float:
        """Return the quantile of a variable whose variance this is."""
        return quantile(share, self.degrees) * math.sqrt(self.value)


@dataclass(frozen=True, slots=True)
class MeanSquare:
    """A sum of squares over its degrees of freedom, expected to be a variance plus ``noise``."""

    value: float
    degrees: float
    noise: float = 0.0

    @property
    def variance(self) -> Variance:
        """The variance by the method of moments: what noise does not explain, never negative."""
        return Variance(max(0.0, self.value - self.noise), self.degrees)


@dataclass(frozen=True, slots=True)
class Scatter:
    """How a class's standard deviations scatter: their log is normal around that of ``middle``.

    ``spread`` is the standard deviation of that log. Its tails are what units of GPUs show: most
    variants agree within a tenth of what a few differ by, and none by percents. A scaled inverse
    chi-square with as much in its middle would say that one in a hundred does.
    """

    middle: float
    spread: float

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - values, of which a run has a few hundred
    def known(self, own: MeanSquare) -> Mixture:
        """Return what a variant's own mean square leaves of the class's variances."""
        import numpy as np

        steps = np.linspace(-4.0, 4.0, 33)
        variances = (self.middle * np.exp(self.spread * steps)) ** 2
        logs = -(steps**2) / 2 + _log_likely(own, variances)
        weights = np.exp(logs - logs.max())
        return Mixture(tuple(variances), tuple(weights / weights.sum()))


@dataclass(frozen=True, slots=True)
class Mixture:
    """A variance that is one of several, each with its weight; ``factor`` times that."""

    variances: tuple[float, ...]
    weights: tuple[float, ...]
    factor: float = 1.0

    @property
    def value(self) -> float:
        """The variance expected."""
        expected: float = sum(map(operator.mul, self.weights, self.variances))
        return self.factor * expected

    @property
    def middle(self) -> float:
        """The variance that is as likely too large as too small."""
        place = bisect.bisect(list(itertools.accumulate(self.weights)), 0.5)
        return self.factor * self.variances[place]

    @property
    def degrees(self) -> float:
        """The degrees of freedom of a chi-square that is as uncertain."""
        mean = self.value / self.factor
        off = [(each - mean) ** 2 for each in self.variances]
        uncertain = sum(map(operator.mul, self.weights, off))
        return 2 * mean**2 / uncertain if uncertain else math.inf

    def times(self, factor: float) -> Mixture:
        """Return the variance of ``factor`` such parts."""
        return replace(self, factor=self.factor * factor)

    def reach(self, share: float) -> float:
        """Return the quantile of a normal variable whose variance this is."""
        import numpy as np

        tails, reaches = _tails(self.variances, self.weights)
        log_reach = float(np.interp(-math.log(1 - share), tails, reaches))
        return math.sqrt(self.factor) * math.exp(log_reach)


@functools.lru_cache(maxsize=4096)
def _tails(variances: tuple[float, ...], weights: tuple[float, ...]) -> tuple[Any, Any]:
    """Return minus the logs of the shares of a mixture beyond reaches, and the reaches' logs."""
    import numpy as np
    from scipy.special import log_ndtr

    widths = np.sqrt(variances)
    reaches = np.geomspace(widths[0] / 100, widths[-1] * 9, 100)
    beyond = np.exp(log_ndtr(-reaches[:, None] / widths)) @ np.array(weights)
    return -np.log(beyond + LEAST), np.log(reaches)


def quantile(share: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))


def moderated(sample: Variance, prior: Variance) -> Variance:
    """Shrink a sample's variance to its prior: the degrees of freedom add up (Smyth 2004)."""
    degrees = sample.degrees + prior.degrees
    total = sample.degrees * sample.value + prior.degrees * prior.value
    return Variance(total / degrees, degrees)


def learned(squares: Sequence[MeanSquare], prior: Variance) -> Variance:
    """Return what a class's variances scatter around, and the degrees of freedom that is worth.

    Smyth's hierarchy (2004): each variance is ``value * degrees / chi2(degrees)``. Both are
    averaged over their posterior; ``prior`` is a guess to within a factor of ``GUESS``.
    """
    if not squares:
        return prior
    import numpy as np
    from scipy.special import gammaln

    log_center, log_degrees = np.meshgrid(
        math.log(prior.value) + np.linspace(-6, 6, 49), np.log(DEGREES), indexing="ij"
    )
    half = np.exp(log_degrees)[..., None] / 2
    variance = math.log(prior.value) + np.linspace(-10, 14, 121)
    # The density of the log of a scaled inverse chi-square.
    scaled = np.log(half) + log_center[..., None] - variance
    weight = np.exp(half * scaled - np.exp(scaled) - gammaln(half))
    weight /= weight.sum(axis=-1, keepdims=True)
    off = (log_center - math.log(prior.value)) / 2, log_degrees - math.log(prior.degrees)
    posterior = -(off[0] ** 2 + off[1] ** 2) / (2 * math.log(GUESS) ** 2)
    for square in squares:
        posterior += np.log(weight @ _likely(square, np.exp(variance)) + LEAST)
    share = np.exp(posterior - posterior.max())
    share /= share.sum()
    return Variance(
        math.exp(float((share * log_center).sum())), math.exp(float((share * log_degrees).sum()))
    )


def scattered(squares: Sequence[MeanSquare], prior: Scatter) -> Scatter:
    """Return how a class's standard deviations scatter, learned from its mean squares.

    ``prior`` is a guess, its middle to within a factor of ``GUESS``.
    """
    import numpy as np

    steps = np.linspace(-4.0, 4.0, 33)
    weights = np.exp(-(steps**2) / 2) / np.exp(-(steps**2) / 2).sum()
    middles, spreads = np.meshgrid(
        math.log(prior.middle) + np.linspace(-4, 4, 49), np.linspace(0.1, 1.5, 29), indexing="ij"
    )
    off = (middles - math.log(prior.middle)) / math.log(GUESS), (spreads - prior.spread) / 0.3
    posterior = -(off[0] ** 2 + off[1] ** 2) / 2
    variances = np.exp(2 * (middles[..., None] + spreads[..., None] * steps))
    for square in squares:
        posterior += np.log(_likely(square, variances) @ weights + LEAST)
    share = np.exp(posterior - posterior.max())
    share /= share.sum()
    return Scatter(math.exp(float((share * middles).sum())), float((share * spreads).sum()))


def _likely(square: MeanSquare, variances: Any) -> Any:
    """Return the likelihood of a mean square by variance, as shares of the greatest.

    Of many degrees of freedom it is below ``LEAST`` everywhere, or beyond what a float holds.
    """
    import numpy as np

    logs = _log_likely(square, variances)
    return np.exp(logs - logs.max())


def _log_likely(square: MeanSquare, variances: Any) -> Any:
    """Return the log likelihood of a mean square by variance, up to a constant of the square."""
    import numpy as np

    whole = variances + square.noise
    scale = square.value or 1.0
    return -square.degrees / 2 * (np.log(whole / scale) + square.value / whole)


# Turns numbers into estimates: robust centres, spreads, ranks.


# Scales a median absolute deviation to a normal distribution's standard deviation.
MAD_TO_SD = 1.4826
# A process this many standard deviations from the others is another mode, not the tail of this
# one. Low enough for a graph's node gap (0.35 us of 20 us: 7 sd), high enough that the noise
# of an ordinary kernel is never trimmed (simulated in tests/test_calibration.py).
APART = 6.0


@dataclass(frozen=True, slots=True)
class Components:
    """The centre of a measurement and its relative standard deviations."""

    center: float
    within: float
    between: float


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of all pairwise means, each value with itself included."""
    pairs = itertools.combinations_with_replacement(_finite(values), 2)
    return median([(first + second) / 2 for first, second in pairs])


def estimate(blocks: Sequence[Sequence[float]]) -> float:
    """Return one process's estimate: the median in each block, Hodges-Lehmann over the blocks."""
    return hodges_lehmann([median(_finite(block)) for block in blocks if block])


def components(processes: Sequence[Sequence[Sequence[float]]]) -> Components:
    """Return centre and spread of positive samples by process and block."""
    logs = [[_logs(block) for block in blocks if block] for blocks in processes]
    values = [estimate(blocks) for blocks in logs]
    away = [abs(x - median(block)) for blocks in logs for block in blocks for x in block]
    return Components(math.exp(hodges_lehmann(values)), MAD_TO_SD * median(away), spread(values))


def spread(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 of a single value."""
    middle = fmean(_finite(values))
    squares = sum((value - middle) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0


def pooled(groups: Sequence[Sequence[float]]) -> Variance:
    """Return the variance inside groups of one common variance."""
    degrees = sum(len(group) - 1 for group in groups)
    squares = sum((len(group) - 1) * spread(group) ** 2 for group in groups)
    return Variance(squares / degrees if degrees else 0.0, float(degrees))


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
    differences = np.sort(np.subtract.outer(_finite(now), _finite(before)), axis=None)
    return float(differences[left_out - 1]), float(differences[-left_out])


def main_mode(values: Sequence[float], *, prior: Variance, most: int) -> list[float]:
    """Return the values without up to ``most`` that stand apart from all others, order kept.

    The spread that decides is that of the values nearest to the median, so that two strays
    cannot hide each other.
    """
    middle = median(_finite(values))
    core = sorted(values, key=lambda value: abs(value - middle))[: len(values) - most]
    reach = APART * math.sqrt(moderated(pooled([core]), prior).value)
    kept = [value for value in values if abs(value - median(core)) <= reach]
    return kept if len(kept) >= len(core) else core


def accepted(p_values: Sequence[float], rate: float) -> list[bool]:
    """Say which hypotheses are rejected at this false discovery rate (Benjamini-Hochberg)."""
    if not p_values or min(_finite(p_values)) > rate:
        return [False] * len(p_values)  # what it makes of a p-value is never smaller
    from scipy.stats import false_discovery_control  # its import takes half a second

    return [bool(p <= rate) for p in false_discovery_control(_finite(p_values))]


def is_greater(values: Sequence[float], others: Sequence[float], chance: float) -> bool:
    """Say whether values are greater than others, by their ranks (Mann and Whitney, one-sided).

    So they are called with this chance at most where both are drawn alike.
    """
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(_finite(values), _finite(others), alternative="greater")
    return bool(found.pvalue < chance)


def _finite(values: Sequence[float]) -> Sequence[float]:
    if not values:
        raise ValueError("no values to estimate from")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"values must be finite, not {value!r}")
    return values


def _logs(values: Sequence[float]) -> list[float]:
    for value in _finite(values):
        if value <= 0:
            raise ValueError(f"durations must be positive, not {value!r}")
    return [math.log(value) for value in values]


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
