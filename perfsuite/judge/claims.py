"""Judges the claims of packs from a run's own results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median

from perfsuite.judge.compare import MAJORITY, Policy, timings_of
from perfsuite.judge.noise import CPU, ONE_CLOCK
from perfsuite.model import (
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Result,
    Status,
)
from perfsuite.stats import (
    Difference,
    Variance,
    hodges_lehmann,
    main_mode,
    moderated,
    pooled,
)

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
    fails = "broken" in (policy or Policy()).fail_on
    return tuple(
        _judge(instance, results, (unmet or {}).get(instance.id, ""), facts=facts, fails=fails)
        for instance in instances
    )


def _judge(
    claim: ClaimInstance,
    results: Mapping[str, Result],
    unmet: str,
    *,
    facts: DeviceFacts,
    fails: bool,
) -> ClaimVerdict:
    reason = unmet or _missing(claim, results)
    if claim.metric and not reason:
        return _by_metric(claim, results, fails=fails)
    logs: list[list[float]] = []
    try:
        if not reason:
            logs = [_logs(results[side]) for side in (claim.than, claim.faster)]
    except ValueError as error:
        reason = f"unusable samples: {error}"
    if reason or not all(logs):
        return _outcome(claim, ClaimWord.NOT_APPLICABLE, reason or "a side has no samples")
    prior = Variance((CPU if facts.is_host else ONE_CLOCK).between ** 2, 6)
    return _decided(claim, _ratio(logs, prior), fails=fails)


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
    ratio = Difference(hodges_lehmann(values), (variance,))
    how = f"by {sum(map(len, logs))} quads inside {len(values)} processes"
    return _decided(claim, ratio, fails="broken" in policy.fail_on, how=how)


def _quads(than: Sequence[Sequence[float]], faster: Sequence[Sequence[float]]) -> list[float]:
    """Return the log ratio of each quad: two blocks of either."""
    sides = [[math.log(median(block)) for block in blocks] for blocks in (than, faster)]
    return [
        (sum(sides[0][start : start + 2]) - sum(sides[1][start : start + 2])) / 2
        for start in range(0, min(map(len, sides)) - 1, 2)
    ]


def _decided(
    claim: ClaimInstance, ratio: Difference, *, fails: bool, how: str = ""
) -> ClaimVerdict:
    low, high = (math.exp(end) for end in ratio.interval(ALPHA))
    word = ClaimWord.HELD if low >= claim.by else ClaimWord.UNCLEAR
    word = ClaimWord.BROKEN if high < claim.by else word
    found = math.exp(ratio.theta)
    reason = f"{found:.3g}x (95 % interval {low:.3g} to {high:.3g}), {claim.by:g}x claimed"
    if how:
        reason += f", {'still open' if word is ClaimWord.UNCLEAR else 'decided'} {how}"
    return _outcome(
        claim, word, reason, span=(found, low, high), fails=fails and word is ClaimWord.BROKEN
    )


def _by_metric(claim: ClaimInstance, results: Mapping[str, Result], *, fails: bool) -> ClaimVerdict:
    """Judge a claim by the medians of both sides' processes, which hardly ever differ."""
    sides = []
    for side in (claim.than, claim.faster):
        told = [each.exact.get(claim.metric, math.nan) for each in results[side].evidence]
        if not told or any(map(math.isnan, told)):
            return _outcome(claim, ClaimWord.NOT_APPLICABLE, f"{side} has no {claim.metric}")
        sides.append(median(told))
    than, faster = sides
    is_held = than >= claim.by * faster
    found = than / faster if faster > 0 else None
    reason = f"{claim.metric} {than:.6g} -> {faster:.6g}, {claim.by:g}x claimed"
    return _outcome(
        claim,
        ClaimWord.HELD if is_held else ClaimWord.BROKEN,
        reason if found is None else f"{found:.3g}x: {reason}",
        span=None if found is None else (found, found, found),
        fails=fails and not is_held,
    )


def _missing(claim: ClaimInstance, results: Mapping[str, Result]) -> str:
    for side in (claim.than, claim.faster):
        if side not in results:
            return f"{side} was not part of the run"
        if results[side].status is not Status.OK:
            if results[side].status is Status.SKIPPED and results[side].reason:
                return results[side].reason
            why = f": {results[side].reason}" if results[side].reason else ""
            return f"{side} ended {results[side].status.value}{why}"
    return ""


def _logs(result: Result) -> list[float]:
    return [math.log(item.time_us) for item in timings_of(result)]


def _ratio(logs: Sequence[Sequence[float]], prior: Variance) -> Difference:
    modes = [main_mode(side, prior=prior, most=(len(side) - 1) // MAJORITY) for side in logs]
    variance = moderated(pooled(modes), prior)
    variance = variance.times(sum(1 / len(side) for side in modes))
    theta = hodges_lehmann(modes[0]) - hodges_lehmann(modes[1])
    return Difference(theta, (variance,))


def _outcome(
    claim: ClaimInstance,
    word: ClaimWord,
    reason: str,
    *,
    span: tuple[float, float, float] | None = None,
    fails: bool = False,
) -> ClaimVerdict:
    ratio, low, high = span or (None, None, None)
    return ClaimVerdict(
        claim=claim.id,
        word=word,
        reason=reason,
        required=claim.by,
        source=claim.source,
        ratio=ratio,
        low=low,
        high=high,
        fails=fails,
    )
