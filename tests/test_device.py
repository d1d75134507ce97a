"""The CPU device and the comparison of tensors; torch is imported inside the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perfsuite.boundary import DeviceError
from perfsuite.devices.nvml import visible
from perfsuite.devices.protocol import Gang, open_device, waking
from perfsuite.model import Regime
from perfsuite.workers.process import inventory

GPUS = [{"index": i, "uuid": f"GPU-{i}a", "name": "X"} for i in range(3)]


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(DeviceError, match="'tpu'"):
        open_device("tpu")


def test_a_gpu_wakes_in_another_thread_and_may_fail_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    woken = []

    def synchronize() -> None:
        woken.append(threading.get_ident())
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    for name, gang in (("cpu", None), ("cuda", None), ("cuda", Gang(1, 2))):
        with waking(name, gang=gang):
            pass
    assert len(woken) == 1
    assert woken[0] != threading.get_ident()


def compare(got: Any, want: Any, tolerance: float | None = None) -> Any:
    from perfsuite.devices import tensors

    return tensors.compare(got, want, tolerance)


def test_equal_tensors_compare_right() -> None:
    import torch

    x = torch.arange(8.0)
    assert compare(x, x.clone(), 0).is_right


def test_one_wrong_element_in_a_million_is_seen() -> None:
    import torch

    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    y = x.clone()
    y[77] += 0.01
    comparison = compare(y, x)
    assert comparison.error < comparison.limit
    assert "element 77" in comparison.reason


@pytest.mark.skipif(not inventory(), reason="needs a GPU")
def test_what_came_back_to_the_host_is_compared_on_the_gpu() -> None:
    import torch

    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
    assert compare(x, x.cuda(), 0).is_right
    assert compare(x, x.double().cuda() + 1e-9).is_right
    y = x.clone()
    y[77] += 0.01
    assert "element 77" in compare(y, x.cuda()).reason


# Ten products on another stream, for whose end the launch waits, or not.
LEAVES_BEHIND = """
import torch
from perfsuite.devices.protocol import open_device

device, side = open_device("cuda"), torch.cuda.Stream()
x = device.rng(1).randn(4096, 4096)

def launch(x, *, joins):
    here = torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        for _ in range(10):
            torch.mm(x, x)
    if joins:
        here.wait_stream(side)

for joins in (True, False):
    group = device.group(lambda x: launch(x, joins=joins), [(x,)], 1, backend="loop")
    assert device.joins_streams(group) is joins
"""


@pytest.mark.skipif(not inventory(), reason="needs a GPU")
def test_what_a_launch_leaves_behind_is_seen_on_the_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_BEHIND], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_nan_and_shape_are_seen() -> None:
    import torch

    x = torch.ones(4)
    assert "NaN" in compare(x * float("nan"), x).reason
    assert "shape" in compare(x[:3], x).reason
    assert "0 tensors" in compare((), x).reason


def test_tolerance_follows_the_dtype() -> None:
    import torch

    x = torch.ones(100)
    assert compare((x * 1.005).to(torch.bfloat16), x).is_right
    assert not compare(x * 1.005, x).is_right


def test_integers_must_be_equal() -> None:
    import torch

    x = torch.arange(10)
    assert compare(x, x.clone()).is_right
    assert not compare(x + 1, x).is_right


def test_poison_reaches_every_dtype() -> None:
    import torch

    from perfsuite.devices import tensors

    outputs = [torch.zeros(4), torch.zeros(4, dtype=torch.int32), torch.zeros(4).bfloat16()]
    tensors.poison([outputs, None])
    assert outputs[0].isnan().all()
    assert (outputs[1] == 0x7F7F7F7F).all()
    assert outputs[2].isnan().all()


def test_inputs_repeat_with_the_seed_and_outputs_are_remembered() -> None:
    device = open_device("cpu")
    first, second = device.rng(3), device.rng(3)
    assert (first.randn(5) == second.randn(5)).all()
    output = first.empty(4)
    assert first.outputs[0] is output
    assert device.bytes_of([output, output]) == 16


def test_float8_and_uniform_and_integer_inputs() -> None:
    rng = open_device("cpu").rng(3)
    assert str(rng.randn(4, dtype="float8_e4m3fn").dtype) == "torch.float8_e4m3fn"
    assert 0 <= float(rng.rand(10).min()) < 1
    assert int(rng.randint(2, 4, 10).min()) >= 2


def test_the_cpu_has_one_clock() -> None:
    device = open_device("cpu")
    group = device.group(lambda x: x + 1, [(1,)], 3, backend="graph")
    (sample,) = device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
    assert sample.time_us > 0
    assert sample.cycles != sample.cycles
    facts = device.facts()
    assert (facts.device, facts.clocks) == ("cpu", ("time_us",))
    assert len(facts.unit) == 12


def test_waiting_for_a_core_is_not_the_codes_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfsuite.devices import cpu, load

    monkeypatch.setattr(cpu, "PATIENCE_S", 0.0)  # taken again, it would not be the same
    waiting = tmp_path / "schedstat"
    waiting.write_text("0 1000000 1")
    monkeypatch.setattr(load, "WAITING", waiting)
    device = open_device("cpu")

    def wait(until_ns: int) -> None:
        # A billion nanoseconds on the scheduler's books: more than the call can have taken.
        waiting.write_text(f"0 {until_ns} 1")

    group = device.group(wait, [(1_001_000_000,)], 1, backend="loop")
    (sample,) = device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
    assert sample.time_us < 0
    waiting.unlink()
    group = device.group(lambda x: x, [(1,)], 1, backend="loop")
    (sample,) = device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
    assert sample.time_us > 0


def test_the_cpu_refuses_a_cuda_kernel() -> None:
    context = open_device("cpu").context(1)
    with pytest.raises(DeviceError, match="'copy4'"):
        context.load_cuda("stream.cu", "copy4")


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(None, [0, 1, 2]), ("1", [1]), ("GPU-2a,0", [2, 0]), ("", []), ("MIG-7", [-1])],
)
def test_the_inventory_follows_the_visible_devices(mask: str | None, expected: list[int]) -> None:
    assert [gpu["index"] for gpu in visible(GPUS, mask)] == expected


def test_the_inventory_answers_where_there_is_no_gpu() -> None:
    command = [sys.executable, "-m", "perfsuite.devices.nvml"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert isinstance(json.loads(done.stdout), list)


def test_a_wait_beside_the_stamps_is_not_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfsuite.devices import cpu, load

    monkeypatch.setattr(cpu, "PATIENCE_S", 0.0)
    books = [0]

    def preempted() -> int:
        # The scheduler takes the core away while the books are read.
        time.sleep(0.005)
        books[0] += 5_000_000
        return books[0]

    monkeypatch.setattr(load, "waited_ns", preempted)
    device = open_device("cpu")
    group = device.group(lambda x: time.sleep(0.002), [(1,)], 1, backend="loop")
    (sample,) = device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
    assert sample.time_us >= 2000


def test_stamps_are_compiled_ahead_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    from perfsuite.devices import kernels as stopwatch

    monkeypatch.setattr(stopwatch, "_ahead", {})
    stopwatch.compile_ahead()  # no GPU is visible here
    assert not stopwatch._ahead
    monkeypatch.setattr(stopwatch, "visible_arch", lambda: "sm_90a")
    stopwatch.compile_ahead()
    assert stopwatch._ahead["sm_90a"].startswith(b"\x7fELF")
    assert stopwatch.stamps("sm_90a").code == stopwatch._ahead["sm_90a"]


def test_stamps_that_do_not_compile_ahead_are_left_to_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cuda.core")
    from perfsuite.devices import kernels as stopwatch

    monkeypatch.setattr(stopwatch, "_ahead", {})
    monkeypatch.setattr(stopwatch, "visible_arch", lambda: "sm_1")
    stopwatch.compile_ahead()
    assert not stopwatch._ahead


def test_stamps_of_a_child_that_dies_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    from perfsuite.devices import kernels as stopwatch

    class Code:
        @property
        def code(self) -> bytes:
            os.write(pipe[1], b"\x7fELF and no more")
            os.kill(os.getpid(), signal.SIGKILL)
            return b""

    pipe = os.pipe()
    monkeypatch.setattr(stopwatch, "_ahead", {})
    monkeypatch.setattr(stopwatch, "visible_arch", lambda: "sm_90a")
    monkeypatch.setattr(stopwatch, "stamps", lambda _arch: Code())
    monkeypatch.setattr(os, "pipe", lambda: pipe)
    stopwatch.compile_ahead()
    assert not stopwatch._ahead


def test_what_several_outputs_are_allowed_does_not_depend_on_which_is_the_worst() -> None:
    torch = pytest.importorskip("torch")
    from perfsuite.devices import tensors

    exact, rough = torch.ones(4), torch.ones(4, dtype=torch.bfloat16)
    for outputs in ((exact * (1 + 2e-6), rough), (exact, rough * 1.004)):
        found = tensors.compare(outputs, (exact.double(), rough.double()), None)
        assert (found.is_right, found.limit) == (True, 1e-2)
