"""Compares one variant before and now: how far each of its metrics moved, and how surely."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import fmean, linear_regression, median, stdev

from msgspec import structs

from perfsuite import stats
from perfsuite.boundary import MAGNITUDE, is_measurable
from perfsuite.judge.noise import (
    PRIORS,
    NoisePrior,
    Timing,
    prior_of,
    priors_of,
    time_prior,
    values_of_entry,
)
from perfsuite.judge.pairs import CALL, MISS, difference, paired_difference
from perfsuite.judge.peaks import class_of
from perfsuite.model import (
    DEVICE_TIME,
    METRICS,
    TIME,
    BaselineEntry,
    BaselineMetric,
    Budget,
    Change,
    DeviceFacts,
    Metric,
    Reason,
    Regime,
    Result,
    Variant,
    VariantRun,
    Word,
    because,
    is_host_timed,
    metrics_by_name,
)

# Time with what the SM clock did to it, beside the code's own change: in A against B both count.
ELAPSED = Metric("elapsed_us", "us")
# The SM clock as a multiple of the clock that the canary had in the same run.
CLOCK = Metric("clock_ratio", "x", better="higher")
TIMES = frozenset({TIME, DEVICE_TIME, ELAPSED})
# What --perf-fail-on may name besides words of variants.
BROKEN = "broken"
FAIL_WORDS = (*(word.value for word in Word if not word.stayed), BROKEN)
# Below this the SM clock has not moved: its noise, shared with time, would set the slope to 0.5.
CLOCK_MOVED = 0.01
# Processes from which a slope and a residual can be told.
FEWEST = 3
# How far theta may be off because more than one clock moved, per unit of the SM clock's change:
# attention's cycles rise by 1.7 % when a power cap takes 8 % off the SM clock.
LACK_OF_FIT = 0.1
# Where two variances with other degrees of freedom are compared by the interval they make.
WIDE = 0.995
# Past this change of the SM clock the share of time that follows it is not known well enough.
CLOCK_LIMIT = 0.03
# A greater change has no share of 1 that a run file can hold.
MOST_LOG = math.log(MAGNITUDE) - 1
# A greater change of an exact metric says no more, and what is not finite cannot be stored.
MOST_CHANGE = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The limits of the decision, as shares of 1; None takes the device's own.

    The two errors have different prices. A false ``slower`` stops a team, so a change is called
    only where a ``1 - alpha`` interval lies beyond the threshold. A ``same`` that hides a change
    as large as the gate costs one night, so ``alpha_same`` on each side is enough for it: with
    5 % instead of 10 %, a quarter of unchanged GEMMs are unclear against another unit (H200).

    Slower and environment fail beyond the gate only.
    """

    threshold: float | None = None
    gate: float | None = None
    floor_us: float = 0.02
    alpha: float = 0.01
    alpha_same: float = 0.1
    fail_on: tuple[str, ...] = (*(w.value for w in Word if w.fails_by_default), BROKEN)

    def __post_init__(self) -> None:
        for name in ("threshold", "gate", "floor_us"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"Policy.{name} must be a share >= 0, not {value!r}")
        for name in ("alpha", "alpha_same"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"Policy.{name} must be in (0, 1), not {getattr(self, name)!r}")
        if unknown := sorted(set(self.fail_on) - set(FAIL_WORDS)):
            raise ValueError(f"Policy.fail_on knows {', '.join(FAIL_WORDS)}, not {unknown[0]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """What all variants of a run are judged by.

    ``priors`` are what entries taught of noise, by the prior of a class. ``clocks`` are the compute
    canary's SM clock in MHz by unit, before and now. ``call`` is how many pairs a call needs.
    """

    facts: DeviceFacts
    slug: str
    policy: Policy = Policy()
    priors: Mapping[NoisePrior, NoisePrior] = field(default_factory=dict)
    clocks: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})
    call: int = 6

    def learned(self, known: Sequence[BaselineEntry], variants: Sequence[Variant]) -> Grounds:
        """Return the same with what a SKU's entries tell of noise, measured in this run or not."""
        return replace(self, priors=priors_of(known, variants, self.facts, self.slug))

    def prior(self, of_class: NoisePrior) -> NoisePrior:
        """Return a class's prior as it was learned."""
        return self.priors.get(of_class, of_class)

    def time_prior(self, one: VariantRun, entry: BaselineEntry) -> NoisePrior:
        """Return the prior of a variant's time, as it was learned."""
        work_class = class_of(one.variant, self.slug, entry.metrics[TIME.name].center)
        return self.prior(time_prior(work_class, entry, self.facts))


# The change of a metric with noise, from the processes of both sides.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far the code moved, and the ``word`` for it.

    ``strict`` is the change with every process and decides what moved, ``lenient`` that without
    those which stand apart and decides what did not. ``least`` is the log change that is sure.
    ``levels`` are those of their intervals. ``strays`` counts processes that stand apart from the
    others of their side, out of ``processes`` (before, now). ``has_clock`` says whether the SM
    clock is known beside time, ``is_clock_lost`` whether it moved further than ``beta`` is known
    for.
    """

    metric: Metric
    word: Word
    strict: Change
    lenient: Change
    least: float
    levels: tuple[float, float]
    processes: tuple[int, int]
    strays: int
    same_unit: bool
    has_clock: bool
    is_clock_lost: bool


def shift_of(
    before: Sequence[Timing],
    now: Sequence[Timing],
    *,
    prior: NoisePrior,
    grounds: Grounds,
    metric: Metric = TIME,
) -> Shift:
    """Return how far the code moved from ``before`` to ``now``.

    Processes of units that both sides have are compared alone: a unit's own level cancels then.
    Those of ``now`` that are not fresh only tell how far units differ.
    """
    policy = grounds.policy
    pair = _paired(before, now, prior)
    pairs = [pair]
    if is_clock_lost := abs(pair.clock) > CLOCK_LIMIT:
        # Whatever share of time follows the clock: none of it, or all.
        extremes = [replace(pair.prior, beta=beta, beta_sd=0.0) for beta in (0.0, 1.0)]
        pairs = [replace(pair, prior=each, by_night=False) for each in extremes]
    sides = pair.before, pair.now
    center = [median(one.time_us for one in side) for side in sides]
    modes = [_flat(side) for side in pair.sides(is_lenient=True)]
    # A unit's own level is no change, as far as the baseline alone knows how units differ.
    unit = 0.0 if pair.same_unit else pair.between_units([modes[0]]).middle
    own = max(prior.threshold, metric.threshold) if policy.threshold is None else policy.threshold
    floor = policy.floor_us / center[0] if metric in {TIME, ELAPSED} else 0.0
    threshold = max(own, 2 * math.sqrt(unit), floor)
    gate = max(prior.gate, 2 * threshold) if policy.gate is None else policy.gate

    # Quantiles of a distribution are no normal variables: where enough processes tell, ranks do.
    is_ranked = metric not in TIMES and not pair.by_night
    ranked = [[one.y(0.0) for one in side] for side in sides] if is_ranked else None
    strict = [each.difference() for each in pairs]
    lenient = [each.difference(is_lenient=True) for each in pairs]
    low, high = _interval(strict, policy.alpha, ranked)
    least, most = _interval(lenient, 2 * policy.alpha_same, ranked)
    limit, inside = math.log1p(threshold), math.log1p(gate)
    if low > limit:
        word = Word.SLOWER
    elif high < -limit:
        word = Word.FASTER
    else:
        is_same = -inside < least and most < inside and not is_clock_lost
        word = Word.SAME if is_same else Word.UNCLEAR
    p_value = 1.0
    if len({math.copysign(1, each.theta) for each in strict}) == 1:
        p_value = max(each.p_beyond(limit) for each in strict)
    is_reciprocal = metric.better == "higher"
    change = Change(
        metric=metric.name,
        unit=metric.unit,
        baseline=1 / center[0] if is_reciprocal else center[0],
        current=1 / center[1] if is_reciprocal else center[1],
        theta=_share(fmean(each.theta for each in strict)),
        low=_share(low),
        high=_share(high),
        threshold=threshold,
        gate=gate,
        detectable=_share(max(each.detectable(limit, policy.alpha) for each in strict)),
        p_value=p_value if is_measurable(p_value) else 0.0,
        time_change=math.log(center[1] / center[0]),
        clock_change=pair.clock,
        beta=pair.prior.beta,
        degrees=min(each.degrees for each in strict),
    )
    return Shift(
        metric=metric,
        word=word,
        strict=change,
        lenient=structs.replace(
            change,
            theta=_share(fmean(each.theta for each in lenient)),
            low=_share(least),
            high=_share(most),
            degrees=min(each.degrees for each in lenient),
        ),
        least=max(low, -high),
        levels=(1 - policy.alpha, 1 - 2 * policy.alpha_same),
        processes=(len(pair.before), len(pair.now)),
        strays=sum(map(len, sides)) - sum(len(unit) for side in modes for unit in side),
        same_unit=pair.same_unit,
        has_clock=all(one.cycles for one in (*before, *now)),
        is_clock_lost=is_clock_lost,
    )


def pair_shift_of(  # noqa: PLR0913 - both sides, and how they are compared
    a: Sequence[Timing],
    b: Sequence[Timing],
    *,
    prior: NoisePrior,
    grounds: Grounds,
    metric: Metric = TIME,
    by_host: bool = False,
) -> Shift:
    """Return how far side B is from side A, by pairs on one card, timed ``by_host`` or not."""
    policy = grounds.policy
    has_clock = all(one.cycles for one in (*a, *b))
    clocks = [median(one.y(1.0) - one.y(0.0) for one in side) for side in (a, b)]
    clock = clocks[1] - clocks[0] if has_clock else 0.0
    # Sides that took turns have one clock, but where their code draws more of the power.
    beta = prior.beta if has_clock and abs(clock) <= CLOCK_LIMIT else 0.0
    is_paired = by_host and metric is TIME and [one.unit for one in a] == [one.unit for one in b]
    logs = [one.y(beta) for one in a], [one.y(beta) for one in b]
    found = paired_difference(*logs) if is_paired else difference(*logs, prior)
    center = [median(one.time_us for one in side) for side in (a, b)]
    own = max(prior.threshold, metric.threshold) if policy.threshold is None else policy.threshold
    floor = policy.floor_us / center[0] if metric in {TIME, ELAPSED} else 0.0
    worth = max(own, floor)
    # What scatters more than that has its spread for the smallest change.
    threshold = max(worth, math.expm1(found.spread))
    gate = max(prior.gate, 2 * worth) if policy.gate is None else policy.gate
    limit, size = math.log1p(threshold), abs(found.theta)
    reach, still = found.reach(CALL), found.reach(MISS)
    word = Word.UNCLEAR
    if min(len(a), len(b)) >= grounds.call and size > max(limit, reach):
        word = Word.SLOWER if found.theta > 0 else Word.FASTER
    # What lies beyond the threshold as a whole is not the same, though it is inside the gate.
    elif size - still < math.log1p(worth) and size + still < math.log1p(gate):
        word = Word.SAME
    is_reciprocal = metric.better == "higher"
    change = Change(
        metric=metric.name,
        unit=metric.unit,
        baseline=1 / center[0] if is_reciprocal else center[0],
        current=1 / center[1] if is_reciprocal else center[1],
        theta=_share(found.theta),
        low=_share(found.theta - reach),
        high=_share(found.theta + reach),
        threshold=threshold,
        gate=gate,
        detectable=_share(max(limit, reach) + found.error),
        # Each is judged by itself: looks and sides are in the error of a call.
        p_value=0.0 if word.moved else 1.0,
        time_change=math.log(center[1] / center[0]),
        clock_change=clock,
        beta=beta,
        degrees=found.degrees,
    )
    low, high = _share(found.theta - still), _share(found.theta + still)
    return Shift(
        metric=metric,
        word=word,
        strict=change,
        lenient=structs.replace(change, low=low, high=high),
        least=abs(found.theta) - reach,
        levels=(1 - 2 * CALL, 1 - 2 * MISS),
        processes=(len(a), len(b)),
        strays=0,
        same_unit=True,
        has_clock=has_clock,
        is_clock_lost=False,
    )


def _interval(
    differences: Sequence[stats.Difference], alpha: float, ranked: list[list[float]] | None
) -> tuple[float, float]:
    """Return the hull of the two-sided intervals of the log change, by ranks if these tell."""
    if ranked and (found := stats.rank_interval(ranked[0], ranked[1], alpha)):
        level = stats.Difference(0.0, differences[0].parts[1:]).reach(1 - alpha / 2)
        return found[0] - level, found[1] + level
    ends = [each.interval(alpha) for each in differences]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _share(log: float) -> float:
    found = math.expm1(min(log, MOST_LOG))
    return found if is_measurable(found) else 0.0


# Log durations of one side by unit, night and process.
Side = list[list[list[float]]]


def _side(timings: Sequence[Timing], beta: float, *, by_night: bool = False) -> Side:
    found: dict[str, dict[int | None, list[float]]] = {}
    for one in timings:
        night = one.night if by_night else None
        found.setdefault(one.unit, {}).setdefault(night, []).append(one.y(beta))
    return [list(nights.values()) for nights in found.values()]


def _flat(side: Side) -> list[list[float]]:
    return [list(chain.from_iterable(unit)) for unit in side]


@dataclass(frozen=True, slots=True)
class _Pair:
    """The processes of both sides, and of a screen on other units; ``clock`` is its log change."""

    before: Sequence[Timing]
    now: Sequence[Timing]
    screened: Sequence[Timing]
    prior: NoisePrior
    clock: float
    same_unit: bool
    by_night: bool

    def sides(self, *, is_lenient: bool = False) -> list[Side]:
        """Return both sides, if lenient without the processes that stand apart."""
        beta, processes = self.prior.beta, self.prior.processes
        sides = [_side(each, beta, by_night=self.by_night) for each in (self.before, self.now)]
        if not is_lenient:
            return sides
        return [
            [[stats.main_mode(row, processes) for row in unit] for unit in side] for side in sides
        ]

    def difference(self, *, is_lenient: bool = False) -> stats.Difference:
        """Return the change with every process: what stands apart may be a mode of the code.

        If lenient, the processes that a majority of their unit's agree with. The screen was odd
        then, or it were not confirmed: it keeps no ``same`` from fresh data. A night weighs as
        much as any other of its unit, and a unit as much as any other.
        """
        is_lenient = is_lenient and not self.by_night
        sides = self.sides(is_lenient=is_lenient)
        rows = [list(chain.from_iterable(side)) for side in sides]
        shared = stats.moderated(stats.pooled([*rows[0], *rows[1]]), self.prior.processes)
        processes = 0.0
        for side, own in zip(sides, rows, strict=True):
            # The prior lifts a spread of processes that is small by luck. A side whose own spread
            # is larger keeps it, or three in two modes would be calmed by the other's one mode.
            each = shared.value if self.by_night else max(shared.value, stats.pooled(own).value)
            share = sum(sum(1 / len(row) for row in unit) / len(unit) ** 2 for unit in side)
            processes += each * share / len(side) ** 2
        parts: list[stats.Variance] = [stats.Variance(processes, shared.degrees)]
        if self.same_unit or self.by_night:
            run = stats.Variance(self.prior.run**2, self.prior.run_degrees)
            # Both sides of a unit have runs; of others only those of the nights are beside units.
            level = stats.moderated(stats.between(sides[1], shared.value), run)
            has_runs = sides if self.same_unit else sides[1:]
            runs = (sum(1 / len(unit) for unit in side) / len(side) ** 2 for side in has_runs)
            parts.append(level.times(sum(runs)))
        if not self.same_unit:
            before, now = map(_flat, sides)
            screened = [] if is_lenient else _flat(_side(self.screened, self.prior.beta))
            # The baseline's units tell how far units differ. Those of this run share a host and
            # agree better than units do: they may widen the interval, but never narrow it.
            levels = [self.between_units([before]), self.between_units([before, now + screened])]
            widest = max(levels, key=lambda each: each.reach(WIDE))
            parts.append(widest.times(sum(1 / len(side) for side in sides)))
        clock = (self.prior.beta_sd**2 + LACK_OF_FIT**2) * self.clock**2
        parts.append(stats.Variance(clock, math.inf))
        # The error of a mean holds with two modes as well; that of a median does not.
        center = stats.hodges_lehmann if is_lenient else fmean
        was, is_now = (fmean(fmean(map(center, unit)) for unit in side) for side in sides)
        return stats.Difference(is_now - was, tuple(parts))

    def between_units(self, sides: Sequence[list[list[float]]]) -> stats.Mixture:
        """Return the variance between units: the prior's, and what each side's own units add."""
        shared = stats.moderated(
            stats.pooled(list(chain.from_iterable(sides))), self.prior.processes
        )
        own = stats.between(sides, shared.value)
        return stats.mixture(self.prior.unit, self.prior.unit_spread, own)


def _paired(before: Sequence[Timing], now: Sequence[Timing], prior: NoisePrior) -> _Pair:
    """Return the two sides: on their common units if there are any, the screen apart."""
    fresh = [one for one in now if one.is_fresh]
    units = {one.unit for one in fresh}
    screened = [one for one in now if not one.is_fresh and one.unit not in units]
    if all(one.cycles for one in (*before, *fresh)):
        prior = _with_beta(prior, before)
    else:
        prior = replace(prior, beta=0.0, beta_sd=0.0)
    if common := {one.unit for one in before} & units - {""}:
        before, fresh = ([one for one in side if one.unit in common] for side in (before, fresh))
    clock = 0.0
    if prior.beta or prior.beta_sd:
        was, is_now = (median(one.y(1.0) - one.y(0.0) for one in side) for side in (before, fresh))
        clock = is_now - was
    by_night = any(one.night is not None for one in fresh)
    return _Pair(before, fresh, screened, prior, clock, bool(common), by_night)


def _with_beta(prior: NoisePrior, before: Sequence[Timing]) -> NoisePrior:
    """Return the prior with the share of time that follows the clock, where the clock moved.

    The slope of log time over log frequency is -beta. The prior is one more observation of it.
    """
    clocks, times = [one.y(1.0) - one.y(0.0) for one in before], [one.y(0.0) for one in before]
    if not prior.beta_sd or len(before) < FEWEST or stdev(clocks) < CLOCK_MOVED:
        return prior
    slope, start = linear_regression(clocks, times)
    left = [time - start - slope * clock for clock, time in zip(clocks, times, strict=True)]
    residual = stats.moderated(
        stats.Variance(sum(each**2 for each in left) / (len(left) - 2), len(left) - 2),
        stats.Variance(prior.between**2 + prior.unit**2, prior.degrees),
    )
    moved = stdev(clocks) ** 2 * (len(clocks) - 1)
    weights = moved / residual.value, 1 / prior.beta_sd**2
    beta = (-slope * weights[0] + prior.beta * weights[1]) / sum(weights)
    return replace(prior, beta=beta, beta_sd=1 / math.sqrt(sum(weights)))


# Which metrics of a variant are compared: with this run, or with several nights.


def shifts_of(
    one: VariantRun, entry: BaselineEntry, now: Callable[[Metric], list[Timing]], grounds: Grounds
) -> tuple[list[Shift], list[Reason]]:
    """Return the shift of each metric with noise, time first, and what is to be said besides.

    ``now`` returns the processes to compare with the entry's, none where the metric is not there.
    """
    case, held = one.variant.case, one.expected
    shifts: list[Shift] = []
    reasons: list[Reason] = []

    by_host = is_host_timed(grounds.facts.device, case.regime)
    shift = partial(pair_shift_of, by_host=by_host) if held.in_turns else shift_of

    def add(sides: Sequence[Sequence[Timing]], prior: NoisePrior, metric: Metric) -> None:
        if all(sides):
            shifts.append(shift(*sides, prior=prior, grounds=grounds, metric=metric))

    before, values = values_of_entry(entry), now(TIME)
    if before and values:
        fresh = [each for each in values if each.is_fresh]
        prior = grounds.time_prior(one, entry)
        awaited = values_of_entry(entry, DEVICE_TIME), now(DEVICE_TIME)
        at_home = {each.unit for each in before} & {each.unit for each in fresh} - {""}
        if case.regime is Regime.END_TO_END and all(awaited) and not at_home:
            # Host time is another host's there.
            add(awaited, grounds.prior(PRIORS["awaited"]), DEVICE_TIME)
            was, is_now = (median(each.time_us for each in side) for side in (before, fresh))
            reasons.append(because("another_host", theta=is_now / was - 1))
        else:
            add((before, values), prior, TIME)
        has_clock = (prior.beta or prior.beta_sd) and all(each.cycles for each in (*before, *fresh))
        if held.in_turns and has_clock:
            # In turns time itself counts as well, with what the clock did to it.
            add((before, fresh), replace(prior, beta=0.0, beta_sd=0.0), ELAPSED)
    by_night = any(each.night is not None for each in values)
    if case.regime is Regime.SUSTAINED and not by_night:
        # What back-to-back launches do to the SM clock.
        clocks = (
            _ratios(before, grounds.clocks[0]),
            _ratios([each for each in values if each.is_fresh], grounds.clocks[1]),
        )
        add(clocks, grounds.prior(PRIORS["clock"]), CLOCK)
    # What the core takes besides time tells of one run's machine, and is no level of the code.
    others = [m for m in (*(() if by_night else METRICS), *case.metrics) if m not in TIMES]
    priors = {m: found for m in others if (found := prior_of(m, grounds.facts.device))}
    for metric, of_class in priors.items():
        try:
            sides = values_of_entry(entry, metric), now(metric)
            add(sides, grounds.prior(of_class), metric)
        except ValueError as error:
            if metric not in case.metrics:
                raise
            reasons.append(because("not_judged", error=str(error)))
    return shifts, reasons


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

    Processes of a night are no nights of their own: a night has its level, which each shares. Of
    metrics without noise there are those that changed, and in which all nights agree.
    """
    shifts, exact = _level(variant, old, nights, grounds)
    return (*(shift.strict for shift in shifts), *exact)


def is_one_level(
    variant: Variant, night: BaselineEntry, nights: Sequence[BaselineEntry], grounds: Grounds
) -> bool:
    """Say whether a night is of the level of others: no verdict would tell them apart."""
    shifts, exact = _level(variant, night, nights, grounds)
    return not exact and not any(shift.word.moved for shift in shifts)


def _level(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], grounds: Grounds
) -> tuple[list[Shift], list[Change]]:
    def now(metric: Metric) -> list[Timing]:
        rows = [values_of_entry(night, metric) for night in nights]
        if not all(rows):
            return []
        return [replace(one, night=index) for index, row in enumerate(rows) for one in row]

    shifts, _ = shifts_of(VariantRun(variant=variant), old, now, grounds)
    counts = {
        name: [night.metrics[name].center for night in nights if name in night.metrics]
        for name, metric in old.metrics.items()
        if not metric.values
    }
    return shifts, exact_changes(counts, old, variant.case.metrics)


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
                    p_value=0.0,
                )
            )
    return changes


def _worsening(metric: BaselineMetric, value: float) -> float:
    if value == metric.center:
        return 0.0
    change = (value - metric.center) / (abs(metric.center) or 1.0)
    change = max(-MOST_CHANGE, min(MOST_CHANGE, change))
    if metric.better == "equal":
        return abs(change)
    return -change if metric.better == "higher" else change


def over_budget(budgets: Sequence[Budget], result: Result) -> Reason | None:
    """Return the first budget that the centre of the processes exceeds."""
    for budget in budgets:
        exact = [e.exact[budget.metric] for e in result.evidence if budget.metric in e.exact]
        noisy = [process.samples(budget.metric) for process in result.evidence]
        values = exact or [stats.estimate(blocks) for blocks in noisy if any(blocks)]
        now = stats.hodges_lehmann(values) if values else -math.inf
        if now > budget.most:
            return because(
                "over_budget",
                metric=budget.metric,
                now=now,
                most=budget.most,
                why=budget.reason or "no reason is given",
            )
    return None
