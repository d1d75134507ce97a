"""The sustained regime: what the engine does for it."""

from __future__ import annotations

from typing import Any

import pytest
import test_engine

from perfsuite import Regime
from perfsuite.devices.fake import FakeDevice
from perfsuite.devices.protocol import Group, Sample
from perfsuite.model import Settings


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
