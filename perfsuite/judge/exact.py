"""Judges metrics without noise, and limits that a case's author set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfsuite import stats
from perfsuite.model import BaselineEntry, BaselineMetric, Budget, Change, Metric, Result

# The allocator rounds and keeps blocks of its own; other exact metrics may not move at all.
TOLERANCE = {"peak_bytes": 0.01}
# A greater change says no more, and one that is no finite number cannot be stored.
MOST_CHANGE = 1e12


def exact_changes(
    result: Result, entry: BaselineEntry, declared: Sequence[Metric] = ()
) -> list[Change]:
    """Return the changes beyond tolerance on which all processes agree; worse is positive.

    ``declared`` are the case's own metrics, whose thresholds hold.
    """
    values: dict[str, list[float]] = {}
    for item in result.evidence:
        for name, value in item.exact.items():
            values.setdefault(name, []).append(value)
    return moves(values, entry, declared)


def moves(
    found_values: Mapping[str, Sequence[float]],
    entry: BaselineEntry,
    declared: Sequence[Metric] = (),
) -> list[Change]:
    """Return the changes beyond tolerance on which all values of a metric agree."""
    found = []
    tolerances = TOLERANCE | {metric.name: metric.threshold for metric in declared}
    for name, metric in sorted(entry.metrics.items()):
        values = found_values.get(name, ())
        if metric.values or not values:  # what has values by process has noise
            continue
        tolerance = tolerances.get(name, 0.0)
        worsened = [_worsening(metric, value) for value in values]
        if min(worsened) > tolerance or max(worsened) < -tolerance:
            current = sorted(values)[len(values) // 2]
            found.append(_change(name, metric, current=current, tolerance=tolerance))
    return found


def collapses(result: Result, entry: BaselineEntry, declared: Sequence[Metric]) -> list[Change]:
    """Return the noisy metrics of which more is better and of which every process has none left.

    Nothing has no logarithm, so that no interval can be told; none is needed.
    """
    found = []
    for name in [metric.name for metric in declared if metric.better == "higher"]:
        stored = entry.metrics.get(name)
        values = [value for item in result.evidence for b in item.samples(name) for value in b]
        if stored is not None and stored.values and values and max(values) <= 0:
            found.append(_change(name, stored, current=max(values), tolerance=0.0))
    return found


def over_budget(budgets: Sequence[Budget], result: Result, times: Sequence[float]) -> str:
    """Say which budget the centre of the processes exceeds, or ""."""
    for budget in budgets:
        values = _values(budget.metric, result, times)
        if values and stats.hodges_lehmann(values) > budget.most:
            now = stats.hodges_lehmann(values)
            reason = f" ({budget.reason})" if budget.reason else ""
            return f"{budget.metric} is {now:.6g}, its budget is {budget.most:.6g}{reason}"
    return ""


def _values(metric: str, result: Result, times: Sequence[float]) -> list[float]:
    if metric == "time_us":
        return list(times)
    if metric == "cycles":
        cycles = [item.samples("cycles") for item in result.evidence]
        return [stats.estimate(blocks) for blocks in cycles if any(blocks)]
    exact = [item.exact[metric] for item in result.evidence if metric in item.exact]
    noisy = [item.samples(metric) for item in result.evidence]
    return exact or [stats.estimate(blocks) for blocks in noisy if any(blocks)]


def _worsening(metric: BaselineMetric, value: float) -> float:
    if value == metric.center:
        return 0.0
    change = (value - metric.center) / (abs(metric.center) or 1.0)
    change = max(-MOST_CHANGE, min(MOST_CHANGE, change))
    if metric.better == "equal":
        return abs(change)
    return -change if metric.better == "higher" else change


def _change(name: str, metric: BaselineMetric, *, current: float, tolerance: float) -> Change:
    theta = _worsening(metric, current)
    return Change(
        metric=name,
        unit=metric.unit,
        baseline=metric.center,
        current=current,
        theta=theta,
        low=theta,
        high=theta,
        threshold=tolerance,
        gate=tolerance,
        detectable=tolerance,
        p_value=0.0,
    )
