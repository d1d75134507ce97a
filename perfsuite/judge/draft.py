"""Decides the word of one variant before the rest of the run is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfsuite.judge.change import Shift, shift_of
from perfsuite.judge.components import prior_of
from perfsuite.judge.doubt import NO_DOUBTS, Doubts, doubts_about
from perfsuite.judge.exact import collapses, exact_changes, over_budget
from perfsuite.judge.policy import Against, Policy
from perfsuite.judge.sustained import power_shifts
from perfsuite.judge.timings import (
    DEVICE_TIME,
    ELAPSED,
    Timing,
    timings_of,
    timings_of_entry,
    values_of,
    values_of_entry,
)
from perfsuite.judge.words import percent
from perfsuite.model import BaselineEntry, Change, Regime, Result, Variant, Word
from perfsuite.noise import AWAITED, service_prior
from perfsuite.sku import blocked_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One variant with what is known of it before the run's other variants are.

    ``word`` is final where no ``shifts`` are to be judged; ``budget`` says which is exceeded.
    ``doubts`` are what else than the code may be behind a change.
    """

    variant: str
    word: Word
    reason: str = ""
    shifts: tuple[Shift, ...] = ()
    exact: tuple[Change, ...] = ()
    budget: str = ""
    doubts: Doubts = NO_DOUBTS


def draft_of(
    variant: Variant, result: Result, *, entry: BaselineEntry | None, against: Against
) -> Draft:
    """Return the draft of a variant whose result is ok."""
    try:
        return _draft(variant, result, entry, against)
    except ValueError as error:
        return Draft(variant=variant.id, word=Word.UNCLEAR, reason=f"unusable samples: {error}")


def _draft(
    variant: Variant, result: Result, entry: BaselineEntry | None, against: Against
) -> Draft:
    now = timings_of(result)
    before = timings_of_entry(entry) if entry and "time_us" in entry.metrics else []
    is_timed = variant.case.regime is not Regime.EXACT
    if is_timed and not now:
        return Draft(variant=variant.id, word=Word.UNCLEAR, reason="no process has samples")
    budget = over_budget(variant.case.budgets, result, [item.time_us for item in now])
    word, reason = _unrelated(variant, result, entry, against)
    if word or entry is None:
        return Draft(variant=variant.id, word=word or Word.NEW, reason=reason, budget=budget)
    own = variant.case.metrics
    exact = (*exact_changes(result, entry, own), *collapses(result, entry, own))
    lost = _lost(variant, result, entry)
    if not is_timed:
        draft = _counted(variant, entry, exact, budget)
        return replace(draft, word=Word.UNCLEAR, reason=lost) if lost else draft
    if not before:
        reason = f"{against.source_of(variant.id) or 'the baseline'} has no time of it"
        return Draft(variant=variant.id, word=Word.NEW, reason=reason, exact=exact, budget=budget)
    shift, reason = _timed(variant, result, entry, against)
    elapsed = _elapsed(variant, result, entry, against)
    served, unjudged = _served(variant, result, entry, against)
    return Draft(
        variant=variant.id,
        word=Word.UNCLEAR if lost else Word.SAME,
        reason="; ".join(text for text in (lost, reason, unjudged) if text),
        shifts=(shift, *elapsed, *served, *power_shifts(variant, result, entry, against)),
        exact=exact,
        budget=budget,
        doubts=doubts_about(result, entry, before, against),
    )


def _timed(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> tuple[Shift, str]:
    """Return the shift of time; of the device's own, where host time is another host's."""
    before, now = timings_of_entry(entry), timings_of(result)
    sides = values_of_entry(entry, DEVICE_TIME), values_of(result, DEVICE_TIME)
    is_awaited = variant.case.regime is Regime.END_TO_END and all(sides)
    if not is_awaited or _share_unit(before, now):
        prior = prior_of(variant, entry, against)
        now += _screened(variant, against)
        return shift_of(before, now, prior=prior, policy=against.policy), ""
    prior = against.prior(AWAITED, variant.id)
    shift = shift_of(*sides, prior=prior, policy=against.policy, metric=DEVICE_TIME)
    host = median([one.time_us for one in now]) / median([one.time_us for one in before])
    return shift, f"host time {percent(host - 1)} on another host, judged by the device's own time"


def _elapsed(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> list[Shift]:
    """Return the shift of time itself, if both arms ran in turns and a clock is taken off it."""
    before, now = timings_of_entry(entry), timings_of(result)
    prior = prior_of(variant, entry, against)
    has_clock = all(item.cycles for item in (*before, *now)) and (prior.beta or prior.beta_sd)
    if variant.id not in against.arms or not has_clock:
        return []
    alone = replace(prior, beta=0.0, beta_sd=0.0)
    return [shift_of(before, now, prior=alone, policy=against.policy, metric=ELAPSED)]


def _screened(variant: Variant, against: Against) -> list[Timing]:
    """Return the processes of a confirmation's screen: they were chosen, and are no evidence."""
    result = against.screened.get(variant.id)
    try:
        return [replace(one, is_fresh=False) for one in timings_of(result)] if result else []
    except ValueError:
        return []


def _share_unit(before: Sequence[Timing], now: Sequence[Timing]) -> bool:
    return bool({one.unit for one in before} & {one.unit for one in now} - {""})


def _counted(
    variant: Variant, entry: BaselineEntry, exact: tuple[Change, ...], budget: str
) -> Draft:
    count = len(entry.metrics)
    reason = "" if exact else f"{count} metric{'s' if count > 1 else ''} without noise as before"
    return Draft(variant=variant.id, word=Word.SAME, reason=reason, exact=exact, budget=budget)


def _served(
    variant: Variant, result: Result, entry: BaselineEntry, against: Against
) -> tuple[list[Shift], str]:
    """Return the shifts of the case's own noisy metrics, and which of them cannot be judged."""
    shifts, reasons = [], []
    for metric in variant.case.metrics:
        try:
            sides = values_of_entry(entry, metric), values_of(result, metric)
        except ValueError as error:
            reasons.append(f"not judged: {error}")
            continue
        if all(sides):
            prior = against.prior(service_prior(against.facts.device), variant.id)
            shifts.append(shift_of(*sides, prior=prior, policy=against.policy, metric=metric))
    return shifts, "; ".join(reasons)


def _lost(variant: Variant, result: Result, entry: BaselineEntry) -> str:
    """Say which of the case's own metrics the baseline has and this run lacks."""
    told = {name for process in result.evidence for name in process.exact}
    told |= {n for process in result.evidence for block in process.blocks for n in block.metrics}
    own = [metric.name for metric in variant.case.metrics]
    lost = [name for name in own if name in entry.metrics and name not in told]
    return f"no longer reported: {', '.join(lost)}" if lost else ""


def word_of(shift: Shift, policy: Policy) -> Word:
    """Return the word of a shift: a change beyond the threshold, none beyond the gate, or unclear.

    ``slower`` and ``faster`` need a strict interval beyond the threshold; ``same`` needs a lenient
    one inside the gate, and a clock that did not move too far.
    """
    low, high = shift.interval(policy.alpha)
    if low > math.log1p(shift.threshold):
        return Word.SLOWER
    if high < -math.log1p(shift.threshold):
        return Word.FASTER
    low, high = shift.interval(2 * policy.alpha_same, lenient=True)
    limit = math.log1p(shift.gate)
    is_same = -limit < low and high < limit and not shift.is_clock_lost
    return Word.SAME if is_same else Word.UNCLEAR


def _unrelated(
    variant: Variant, result: Result, entry: BaselineEntry | None, against: Against
) -> tuple[Word | None, str]:
    if variant.id in against.mismatches:
        return Word.INCOMPARABLE, against.mismatches[variant.id]
    if entry is None:
        return Word.NEW, f"{against.source_of(variant.id) or 'the baseline'} has no entry of it"
    if entry.case_version != result.case_version:
        versions = f"{entry.case_version} and is {result.case_version}"
        return Word.NEW, f"the case's version was {versions}: it does other work now"
    regime = variant.case.regime.value
    if entry.regime != regime:
        return Word.INCOMPARABLE, f"regime was {entry.regime} and is {regime}"
    blocked = blocked_by(entry.state, against.facts)
    return (Word.INCOMPARABLE, blocked) if blocked else (None, "")


def drift_of(
    variant: Variant, start: Result, end: Result, *, entry: BaselineEntry, against: Against
) -> Shift | None:
    """Return how far a variant moved between two results of one run, None if either has no time."""
    try:
        before, now = timings_of(start), timings_of(end)
        prior = prior_of(variant, entry, against)
    except (ValueError, KeyError):  # an entry of no time, or of a regime that is not known here
        return None
    if not (before and now):
        return None
    return shift_of(before, now, prior=prior, policy=against.policy)
