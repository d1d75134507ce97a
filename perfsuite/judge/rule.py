"""One rule for every metric with noise: how far it moved, how surely, and the word for it.

*Stored numbers* of this very card say *same* where neither the change nor what it may still be is
worth a word. Those of other cards say so too, but never within less than cards scatter by; they
call nothing. *Pairs* decide what is left: processes of both sides, A and B, that took turns on one
card. A first look, then more pairs up to a last one. A change is called where it is beyond its
threshold and beyond what chance leaves, by as many pairs as a call needs.

Cards, boards, hosts and days are the same to both sides of a pair and need no model. A side's level
is a trimmed mean of processes: one in eight may have another mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from perfsuite.model import Change, Settings, Verdict, Word
from perfsuite.stats import Variance

# One-sided error of a call at one look. Three looks, two sides and processes that are not normal
# make about 0.05 % of it (simulated nights of 500 variants).
CALL = 0.0002
# One-sided error of saying how large a change may still be.
MISS = 0.025
# A kernel's processes agree no better, whatever a few of them say (H200: 25 % below 0.05 %).
LEAST_SPREAD = 0.0003
# What is usual weighs as much as so many processes (Smyth 2004): a choice. Cards are few, so there
# it weighs half as much.
USUAL_DEGREES = 4.0
# Of its threshold a metric usually scatters by, between processes and between cards alike. Paced on
# H200s: 0.09 % between the processes of the median of 550 variants, 0.07 % between cards.
USUAL = 0.4
# Trimmed at either end (Yuen 1974, The two-sample trimmed t for unequal population variances).
TRIM = 0.2
# On a host a process may be fast or slow whatever its code, so that a pair has a change of this
# kind one time in four: none of six pairs may be left out, and one of twelve at either end.
PAIR_TRIM = 0.1
# Numbers of another card, or of another environment, never say *same* within less: a choice.
ELSEWHERE = 0.005


class Limits(NamedTuple):
    """What of a kind of metric is worth a word, and from where on it fails a run; shares of 1."""

    threshold: float
    gate: float


# Both are choices: half of the smallest change that must be found, and what a team wants to stop.
LIMITS = {
    "paced": Limits(0.0025, 0.01),  # two clocks inside a GPU that is kept cool
    "one clock": Limits(0.01, 0.05),  # links, counters of energy, devices with time alone
    "canary": Limits(0.01, 0.03),  # the SM clock beside that of a canary
    "host": Limits(0.05, 0.1),  # what the host's cores issue and await
}


class Looks(NamedTuple):
    """How many pairs a step takes, a call needs, and are taken at most."""

    step: int
    call: int
    most: int


def looks_of(settings: Settings) -> Looks:
    """Return the looks that a run's settings ask for: as defaults 3, 6 and 12 pairs."""
    call = settings.confirm_processes
    return Looks((call + 1) // 2, call, 2 * call)


# The log durations of a side's processes, by card.
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Difference:
    """The change of log durations from one side to the other, and how well it is known.

    ``spread`` is what processes of a side scatter by, ``parts`` are the variances of the change.
    """

    theta: float
    spread: float
    parts: tuple[Variance, ...]

    @property
    def error(self) -> float:
        """The standard error of the change."""
        return math.sqrt(sum(part.value for part in self.parts))

    @property
    def degrees(self) -> float:
        """The degrees of freedom that the processes leave."""
        return self.parts[0].degrees

    def reach(self, miss: float) -> float:
        """Return how far off the change may be, but for a share ``miss`` to either side."""
        return math.hypot(*(part.reach(1 - miss) for part in self.parts))


def difference(  # noqa: PLR0913 - both sides, and how they are taken
    a: Rows, b: Rows, usual: float, *, also: Rows = (), cards: bool = False, trim: float = TRIM
) -> Difference:
    """Return the change from ``a`` to ``b``; a side of no rows is 0.

    ``usual`` is what processes scatter by as a rule; those of ``also`` tell of it, too. With
    ``cards`` the sides are of different cards, which scatter as well. ``trim`` is the share left
    out at either end.
    """
    sides = [[_trimmed(row, trim) for row in side] for side in (a, b)]
    levels = [[level for level, _, _ in side] for side in sides]
    told = [*chain(*sides), *(_trimmed(row, trim) for row in also)]
    squares = sum(each for _, each, _ in told)
    degrees = float(sum(kept - 1 for *_, kept in told))
    # What is usual lifts a spread that is small by luck. It calms none that is large, and tells
    # the less of it the larger it is.
    own = squares / degrees if degrees else 0.0
    weight = USUAL_DEGREES * min(1.0, usual**2 / own) if own else USUAL_DEGREES
    degrees += weight
    variance = max(LEAST_SPREAD**2, (squares + weight * max(own, usual**2)) / degrees)
    share = sum(sum(1 / kept for *_, kept in side) / len(side) ** 2 for side in sides if side)
    parts = [Variance(variance * share, degrees)]
    if cards:
        known, middle = USUAL_DEGREES / 2, fmean(levels[0])
        apart = sum((level - middle) ** 2 for level in levels[0]) + known * usual**2
        free = known + len(levels[0]) - 1
        parts.append(Variance(apart / free * sum(1 / len(side) for side in levels), free))
    was, is_now = (fmean(side) if side else 0.0 for side in levels)
    return Difference(is_now - was, math.sqrt(variance), tuple(parts))


def difference_of(  # noqa: PLR0913 - both sides, and how they were taken
    a: Rows,
    b: Rows,
    limits: Limits,
    *,
    in_turns: bool,
    also: Rows = (),
    cards: bool = False,
) -> Difference:
    """Return the change from ``a`` to ``b`` of a metric of this kind.

    What a host is like in the seconds of a pair is in both sides, not in their difference. The
    threshold is what pairs of a busy host scatter by as a rule (two cores: 2 to 12 %).
    """
    if in_turns and limits is LIMITS["host"] and [*map(len, a)] == [*map(len, b)]:
        both = zip(a, b, strict=True)
        rows = [[late - early for early, late in zip(*row, strict=True)] for row in both]
        return difference([], rows, limits.threshold, trim=PAIR_TRIM)
    return difference(a, b, USUAL * limits.threshold, also=also, cards=cards)


def _trimmed(values: Sequence[float], trim: float) -> tuple[float, float, int]:
    """Return the trimmed mean, the winsorised sum of squares, and of how many values it is."""
    cut = int(trim * len(values))
    ordered = sorted(values)
    kept = ordered[cut : len(ordered) - cut]
    drawn_in = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    middle = fmean(drawn_in)
    return fmean(kept), sum((value - middle) ** 2 for value in drawn_in), len(kept)


def within(change: Change) -> float:
    """Return how large a change may be, either way, where a metric is called the same."""
    return max(abs(change.low), abs(change.high))


def needs_pairs(verdict: Verdict) -> bool:
    """Say whether pairs, or more of them, may tell more of a variant.

    Of stored numbers all that is not plainly the same needs some.
    """
    noisy = [change for change in verdict.changes if change.degrees]
    is_open = verdict.word is Word.UNCLEAR
    if not verdict.in_turns and (is_open or verdict.word.moved):
        return True
    return (verdict.word.stayed or is_open) and any(
        abs(each.theta) > each.threshold
        or (verdict.in_turns and within(each) >= min(2 * each.threshold, each.gate))
        for each in noisy
    )


def steps_left(verdict: Verdict, pairs: int, looks: Looks) -> int:
    """Return how many more steps should make a verdict by so many pairs plain, 0 if it is.

    Half an interval falls as the root of pairs grows; it has room up to the next limit.
    """
    most = (looks.most - pairs) // looks.step if verdict.in_turns and needs_pairs(verdict) else 0
    for steps in range(1, most):
        half = math.sqrt(pairs / (pairs + steps * looks.step)) / 2
        if all(half * (each.high - each.low) <= _room(each) for each in verdict.changes):
            return steps
    return most


def _room(change: Change) -> float:
    size, inside = abs(change.theta), min(2 * change.threshold, change.gate)
    return max(size - change.threshold, inside - size)
