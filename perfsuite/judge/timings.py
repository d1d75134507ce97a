"""What one process has to say of a metric, as the decision reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfsuite import stats
from perfsuite.model import BaselineEntry, Metric, Result

TIME = Metric("time_us", "us")
# What the device itself took for launches that the host issued and awaited.
DEVICE_TIME = Metric("device_us", "us")
# Time with what the SM clock did to it, beside the code's own change: in A against B both count.
ELAPSED = Metric("elapsed_us", "us")
# Of launches that follow each other without a gap.
ENERGY = Metric("energy_j", "J")
TIMES = frozenset({TIME, DEVICE_TIME, ELAPSED})


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's estimate per launch, and the unit it ran on ("" if not known).

    A metric of which more is better stands here as its reciprocal: longer is always worse.
    ``is_fresh`` is false for a screen's process beside a confirmation: it was chosen for its time.
    """

    unit: str
    time_us: float
    cycles: float | None = None
    is_fresh: bool = True

    def y(self, beta: float) -> float:
        """Return the log duration in which a change of the SM clock alone cancels."""
        return (1 - beta) * math.log(self.time_us) + (
            beta * math.log(self.cycles) if self.cycles else 0.0
        )


def timings_of(result: Result) -> list[Timing]:
    """Return one timing per process; a value that is no duration raises a ``ValueError``."""
    found = []
    for item in result.evidence:
        if not any(item.samples("time_us")):
            continue
        time = stats.estimate(item.samples("time_us"))
        cycles = item.samples("cycles")
        found.append(
            _checked(Timing(item.unit, time, stats.estimate(cycles) if any(cycles) else None))
        )
    return found


def values_of(result: Result, metric: Metric) -> list[Timing]:
    """Return one timing per process that has samples of a metric, however good more of it is."""
    sampled = [(item.unit, item.samples(metric.name)) for item in result.evidence]
    return [
        _valued(unit, stats.estimate(blocks), metric) for unit, blocks in sampled if any(blocks)
    ]


def values_of_entry(entry: BaselineEntry, metric: Metric) -> list[Timing]:
    """Return the baseline's processes as ``values_of`` does; empty if it lacks the metric."""
    stored = entry.metrics.get(metric.name)
    if stored is None:
        return []
    return [_valued(unit, value, metric) for unit, row in stored.values.items() for value in row]


def timings_of_entry(entry: BaselineEntry) -> list[Timing]:
    """Return the baseline's processes; its centre stands for one if it lists none."""
    time, cycles = entry.metrics["time_us"], entry.metrics.get("cycles")
    if not time.values:
        return [_checked(Timing("", time.center, cycles.center if cycles else None))]
    found = []
    for unit, values in time.values.items():
        other = cycles.values.get(unit, ()) if cycles else ()
        paired = other if len(other) == len(values) else (None,) * len(values)
        found += [_checked(Timing(unit, *pair)) for pair in zip(values, paired, strict=True)]
    return found


def _valued(unit: str, value: float, metric: Metric) -> Timing:
    if not 0 < value < math.inf:
        raise ValueError(f"{metric.name} must be a positive number, not {value!r}")
    return Timing(unit, 1 / value if metric.better == "higher" else value)


def _checked(timing: Timing) -> Timing:
    for name in ("time_us", "cycles"):
        value = getattr(timing, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, not {value!r}")
    return timing
