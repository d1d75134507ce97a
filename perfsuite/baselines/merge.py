"""Decides what becomes of a baseline entry when a new estimate of its variant is accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfsuite.codec import round_digits
from perfsuite.model import BaselineEntry, BaselineMetric, Regime, Sampling
from perfsuite.stats import hodges_lehmann, pooled

# A third of the smallest threshold (0.25 %): what moves less is noise, and only makes diffs.
LEAST_MOVE = 0.0025 / 3
# Units of one SKU differ by up to 3.5 % in time but by under 1 % in cycles, so that code that is
# the same agrees within this in one of the two.
MOST_UNIT_DIFFERENCE = 0.03
# Single kernels of short launches differ by more (6 % in both clocks, of 281 variants on cards of
# one board), but kernels that are the same may also be launched more often, or otherwise.
MOST_SAME_KERNELS_DIFFERENCE = 0.1


@dataclass(frozen=True, slots=True)
class Merged:
    """The entry to store, and in words what it changes; no words, no change."""

    entry: BaselineEntry
    what: str


def merge(old: BaselineEntry, new: BaselineEntry, *, is_other_code: bool) -> Merged:
    """Return what to store for a variant.

    Values of the new run's units replace those of the same units. Those of other units stay as
    long as they are of the same code: not when ``is_other_code`` (a verdict found a change), when
    the artefact is another, or when both clocks moved by more than units differ, which is more
    where the artefact is known. What a host issues and awaits moves with the host.
    """
    if reason := other_kind(old, new):
        return Merged(new, reason)
    moves = _moves(old, new)
    others = sorted(_units(old) - _units(new))
    if is_other_code or _is_other_code(old, new):
        dropped = [f"values of other units dropped: {', '.join(others)}"] if others else []
        changed = moves or (["other code"] if others or old.artefact != new.artefact else [])
        return Merged(new, "; ".join(changed + dropped) if changed else "")
    added = [f"unit {unit} added" for unit in sorted(_units(new) - _units(old))]
    recorded = [
        f"{what} recorded"
        for what, is_new in (
            ("sampling", new.sampling and not old.sampling),
            ("kernels", new.kernels and not old.kernels),
            ("counters", old.kernels and _has_counters(new) and not _has_counters(old)),
            ("artefact", new.artefact and not old.artefact),
        )
        if is_new
    ]
    return Merged(_joined(old, new), "; ".join(moves + added + recorded))


def _has_counters(entry: BaselineEntry) -> bool:
    return any(kernel.counters for kernel in entry.kernels)


def pooled_entry(entries: Sequence[BaselineEntry]) -> BaselineEntry:
    """Return the newest of entries of one level, the last of them, with every process of all."""
    *_, last = entries
    traced = next((each for each in reversed(entries) if each.kernels), last)
    rows = {name: _pooled([each.metrics[name] for each in entries]) for name in _clocks(last)}
    return replace(
        last, metrics={**last.metrics, **rows}, kernels=traced.kernels, codes=traced.codes
    )


def _pooled(metrics: Sequence[BaselineMetric]) -> BaselineMetric:
    values: dict[str, tuple[float, ...]] = {}
    for metric in metrics:
        for unit, row in metric.values.items():
            values[unit] = (*values.get(unit, ()), *row)
    counts = [sum(map(len, metric.values.values())) for metric in metrics]
    squares = sum(n * metric.within**2 for n, metric in zip(counts, metrics, strict=True))
    return _centered(metrics[-1], values, math.sqrt(squares / sum(counts)))


def other_kind(old: BaselineEntry, new: BaselineEntry) -> str:
    """Say why two entries are not estimates of one thing; nothing where they are."""
    for name in ("case_version", "regime", "state"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            return f"{name.replace('_', ' ')} was {before} and is {now}"
    if old.sampling and old.sampling != new.sampling:
        return f"sampling was {_words(old.sampling)} and is {_words(new.sampling)}"
    if set(old.metrics) != set(new.metrics):
        return (
            f"metrics were {', '.join(sorted(old.metrics))}; are {', '.join(sorted(new.metrics))}"
        )
    return ""


def _words(sampling: Sampling | None) -> str:
    if sampling is None:
        return "unknown"
    return f"{sampling.launches} launches over {sampling.sets} input sets"


def _clocks(entry: BaselineEntry) -> dict[str, BaselineMetric]:
    return {name: metric for name, metric in sorted(entry.metrics.items()) if metric.values}


def _units(entry: BaselineEntry) -> set[str]:
    return {unit for metric in _clocks(entry).values() for unit in metric.values}


def _is_other_code(old: BaselineEntry, new: BaselineEntry) -> bool:
    is_known = bool(old.artefact and new.artefact)
    if is_known and old.artefact != new.artefact:
        return True
    # Hosts of one board differ by a third, also in the device's own time of what waits for them.
    if new.regime == Regime.END_TO_END:
        return False
    moves = [
        abs(math.log(metric.center / old.metrics[name].center))
        for name, metric in _clocks(new).items()
    ]
    most = MOST_SAME_KERNELS_DIFFERENCE if is_known else MOST_UNIT_DIFFERENCE
    return bool(moves) and min(moves) > most


def _moves(old: BaselineEntry, new: BaselineEntry) -> list[str]:
    """Say which metrics moved: exact ones at all, clocks on a unit that both entries have."""
    found = []
    for name, metric in sorted(new.metrics.items()):
        before = old.metrics[name]
        if not metric.values:
            if metric.center != before.center:
                found.append(f"{name} was {before.center:.15g} and is {metric.center:.15g}")
            continue
        shared = metric.values.keys() & before.values.keys()
        moves = [_center(metric.values[u]) - _center(before.values[u]) for u in shared]
        move = max(moves, key=abs, default=0.0)
        if abs(move) > LEAST_MOVE:
            found.append(f"{name} {math.expm1(move):+.2%}")
    return found


def _center(values: Sequence[float]) -> float:
    """Return the log of the centre of process values."""
    return hodges_lehmann([math.log(value) for value in values])


def _joined(old: BaselineEntry, new: BaselineEntry) -> BaselineEntry:
    clocks = {name: _with_units(old.metrics[name], now) for name, now in _clocks(new).items()}
    # What was not traced, because nothing moved, is what was traced before.
    return replace(
        new,
        metrics={**new.metrics, **clocks},
        artefact=new.artefact or old.artefact,
        kernels=new.kernels or old.kernels,
        codes=new.codes if new.kernels else old.codes,
    )


def _with_units(old: BaselineMetric, new: BaselineMetric) -> BaselineMetric:
    """Return the new metric with the values of the old one's other units."""
    kept = {unit: row for unit, row in old.values.items() if unit not in new.values}
    if not kept:
        return new
    shares = [sum(map(len, part.values())) for part in (kept, new.values)]
    within = (shares[0] * old.within + shares[1] * new.within) / sum(shares)
    return _centered(new, {**kept, **new.values}, within)


def _centered(
    metric: BaselineMetric, values: Mapping[str, tuple[float, ...]], within: float
) -> BaselineMetric:
    """Return the metric with these processes and what follows from them."""
    logs = [[math.log(value) for value in row] for row in values.values()]
    return replace(
        metric,
        center=round_digits(math.exp(hodges_lehmann([value for row in logs for value in row]))),
        within=round_digits(within),
        between=round_digits(math.sqrt(pooled(logs).value)),
        values=values,
    )
