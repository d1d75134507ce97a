"""Verdicts on metrics that are no clock: counted ones, and those of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from perfsuite.judge.compare import Against
from perfsuite.judge.verdict import judge
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Block,
    CaseInfo,
    DeviceFacts,
    Evidence,
    Metric,
    Regime,
    Result,
    Stage,
    Status,
    Tier,
    Variant,
    Verdict,
    Word,
)
from perfsuite.store.codec import encode

FACTS = DeviceFacts(device="cuda", name="NVIDIA H200", unit="a", identity={}, clocks=("time_us",))
AGAINST = Against(facts=FACTS, slug="nvidia-h200", source="baseline nvidia-h200")
TTFT = Metric("ttft_ms_p50", "ms")
RATE = Metric("goodput_rps", "requests/s", "higher")
WOBBLE = (0.0, 0.01, -0.01, 0.005, -0.005, 0.0)


def variant(regime: Regime, *metrics: Metric) -> Variant:
    case = CaseInfo(
        pack="p", name="c", doc="", file="", line=1, source="", version=1, regime=regime, cold=True,
        needs=(), budgets=(), tags=(), axes=(), metrics=metrics,
    )  # fmt: skip
    return Variant(id="p.c[]", case=case, axes={}, tier=Tier.SMOKE)


def served(**centers: float) -> Result:
    """Six processes whose plays have these metrics and take 1 s."""
    evidence = [
        Evidence(
            slot=slot,
            seed=slot,
            unit="a",
            blocks=(
                Block(
                    time_us=(1e6 * (1 + wobble),),
                    metrics={name: (value * (1 + wobble),) for name, value in centers.items()},
                ),
            ),
        )
        for slot, wobble in enumerate(WOBBLE)
    ]
    return Result(variant="p.c[]", status=Status.OK, stage=Stage.CONFIRM, evidence=tuple(evidence))


def counted(**values: float) -> Result:
    evidence = tuple(Evidence(slot=slot, seed=slot, unit="a", exact=values) for slot in range(2))
    return Result(variant="p.c[]", status=Status.OK, evidence=evidence)


def noisy(center: float, metric: Metric) -> BaselineMetric:
    values = {"a": tuple(center * (1 + wobble) for wobble in WOBBLE)}
    return BaselineMetric(center=center, unit=metric.unit, better=metric.better, values=values)


def entry(regime: Regime, metrics: Mapping[str, BaselineMetric]) -> BaselineEntry:
    return BaselineEntry(
        variant="p.c[]", case_version=1, run="r", metrics=metrics, regime=regime.value
    )


def verdict(
    now: Result, before: BaselineEntry, metrics: Sequence[Metric], against: Against = AGAINST
) -> Verdict:
    chosen = variant(Regime(before.regime), *metrics)
    (found,) = judge({"p.c[]": now}, variants=[chosen], entries={"p.c[]": before}, against=against)
    return found


def of_service(now: Result) -> Verdict:
    before = entry(
        Regime.END_TO_END,
        {
            "time_us": noisy(1e6, Metric("time_us", "us")),
            "ttft_ms_p50": noisy(40.0, TTFT),
            "goodput_rps": noisy(20.0, RATE),
        },
    )
    return verdict(now, before, [TTFT, RATE])


def test_a_service_that_is_as_before_is_the_same() -> None:
    found = of_service(served(ttft_ms_p50=40.0, goodput_rps=20.0))
    assert found.word is Word.SAME
    assert [change.metric for change in found.changes] == ["time_us", "ttft_ms_p50", "goodput_rps"]


def test_a_longer_first_token_is_slower_though_the_whole_takes_as_long() -> None:
    found = of_service(served(ttft_ms_p50=60.0, goodput_rps=20.0))
    assert (found.word, found.fails) == (Word.SLOWER, True)
    assert "ttft_ms_p50, medians 40 and 60 ms: +50.0 %" in found.reason


def test_a_threshold_of_a_metric_with_noise_counts_where_it_is_the_larger_one() -> None:
    own = replace(TTFT, threshold=0.6)
    clock = {"time_us": noisy(1e6, Metric("time_us", "us"))}
    before = entry(Regime.END_TO_END, {**clock, "ttft_ms_p50": noisy(40.0, own)})
    found = verdict(served(ttft_ms_p50=60.0), before, [own])
    assert found.word is Word.SAME
    assert [each.threshold for each in found.changes if each.metric == own.name] == [0.6]
    assert verdict(served(ttft_ms_p50=80.0), before, [own]).word is Word.SLOWER


def test_less_goodput_is_slower_and_shown_in_its_own_unit() -> None:
    found = of_service(served(ttft_ms_p50=40.0, goodput_rps=10.0))
    assert found.word is Word.SLOWER
    (change,) = [each for each in found.changes if each.metric == "goodput_rps"]
    assert (change.baseline, change.current) == pytest.approx((20.0, 10.0), rel=0.02)
    assert change.theta == pytest.approx(1.0, rel=0.05)


def test_more_goodput_is_faster() -> None:
    assert of_service(served(ttft_ms_p50=40.0, goodput_rps=40.0)).word is Word.FASTER


def test_a_metric_of_zero_is_not_judged_and_says_so() -> None:
    found = of_service(served(ttft_ms_p50=0.0, goodput_rps=20.0))
    assert "not judged: ttft_ms_p50 must be a positive number" in found.reason


def test_a_count_without_bounds_is_judged_and_can_be_stored() -> None:
    odd = Metric("odd")
    before = entry(Regime.EXACT, {"odd": BaselineMetric(center=1e-300, unit="")})
    for now, word in ((1e308, Word.SLOWER), (-1e308, Word.FASTER)):
        found = verdict(counted(odd=now), before, [odd])
        assert found.word is word
        encode(found)


def test_goodput_that_is_gone_is_slower() -> None:
    found = of_service(served(ttft_ms_p50=40.0, goodput_rps=0.0))
    assert (found.word, found.fails) == (Word.SLOWER, True)
    assert "goodput_rps 20 -> 0" in found.reason


def test_a_metric_that_is_no_longer_reported_is_unclear() -> None:
    found = of_service(served(ttft_ms_p50=40.0))
    assert found.word is Word.UNCLEAR
    assert "no longer reported: goodput_rps" in found.reason


def of_count(metric: Metric, before: float, now: float) -> Verdict:
    stored = {metric.name: BaselineMetric(center=before, unit=metric.unit, better=metric.better)}
    return verdict(counted(**{metric.name: now}), entry(Regime.EXACT, stored), [metric])


def test_counts_as_before_are_the_same_without_any_time() -> None:
    found = of_count(Metric("registers"), 40, 40)
    assert (found.word, found.reason) == (Word.SAME, "1 metric without noise as before")


def test_one_register_more_is_a_verdict_at_once() -> None:
    found = of_count(Metric("registers"), 40, 41)
    assert (found.word, found.fails) == (Word.SLOWER, True)
    assert found.reason == "registers 40 -> 41 (+2.5 % worse)"


def test_fewer_wide_loads_are_worse_and_more_are_better() -> None:
    loads = Metric("wide_loads", better="higher")
    assert of_count(loads, 8, 4).word is Word.SLOWER
    assert of_count(loads, 4, 8).word is Word.FASTER


def test_what_must_be_equal_is_worse_either_way() -> None:
    calls = Metric("all_reduces", better="equal")
    assert of_count(calls, 2, 3).word is Word.SLOWER
    assert of_count(calls, 3, 2).word is Word.SLOWER


def test_a_count_inside_its_threshold_is_the_same() -> None:
    instructions = Metric("instructions", threshold=0.01)
    assert of_count(instructions, 2072, 2080).word is Word.SAME
    assert of_count(instructions, 2072, 2180).word is Word.SLOWER


def test_an_entry_of_another_regime_is_not_compared() -> None:
    stored = {"registers": BaselineMetric(center=1, unit="")}
    before = replace(entry(Regime.EXACT, stored), regime="paced")
    chosen = variant(Regime.EXACT, Metric("registers"))
    (found,) = judge(
        {"p.c[]": counted(registers=1)},
        variants=[chosen],
        entries={"p.c[]": before},
        against=AGAINST,
    )
    assert found.word is Word.INCOMPARABLE


def awaited(host_us: float, device_us: float, unit: str) -> Result:
    """Six processes of awaited launches on a unit."""
    evidence = [
        Evidence(
            slot=slot,
            seed=slot,
            unit=unit,
            blocks=(
                Block(
                    time_us=(host_us * (1 + 5 * wobble),),
                    metrics={"device_us": (device_us * (1 + wobble),)},
                ),
            ),
        )
        for slot, wobble in enumerate(WOBBLE)
    ]
    return Result(variant="p.c[]", status=Status.OK, stage=Stage.CONFIRM, evidence=tuple(evidence))


def of_awaited(now: Result) -> Verdict:
    before = entry(
        Regime.END_TO_END,
        {
            "time_us": noisy(700.0, Metric("time_us", "us")),
            "device_us": noisy(250.0, Metric("device_us", "us")),
        },
    )
    return verdict(now, before, [])


def test_on_another_host_the_devices_own_time_decides() -> None:
    found = of_awaited(awaited(1040.0, 251.0, "another"))
    assert found.word is Word.SAME
    assert found.reason.startswith("host time +48.6 % on another host, judged by the device's own")
    assert [change.metric for change in found.changes] == ["device_us"]


def test_more_device_time_on_another_host_is_slower() -> None:
    found = of_awaited(awaited(700.0, 400.0, "another"))
    assert (found.word, found.fails) == (Word.SLOWER, True)
    assert "device_us, medians 250 and 400 us: +" in found.reason


def test_on_the_same_host_its_time_decides() -> None:
    found = of_awaited(awaited(1400.0, 250.0, "a"))
    assert (found.word, found.changes[0].metric) == (Word.SLOWER, "time_us")


def test_a_count_that_is_no_longer_reported_is_unclear() -> None:
    stored = {name: BaselineMetric(center=1, unit="") for name in ("registers", "loads")}
    metrics = [Metric("registers"), Metric("loads")]
    found = verdict(counted(registers=1), entry(Regime.EXACT, stored), metrics)
    assert (found.word, found.reason) == (Word.UNCLEAR, "no longer reported: loads")
