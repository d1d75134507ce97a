"""One rule for sides A and B that took turns on one card: pairs of processes until it is plain.

A first look, then more pairs up to a last one. A change is called where it is beyond its threshold
and beyond what chance leaves, by as many pairs as a call needs. *Same* is plain where neither the
change nor what it may still be is worth a word; after the last pair, where what it may still be is
inside the gate. A side's level is a trimmed mean of processes: one in eight may have another mode.

Cards, boards, hosts and days are the same to both sides of a pair and need no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from perfsuite.judge.noise import NoisePrior
from perfsuite.model import Change, Settings, Verdict, Word
from perfsuite.stats import Variance

# One-sided error of a call at one look. Three looks, two sides and processes that are not normal
# make about 0.05 % of it (simulated nights of 500 variants).
CALL = 0.0002
# One-sided error of saying how large a change may still be.
MISS = 0.025
# A kernel's processes agree no better, whatever a few of them say.
LEAST_SPREAD = 0.0003
# What a class of variants scatters by weighs as much as so many processes, at most.
CLASS_DEGREES = 4.0
# Trimmed at either end (Yuen 1974, The two-sample trimmed t for unequal population variances).
TRIM = 0.2


class Looks(NamedTuple):
    """How many pairs a step takes, a call needs, and are taken at most."""

    step: int
    call: int
    most: int


def looks_of(settings: Settings) -> Looks:
    """Return the looks that a run's settings ask for: as defaults 3, 6 and 12 pairs."""
    call = settings.confirm_processes
    return Looks((call + 1) // 2, call, 2 * call)


@dataclass(frozen=True, slots=True)
class Difference:
    """The change of log durations from side A to side B, and how well it is known.

    ``spread`` is what processes of a side scatter by, ``error`` that of the change.
    """

    theta: float
    spread: float
    error: float
    degrees: float

    def reach(self, miss: float) -> float:
        """Return how far off the change may be, but for a share ``miss`` to either side."""
        return Variance(self.error**2, self.degrees).reach(1 - miss)


def difference(a: Sequence[float], b: Sequence[float], prior: NoisePrior) -> Difference:
    """Return the change between both sides' processes, log durations."""
    (level_a, squares_a, kept_a), (level_b, squares_b, kept_b) = _trimmed(a), _trimmed(b)
    squares, degrees = squares_a + squares_b, float(kept_a + kept_b - 2)
    # The class lifts a spread that is small by luck, and calms none that is large.
    known = min(prior.degrees, CLASS_DEGREES)
    if not degrees or squares / degrees < prior.between**2:
        squares, degrees = squares + known * prior.between**2, degrees + known
    variance = max(LEAST_SPREAD**2, squares / degrees)
    error = math.sqrt(variance * (1 / kept_a + 1 / kept_b))
    spread = math.sqrt(variance)
    return Difference(level_b - level_a, spread, error, degrees)


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the trimmed mean, the winsorised sum of squares, and of how many values it is."""
    cut = int(TRIM * len(values))
    ordered = sorted(values)
    kept = ordered[cut : len(ordered) - cut]
    drawn_in = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    middle = fmean(drawn_in)
    return fmean(kept), sum((value - middle) ** 2 for value in drawn_in), len(kept)


def within(change: Change) -> float:
    """Return how large a change may be, either way, where a metric is called the same."""
    return max(abs(change.low), abs(change.high))


def needs_pairs(verdict: Verdict) -> bool:
    """Say whether more pairs may tell more of a variant: nothing moved, and not all is plain."""
    noisy = [change for change in verdict.changes if change.degrees]
    return (verdict.word.stayed or verdict.word is Word.UNCLEAR) and any(
        abs(each.theta) > each.threshold or within(each) >= min(2 * each.threshold, each.gate)
        for each in noisy
    )
