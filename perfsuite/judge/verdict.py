"""The word for each variant, from all its metrics, and for each claim; reasons are data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

from msgspec import structs

from perfsuite.judge.compare import (
    BROKEN,
    CLOCK,
    TIMES,
    Grounds,
    Policy,
    Shift,
    exact_changes,
    over_budget,
    shifts_of,
)
from perfsuite.judge.noise import (
    CPU_PRIORS,
    PRIORS,
    Timing,
    canary_clocks,
    estimate_of,
    sampling_of,
    usable_of,
    values_of,
    values_of_entry,
)
from perfsuite.judge.pairs import looks_of, needs_pairs, within
from perfsuite.model import (
    CYCLES,
    ENERGY,
    TIME,
    BaselineEntry,
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
    foreign_share,
)
from perfsuite.packs.select import missing_of
from perfsuite.stats import (
    Difference,
    Variance,
    hodges_lehmann,
    main_mode,
    moderated,
    pooled,
)
from perfsuite.store.sku import blocked_by

# Cards of one board differ by up to 8 % in single kernels (3 of 164 variants on two H200s: tf32
# GEMMs that every card runs in one of two ways, a reduction): up to here one card's word that no
# entry knows is not enough, unless so many cards agree that the variant has no such ways.
ONE_CARD, AGREEING_CARDS = 0.1, 3
# What others take of a device is no reason for doubt up to here: workers' own ends and starts.
QUIET = 0.1
# Below this a movement of the SM clock is not worth a word.
NOTABLE_CLOCK = 0.002
# A claim is about time, and both of its sides ran on one unit in one run: what differs between
# processes, clock included, is all there is.
ALPHA = 0.05
# Between processes, of a ratio that both variants' blocks inside one process make: assumed for
# GPUs, not measured yet; a larger spread of a claim's own processes counts instead. On two cores
# that others used as well it was 2-12 % in four kernels, no less than between processes.
QUADS_BETWEEN = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One variant with what is known of it.

    ``word`` is final where no ``shifts`` are to be judged. What is ``stored`` are changes that
    decide nothing. ``loads`` are the shares of the device
    that others took now, and when the entry was measured. ``card`` is the unit that alone was
    measured and that the entry does not know, if it is so.
    """

    one: VariantRun
    result: Result
    word: Word
    reasons: tuple[Reason, ...] = ()
    shifts: tuple[Shift, ...] = ()
    exact: tuple[Change, ...] = ()
    loads: tuple[float, float] = (0.0, 0.0)
    card: str = ""
    stored: tuple[Change, ...] = ()

    def doubt(self, shift: Shift) -> Reason | None:
        """Return what else than the code may be all of a change: others' load, a single card."""
        load, gate = max(self.loads), shift.strict.gate
        if load > QUIET and shift.least < math.log1p(gate + load):
            return because("load" if load == self.loads[0] else "load_before", share=load)
        if self.card and shift.least < math.log1p(max(ONE_CARD, 2 * gate)):
            return because("one_card", unit=self.card)
        return None


def judge(
    run: Run,
    stage: Stage | None = None,
    *,
    policy: Policy | None = None,
    known: Sequence[BaselineEntry] = (),
) -> tuple[Verdict, ...]:
    """Return a verdict for each variant that ended ok, by what the run expects of it, in order.

    The results are of one ``stage``, or the last of each variant: evidence of two is never mixed,
    but of sides that took turns all pairs count. ``known`` are all entries of the SKU, measured or
    not: they tell of noise.
    """
    known = known or [one.entry for one in run.every if one.entry]
    grounds = Grounds(
        facts=run.facts,
        slug=run.sku.slug,
        policy=policy or Policy(),
        clocks=canary_clocks(run),
        call=looks_of(run.settings).call,
    ).learned(known, [one.variant for one in run.variants])
    drafts = [
        draft_of(one, result, grounds)
        for one in run.variants
        if (result := _judged(one, stage)) and result.status is Status.OK
    ]
    if run.facts.is_host:
        drafts = [*map(untimed, drafts)]
    return tuple(_verdict(draft, grounds.policy) for draft in drafts)


def _judged(one: VariantRun, stage: Stage | None) -> Result | None:
    found = one.result(stage) if stage else one.last
    return one.last if found and one.expected.in_turns else found


def wants_confirmation(verdict: Verdict) -> bool:
    """Say whether fresh processes should measure this variant again.

    What seems to have moved beyond the threshold is, although it may be inside the gate.
    """
    if verdict.in_turns:
        return needs_pairs(verdict)
    if verdict.word.stayed:
        return any(is_suspect(change) for change in verdict.changes)
    return verdict.word is Word.UNCLEAR or verdict.word.moved


def is_suspect(change: Change) -> bool:
    """Say whether a change that no verdict calls is beyond the threshold all the same."""
    return change.threshold < min(change.gate, abs(change.theta))


def untimed(draft: Draft) -> Draft:
    """Return the draft without what stored times say: a host's are of another load, and no level.

    How far they differ is told all the same. What is counted decides.
    """
    if draft.one.expected.in_turns or not draft.shifts:
        return draft
    return replace(
        draft,
        word=draft.word if draft.exact else Word.UNCLEAR,
        reasons=(*draft.reasons, because("stored_time")),
        shifts=(),
        stored=tuple(shift.strict for shift in draft.shifts),
    )


# One variant, metric by metric.


def draft_of(one: VariantRun, result: Result, grounds: Grounds) -> Draft:
    """Return the draft of a variant by a result of it that is ok."""
    try:
        return _draft(one, result, grounds)
    except ValueError as error:
        reason = because("unusable", error=str(error))
        return Draft(one=one, result=result, word=Word.UNCLEAR, reasons=(reason,))


def _draft(one: VariantRun, result: Result, grounds: Grounds) -> Draft:
    case, held, entry = one.variant.case, one.expected, one.entry
    is_timed = case.regime is not Regime.EXACT
    bare = Draft(one=one, result=result, word=Word.UNCLEAR)
    if is_timed and not values_of(result):
        return replace(bare, reasons=(because("no_samples"),))
    budget = over_budget(case.budgets, result)
    reasons = [budget] if budget else []
    unrelated = _unrelated(one, result, grounds.facts)
    if unrelated or entry is None:
        word, reason = unrelated or (Word.NEW, because("no_entry", source=held.source))
        return replace(bare, word=word, reasons=(*reasons, reason))
    told = _told(result, case.metrics)
    exact = tuple(exact_changes(told, entry, case.metrics))
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
    before = values_of_entry(entry)
    if is_timed and not before:
        reasons.append(because("no_time", source=held.source))
        return replace(bare, word=Word.NEW, reasons=tuple(reasons), exact=exact)
    # The case's own metrics that the baseline has and this run lacks.
    lost = tuple(m.name for m in case.metrics if m.name in entry.metrics and not told[m.name])
    sampling = sampling_of(result.evidence)
    if entry.sampling and sampling and sampling != entry.sampling:
        why = because("sampling", before=str(entry.sampling), now=str(sampling))
        draft = replace(bare, word=Word.INCOMPARABLE, exact=exact)
        return replace(draft, reasons=(*reasons, why))
    if lost:
        reasons.append(because("lost", metrics=lost))
    elif not is_timed and not exact:
        reasons.append(because("counted", count=len(entry.metrics)))
    draft = replace(bare, word=Word.UNCLEAR if lost else Word.SAME, exact=exact)
    if not is_timed:
        return replace(draft, reasons=tuple(reasons))
    # The processes of a confirmation's screen were chosen, and are no evidence.
    is_confirmed = result.stage is Stage.CONFIRM and not held.in_turns
    screen = one.result(Stage.SCREEN) if is_confirmed else None
    is_sampled_alike = screen and sampling_of(screen.evidence) in {sampling, None}
    chosen = usable_of(screen) if screen and is_sampled_alike else []
    screened = [replace(each, is_fresh=False) for each in chosen]

    def now(metric: Metric) -> list[Timing]:
        time_of = estimate_of(grounds.facts.device, case.regime, in_turns=held.in_turns)
        return values_of(result, metric, time_of) + (screened if metric is TIME else [])

    shifts, more = shifts_of(one, entry, now, grounds)
    # A device with two clocks has voided the blocks that were taken beside others; of sides that
    # took turns others took alike.
    is_alike = CYCLES.name in grounds.facts.clocks or held.in_turns
    known = {each.unit for each in before}
    units = {process.unit for each in (result, screen) if each for process in each.evidence}
    is_told = not held.in_turns and "" not in known | units
    is_unseen = len(units) == 1 and not units & known and len(known) < AGREEING_CARDS
    return replace(
        draft,
        reasons=(*reasons, *more),
        shifts=tuple(shifts),
        loads=(0.0, 0.0) if is_alike else (foreign_share(result.evidence), entry.load),
        card=units.pop() if is_told and is_unseen else "",
    )


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
    blocked = blocked_by(entry.state, facts)
    return (Word.INCOMPARABLE, because("other_kind", text=blocked)) if blocked else None


# The verdict on all metrics of a variant.


def _verdict(draft: Draft, policy: Policy) -> Verdict:
    """Return the verdict of a draft."""
    one = draft.one
    reasons = list(draft.reasons)
    words: list[Word] = []
    changes: list[Change] = []
    for shift in draft.shifts:
        doubt = draft.doubt(shift) if shift.word.moved else None
        word = Word.UNCLEAR if doubt else shift.word
        words.append(word)
        change = shift.lenient if word.stayed else shift.strict
        changes.append(change)
        if shift.metric in TIMES or not word.stayed:
            reasons += _reasons(shift, change, word, is_pair=one.expected.in_turns)
        reasons += [doubt] if doubt else []
    said = {shift.metric: word for shift, word in zip(draft.shifts, words, strict=True)}
    if said.get(TIME, Word.UNCLEAR).stayed:
        power = {ENERGY: "more_power", CLOCK: "lower_clock"}
        slower = [kind for metric, kind in power.items() if said.get(metric) is Word.SLOWER]
        reasons += [because(kind) for kind in slower[:1]]
    is_worse = any(change.theta > 0 for change in draft.exact)
    # What moved counts before what did not, and then what needs a reader most.
    ranked = sorted(Word, key=lambda each: not each.moved)
    word = min((*words, draft.word), key=ranked.index)
    if any(reason.kind == "over_budget" for reason in reasons):
        word = Word.OVER_BUDGET
    elif draft.exact and (is_worse or word.stayed):
        word = Word.SLOWER if is_worse else Word.FASTER
    # A launch of many times its length can no longer be sampled as it was: not to be passed over.
    is_unheld = any(reason.kind == "sampling" for reason in reasons)
    is_past_gate = is_worse or any(
        each is Word.SLOWER and change.theta > change.gate
        for each, change in zip(words, changes, strict=True)
    )
    return Verdict(
        variant=one.id,
        word=word,
        reasons=tuple(reasons),
        changes=(*changes, *draft.stored, *draft.exact),
        source=one.expected.source,
        in_turns=one.expected.in_turns,
        confirmation=_confirmation(one, draft.result) if word.moved else Confirmation.NONE,
        fails=is_unheld
        or (word.value in policy.fail_on and (word is not Word.SLOWER or is_past_gate)),
        card=draft.card if Word.UNCLEAR in words else "",
    )


def _reasons(shift: Shift, change: Change, word: Word, *, is_pair: bool) -> list[Reason]:
    """Return what moved, how surely, what the limit was and what both clocks did."""
    is_time, is_same = shift.metric is TIME, word.stayed
    time, clock = change.time_change, change.clock_change
    found = []
    if is_time and shift.has_clock:
        kind = "code_is_same" if is_same and abs(time) > change.threshold else "clocks"
        kind = kind if abs(clock) >= NOTABLE_CLOCK else "time"
        found.append(because(kind, time=time, clock=clock))
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
        low=change.low,
        high=change.high,
        level=shift.levels[is_same],
        limit=change.gate if is_same else change.threshold,
    )
    found.append(interval)
    if word is Word.UNCLEAR and shift.is_clock_lost:
        found.append(because("clock_lost"))
    if is_same and is_pair:
        found.append(because("within", share=within(change)))
    elif not word.moved:
        found.append(because("detectable", share=change.detectable))
    if is_time:
        kind = "processes" if shift.same_unit else "processes_elsewhere"
        found.append(because(kind, before=shift.processes[0], now=shift.processes[1]))
        found += [because("strays", count=shift.strays)] if shift.strays else []
    return found


def _confirmation(one: VariantRun, result: Result) -> Confirmation:
    if one.expected.in_turns:
        return Confirmation.IN_TURNS
    if result.stage is not Stage.CONFIRM:
        return Confirmation.NONE
    now, screened = (
        {process.unit for process in each.evidence} if each else set()
        for each in (result, one.result(Stage.SCREEN))
    )
    is_another = screened and now.isdisjoint(screened)
    return Confirmation.ANOTHER_GPU if is_another else Confirmation.FRESH


# The claims of packs, from a run's own results.


class _LacksError(Exception):
    """A side has nothing to say, for the reason that it is raised with."""


def judge_claims(
    run: Run, stage: Stage | None = None, *, policy: Policy | None = None
) -> tuple[ClaimVerdict, ...]:
    """Return what became of each claim of a run, by the results of a stage, or by the last ones.

    Held if the interval of than / faster reaches nowhere below the ratio asked for, broken if it
    ends below it, else unclear. What is about an exact metric is held or broken.
    """
    policy = policy or Policy()
    prior = (CPU_PRIORS[""] if run.facts.is_host else PRIORS["one clock"]).processes
    results = {one.id: one.result(stage) if stage else one.last for one in run.variants}
    found = []
    for claim in run.instances:
        if why := missing_of(claim.needs, run.facts):
            reason = because("unmet", text=why)
            found.append(_claim_verdict(claim, ClaimWord.NOT_APPLICABLE, reason, policy))
            continue
        try:
            than, faster = (_values(claim, name, results) for name in (claim.than, claim.faster))
        except _LacksError as lacking:
            (reason,) = lacking.args
            found.append(_claim_verdict(claim, ClaimWord.NOT_APPLICABLE, reason, policy))
            continue
        if claim.metric:
            found.append(_by_metric(claim, median(than), median(faster), policy))
            continue
        modes = [main_mode(list(map(math.log, side)), prior) for side in (than, faster)]
        variance = moderated(pooled(modes), prior).times(sum(1 / len(side) for side in modes))
        theta = hodges_lehmann(modes[0]) - hodges_lehmann(modes[1])
        found.append(_by_time(claim, Difference(theta, (variance,)), policy))
    return tuple(found)


def judge_abba(
    claim: ClaimInstance, results: Sequence[Result], *, facts: DeviceFacts, policy: Policy
) -> ClaimVerdict | None:
    """Return a claim's verdict by groups of ABBA of its two variants; None if they did not end.

    A quad is two blocks of either. Each process is one value: what it does to both variants is
    not in it.
    """
    if any(each.status is not Status.OK for each in results) or not results:
        return None
    count, values = 0, []
    try:
        for processes in zip(*(result.evidence for result in results), strict=True):
            faster, than = (
                [math.log(median(block)) for block in process.samples("time_us")]
                for process in processes
            )
            ratios = [one - other for one, other in zip(than, faster, strict=False)]
            groups = [sum(ratios[at : at + 2]) / 2 for at in range(0, len(ratios) - 1, 2)]
            values.append(hodges_lehmann(groups))
            count += len(groups)
        theta = hodges_lehmann(values)
    except ValueError:
        return None
    between = CPU_PRIORS[""].between if facts.is_host else QUADS_BETWEEN
    own = pooled([values])
    # The prior only lifts a spread that is small by luck.
    lifted = moderated(own, Variance(between**2, 6))
    variance = max(own, lifted, key=lambda each: each.value).times(1 / len(values))
    verdict = _by_time(claim, Difference(theta, (variance,)), policy)
    kind = "open_by_abba" if verdict.word is ClaimWord.UNCLEAR else "decided_by_abba"
    how = because(kind, groups=count, processes=len(values))
    return structs.replace(verdict, reasons=(*verdict.reasons, how))


def _values(claim: ClaimInstance, name: str, results: Mapping[str, Result | None]) -> list[float]:
    """Return what each process of a side took, or has of the claim's metric."""
    result = results.get(name)
    if result is None:
        raise _LacksError(because("not_in_run", variant=name))
    if result.status is Status.SKIPPED and result.reason:
        raise _LacksError(because("unmet", text=result.reason))
    if result.status is not Status.OK:
        status = result.status.value
        raise _LacksError(because("ended", variant=name, status=status, why=result.reason))
    if claim.metric:
        values = [each.exact.get(claim.metric, math.nan) for each in result.evidence]
        if not values or any(map(math.isnan, values)):
            raise _LacksError(because("no_metric", variant=name, metric=claim.metric))
        return values
    try:
        values = [each.time_us for each in values_of(result)]
    except ValueError as error:
        raise _LacksError(because("unusable", error=str(error))) from error
    if not values:
        raise _LacksError(because("no_samples"))
    return values


def _by_metric(claim: ClaimInstance, than: float, faster: float, policy: Policy) -> ClaimVerdict:
    """Judge a claim by the medians of both sides' processes, which hardly ever differ."""
    ratio = than / faster if faster > 0 else None
    word = ClaimWord.HELD if than >= claim.by * faster else ClaimWord.BROKEN
    reason = because(
        "values" if ratio is None else "ratio_of_values",
        metric=claim.metric,
        than=than,
        now=faster,
        by=claim.by,
        ratio=ratio or 0.0,
    )
    return _claim_verdict(claim, word, reason, policy, (ratio, ratio, ratio))


def _by_time(claim: ClaimInstance, log_ratio: Difference, policy: Policy) -> ClaimVerdict:
    low, high = (math.exp(end) for end in log_ratio.interval(ALPHA))
    word = ClaimWord.HELD if low >= claim.by else ClaimWord.UNCLEAR
    word = ClaimWord.BROKEN if high < claim.by else word
    ratio = math.exp(log_ratio.theta)
    reason = because("ratio", ratio=ratio, low=low, high=high, level=1 - ALPHA, by=claim.by)
    return _claim_verdict(claim, word, reason, policy, (ratio, low, high))


def _claim_verdict(
    claim: ClaimInstance,
    word: ClaimWord,
    reason: Reason,
    policy: Policy,
    ratio: Sequence[float | None] = (None, None, None),
) -> ClaimVerdict:
    return ClaimVerdict(
        claim=claim.id,
        word=word,
        required=claim.by,
        source=claim.source,
        reasons=(reason,),
        ratio=ratio[0],
        low=ratio[1],
        high=ratio[2],
        fails=word is ClaimWord.BROKEN and BROKEN in policy.fail_on,
    )
