"""Says what a run's measurements mean: a verdict per variant and per claim, with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfsuite import stats
from perfsuite.judge.claims import judge_claims
from perfsuite.judge.draft import Draft, draft_of
from perfsuite.judge.policy import Against, Policy
from perfsuite.judge.words import exact_reason, timed_reason
from perfsuite.model import BaselineEntry, Change, Result, Stage, Status, Variant, Verdict, Word

__all__ = ["Against", "Policy", "judge", "judge_claims", "wants_confirmation"]

MOVED = (Word.SLOWER, Word.FASTER)


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
    drafts = [
        draft_of(variant, results[variant.id], entry=entries.get(variant.id), against=against)
        for variant in variants
        if variant.id in results and results[variant.id].status is Status.OK
    ]
    doubtful = _doubtful(drafts, against.policy)
    return tuple(
        _verdict(draft, against, stage=results[draft.variant].stage, doubt=doubtful)
        for draft in drafts
    )


def wants_confirmation(verdict: Verdict) -> bool:
    """Say whether fresh processes should measure this variant again."""
    return verdict.word in {Word.UNCLEAR, Word.SLOWER, Word.FASTER}


def _doubtful(drafts: Sequence[Draft], policy: Policy) -> Mapping[str, int]:
    """Return the moved variants that the family's false discovery rate takes back."""
    family = [(draft, draft.shift) for draft in drafts if draft.shift]
    passed = stats.accepted([shift.p_value() for _, shift in family], policy.false_discovery_rate)
    return {
        draft.variant: len(family)
        for (draft, _), kept in zip(family, passed, strict=True)
        if draft.word in MOVED and not kept
    }


def _verdict(draft: Draft, against: Against, *, stage: Stage, doubt: Mapping[str, int]) -> Verdict:
    timed = Word.UNCLEAR if draft.variant in doubt else draft.word
    change = _timed_change(draft, timed, against.policy)
    word = _final(timed, draft)
    reasons = [draft.budget, *map(exact_reason, draft.exact), draft.reason]
    if draft.shift and change:
        reasons.append(timed_reason(timed, draft.shift, change, against.policy))
    if draft.variant in doubt:
        reasons.append(f"one of {doubt[draft.variant]} comparisons, too weak to stand out")
    return Verdict(
        variant=draft.variant,
        word=word,
        reason="; ".join(reason for reason in reasons if reason),
        changes=(*([change] if change else []), *draft.exact),
        source=against.source,
        confirmation="fresh processes" if word in MOVED and stage is Stage.CONFIRM else "",
        fails=_fails(word, change, draft, against.policy),
    )


def _timed_change(draft: Draft, word: Word, policy: Policy) -> Change | None:
    if not draft.shift:
        return None
    return draft.shift.change(policy, lenient=word is Word.SAME)


def _final(timed: Word, draft: Draft) -> Word:
    if draft.budget:
        return Word.OVER_BUDGET
    if any(change.theta > 0 for change in draft.exact):
        return Word.SLOWER
    return Word.FASTER if draft.exact and timed is Word.SAME else timed


def _fails(word: Word, change: Change | None, draft: Draft, policy: Policy) -> bool:
    if word.value not in policy.fail_on:
        return False
    is_exact = any(exact.theta > 0 for exact in draft.exact)
    return (
        word is not Word.SLOWER or is_exact or (change is not None and change.theta > change.gate)
    )
