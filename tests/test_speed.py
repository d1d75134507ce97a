"""A core that something unseen shares: noticed, waited for, and told."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterable

import pytest

from perfsuite.devices.load import SPEED, Load, Speed
from perfsuite.devices.protocol import open_device
from perfsuite.model import Health, Regime


def scripted(readings: Iterable[int]) -> Speed:
    """Return a speed whose readings are these, each three times, the last for ever."""
    left = [each for each in readings for _ in range(3)]
    return Speed(lambda: left.pop(0) if len(left) > 1 else left[0])


def measured(speed: Speed, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Health]:
    """Return how many samples a CPU took for two, and the health it tells."""
    from perfsuite.devices import cpu

    monkeypatch.setattr(cpu, "SPEED", speed)
    monkeypatch.setattr(Load, "now", lambda _: None)  # what others do here now is no matter
    device = open_device("cpu")
    calls: list[int] = []
    group = device.group(calls.append, [(1,)], 1, backend="loop")
    samples = device.sample(group, 2, regime=Regime.PACED, spin_us=0, flush=False)
    assert len(samples) == 2
    return len(calls), device.health()


def test_slowed_is_told_against_the_fastest() -> None:
    speed = scripted([200, 100, 150])
    assert [speed.slowed() for _ in range(3)] == [0, 0, 0.5]


def test_an_interrupted_reading_is_left_out() -> None:
    readings = iter([100, 100, 100, 900, 104, 800])
    speed = Speed(lambda: next(readings))
    assert [speed.slowed(), speed.slowed()] == [0, pytest.approx(0.04)]


def test_a_sample_on_a_slowed_core_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before, after the first, the second (slowed), the third and the fourth.
    times, health = measured(scripted([100, 100, 150, 100, 100]), monkeypatch)
    assert times == 4
    assert health.foreign_percent == 0


def test_a_core_that_stays_slow_is_a_doubt_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfsuite.devices import cpu

    monkeypatch.setattr(cpu, "PATIENCE_S", 0.05)
    times, health = measured(scripted([100, 150]), monkeypatch)
    assert times > 2
    assert health.foreign_percent == pytest.approx(50)
    # However slow it is, nothing is thrown away for it.
    device = open_device("cpu")
    _, health = measured(scripted([100, 900]), monkeypatch)
    assert health.foreign_percent == device.foreign_most


def test_no_reading_is_far_below_the_others_on_a_busy_machine() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        readings = sorted(SPEED._read_ns() for _ in range(3000))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert readings[0] > 0.3 * statistics.median(readings)


def test_a_slightly_slower_core_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    _, health = measured(scripted([100, 115]), monkeypatch)
    assert health.foreign_percent == 0
