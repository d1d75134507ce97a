"""Variances that are known to some degree: by their own samples, and by their class."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
