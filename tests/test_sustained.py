"""The sustained regime: what the engine does for it, and what clock and energy say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import test_engine
import test_judge
import test_machine
from msgspec import structs

from perfsuite import Regime, Work
from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Group, Sample
from perfsuite.judge.compare import ENERGY, canary_clocks
from perfsuite.judge.verdict import judge
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Block,
    Evidence,
    Result,
    Run,
    Settings,
    Sku,
    Stage,
    Status,
    Verdict,
)

GEMM = test_judge.GEMM
SUSTAINED = test_judge.variant(regime=Regime.SUSTAINED)
WOBBLE = test_judge.WOBBLE


class Capped(FakeDevice):
    """Loses 20 % of its clock over the first half second of work and stays there."""

    def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
        samples = super().sample(group, count, **conditions)
        lost = 0.2 * min(1.0, self.now_us / 5e5)
        return [Sample(s.time_us / (1 - lost), s.cycles) for s in samples]


def test_a_sustained_variant_is_sampled_when_its_clock_has_come_down() -> None:
    device = Capped(seed=1)
    session = test_engine.prepared(test_engine.copying(500.0, regime=Regime.SUSTAINED), device)
    assert device.now_us > 5e5
    session.block()
    (block,) = session.finish().blocks
    clock = sum(block.cycles) / sum(block.time_us)
    assert clock == pytest.approx(1600, rel=0.01)
    assert session.finish().pace == 0


def test_a_block_begins_with_launches_that_are_not_sampled() -> None:
    device = FakeDevice(seed=1)
    session = test_engine.prepared(test_engine.copying(500.0, regime=Regime.SUSTAINED), device)
    before_us = device.now_us
    session.block()
    sampled_us = 500.0 * Settings().samples
    assert device.now_us - before_us >= 2e5 + sampled_us


def test_energy_is_told_once_a_process_and_per_launch() -> None:
    session = test_engine.prepared(test_engine.copying(500.0, regime=Regime.SUSTAINED))
    session.block()
    session.block()
    evidence = session.finish()
    assert [len(samples) for samples in evidence.samples("energy_j")] == [1, 0]
    assert evidence.samples("energy_j")[0][0] == pytest.approx(100.0 * 500e-6, rel=0.02)
    assert evidence.phases_s["energy"] >= 0


def test_other_regimes_tell_no_energy() -> None:
    session = test_engine.prepared(test_engine.copying(500.0))
    session.block()
    assert session.finish().samples("energy_j") == [[]]


def sustained(*, clock: float = 0.0, energy: float = 0.0) -> Result:
    """Return six processes whose clock and energy moved by these log changes, cycles as before."""
    evidence = tuple(
        Evidence(
            slot=slot,
            seed=slot,
            unit="a",
            blocks=(
                Block(
                    time_us=(1400 * math.exp(-clock + wobble),),
                    cycles=(1400 * 1500 * math.exp(wobble),),
                    metrics={"energy_j": (0.98 * math.exp(energy + wobble),)},
                ),
            ),
        )
        for slot, wobble in enumerate(WOBBLE[:6])
    )
    return Result(variant="p.c[]", status=Status.OK, stage=Stage.CONFIRM, evidence=evidence)


def entry() -> BaselineEntry:
    values = [math.exp(wobble) for wobble in WOBBLE[:6]]
    metrics = {
        "time_us": (1400.0, "us"),
        "cycles": (1400.0 * 1500, "cycles"),
        "energy_j": (0.98, "J"),
    }
    return BaselineEntry(
        variant="p.c[]",
        case_version=1,
        run="r",
        regime="sustained",
        state={"ecc": "on"},
        metrics={
            name: BaselineMetric(
                center=center, unit=unit, values={"a": tuple(center * v for v in values)}
            )
            for name, (center, unit) in metrics.items()
        },
    )


def verdict(now: Result, clocks: Mapping[str, float] | None = None) -> Verdict:
    """Judge a sustained GEMM whose canary had 1980 MHz in the baseline."""
    against = replace(
        test_judge.AGAINST, clocks_before={"a": 1980.0}, clocks_now=clocks or {"a": 1980.0}
    )
    (found,) = judge(
        {"p.c[]": now}, variants=[SUSTAINED], entries={"p.c[]": entry()}, against=against
    )
    return found


def test_steady_clock_and_energy_are_the_same() -> None:
    found = verdict(sustained())
    assert found.word.value == "same"
    assert [change.metric for change in found.changes] == ["time_us", "clock_ratio", "energy_j"]


def test_more_energy_for_the_same_cycles_is_said_so() -> None:
    found = verdict(sustained(energy=0.08))
    assert found.word.value == "slower"
    assert found.fails
    assert found.reason.endswith("same code, more power")
    assert "energy_j, medians 0.98" in found.reason


def test_a_clock_that_fell_more_than_the_canarys_is_found() -> None:
    found = verdict(sustained(clock=-0.08))
    assert "clock_ratio" in found.reason
    assert next(c for c in found.changes if c.metric == "clock_ratio").low > 0.01


def test_a_clock_that_fell_as_the_canarys_did_is_the_machines() -> None:
    found = verdict(sustained(clock=-0.025), {"a": 1980.0 * math.exp(-0.025)})
    assert found.word.value == "same"
    assert "clock_ratio" not in found.reason


def test_energy_that_is_no_number_is_unclear_and_no_error() -> None:
    lost = [
        structs.replace(
            each, blocks=(structs.replace(each.blocks[0], metrics={"energy_j": (-1.0,)}),)
        )
        for each in sustained().evidence
    ]
    found = verdict(structs.replace(sustained(), evidence=tuple(lost)))
    assert found.word.value == "unclear"
    assert "energy_j must be a positive number" in found.reason


def test_the_canary_of_most_operations_lends_its_clock() -> None:
    gemm = structs.replace(test_machine.variant("p.gemm[]"), work=Work(flops=1e12))
    copy = test_machine.variant("p.copy[]")
    results = [
        structs.replace(
            test_machine.result(each.id, {"aaaa0": 0.0, "bbbb0": 0.0}, Stage.CANARY_START)
        )
        for each in (copy, gemm)
    ]
    run = Run(
        id="r", started="", command="", sku=Sku(slug="s", name="S"), facts=test_machine.FACTS,
        settings=Settings(), canaries=(copy, gemm), results=tuple(results),
    )  # fmt: skip
    entries = {each.id: test_machine.entry(each.id, ("aaaa0",)) for each in (copy, gemm)}
    before, now = canary_clocks(run, entries)
    assert before == pytest.approx({"aaaa0": 1.0, "bbbb0": 1.0})
    assert now == pytest.approx({"aaaa0": 1.0, "bbbb0": 1.0})
    assert canary_clocks(structs.replace(run, canaries=(copy,)), entries) == ({}, {})
    lost = Evidence(slot=0, seed=0, unit="aaaa0", blocks=(Block(time_us=(-1.0,)),))
    bad = tuple(structs.replace(result, evidence=(lost,)) for result in results)
    assert canary_clocks(structs.replace(run, results=bad), entries) == ({}, {})


def test_energy_is_accepted_as_a_metric() -> None:
    from perfsuite.judge.noise import CLOCKS

    assert ENERGY in CLOCKS
