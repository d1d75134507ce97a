"""Robust centres, variances that are known to some degree, and what is alike together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Return items by what they have in common; groups and members keep their order."""
    groups: dict[Key, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


# Turns numbers into one.

# Scales a median absolute deviation to a normal distribution's standard deviation.
MAD_TO_SD = 1.4826


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


# Variances that are known to some degree.


@dataclass(frozen=True, slots=True)
class Variance:
    """A variance and the degrees of freedom it is known to."""

    value: float
    degrees: float

    def reach(self, share: float) -> float:
        """Return the quantile of a variable whose variance this is (Student's t)."""
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, share)) * math.sqrt(self.value)


def pooled(groups: Sequence[Sequence[float]]) -> Variance:
    """Return the variance inside groups of one common variance."""
    squares, degrees = 0.0, 0.0
    for group in groups:
        middle = fmean(group)
        squares += sum((value - middle) ** 2 for value in group)
        degrees += len(group) - 1
    return Variance(squares / degrees if degrees else 0.0, degrees)
