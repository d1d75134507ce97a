"""Judges the claims of packs from a run's own results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median

from msgspec.structs import replace

from perfsuite.judge.compare import BROKEN, MAJORITY, Policy, values_of
from perfsuite.judge.noise import CPU, ONE_CLOCK
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Reason,
    Result,
    Status,
    because,
)
from perfsuite.stats import Difference, Variance, hodges_lehmann, main_mode, moderated, pooled

# A claim is about time, and both of its sides ran on one unit in one run: what differs between
# processes, clock included, is all there is.
ALPHA = 0.05
# Between processes, of a ratio that both variants' blocks inside one process make: assumed for
# GPUs, not measured yet; a larger spread of a claim's own processes counts instead. On two cores
# that others used as well it was 2-12 % in four kernels, no less than between processes.
QUADS_BETWEEN = 0.003


def judge_claims(
    instances: Sequence[ClaimInstance],
    results: Mapping[str, Result],
    *,
    facts: DeviceFacts,
    unmet: Mapping[str, str] | None = None,
    policy: Policy | None = None,
) -> tuple[ClaimVerdict, ...]:
    """Return what became of each claim; ``unmet`` gives reasons by claim id not to apply it.

    Held if the interval of than / faster reaches nowhere below the ratio asked for, broken if it
    ends below it, else unclear. What is about an exact metric is held or broken.
    """
    prior = Variance((CPU if facts.is_host else ONE_CLOCK).between ** 2, 6)
    fail_on = (policy or Policy()).fail_on
    found = []
    for claim in instances:
        why = (unmet or {}).get(claim.id, "")
        reason = because("unmet", text=why) if why else _missing(claim, results)
        if reason:
            verdict = _verdict(claim, ClaimWord.NOT_APPLICABLE, reason)
        elif claim.metric:
            verdict = _by_metric(claim, results)
        else:
            verdict = _by_time(claim, results, prior)
        found.append(_failing(verdict, fail_on))
    return tuple(found)


def judge_quads(
    claim: ClaimInstance,
    results: Sequence[Result],
    *,
    facts: DeviceFacts,
    policy: Policy,
) -> ClaimVerdict | None:
    """Return the verdict by quads of the faster and the other variant; None if they did not end.

    Each process is one value: what it does to both variants is not in it.
    """
    if any(each.status is not Status.OK for each in results) or not results:
        return None
    faster, than = results
    try:
        pairs = zip(than.evidence, faster.evidence, strict=True)
        logs = [_quads(one.samples("time_us"), other.samples("time_us")) for one, other in pairs]
        values = [hodges_lehmann(quads) for quads in logs]
    except ValueError:
        return None
    between = CPU.between if facts.is_host else QUADS_BETWEEN
    own = pooled([values])
    # The prior only lifts a spread that is small by luck.
    lifted = moderated(own, Variance(between**2, 6))
    variance = max(own, lifted, key=attrgetter("value")).times(1 / len(values))
    verdict = _decided(claim, Difference(hodges_lehmann(values), (variance,)))
    how = because(
        "open_by_quads" if verdict.word is ClaimWord.UNCLEAR else "decided_by_quads",
        quads=sum(map(len, logs)),
        processes=len(values),
    )
    return _failing(replace(verdict, reasons=(*verdict.reasons, how)), policy.fail_on)


def _quads(than: Sequence[Sequence[float]], faster: Sequence[Sequence[float]]) -> list[float]:
    """Return the log ratio of each quad: two blocks of either."""
    sides = [[math.log(median(block)) for block in blocks] for blocks in (than, faster)]
    return [
        (sum(sides[0][start : start + 2]) - sum(sides[1][start : start + 2])) / 2
        for start in range(0, min(map(len, sides)) - 1, 2)
    ]


def _missing(claim: ClaimInstance, results: Mapping[str, Result]) -> Reason | None:
    """Return why a side has nothing to say."""
    for side in (claim.than, claim.faster):
        result = results.get(side)
        if result is None:
            return because("not_in_run", variant=side)
        if result.status is Status.SKIPPED and result.reason:
            return because("unmet", text=result.reason)
        if result.status is not Status.OK:
            return because("ended", variant=side, status=result.status.value, why=result.reason)
    return None


def _by_metric(claim: ClaimInstance, results: Mapping[str, Result]) -> ClaimVerdict:
    """Judge a claim by the medians of both sides' processes, which hardly ever differ."""
    sides = []
    for side in (claim.than, claim.faster):
        told = [each.exact.get(claim.metric, math.nan) for each in results[side].evidence]
        if not told or any(map(math.isnan, told)):
            reason = because("no_metric", variant=side, metric=claim.metric)
            return _verdict(claim, ClaimWord.NOT_APPLICABLE, reason)
        sides.append(median(told))
    than, faster = sides
    found = than / faster if faster > 0 else None
    word = ClaimWord.HELD if than >= claim.by * faster else ClaimWord.BROKEN
    reason = because(
        "values" if found is None else "ratio_of_values",
        metric=claim.metric,
        than=than,
        now=faster,
        by=claim.by,
        ratio=found or 0.0,
    )
    verdict = _verdict(claim, word, reason)
    return replace(verdict, ratio=found, low=found, high=found)


def _by_time(claim: ClaimInstance, results: Mapping[str, Result], prior: Variance) -> ClaimVerdict:
    """Judge a claim by the times of both sides' processes, without those that stand apart."""
    modes = []
    for side in (claim.than, claim.faster):
        try:
            logs = [math.log(each.time_us) for each in values_of(results[side])]
        except ValueError as error:
            reason = because("unusable", error=str(error))
            return _verdict(claim, ClaimWord.NOT_APPLICABLE, reason)
        if not logs:
            return _verdict(claim, ClaimWord.NOT_APPLICABLE, because("no_samples"))
        modes.append(main_mode(logs, prior=prior, most=(len(logs) - 1) // MAJORITY))
    variance = moderated(pooled(modes), prior).times(sum(1 / len(side) for side in modes))
    theta = hodges_lehmann(modes[0]) - hodges_lehmann(modes[1])
    return _decided(claim, Difference(theta, (variance,)))


def _decided(claim: ClaimInstance, ratio: Difference) -> ClaimVerdict:
    low, high = (math.exp(end) for end in ratio.interval(ALPHA))
    word = ClaimWord.HELD if low >= claim.by else ClaimWord.UNCLEAR
    word = ClaimWord.BROKEN if high < claim.by else word
    found = math.exp(ratio.theta)
    reason = because("ratio", ratio=found, low=low, high=high, level=1 - ALPHA, by=claim.by)
    return replace(_verdict(claim, word, reason), ratio=found, low=low, high=high)


def _verdict(claim: ClaimInstance, word: ClaimWord, reason: Reason) -> ClaimVerdict:
    return ClaimVerdict(
        claim=claim.id, word=word, required=claim.by, source=claim.source, reasons=(reason,)
    )


def _failing(verdict: ClaimVerdict, fail_on: Sequence[str]) -> ClaimVerdict:
    return replace(verdict, fails=verdict.word is ClaimWord.BROKEN and BROKEN in fail_on)
