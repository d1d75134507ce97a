"""Turns numbers into estimates: robust centres, spreads, ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from perfsuite.stats.variances import Variance, moderated

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


process_value = estimate


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
