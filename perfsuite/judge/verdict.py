"""The word for each variant, from all its metrics together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from perfsuite.boundary import plain
from perfsuite.judge.compare import (
    DEVICE_TIME,
    ELAPSED,
    TIME,
    TIMES,
    Against,
    Policy,
    Shift,
    Timing,
    collapses,
    exact_changes,
    over_budget,
    power_reason,
    power_shifts,
    prior_of,
    priors_of,
    shift_of,
    timings_of,
    timings_of_entry,
    values_of,
    values_of_entry,
)
from perfsuite.judge.noise import AWAITED, service_prior
from perfsuite.model import (
    BaselineEntry,
    Change,
    Regime,
    Result,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
    foreign_share,
)
from perfsuite.stats import accepted
from perfsuite.store.sku import blocked_by

# Names what else than the code may be behind a change of time: others' load, a single card.


# Cards of one board differ by up to 8 % in single kernels (3 of 164 variants on two H200s: tf32
# GEMMs that every card runs in one of two ways, a reduction): up to here one card's word that no
# entry knows is not enough, unless so many cards agree that the variant has no such ways.
ONE_CARD, AGREEING_CARDS = 0.1, 3
# What others take of a device is no reason for doubt up to here: workers' own ends and starts.
QUIET = 0.1


@dataclass(frozen=True, slots=True)
class Doubts:
    """What a result's circumstances leave open.

    ``load`` is the share of the device that others took meanwhile, if it is worth a doubt, and
    ``load_before`` what they took of it when the entry was measured.
    ``card`` is the unit that alone was measured and that the entry does not know, if it is so.
    """

    load: float = 0.0
    load_before: float = 0.0
    card: str = ""

    def about(self, shift: Shift, policy: Policy) -> str:
        """Say what else than the code may be all of a change, or nothing."""
        low, high = shift.interval(policy.alpha)
        least = max(low, -high)
        load = max(self.load, self.load_before)
        if load and least < math.log1p(shift.gate + load):
            when = "meanwhile" if load == self.load else "when it was measured before"
            return f"others took {100 * load:.0f} % of the device {when}, which may be all of it"
        if self.card and least < math.log1p(max(ONE_CARD, 2 * shift.gate)):
            return (
                f"only one card says so, unit {self.card[:4]}, which the baseline has never seen: "
                "measure on another, or with --perf-against"
            )
        return ""


NO_DOUBTS = Doubts()


def doubts_about(
    result: Result, entry: BaselineEntry, before: Sequence[Timing], against: Against
) -> Doubts:
    """Return the doubts about a result that is compared with these processes of an entry.

    A device with two clocks has voided the blocks that were taken beside others; of arms that took
    turns others took alike.
    """
    is_alike = "cycles" in against.facts.clocks or result.variant in against.arms
    loads = (0.0, 0.0) if is_alike else (foreign_share(result.evidence), entry.load)
    now, then = (load if load > QUIET else 0.0 for load in loads)
    return Doubts(now, then, _unseen_card(result, before, against))


def _unseen_card(result: Result, before: Sequence[Timing], against: Against) -> str:
    known = {one.unit for one in before}
    measured = (result, against.screened.get(result.variant))
    units = {process.unit for one in measured if one for process in one.evidence}
    is_told = result.variant not in against.arms and "" not in known | units
    is_alone = len(units) == 1 and not units & known and len(known) < AGREEING_CARDS
    return units.pop() if is_told and is_alone else ""


# Puts a decided shift into sentences that an engineer can act on.


# Below this a movement of the SM clock is not worth a word.
NOTABLE_CLOCK = 0.002


def percent(share: float) -> str:
    """Return a share of 1 as signed percent, with the digits its size supports."""
    value = round(100 * share, 2) + 0.0  # no minus zero
    return f"{value:+.{2 if abs(value) < 1 else 1}f} %"


def timed_reason(word: Word, shift: Shift, change: Change, policy: Policy) -> str:
    """Say what moved, how surely, what the limit was and what both clocks did."""
    if shift.metric is not TIME:
        # The change is not the ratio of these: stray processes count less in it.
        medians = f"{change.baseline:.6g} and {change.current:.6g} {change.unit}".strip()
        found = _finding(word, shift, change, policy)
        return f"{shift.metric.name}, medians {medians}: {found}"
    parts = [_clocks(shift, word), _finding(word, shift, change, policy), _evidence(shift)]
    return "; ".join(part for part in parts if part)


def exact_reason(change: Change) -> str:
    """Say how a metric without noise moved."""
    moved = f"{change.metric} {_ends(change)}"
    is_share = change.theta > 0 and change.baseline
    return f"{moved} ({percent(change.theta)} worse)" if is_share else moved


def _ends(change: Change) -> str:
    return f"{change.baseline:.6g} -> {change.current:.6g} {change.unit}".strip()


def _clocks(shift: Shift, word: Word) -> str:
    if not shift.has_clock:
        return ""
    time = f"time {percent(math.expm1(shift.time))}"
    if abs(shift.clock) < NOTABLE_CLOCK:
        return time
    both = f"{time}, SM clock {percent(math.expm1(shift.clock))}"
    moved = abs(shift.time) > shift.threshold
    return f"{both}: the code is the same" if word is Word.SAME and moved else both


def _finding(word: Word, shift: Shift, change: Change, policy: Policy) -> str:
    alpha = 2 * policy.alpha_same if word is Word.SAME else policy.alpha
    span = f"{100 * (1 - alpha):g} % interval {percent(change.low)} to {percent(change.high)}"
    # With one clock the code's change is that of time.
    name = ("code " if shift.has_clock else "time ") if shift.metric is TIME else ""
    # More is better there, and the sign says what is worse.
    worse = " worse" if shift.metric.better == "higher" else ""
    code = f"{name}{percent(change.theta)}{worse} ({span}"
    found = f"from {limit(change.detectable)} on a change would be found"
    if word is Word.SAME:
        return f"{code}, inside the gate of {limit(shift.gate)}); {found}"
    if word in {Word.SLOWER, Word.FASTER}:
        return f"{code}, threshold {limit(shift.threshold)})"
    why = "the SM clock moved too far to tell the code's part; " if shift.is_clock_lost else ""
    return f"{code}); {why}{found}"


def _evidence(shift: Shift) -> str:
    where = "the same unit" if shift.same_unit else "another unit"
    text = f"{shift.processes[1]} processes against {shift.processes[0]} on {where}"
    if not shift.strays:
        return text
    count = "one process stands" if shift.strays == 1 else f"{shift.strays} processes stand"
    return f"{text}, {count} apart from the others"


def limit(share: float) -> str:
    """Return a share of 1 in percent, with three digits, or all that lie before the point."""
    return f"{100 * share:{'.3g' if share < 1 else '.0f'}} %"


# Decides the word of one variant before the rest of the run is known.


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


# Says what a run's measurements mean: a verdict per variant and per claim, with its reason.


IN_TURNS = "A against B"
MOVED = (Word.SLOWER, Word.FASTER)
# Of unchanged code fewer than this share are measured again for nothing.
SUSPECT = 0.1


def judge(
    results: Mapping[str, Result],
    *,
    variants: Sequence[Variant],
    entries: Mapping[str, BaselineEntry],
    against: Against,
) -> tuple[Verdict, ...]:
    """Return a verdict for each variant whose result is ok, in the order of ``variants``.

    ``results`` and ``entries`` are by variant id. The results are of one stage: evidence of two
    is never mixed, and a stage's comparisons are one family for the false discovery rate.
    """
    against = learned(replace(against, known=against.known or tuple(entries.values())), variants)
    drafts = [
        draft_of(variant, results[variant.id], entry=entries.get(variant.id), against=against)
        for variant in variants
        if variant.id in results and results[variant.id].status is Status.OK
    ]
    family = _family(drafts, against.policy)
    return tuple(
        _verdict(draft, against, result=results[draft.variant], family=family) for draft in drafts
    )


def learned(against: Against, variants: Sequence[Variant]) -> Against:
    """Return the circumstances with what the entries that are known tell of noise."""
    if against.priors:
        return against
    return replace(against, priors=priors_of(against.known, variants, against))


def wants_confirmation(verdict: Verdict, *, is_brief: bool = False) -> bool:
    """Say whether fresh processes should measure this variant again.

    What seems to have moved beyond the threshold is, although it may be inside the gate. If it
    ``is_brief``, what is unclear is not, unless it seems to have moved.
    """
    if verdict.word is Word.SAME or (is_brief and verdict.word is Word.UNCLEAR):
        return any(is_suspect(change) for change in verdict.changes)
    return verdict.word in {Word.UNCLEAR, *MOVED}


def is_suspect(change: Change) -> bool:
    """Say whether a change that no verdict calls is likely enough to be looked at again."""
    return change.threshold < change.gate and change.p_value < SUSPECT


@dataclass(frozen=True, slots=True)
class _Family:
    """The words of all shifts by variant; what the false discovery rate takes back is unclear."""

    words: Mapping[str, Sequence[Word]]
    size: int


def _family(drafts: Sequence[Draft], policy: Policy) -> _Family:
    family = [(draft, shift) for draft in drafts for shift in draft.shifts]
    passed = accepted([shift.p_value() for _, shift in family], policy.false_discovery_rate)
    words: dict[str, list[Word]] = {}
    for (draft, shift), kept in zip(family, passed, strict=True):
        word = word_of(shift, policy)
        is_doubtful = not kept or draft.doubts.about(shift, policy)
        found = Word.UNCLEAR if word in MOVED and is_doubtful else word
        words.setdefault(draft.variant, []).append(found)
    return _Family(words, len(family))


def _verdict(draft: Draft, against: Against, *, result: Result, family: _Family) -> Verdict:
    policy = against.policy
    words = family.words.get(draft.variant, ())
    changes = [
        shift.change(policy, lenient=word is Word.SAME)
        for shift, word in zip(draft.shifts, words, strict=True)
    ]
    word = _final(_worst([*words, draft.word]) if words else draft.word, draft)
    return Verdict(
        variant=draft.variant,
        word=word,
        reason=_reason(draft, changes, family, policy),
        changes=(*changes, *draft.exact),
        source=against.source_of(draft.variant),
        confirmation=_confirmation(result, against) if word in MOVED else "",
        fails=_fails(word, changes, words, draft, policy),
        card=draft.doubts.card if Word.UNCLEAR in words else "",
    )


def _reason(draft: Draft, changes: Sequence[Change], family: _Family, policy: Policy) -> str:
    """Return what is exact first, then time, then what else moved."""
    words = family.words.get(draft.variant, ())
    reasons = [draft.budget, *map(exact_reason, draft.exact), draft.reason]
    for shift, word, change in zip(draft.shifts, words, changes, strict=True):
        if shift.metric in TIMES or word is not Word.SAME:
            reasons.append(timed_reason(word, shift, change, policy))
        if word is Word.UNCLEAR and word_of(shift, policy) in MOVED:
            weak = f"one of {family.size} comparisons, too weak to stand out"
            reasons.append(draft.doubts.about(shift, policy) or weak)
    reasons.append(power_reason(draft.shifts, words))
    # A case may have any number of metrics.
    return plain("; ".join(reason for reason in reasons if reason))


def _confirmation(result: Result, against: Against) -> str:
    if result.stage is not Stage.CONFIRM:
        return ""
    if result.variant in against.arms:
        return IN_TURNS
    screened = against.screened.get(result.variant)
    units = [{process.unit for process in one.evidence} for one in (result, screened) if one]
    is_another = len(units) > 1 and units[0].isdisjoint(units[1])
    return "fresh processes on another GPU" if is_another else "fresh processes"


def _worst(words: Sequence[Word]) -> Word:
    return next(word for word in (*MOVED, Word.UNCLEAR, Word.SAME) if word in words)


def _final(timed: Word, draft: Draft) -> Word:
    if draft.budget:
        return Word.OVER_BUDGET
    if any(change.theta > 0 for change in draft.exact):
        return Word.SLOWER
    return Word.FASTER if draft.exact and timed is Word.SAME else timed


def _fails(
    word: Word, changes: Sequence[Change], words: Sequence[Word], draft: Draft, policy: Policy
) -> bool:
    if word.value not in policy.fail_on:
        return False
    is_past_gate = any(
        change.theta > change.gate
        for change, each in zip(changes, words, strict=True)
        if each is Word.SLOWER
    )
    return word is not Word.SLOWER or is_past_gate or any(c.theta > 0 for c in draft.exact)
