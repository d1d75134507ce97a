"""Learns the components of noise from baselines: by class for the prior, by variant beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean

from perfsuite import stats
from perfsuite.judge.policy import Against
from perfsuite.judge.timings import (
    DEVICE_TIME,
    ENERGY,
    TIME,
    Timing,
    timings_of_entry,
    values_of_entry,
)
from perfsuite.model import BaselineEntry, Metric, Regime, Variant
from perfsuite.noise import AWAITED, ENERGY_PRIOR, NoisePrior, prior_for, service_prior
from perfsuite.roofline import class_of

# Below this the SM clock has not moved: its noise, shared with time, would set the slope to 0.5.
CLOCK_MOVED = 0.01
# Processes from which a slope and a residual can be told.
FEWEST = 3
# Entries of several units from which a class is told: the first ones are those whose screen was
# doubtful and whose confirmation ran on another GPU, which are not like the others.
FEWEST_ENTRIES = 20
# What a shift's other metrics are not: clocks, which have priors of their own.
CLOCKS = (TIME.name, DEVICE_TIME.name, "cycles")
# An entry of a regime that this version does not know is incomparable, not an error.
REGIMES = {regime.value for regime in Regime}


def priors_of(
    entries: Sequence[BaselineEntry], variants: Sequence[Variant], against: Against
) -> dict[NoisePrior, NoisePrior]:
    """Return what the entries of a SKU make of each class's prior, by the prior."""
    known = {variant.id: variant for variant in variants}
    samples: dict[NoisePrior, list[Sequence[Timing]]] = {}
    for entry in entries:
        with suppress(ValueError):  # a value that is no number to learn from
            for prior, timings in _samples(entry, known.get(entry.variant), against):
                samples.setdefault(prior, []).append(timings)
    return {prior: _learned(prior, each) for prior, each in samples.items()}


def prior_of(variant: Variant, entry: BaselineEntry, against: Against) -> NoisePrior:
    """Return the prior of a variant's time, as it was learned."""
    time_us = entry.metrics["time_us"].center
    of_class = _of_class(class_of(variant, against.slug, time_us), entry, against)
    return against.prior(of_class, variant.id)


def _of_class(work_class: str, entry: BaselineEntry, against: Against) -> NoisePrior:
    return prior_for(
        against.facts.device,
        work_class,
        regime=Regime(entry.regime),
        time_us=entry.metrics["time_us"].center,
        has_cycles="cycles" in entry.metrics and "cycles" in against.facts.clocks,
    )


def by_unit(timings: Sequence[Timing], beta: float) -> list[list[float]]:
    """Return the log durations of each unit's processes."""
    ordered = sorted(timings, key=attrgetter("unit"))
    return [[one.y(beta) for one in own] for _, own in groupby(ordered, key=attrgetter("unit"))]


def between_units(sides: Sequence[Sequence[Sequence[float]]], variance: float) -> stats.MeanSquare:
    """Return the mean square between units' centres inside each side.

    ``variance`` is that of processes, of which each centre has its part.
    """
    sides = [side for side in sides if len(side) > 1]
    if not sides:
        return stats.MeanSquare(0.0, 0.0)
    centers = stats.pooled([list(map(fmean, side)) for side in sides])
    noise = variance * fmean(1 / len(unit) for side in sides for unit in side)
    return stats.MeanSquare(centers.value, centers.degrees, noise)


def with_beta(prior: NoisePrior, before: Sequence[Timing]) -> NoisePrior:
    """Return the prior with the share of time that follows the clock, where the clock moved.

    The slope of log time over log frequency is -beta. The prior is one more observation of it.
    """
    if not prior.beta_sd or not all(one.cycles for one in before):
        return prior
    clocks = [one.y(1.0) - one.y(0.0) for one in before]
    if len(before) < FEWEST or stats.spread(clocks) < CLOCK_MOVED:
        return prior
    times = [one.y(0.0) for one in before]
    middle, level = fmean(clocks), fmean(times)
    moved = sum((clock - middle) ** 2 for clock in clocks)
    slope = sum((c - middle) * (t - level) for c, t in zip(clocks, times, strict=True)) / moved
    left = [t - level - slope * (c - middle) for c, t in zip(clocks, times, strict=True)]
    residual = stats.moderated(
        stats.Variance(sum(each**2 for each in left) / (len(left) - 2), len(left) - 2),
        stats.Variance(prior.between**2 + prior.unit**2, prior.degrees),
    )
    weights = moved / residual.value, 1 / prior.beta_sd**2
    beta = (-slope * weights[0] + prior.beta * weights[1]) / sum(weights)
    return replace(prior, beta=beta, beta_sd=1 / math.sqrt(sum(weights)))


def _samples(
    entry: BaselineEntry, variant: Variant | None, against: Against
) -> Iterator[tuple[NoisePrior, Sequence[Timing]]]:
    if "time_us" not in entry.metrics or entry.regime not in REGIMES:
        return
    time_us = entry.metrics["time_us"].center
    work_class = class_of(variant, against.slug, time_us) if variant else entry.work_class
    if work_class:
        yield _of_class(work_class, entry, against), timings_of_entry(entry)
    for name, metric in entry.metrics.items():
        if name == DEVICE_TIME.name:
            yield AWAITED, values_of_entry(entry, DEVICE_TIME)
        elif name == ENERGY.name:
            yield ENERGY_PRIOR, values_of_entry(entry, ENERGY)
        elif metric.values and name not in CLOCKS:
            own = Metric(name, metric.unit, metric.better)
            yield service_prior(against.facts.device), values_of_entry(entry, own)


def _learned(prior: NoisePrior, samples: Sequence[Sequence[Timing]]) -> NoisePrior:
    units = [by_unit(timings, prior.beta) for timings in samples]
    processes = [stats.pooled(each) for each in units]
    between = stats.learned(
        [stats.MeanSquare(each.value, each.degrees) for each in processes if each.degrees],
        stats.Variance(prior.between**2, prior.degrees),
    )
    squares = [
        between_units([each], stats.moderated(own, between).value)
        for each, own in zip(units, processes, strict=True)
    ]
    of_units = [square for square in squares if square.degrees]
    unit = stats.Scatter(prior.unit, prior.unit_spread)
    if len(of_units) >= FEWEST_ENTRIES:
        unit = stats.scattered(of_units, unit)
    return replace(
        prior,
        between=math.sqrt(between.value),
        degrees=between.degrees,
        unit=unit.middle,
        unit_spread=unit.spread,
    )
