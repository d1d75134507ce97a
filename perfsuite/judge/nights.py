"""Compares a baseline entry with several nights: how far its level moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from perfsuite import stats
from perfsuite.judge.change import Shift, shift_of
from perfsuite.judge.components import between_units, by_unit, prior_of
from perfsuite.judge.draft import word_of
from perfsuite.judge.exact import moves
from perfsuite.judge.pair import Pair, paired
from perfsuite.judge.policy import Against
from perfsuite.judge.timings import DEVICE_TIME, TIME, Timing, timings_of_entry, values_of_entry
from perfsuite.model import BaselineEntry, Change, Metric, Regime, Variant, Word
from perfsuite.noise import AWAITED, LACK_OF_FIT, NoisePrior, service_prior

# A unit's processes in one night.
Cell = Sequence[float]


def level_changes(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> tuple[Change, ...]:
    """Return the change of every metric from an entry to its level over nights, time first.

    Processes of a night are no nights of their own: a night has its level, which each shares. Of
    metrics without noise there are those that changed, and in which all nights agree.
    """
    shifts = _shifts(variant, old, nights, against)
    return (*(shift.change(against.policy) for shift in shifts), *_exact(variant, old, nights))


def is_one_level(
    variant: Variant, night: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> bool:
    """Say whether a night is of the level of others: no verdict would tell them apart."""
    found = _shifts(variant, night, nights, against)
    moved = (word_of(shift, against.policy) in {Word.SLOWER, Word.FASTER} for shift in found)
    return not any(moved) and not _exact(variant, night, nights)


def _exact(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry]
) -> Sequence[Change]:
    counted = {
        name: [night.metrics[name].center for night in nights if name in night.metrics]
        for name, metric in old.metrics.items()
        if not metric.values
    }
    return moves(counted, old, variant.case.metrics)


def _shifts(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> Iterator[Shift]:
    if "time_us" in old.metrics and all("time_us" in night.metrics for night in nights):
        before, now = timings_of_entry(old), [timings_of_entry(night) for night in nights]
        prior, metric = prior_of(variant, old, against), TIME
        device = [values_of_entry(each, DEVICE_TIME) for each in (old, *nights)]
        at_home = {one.unit for one in before} & {one.unit for night in now for one in night}
        if variant.case.regime is Regime.END_TO_END and all(device) and not at_home:
            # Host time is another host's there.
            prior, metric = against.prior(AWAITED, variant.id), DEVICE_TIME
            before, *now = device
        yield _shift(before, now, prior=prior, against=against, metric=metric)
    for metric in variant.case.metrics:
        before, *now = [values_of_entry(each, metric) for each in (old, *nights)]
        if before and all(now):
            prior = against.prior(service_prior(against.facts.device), variant.id)
            yield _shift(before, now, prior=prior, against=against, metric=metric)


def _shift(
    before: Sequence[Timing],
    nights: Sequence[Sequence[Timing]],
    *,
    prior: NoisePrior,
    against: Against,
    metric: Metric,
) -> Shift:
    now = [one for night in nights for one in night]
    shift = shift_of(before, now, prior=prior, policy=against.policy, metric=metric)
    if shift.is_clock_lost:
        return shift
    pair = paired(before, now, prior)
    units = sorted({one.unit for one in pair.now})
    of_unit = [[[one for one in night if one.unit == unit] for night in nights] for unit in units]
    cells = [[[one.y(pair.prior.beta) for one in night] for night in unit if night]
             for unit in of_unit]  # fmt: skip
    difference = _difference(pair, by_unit(pair.before, pair.prior.beta), cells)
    return replace(shift, strict=(difference,), lenient=(difference,), values=None)


def _difference(
    pair: Pair, before: list[list[float]], nights: Sequence[Sequence[Cell]]
) -> stats.Difference:
    """Return the change with the variances of processes, nights, units and clock.

    A night weighs as much as any other of its unit, and a unit as much as any other, so that
    a unit's own level cancels where both sides have it.
    """
    sides: list[Sequence[Sequence[Cell]]] = [[[unit] for unit in before], nights]
    shared = stats.moderated(
        stats.pooled([cell for side in sides for unit in side for cell in unit]),
        stats.Variance(pair.prior.between**2, pair.prior.degrees),
    )
    centers = [fmean(fmean(map(fmean, unit)) for unit in side) for side in sides]
    of_nights = stats.moderated(
        between_units(nights, shared.value).variance,
        stats.Variance(pair.prior.run**2, pair.prior.run_degrees),
    )
    # Both sides of a unit have runs; of different units only those of the nights are beside them.
    runs = sum(sum(1 / len(unit) for unit in side) / len(side) ** 2
               for side in (sides if pair.same_unit else sides[1:]))  # fmt: skip
    parts: list[stats.Variance | stats.Mixture] = [
        shared.times(sum(map(_share, sides))),
        of_nights.times(runs),
        stats.Variance((pair.prior.beta_sd**2 + LACK_OF_FIT**2) * pair.clock**2, math.inf),
    ]
    if not pair.same_unit:
        flat = [[y for cell in unit for y in cell] for unit in nights]
        level = pair.level([before, flat, []])
        parts.append(level.times(sum(1 / len(side) for side in sides)))
    return stats.Difference(centers[1] - centers[0], tuple(parts))


def _share(side: Sequence[Sequence[Cell]]) -> float:
    """Return the part of one process's variance in the mean of a side."""
    of_units = (sum(1 / len(cell) for cell in unit) / len(unit) ** 2 for unit in side)
    return sum(of_units) / len(side) ** 2
