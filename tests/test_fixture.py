"""The perf fixture: what a look holds, where it is timed, and that it leaves no mark."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfsuite.devices.protocol import EMPTY_RUNS, Group, Sample
from perfsuite.plugin import MOST_RUNS, Look, gpu_samples, take_look
from perfsuite.testing import fake
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers.process import inventory


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """A device on which two stamps around nothing are a little apart."""
    monkeypatch.setattr(fake, "DEFAULT_US", 1.5)
    return FakeDevice(seed=1)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nobody has touched a GPU, whatever the tests before this one did."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)


@pytest.mark.parametrize(("limit_s", "runs"), [(0.0, 1), (60.0, MOST_RUNS)])
@pytest.mark.usefixtures("host")
def test_a_look_holds_the_first_result_and_has_an_end(limit_s: float, runs: int) -> None:
    calls: list[int] = []

    def call() -> int:
        calls.append(1)
        return len(calls)

    look = take_look("a test", call, time_limit_s=limit_s)
    assert (look.result, look.runs, look.clock) == (1, runs, "host")
    assert runs > 1 or len(calls) == 2
    assert 0 <= look.low_us <= look.time_us <= look.high_us


def test_a_look_is_one_line() -> None:
    look = Look(name="a test", result=None, runs=3, time_us=1.5, low_us=1.25, high_us=2.0)
    assert look.line().strip() == "1.50 us  (1.25 to 2.00, 3 runs, host)  a test"
    seen = Look(
        name="b", result=1, runs=9, time_us=5, low_us=4, high_us=6, cycles=9876.0, clock="GPU"
    )
    assert seen.line().strip() == "5.00 us  (4.00 to 6.00, 9,876 cycles, 9 runs, GPU)  b"


def test_work_on_the_gpu_is_timed_by_its_clocks(device: FakeDevice) -> None:
    context = device.context(seed=1)
    samples = gpu_samples(device, lambda: context.spend(50.0), 0.5)
    assert len(samples) > EMPTY_RUNS
    assert {round(sample.time_us / 50, 1) for sample in samples} == {1.0}
    assert {round(sample.cycles / 50 / fake.CLOCK_MHZ, 1) for sample in samples} == {1.0}
    context.throttle(fake.CLOCK_MHZ / 2)
    (slow, *_) = gpu_samples(device, lambda: context.spend(50.0), 0.5)
    assert (slow.time_us / 50, slow.cycles / slow.time_us / fake.CLOCK_MHZ) == pytest.approx(
        (2, 0.5), rel=0.05
    )


@pytest.mark.parametrize(
    ("lost", "joins", "us", "is_timed"),
    [
        (1, True, 50.0, True),  # of the stamps around nothing some may be lost, not all
        (EMPTY_RUNS, True, 50.0, False),
        (0, False, 50.0, False),  # it leaves work behind
        (0, True, 0.0, False),  # it leaves the GPU alone
    ],
)
@pytest.mark.usefixtures("device")
def test_a_call_that_the_gpu_s_clocks_cannot_time_is_the_host_s(
    lost: int, us: float, *, joins: bool, is_timed: bool
) -> None:
    class Odd(FakeDevice):
        def sample(self, group: Group, count: int, **conditions: Any) -> list[Sample]:
            samples = super().sample(group, count, **conditions)
            is_empty = count == EMPTY_RUNS
            return [Sample(math.nan)] * lost + samples[lost:] if is_empty else samples

        def joins_streams(self, group: Group) -> bool:
            return joins

    odd = Odd(seed=1)
    context = odd.context(seed=1)
    call = partial(context.spend, us) if us else lambda: None
    assert bool(gpu_samples(odd, call, 0.5)) is is_timed


ON_A_GPU = """
import torch
def test_gpu(perf):
    x = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.current_stream()
    look = perf(torch.matmul, x, x)
    assert torch.cuda.current_stream() == stream
    assert look.clock == "GPU", look
    assert look.note == ""
    assert 100 < look.time_us < 1e5
    assert 500 < look.cycles / look.time_us < 5000
    assert perf(torch.neg, x).time_us < look.time_us
    assert perf(sum, range(1000)).clock == "host"
    assert torch.cuda.current_stream() == stream
"""


@pytest.mark.skipif(not inventory(), reason="needs a GPU")
def test_a_gpu_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_gpu.py").write_text(ON_A_GPU, encoding="utf-8")
    plugin = ("-p", "perfsuite.plugin", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugin, "--perf", f"{tmp_path}/test_gpu.py"]
    said = subprocess.check_output(command, cwd=Path(__file__).parents[1])
    assert said.count(b"GPU)  ") == 2
