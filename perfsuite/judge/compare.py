"""Compares one variant before and now: how far each of its metrics moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from perfsuite import stats
from perfsuite.boundary import MAGNITUDE, is_measurable
from perfsuite.devices.peaks import COLLECTIVE, COMPUTE, HOST_COPY, MEMORY, TRANSFER, class_of
from perfsuite.judge.noise import Timing, values_of_entry
from perfsuite.judge.rule import CALL, ELSEWHERE, LIMITS, MISS, Limits, difference_of
from perfsuite.model import (
    CYCLES,
    DEVICE_TIME,
    METRICS,
    TIME,
    BaselineEntry,
    BaselineMetric,
    CaseInfo,
    Change,
    ClaimWord,
    CoreMetric,
    DeviceFacts,
    Metric,
    Policy,
    Reason,
    Regime,
    Result,
    Variant,
    VariantRun,
    Word,
    because,
    metrics_by_name,
)

# Time with what the SM clock did to it, beside the code's own change: in A against B both count.
ELAPSED = Metric("elapsed_us", "us")
# The SM clock as a multiple of the clock that the canary had in the same run.
CLOCK = Metric("clock_ratio", "x", better="higher")
TIMES = frozenset({TIME, DEVICE_TIME, ELAPSED})
# What --perf-fail-on may name besides statuses.
FAIL_WORDS = (*(word.value for word in Word if not word.stayed), ClaimWord.BROKEN.value)
# The share of time that follows the SM clock: of operations all, of memory none, else half.
FOLLOWS = {COMPUTE: 1.0, MEMORY: 0.0}
MIXED_FOLLOWS = 0.5
# How far theta may be off by it, per unit of the SM clock's change. Attention's cycles rise by
# 1.7 % when a power cap takes 8 % off the SM clock.
LACK_OF_FIT = 0.2
# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# A change of time of less is not worth a word.
FLOOR_US = 0.02
# A greater change has no share of 1 that a run file can hold.
MOST_LOG = math.log(MAGNITUDE) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What all variants of a run are judged by.

    ``clocks`` are the compute canary's SM clock in MHz by unit, before and now. ``call`` is how
    many pairs a call needs.
    """

    facts: DeviceFacts
    slug: str
    policy: Policy
    clocks: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})
    call: int = 0


def time_limits(work_class: str, entry: BaselineEntry, facts: DeviceFacts) -> Limits:
    """Return the limits of a variant's time, by its class of work and by who times it."""
    if not facts.is_host and work_class in {COLLECTIVE, TRANSFER}:
        return LIMITS["one clock"]
    if facts.is_host or work_class == HOST_COPY or entry.regime == Regime.END_TO_END:
        return LIMITS["host"]
    has_cycles = CYCLES.name in entry.metrics and CYCLES.name in facts.clocks
    return LIMITS["paced" if has_cycles else "one clock"]


def limits_of(metric: Metric, facts: DeviceFacts) -> Limits | None:
    """Return the limits of a metric besides time; a scenario's are the host's. Of clocks none."""
    if metric in {TIME, CYCLES}:
        return None
    noise = metric.noise if isinstance(metric, CoreMetric) else "host"
    return LIMITS.get("host" if noise and facts.is_host else noise)


# The change of a metric with noise, from the processes of both sides.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far a metric moved, and the ``word`` for it.

    ``processes`` are how many told (before, now), ``is_own`` says whether of the same card.
    ``has_clock`` says whether the SM clock is known beside time, ``is_clock_lost`` whether it
    moved further than its part is known for.
    """

    metric: Metric
    word: Word
    change: Change
    processes: tuple[int, int]
    is_own: bool
    has_clock: bool
    is_clock_lost: bool


def shift_of(  # noqa: PLR0913 - both sides, and how they were taken
    before: Sequence[Timing],
    now: Sequence[Timing],
    *,
    limits: Limits,
    policy: Policy,
    metric: Metric = TIME,
    follows: float | None = None,
    call: int = 0,
    elsewhere: Collection[str] = (),
    mates: Collection[str] = (),
) -> Shift:
    """Return how far a metric moved from ``before`` to ``now``.

    Processes of cards that both sides have are compared alone: a card's own level cancels then.
    ``follows`` is the share that follows the SM clock, None where it says nothing. ``call`` is how
    many pairs a call needs; stored numbers are none. ``elsewhere`` are the cards whose stored
    numbers are of another environment, ``mates`` those of the board at hand: boards differ by 2 %.
    """
    common = {one.unit for one in before} & {one.unit for one in now}
    common -= set() if call else {""}
    units = {one.unit for one in before}
    near = common or units & {*mates} or units
    chosen = [
        [one for one in before if one.unit in near],
        [one for one in now if not common or one.unit in common],
    ]
    center = [median(one.time_us for one in side) for side in chosen]
    has_clock = follows is not None and all(one.cycles for side in chosen for one in side)
    clocks = [median(one.y(1.0) - one.y(0.0) for one in side) for side in chosen]
    clock = clocks[1] - clocks[0] if has_clock else 0.0
    is_clock_lost = has_clock and abs(clock) > CLOCK_LIMIT
    # Sides that took turns have one clock, but where their code draws more of the power.
    beta = follows if follows and has_clock and not (call and is_clock_lost) else 0.0
    others = [one for one in before if one.unit not in near]
    known, is_now, also = (_rows(side, beta) for side in (*chosen, others))
    own = max(limits.threshold, metric.threshold) if policy.threshold is None else policy.threshold
    in_turns = bool(call and common and metric in TIMES)
    found = difference_of(known, is_now, limits, in_turns=in_turns, also=also, cards=not common)
    floor = FLOOR_US / center[0] if metric in {TIME, ELAPSED} else 0.0
    worth = max(own, floor)
    # What scatters more than that has its spread for the smallest change.
    threshold = max(worth, math.expm1(found.spread))
    gate = max(limits.gate, 2 * worth) if policy.gate is None else policy.gate
    limit, inside, size = math.log1p(threshold), math.log1p(gate), abs(found.theta)
    unknown = 0.0 if call else LACK_OF_FIT * abs(clock)
    sure, still = found.reach(CALL) + unknown, found.reach(MISS) + unknown
    if not call and (not common or common & {*elsewhere}):
        still = max(still, math.log1p(ELSEWHERE) - size)
    may_call = common and min(map(len, chosen)) >= call and not (is_clock_lost and not call)
    word = Word.UNCLEAR
    if may_call and size > max(limit, sure):
        word = Word.SLOWER if found.theta > 0 else Word.FASTER
    # What lies beyond the threshold as a whole is not the same, though it is inside the gate.
    elif size - still < math.log1p(worth) and size + still < inside:
        word = Word.UNCLEAR if is_clock_lost and not call else Word.SAME
    reach = sure if word.moved else still
    is_reciprocal = metric.better == "higher"
    return Shift(
        metric=metric,
        word=word,
        change=Change(
            metric=metric.name,
            unit=metric.unit,
            baseline=1 / center[0] if is_reciprocal else center[0],
            current=1 / center[1] if is_reciprocal else center[1],
            theta=_share(found.theta),
            low=_share(found.theta - reach),
            high=_share(found.theta + reach),
            threshold=threshold,
            gate=gate,
            detectable=_share(max(limit, sure) + found.error),
            time_change=math.log(center[1] / center[0]),
            clock_change=clock,
            beta=beta,
            degrees=found.degrees,
        ),
        processes=(len(chosen[0]), len(chosen[1])),
        is_own=bool(common),
        has_clock=has_clock,
        is_clock_lost=is_clock_lost,
    )


def _rows(timings: Sequence[Timing], beta: float) -> list[list[float]]:
    """Return log durations by card, in their order."""
    by_unit = stats.grouped(timings, lambda one: one.unit)
    return [[one.y(beta) for one in by_unit[unit]] for unit in sorted(by_unit)]


def _share(log: float) -> float:
    found = math.expm1(min(log, MOST_LOG))
    return found if is_measurable(found) else 0.0


# Which metrics of a variant are compared: with this run, or with several nights.


# What is compared with what, by which limits, and the share of it that follows the SM clock.
Sides = tuple[list[Timing], list[Timing]]
Pairing = tuple[Metric, Sides, Limits, float | None]


def shifts_of(
    one: VariantRun, entry: BaselineEntry, now: Callable[[Metric], list[Timing]], grounds: Grounds
) -> tuple[list[Shift], list[Reason]]:
    """Return the shift of each metric with noise, time first, and what is to be said besides.

    ``now`` returns the processes to compare with the entry's, none where the metric is not there.
    """
    case, held = one.variant.case, one.expected
    call = grounds.call if held.in_turns else 0
    times, awaited = ((values_of_entry(entry, each), now(each)) for each in (TIME, DEVICE_TIME))
    found, reasons = _times(one, entry, (times, awaited), grounds)
    if case.regime is Regime.SUSTAINED:
        # What back-to-back launches do to the SM clock.
        before, after = map(_ratios, times, grounds.clocks)
        found.append((CLOCK, (before, after), LIMITS["canary"], None))
    for metric in (*METRICS, *case.metrics):
        limits = limits_of(metric, grounds.facts)
        if metric in TIMES or limits is None:
            continue
        try:
            found.append((metric, (values_of_entry(entry, metric), now(metric)), limits, None))
        except ValueError as error:
            if metric not in case.metrics:
                raise
            reasons.append(because("not_judged", error=str(error)))
    shifts = [
        shift_of(
            *sides,
            limits=limits,
            policy=grounds.policy,
            metric=metric,
            follows=follows,
            call=call,
            elsewhere=held.elsewhere,
            mates=held.board_mates,
        )
        for metric, sides, limits, follows in found
        if all(sides)
    ]

    def is_told(shift: Shift) -> bool:
        """Say of the device's part of a host's time whether it moved, or may by too few pairs."""
        is_open = min(shift.processes) < call and abs(shift.change.theta) > shift.change.threshold
        return shift.metric is not DEVICE_TIME or shift.word.moved or is_open

    return [*shifts[:1], *filter(is_told, shifts[1:])], reasons


def _times(
    one: VariantRun, entry: BaselineEntry, both: tuple[Sides, Sides], grounds: Grounds
) -> tuple[list[Pairing], list[Reason]]:
    """Return what of a variant's time is compared: ``both`` are its time, and the device's own."""
    times, awaited = both
    if not all(times):
        return [], []
    units, here = ({each.unit for each in side} for side in times)
    if one.variant.case.regime is Regime.END_TO_END and all(awaited) and not units & here - {""}:
        # Host time is another host's there.
        was, is_now = (median(each.time_us for each in side) for side in times)
        reason = because("another_host", theta=is_now / was - 1)
        return [(DEVICE_TIME, awaited, LIMITS["host"], None)], [reason]
    work_class = class_of(one.variant, grounds.slug, entry.metrics[TIME.name].center)
    limits = time_limits(work_class, entry, grounds.facts)
    if limits is not LIMITS["paced"]:
        # A copy from pageable memory is the host's own work, whoever times it.
        own: list[Pairing] = [(DEVICE_TIME, awaited, LIMITS["host"], None)]
        return [(TIME, times, limits, None), *(own if work_class != HOST_COPY else [])], []
    # In turns time itself counts as well, with what the clock did to it.
    elapsed: list[Pairing] = [(ELAPSED, times, limits, None)] if one.expected.in_turns else []
    return [(TIME, times, limits, FOLLOWS.get(work_class, MIXED_FOLLOWS)), *elapsed], []


def _ratios(timings: Sequence[Timing], clocks: Mapping[str, float]) -> list[Timing]:
    """Return each process's clock over the canary's, as a reciprocal: more of it is better."""
    return [
        Timing(one.unit, clocks[one.unit] * one.time_us / one.cycles)
        for one in timings
        if one.cycles and one.unit in clocks
    ]


def level_changes(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], grounds: Grounds
) -> tuple[Change, ...]:
    """Return the change of every metric from an entry to its level over nights, time first.

    Processes of a night are no nights of their own: of several nights each counts once. What the
    core takes besides time tells of one run's machine, and is no level of the code. Of metrics
    without noise there are those that changed, and in which all nights agree.
    """

    def now(metric: Metric) -> list[Timing]:
        rows = [values_of_entry(night, metric) for night in nights]
        if not all(rows) or (metric in METRICS and metric not in TIMES):
            return []
        return rows[0] if len(rows) == 1 else [one for row in rows for one in _levels(row)]

    shifts, _ = shifts_of(VariantRun(variant=variant), old, now, grounds)
    counts = {
        name: [night.metrics[name].center for night in nights if name in night.metrics]
        for name, metric in old.metrics.items()
        if not metric.values
    }
    return (*(shift.change for shift in shifts), *exact_changes(counts, old, variant.case.metrics))


def _levels(night: Sequence[Timing]) -> list[Timing]:
    """Return the level of a night's processes, by card."""
    return [
        Timing(
            unit,
            geometric_mean(one.time_us for one in row),
            geometric_mean(cycles) if all(cycles := [one.cycles or 0.0 for one in row]) else None,
        )
        for unit, row in stats.grouped(night, lambda one: one.unit).items()
    ]


def is_one_level(
    variant: Variant, night: BaselineEntry, nights: Sequence[BaselineEntry], grounds: Grounds
) -> bool:
    """Say whether a night is of the level of others: nothing tells them apart."""
    return not any(
        max(change.low, -change.high) > change.threshold or not change.degrees
        for change in level_changes(variant, night, nights, grounds)
    )


# Metrics without noise, and limits that a case's author set.


def exact_changes(
    found: Mapping[str, Sequence[float]], entry: BaselineEntry, declared: Sequence[Metric]
) -> list[Change]:
    """Return the changes beyond tolerance on which all values of a metric agree.

    Worse is positive. ``declared`` are the case's own metrics, whose thresholds hold. One with
    noise of which more is better is among them where nothing is left of it: nothing has no
    logarithm, so that no interval can be told; none is needed.
    """
    changes = []
    known = metrics_by_name(declared)
    for name, metric in sorted(entry.metrics.items()):
        values = sorted(found.get(name, ()))
        is_gone = metric.better == "higher" and values and values[-1] <= 0
        if not values or (metric.values and not is_gone):
            continue
        tolerance = 0.0 if metric.values or name not in known else known[name].threshold
        worse = [_worsening(metric, value) for value in values]
        if max(worse) < -tolerance or min(worse) > tolerance:
            current = values[len(values) // 2]
            theta = _worsening(metric, current)
            changes.append(
                Change(
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
                )
            )
    return changes


def _worsening(metric: BaselineMetric, value: float) -> float:
    if value == metric.center:
        return 0.0
    # What is not finite cannot be stored.
    change = (value - metric.center) / (abs(metric.center) or 1.0)
    change = max(-MAGNITUDE, min(MAGNITUDE, change))
    if metric.better == "equal":
        return abs(change)
    return -change if metric.better == "higher" else change


def over_budget(case: CaseInfo, result: Result) -> Reason | None:
    """Return the first budget that the centre of the processes exceeds."""
    for budget in case.budgets:
        exact = [e.exact[budget.metric] for e in result.evidence if budget.metric in e.exact]
        noisy = [process.samples(budget.metric) for process in result.evidence]
        values = exact or [stats.estimate(blocks) for blocks in noisy if any(blocks)]
        now = stats.hodges_lehmann(values) if values else -math.inf
        if now > budget.most:
            unit = metrics_by_name(case.metrics)[budget.metric].unit
            why = budget.reason or "no reason is given"
            most, metric = budget.most, budget.metric
            return because("over_budget", metric=metric, why=why, now=now, most=most, unit=unit)
    return None
