"""The word for each variant, from all its metrics, and for each claim; reasons are data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any

from msgspec import structs

from perfsuite.judge import compare, noise
from perfsuite.judge.rule import CALL, LIMITS, MISS, Difference, difference_of, looks_of, within
from perfsuite.model import (
    ENERGY,
    TIME,
    Change,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Confirmation,
    DeviceFacts,
    Metric,
    Reason,
    Regime,
    Result,
    Run,
    Stage,
    Status,
    VariantRun,
    Verdict,
    Word,
    because,
    is_host_timed,
)
from perfsuite.packs.select import missing_of
from perfsuite.stats import grouped
from perfsuite.store.sku import differs

# The word where no shifts are judged, the reasons for it, changes without noise, and with it.
Drafted = tuple[Word, list[Reason], list[Change], list[compare.Shift]]


def judge(run: Run, stage: Stage | None = None) -> tuple[Verdict, ...]:
    """Return a verdict for each variant that ended ok, by what the run expects of it, in order.

    The results are of one ``stage``, or the last of each variant: evidence of two is never mixed,
    but of sides that took turns all pairs count.
    """
    grounds = compare.Grounds(
        facts=run.facts,
        slug=run.sku.slug,
        policy=run.settings.policy,
        clocks=noise.canary_clocks(run),
        call=looks_of(run.settings).call,
    )
    return tuple(
        _verdict(one, result, grounds)
        for one in run.variants
        if (result := _judged(one, stage)) and result.status is Status.OK
    )


def _judged(one: VariantRun, stage: Stage | None) -> Result | None:
    found = one.result(stage) if stage else one.last
    return one.last if found and one.expected.in_turns else found


# One variant, metric by metric.


def _drafted(one: VariantRun, result: Result, grounds: compare.Grounds) -> Drafted:
    """Compare a variant by a result of it that is ok; unusable samples are a ValueError."""
    case, held, entry = one.variant.case, one.expected, one.entry
    is_timed = case.regime is not Regime.EXACT
    if is_timed and not noise.values_of(result):
        return Word.UNCLEAR, [because("no_samples")], [], []
    budget = compare.over_budget(case, result)
    reasons = [budget] if budget else []
    unrelated = _unrelated(one, result, grounds.facts)
    if unrelated or entry is None:
        word, reason = unrelated or (Word.NEW, because("no_entry", source=held.source))
        return word, [*reasons, reason], [], []
    told = _told(result, case.metrics)
    exact = compare.exact_changes(told, entry, case.metrics)
    reasons += [
        because(
            # A share of nothing says nothing.
            "exact_worse" if change.theta > 0 and change.baseline else "exact",
            metric=change.metric,
            unit=change.unit,
            before=change.baseline,
            now=change.current,
            theta=change.theta,
        )
        for change in exact
    ]
    if is_timed and not noise.values_of_entry(entry):
        return Word.NEW, [*reasons, because("no_time", source=held.source)], exact, []
    # The case's own metrics that the baseline has and this run lacks.
    lost = tuple(m.name for m in case.metrics if m.name in entry.metrics and not told[m.name])
    sampling = noise.sampling_of(result.evidence)
    if entry.sampling and sampling and sampling != entry.sampling:
        why = because("sampling", before=str(entry.sampling), now=str(sampling))
        return Word.INCOMPARABLE, [*reasons, why], exact, []
    if lost:
        reasons.append(because("lost", metrics=lost))
    elif not is_timed and not exact:
        reasons.append(because("counted", count=len(entry.metrics)))
    shifts = list[compare.Shift]()
    if is_timed:
        time_of = noise.estimate_of(grounds.facts.device, case.regime, in_turns=held.in_turns)
        shifts, more = compare.shifts_of(
            one, entry, lambda m: noise.values_of(result, m, time_of), grounds
        )
        reasons += more
    return Word.UNCLEAR if lost else Word.SAME, reasons, exact, shifts


def _told(result: Result, declared: Sequence[Metric]) -> dict[str, list[float]]:
    """Return the numbers without noise by metric, and all samples of a case's own metrics."""
    told: dict[str, list[float]] = {metric.name: [] for metric in declared}
    for process in result.evidence:
        for name, value in process.exact.items():
            told.setdefault(name, []).append(value)
        for metric in declared:
            told[metric.name] += chain(*process.samples(metric.name))
    return told


def _unrelated(one: VariantRun, result: Result, facts: DeviceFacts) -> tuple[Word, Reason] | None:
    """Return why a result may not be compared with an entry."""
    held, entry, regime = one.expected, one.entry, one.variant.case.regime.value
    if held.why_not:
        return Word.INCOMPARABLE, held.why_not
    if entry is None:
        return None
    if entry.case_version != result.case_version:
        return Word.NEW, because("version", before=entry.case_version, now=result.case_version)
    if entry.regime != regime:
        return Word.INCOMPARABLE, because("regime", before=entry.regime, now=regime)
    blocked = differs(entry.state, facts.state)
    return (Word.INCOMPARABLE, because("other_kind", text=blocked)) if blocked else None


# The verdict on all metrics of a variant.


def _verdict(one: VariantRun, result: Result, grounds: compare.Grounds) -> Verdict:
    """Return the verdict on a variant by a result of it that is ok."""
    in_turns, fail_on = one.expected.in_turns, grounds.policy.fail_on
    try:
        word, reasons, exact, shifts = _drafted(one, result, grounds)
    except ValueError as error:
        word, exact, shifts = Word.UNCLEAR, [], []
        reasons = [because("unusable", error=str(error))]
    changes = [*(shift.change for shift in shifts), *exact]
    if grounds.facts.is_host and shifts and not in_turns:
        # A host's stored times are of another load, and no level: they are told, and decide not.
        word, shifts = word if exact else Word.UNCLEAR, []
        reasons.append(because("stored_time"))
    for shift in shifts:
        if shift.metric in compare.TIMES or not shift.word.stayed:
            reasons += _reasons(shift, is_pair=in_turns)
    said = {shift.metric: shift.word for shift in shifts}
    if said.get(TIME, Word.UNCLEAR).stayed:
        power = {ENERGY: "more_power", compare.CLOCK: "lower_clock"}
        slower = [kind for metric, kind in power.items() if said.get(metric) is Word.SLOWER]
        reasons += [because(kind) for kind in slower[:1]]
    is_worse = any(change.theta > 0 for change in exact)
    # What moved counts before what did not, and then what needs a reader most.
    ranked = sorted(Word, key=lambda each: not each.moved)
    word = min((*said.values(), word), key=ranked.index)
    kinds = {reason.kind for reason in reasons}
    if "over_budget" in kinds:
        word = Word.OVER_BUDGET
    elif exact and (is_worse or word.stayed):
        word = Word.SLOWER if is_worse else Word.FASTER
    is_past_gate = is_worse or any(
        shift.word is Word.SLOWER and shift.change.theta > shift.change.gate for shift in shifts
    )
    how = Confirmation.FRESH if result.stage is Stage.CONFIRM else Confirmation.NONE
    how = Confirmation.IN_TURNS if in_turns else how
    return Verdict(
        variant=one.id,
        word=word,
        reasons=tuple(reasons),
        changes=tuple(changes),
        source=one.expected.source,
        in_turns=in_turns,
        confirmation=how if word.moved else Confirmation.NONE,
        # A launch of many times its length can no longer be sampled as it was: not to be passed
        # over.
        fails="sampling" in kinds
        or (word.value in fail_on and (word is not Word.SLOWER or is_past_gate)),
    )


def _reasons(shift: compare.Shift, *, is_pair: bool) -> list[Reason]:
    """Return what moved, how surely, what the limit was and what both clocks did."""
    is_time, word, change = shift.metric is TIME, shift.word, shift.change
    time, clock = change.time_change, change.clock_change
    found, ends = [], {"low": change.low, "high": change.high}
    if is_time and shift.has_clock:
        kind = "code_is_same" if word.stayed and abs(time) > change.threshold else "clocks"
        kind = kind if abs(clock) >= LIMITS["paced"].threshold else "time"
        found.append(because(kind, time=time, clock=clock, **ends))
    interval = because(
        "interval",
        metric=change.metric,
        unit=change.unit,
        better=shift.metric.better,
        of="" if not is_time else "code" if shift.has_clock else "time",
        word=word.value,
        before=change.baseline,
        now=change.current,
        theta=change.theta,
        **ends,
        level=1 - 2 * (CALL if word.moved else MISS),
        limit=change.gate if word.stayed else change.threshold,
    )
    found.append(interval)
    if word is Word.UNCLEAR and shift.is_clock_lost:
        found.append(because("clock_lost"))
    if word.stayed:
        found.append(because("within", share=within(change)))
    elif not word.moved:
        if not shift.is_own:
            found.append(because("other_cards"))
        found.append(because("detectable", share=change.detectable))
    if is_time and not is_pair:
        kind = "processes" if shift.is_own else "processes_elsewhere"
        found.append(because(kind, before=shift.processes[0], now=shift.processes[1]))
    return found


# What became of the claims: the word, the reason for it, the ratio with its interval.
Claimed = tuple[ClaimWord, Reason, tuple[float | None, float | None, float | None]]


class _LacksError(Exception):
    """A side has nothing to say, for the reason that it is raised with."""


def judge_claims(run: Run, stage: Stage | None = None) -> tuple[ClaimVerdict, ...]:
    """Return what became of each claim of a run, by the results of a stage, or by the last ones.

    Held if the interval of than / faster reaches nowhere below the ratio asked for, broken if it
    ends below it, else unclear. What is about an exact metric is held or broken. Where there are
    pairs of a claim's own, they decide.
    """
    found = []
    results = {one.id: one.result(stage) if stage else one.last for one in run.variants}
    own = grouped((each for each in run.aside if each.claim), lambda each: each.claim)
    for claim in run.instances:
        verdict = _claimed(claim, results, run)
        pairs = {each.variant: each for each in own.get(claim.id, ())}
        failed = [each for each in pairs.values() if each.status is not Status.OK]
        told = [_ended(each) for each in failed]
        if len(pairs) > 1 and not failed:
            verdict = _claimed(claim, pairs, run, in_turns=True)
            told = [because("by_pairs", pairs=min(len(each.evidence) for each in pairs.values()))]
        found.append(structs.replace(verdict, reasons=(*verdict.reasons, *told)))
    return tuple(found)


def _claimed(
    claim: ClaimInstance, results: Mapping[str, Result | None], run: Run, *, in_turns: bool = False
) -> ClaimVerdict:
    """Return a claim's verdict by one result of each side."""
    facts, sides = run.facts, (claim.than, claim.faster)
    regimes = {o.id: o.variant.case.regime for o in run.variants if o.id in sides}
    time_of = {o: noise.estimate_of(facts.device, regimes[o], in_turns=in_turns) for o in regimes}
    try:
        than, faster = (_values(claim, name, results, facts, time_of) for name in sides)
    except _LacksError as lacking:
        told: Claimed = ClaimWord.NOT_APPLICABLE, lacking.args[0], (None, None, None)
    else:
        if claim.metric:
            told = _by_metric(claim, median(than), median(faster))
        else:
            logs, others = ([[math.log(value) for value in side]] for side in (faster, than))
            # Its clock is in it: a claim is about time alone.
            awaited = (in_turns and is_host_timed(facts.device, each) for each in regimes.values())
            by_host = facts.is_host or any(awaited)
            limits = LIMITS["host" if by_host else "one clock"]
            told = _by_time(claim, difference_of(logs, others, limits, in_turns=in_turns))
    word, reason, (ratio, low, high) = told
    return ClaimVerdict(
        claim=claim.id,
        word=word,
        required=claim.by,
        source=claim.source,
        reasons=(reason,),
        ratio=ratio,
        low=low,
        high=high,
        fails=word is ClaimWord.BROKEN and word.value in run.settings.policy.fail_on,
    )


def _ended(result: Result) -> Reason:
    status = result.status.value
    return because("ended", variant=result.variant, status=status, why=result.reason)


def _values(
    claim: ClaimInstance,
    name: str,
    results: Mapping[str, Result | None],
    facts: DeviceFacts,
    time_of: Mapping[str, Callable[[Any], float]],
) -> list[float]:
    """Return what each process of a side took, or has of the claim's metric."""
    if why := missing_of(claim.needs, facts):
        raise _LacksError(because("unmet", text=why))
    result = results.get(name)
    if result is None:
        raise _LacksError(because("not_in_run", variant=name))
    if result.status is not Status.OK:
        raise _LacksError(_ended(result))
    if claim.metric:
        values = [each.exact.get(claim.metric, math.nan) for each in result.evidence]
        if not values or any(map(math.isnan, values)):
            raise _LacksError(because("no_metric", variant=name, metric=claim.metric))
        return values
    try:
        values = [each.time_us for each in noise.values_of(result, TIME, time_of[name])]
    except ValueError as error:
        raise _LacksError(because("unusable", error=str(error))) from error
    if not values:
        raise _LacksError(because("no_samples"))
    return values


def _by_metric(claim: ClaimInstance, than: float, faster: float) -> Claimed:
    """Judge a claim by the medians of both sides' processes, which hardly ever differ."""
    ratio = than / faster if faster > 0 else None
    word = ClaimWord.HELD if than >= claim.by * faster else ClaimWord.BROKEN
    reason = because("values", metric=claim.metric, than=than, now=faster)
    return word, reason, (ratio, ratio, ratio)


def _by_time(claim: ClaimInstance, log_ratio: Difference) -> Claimed:
    reach = log_ratio.reach(MISS)
    low, high = (math.exp(log_ratio.theta + end) for end in (-reach, reach))
    word = ClaimWord.HELD if low >= claim.by else ClaimWord.UNCLEAR
    word = ClaimWord.BROKEN if high < claim.by else word
    reason = because("ratio", low=low, high=high, level=1 - 2 * MISS)
    return word, reason, (math.exp(log_ratio.theta), low, high)
