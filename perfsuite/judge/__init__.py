"""Says what a run's measurements mean: a verdict per variant and per claim, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfsuite import stats
from perfsuite.boundary import plain
from perfsuite.judge.claims import judge_claims, judge_quads
from perfsuite.judge.components import priors_of
from perfsuite.judge.draft import Draft, draft_of, word_of
from perfsuite.judge.machine import Machine, judge_machine
from perfsuite.judge.nights import is_one_level, level_changes
from perfsuite.judge.policy import Against, Policy
from perfsuite.judge.sustained import canary_clocks, power_reason
from perfsuite.judge.timings import TIMES
from perfsuite.judge.words import exact_reason, timed_reason
from perfsuite.model import BaselineEntry, Change, Result, Stage, Status, Variant, Verdict, Word

__all__ = [
    "IN_TURNS",
    "Against",
    "Machine",
    "Policy",
    "canary_clocks",
    "is_one_level",
    "is_suspect",
    "judge",
    "judge_claims",
    "judge_machine",
    "judge_quads",
    "learned",
    "level_changes",
    "wants_confirmation",
]

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
    passed = stats.accepted([shift.p_value() for _, shift in family], policy.false_discovery_rate)
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
