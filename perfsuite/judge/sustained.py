"""Judges what back-to-back launches do to the machine: their clock and their energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from perfsuite.judge.change import Shift, shift_of
from perfsuite.judge.policy import Against
from perfsuite.judge.timings import (
    ENERGY,
    TIME,
    Timing,
    timings_of,
    timings_of_entry,
    values_of,
    values_of_entry,
)
from perfsuite.model import BaselineEntry, Metric, Regime, Result, Run, Status, Variant, Word
from perfsuite.noise import CLOCK_PRIOR, ENERGY_PRIOR

# The SM clock as a multiple of the clock that the canary had in the same run.
CLOCK = Metric("clock_ratio", "x", better="higher")


def power_shifts(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> list[Shift]:
    """Return how clock and energy of a sustained variant moved, where both sides have them."""
    if variant.case.regime is not Regime.SUSTAINED:
        return []
    pairs = (
        (
            CLOCK,
            CLOCK_PRIOR,
            _ratios(timings_of_entry(entry), against.clocks_before),
            _ratios(timings_of(result), against.clocks_now),
        ),
        (ENERGY, ENERGY_PRIOR, values_of_entry(entry, ENERGY), values_of(result, ENERGY)),
    )
    return [
        shift_of(
            before,
            now,
            prior=against.prior(prior, variant.id),
            policy=against.policy,
            metric=metric,
        )
        for metric, prior, before, now in pairs
        if before and now
    ]


def power_reason(shifts: Sequence[Shift], words: Sequence[Word]) -> str:
    """Say what it means when the code takes as long as before and the machine more power."""
    found = {shift.metric.name: word for shift, word in zip(shifts, words, strict=True)}
    is_same = found.get(TIME.name) is Word.SAME
    if is_same and found.get(ENERGY.name) is Word.SLOWER:
        return "same code, more power"
    return "same code, lower clock" if is_same and found.get(CLOCK.name) is Word.SLOWER else ""


def canary_clocks(
    run: Run, entries: Mapping[str, BaselineEntry]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[str, list[Timing]] = {}
    for result in run.results:
        entry = entries.get(result.variant)
        is_known = entry is not None and "time_us" in entry.metrics
        if result.stage.is_canary and result.status is Status.OK and is_known:
            measured.setdefault(result.variant, []).extend(_usable(result))
    rates = {
        canary.id: canary.work.flops / median(item.time_us for item in measured[canary.id])
        for canary in run.canaries
        if canary.work and canary.work.flops and measured.get(canary.id)
    }
    if not rates:
        return {}, {}
    chosen = max(rates, key=rates.__getitem__)
    before = _clocks(timings_of_entry(entries[chosen]))
    now = _clocks(measured[chosen])
    # A unit that the baseline does not know is held against those that it does.
    usual = median(before.values()) if before else 0.0
    return {**(dict.fromkeys(now, usual) if usual else {}), **before}, now


def _usable(result: Result) -> list[Timing]:
    try:
        return timings_of(result)
    except ValueError:  # a sample that is no duration: its own verdict says so
        return []


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for item in timings:
        if item.cycles:
            found.setdefault(item.unit, []).append(item.cycles / item.time_us)
    return {unit: median(values) for unit, values in found.items()}


def _ratios(timings: Sequence[Timing], clocks: Mapping[str, float]) -> list[Timing]:
    """Return each process's clock over the canary's, as a reciprocal: more of it is better."""
    return [
        Timing(item.unit, clocks[item.unit] * item.time_us / item.cycles)
        for item in timings
        if item.cycles and item.unit in clocks
    ]
