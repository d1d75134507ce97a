"""The word for each claim of a pack, from a run's own results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import structs

from perfsuite.judge.compare import BROKEN, Policy
from perfsuite.judge.noise import values_of
from perfsuite.judge.rule import LIMITS, MISS, USUAL, Difference, difference
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Reason,
    Result,
    Run,
    Stage,
    Status,
    because,
)
from perfsuite.packs.select import missing_of
from perfsuite.stats import hodges_lehmann


class _LacksError(Exception):
    """A side has nothing to say, for the reason that it is raised with."""


def judge_claims(
    run: Run, stage: Stage | None = None, *, policy: Policy | None = None
) -> tuple[ClaimVerdict, ...]:
    """Return what became of each claim of a run, by the results of a stage, or by the last ones.

    Held if the interval of than / faster reaches nowhere below the ratio asked for, broken if it
    ends below it, else unclear. What is about an exact metric is held or broken.
    """
    policy, usual = policy or Policy(), _usual(run.facts)
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
        logs, others = ([[math.log(value) for value in side]] for side in (faster, than))
        found.append(_by_time(claim, difference(logs, others, usual), policy))
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
    except ValueError:
        return None
    verdict = _by_time(claim, difference([], [values], _usual(facts)), policy)
    kind = "open_by_abba" if verdict.word is ClaimWord.UNCLEAR else "decided_by_abba"
    how = because(kind, groups=count, processes=len(values))
    return structs.replace(verdict, reasons=(*verdict.reasons, how))


def _usual(facts: DeviceFacts) -> float:
    """Return what processes scatter by, clock included: a claim is about time alone."""
    return USUAL * LIMITS["host" if facts.is_host else "one clock"].threshold


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
    reach = log_ratio.reach(MISS)
    low, high = (math.exp(log_ratio.theta + end) for end in (-reach, reach))
    word = ClaimWord.HELD if low >= claim.by else ClaimWord.UNCLEAR
    word = ClaimWord.BROKEN if high < claim.by else word
    ratio = math.exp(log_ratio.theta)
    reason = because("ratio", ratio=ratio, low=low, high=high, level=1 - 2 * MISS, by=claim.by)
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
