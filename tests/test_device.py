"""Devices without a GPU: tensors, the CPU's clock and load, what NVML, nvcc and drivers tell."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perfsuite import count_operators
from perfsuite.boundary import CaseError, DeviceError, PerfError
from perfsuite.devices import protocol
from perfsuite.devices.nvml import Nvml, together, visible, watching
from perfsuite.devices.plain import compilers
from perfsuite.devices.protocol import Sample, graph_kernels, open_device
from perfsuite.model import Gpu, Health, Regime
from perfsuite.workers.process import inventory

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.core")

from perfsuite.devices import cuda  # noqa: E402 - it imports torch

CPU = open_device("cpu")
NEEDS_GPU = pytest.mark.skipif(not inventory(), reason="needs a GPU")


# Tensors.

ONES, ROUGH, COUNTED = torch.ones(100), torch.ones(4, dtype=torch.bfloat16), torch.arange(10)
MANY = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))
ONE_OFF = MANY + torch.nn.functional.one_hot(torch.tensor(77), 1 << 20) * 0.01


@pytest.mark.parametrize(
    ("got", "want", "why"),
    [
        (MANY, MANY.clone(), ""),
        (ONE_OFF, MANY, "1 of 1048576 elements are wrong, worst at [77]: got"),
        pytest.param(MANY, "cuda", "", marks=NEEDS_GPU),
        pytest.param(
            ONE_OFF, "cuda", "1 of 1048576 elements are wrong, worst at [77]: got", marks=NEEDS_GPU
        ),
        (ONES * float("nan"), ONES, "NaN"),
        (ONES[:3], ONES, "shape"),
        ((), ONES, "0 tensors"),
        ((ONES * 1.005).to(torch.bfloat16), ONES, ""),
        (ONES * 1.005, ONES, "relative error"),
        (COUNTED, COUNTED.clone(), ""),
        (COUNTED + 1, COUNTED, "relative error"),
        # What is allowed of several outputs does not depend on which is the worst.
        ((ONES, ROUGH * 1.004), (ONES.double(), ROUGH.double()), ""),
        ((ONES * (1 + 2e-6), ROUGH), (ONES.double(), ROUGH.double()), ""),
    ],
)
def test_one_wrong_element_in_a_million_is_seen(got: Any, want: Any, why: str) -> None:
    comparison = CPU.compare(got, MANY.cuda() if isinstance(want, str) else want, None)
    assert comparison.is_right == (not why)
    assert comparison.limit == 1e-2 or not isinstance(got, tuple) or why
    assert why in comparison.reason


def test_inputs_repeat_with_the_seed_and_every_output_is_poisoned() -> None:
    device = open_device("cpu")
    first, second = device.rng(3), device.rng(3)
    assert (first.randn(5) == second.randn(5)).all()
    assert first.randn(4, dtype="float8_e4m3fn").dtype is torch.float8_e4m3fn
    assert 0 <= float(first.rand(10).min()) < 1
    assert int(first.randint(2, 4, 10).min()) >= 2
    outputs = [first.empty(4, dtype=dtype) for dtype in ("float32", "int32", "bfloat16")]
    assert all(one is other for one, other in zip(outputs, first.outputs, strict=True))
    assert device.bytes_of([outputs[0], outputs[0]]) == 16
    for output in outputs:
        output.zero_()
    device.poison([*outputs, None])
    floats, ints, rough = outputs
    assert floats.isnan().all()
    assert (ints == 0x7F7F7F7F).all()
    assert rough.isnan().all()
    with pytest.raises(CaseError, match="'float9'"):
        first.rand(4, dtype="float9")


# The CPU's clock, and its core.


def timed(fn: Callable[[Any], object]) -> float:
    """Return the time that a CPU measures of a call."""
    device = open_device("cpu")
    assert (device.facts().device, len(device.facts().unit)) == ("cpu", 12)
    group = device.group(fn, [(1,)], 1, backend="loop")
    (sample,) = device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
    assert math.isnan(sample.cycles)
    return sample.time_us


def test_waiting_for_a_core_is_not_the_codes_time_but_beside_the_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = tmp_path / "schedstat"
    waiting.write_text("0 1000000 1")
    monkeypatch.setattr(protocol, "WAITING", waiting)
    # A billion nanoseconds on the scheduler's books: more than the call can have taken.
    assert timed(lambda _: waiting.write_text("0 1001000000 1")) < 0
    waiting.unlink()
    assert timed(str) > 0
    run_views = [0]

    def preempted() -> int:
        # The scheduler takes the core away while the books are read.
        time.sleep(0.005)
        run_views[0] += 5_000_000
        return run_views[0]

    monkeypatch.setattr(protocol, "waited_ns", preempted)
    assert timed(lambda _: time.sleep(0.002)) >= 2000


def test_what_runs_in_one_thread_has_one_core_while_it_is_timed_and_else_all() -> None:
    device, cores, seen = open_device("cpu"), os.sched_getaffinity(0), list[set[int]]()

    def alone(_: object) -> None:
        sum(range(50_000))
        seen.append(os.sched_getaffinity(0))

    def helped(_: object) -> None:
        helper = threading.Thread(target=sum, args=(range(200_000),))
        helper.start()
        helper.join()
        seen.append(os.sched_getaffinity(0))

    for fn in (alone, alone, helped, helped):
        group = device.group(fn, [(1,)], 1, backend="loop")
        device.sample(group, 1, regime=Regime.PACED, spin_us=0, flush=False)
        assert os.sched_getaffinity(0) == cores
    # Whether it is alone is known once it was timed.
    assert seen == [cores, {max(cores)}, {max(cores)}, cores]


def test_a_worker_on_a_cpu_keeps_what_it_frees() -> None:
    code = """
from resource import RUSAGE_SELF, getrusage
from perfsuite.devices.protocol import device_class
with device_class("cpu").prepare_server():
    for size in (3 << 20, 40 << 20) * 2:
        bytearray(size)
        print(getrusage(RUSAGE_SELF).ru_minflt)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    _, before, _, after = map(int, told.split())
    assert after - before < 200


# What NVML, nvcc and the driver tell.


def test_readings_are_put_together_by_their_worst() -> None:
    first = Health(power_w=100.0, temperature_c=40.0, sm_clock_mhz=1980.0, reasons=("a",))
    second = Health(power_w=300.0, temperature_c=50.0, sm_clock_mhz=1500.0, reasons=("b", "a"))
    worst = Health(power_w=200.0, temperature_c=50.0, sm_clock_mhz=1500.0, reasons=("a", "b"))
    assert together([first, second]) == worst
    assert together([]) == Health()


def test_a_thread_reads_while_a_block_is_measured_and_ends() -> None:
    count = threading.active_count()
    is_read = threading.Event()
    with watching(is_read.set):
        assert is_read.wait(10)
    assert threading.active_count() == count


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(None, [0, 1, 2]), ("1", [1]), ("GPU-2a,0", [2, 0]), ("", []), ("MIG-7", [-1])],
)
def test_the_inventory_follows_the_visible_devices(mask: str | None, expected: list[int]) -> None:
    gpus = [Gpu(index=i, uuid=f"GPU-{i}a", name="X") for i in range(3)]
    assert [gpu.index for gpu in visible(gpus, mask)] == expected


def test_a_link_that_idles_is_told_as_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"MaxPcieLinkGeneration": 5, "CurrPcieLinkGeneration": 1, "MaxPcieLinkWidth": 16}
    monkeypatch.setattr(Nvml, "ask", lambda _, what, *__: link.get(what))
    monkeypatch.setattr("pynvml.nvmlSystemGetDriverVersion", lambda: None)
    assert [*Nvml.__new__(Nvml).environment().values()] == ["5", "16", "0"]  # and no NVLink


def test_nvcc_is_asked_for_a_cubin_and_quoted_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc, options = tmp_path / "nvcc", ("-DN=4", cuda.RELOCATABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfError, match="cannot be run"):
        cuda.linked("x.cu", "sm_90a", options)
    assert "nvcc" not in compilers()
    # The last argument is where to write; what it was asked is what it writes.
    nvcc.write_text('#!/bin/sh\nfor last; do :; done; printf "%s " "$@" > "$last"\n')
    nvcc.chmod(0o755)
    asked = cuda.linked("x.cu", "sm_90a", options).decode().split()
    assert {"-arch=sm_90a", "-dlink", *options, "x.cu", "-lcudadevrt"} <= set(asked)
    assert "nvcc" in compilers()
    nvcc.write_text("#!/bin/sh\necho 'x.cu(3): error: no such thing' >&2; exit 2\n")
    with pytest.raises(PerfError, match="no such thing") as told:
        cuda.linked("x.cu", "sm_90a", options)
    assert told.value.where == "x.cu"


def test_kernels_copies_and_fills_are_counted_and_operators_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda.bindings import driver

    # A graph of a node of each kind, and two kernels.
    kinds = [*driver.CUgraphNodeType, driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL]
    good = driver.CUresult.CUDA_SUCCESS
    graph = type("Captured", (), {"raw_cuda_graph": lambda _: 0})()
    get_nodes = lambda _, count=0: (good, kinds[:count], count or len(kinds))  # noqa: E731
    monkeypatch.setattr(driver, "cuGraphGetNodes", get_nodes)
    monkeypatch.setattr(driver, "cuGraphNodeGetType", lambda node: (good, node))
    assert graph_kernels(graph) == 4.0
    bad = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    monkeypatch.setattr(driver, "cuGraphGetNodes", lambda *_: (bad, [], 0))
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        graph_kernels(graph)
    x = torch.ones(3)
    seen = count_operators(lambda: (x + 1) * x + x.sum().item())
    assert seen == {"add": 2, "mul": 1, "sum": 1, "item": 1}


# Stamps.


@pytest.mark.parametrize("arch", ["", "sm_1", "sm_90a"])
def test_stamps_are_compiled_ahead_in_a_child(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_ahead", {})
    monkeypatch.setattr(cuda, "visible_arch", lambda: arch)
    with cuda.compiling_ahead():
        pass
    assert list(cuda._ahead) == (["sm_90a"] if arch == "sm_90a" else [])
    if cuda._ahead:
        assert cuda._ahead[arch].startswith(b"\x7fELF")
        assert cuda.stamps(arch).code == cuda._ahead[arch]


def test_times_of_stamps_are_told_without_the_empty_window() -> None:
    watch = cuda.Stopwatch.__new__(cuda.Stopwatch)
    watch.sms, watch.empty = 2, Sample(1.0, 100.0)
    row = torch.tensor([[[1, 1000], [1, 1000]], [[2101, 4000], [2101, 4000]]])
    assert watch._read(row) == Sample(2.0, 2000.0)
    row[1, 1, 0] = 0
    assert watch._read(row).time_us != watch._read(row).time_us


# What a launch leaves behind on other streams is told from a device that is slow to answer.


class SlowDevice:
    """Its own clock: a launch works and leaves so long; asking the device takes ``answer_us``."""

    def __init__(self, spent_us: tuple[float, float], answer_us: Callable[[], float]) -> None:
        self.now_us = self.stream_us = self.device_us = 0.0
        self.spent_us, self.answer_us = spent_us, answer_us
        self.launches = 0

    def joins(self, agree: Callable[[float], float] = float) -> bool:
        waits = self.wait_stream, self.wait_device
        return cuda.joins_streams(self.launch, self.spin, *waits, agree)

    def launch(self) -> None:
        self.launches += 1
        self.spin(self.spent_us[0])
        self.device_us += self.spent_us[1]

    def spin(self, wait_us: float) -> None:
        self.stream_us = self.device_us = max(self.now_us, self.device_us) + wait_us

    def wait_stream(self) -> None:
        self.now_us = max(self.now_us, self.stream_us)

    def wait_device(self) -> None:
        self.now_us = max(self.now_us, self.device_us) + self.answer_us()


@pytest.mark.parametrize(
    ("spent_us", "answer_us", "joins", "launches"),  # what a launch works, and leaves behind
    [
        ((500.0, 0.0), lambda draw: 10.0, True, [1]),
        ((500.0, 100.0), lambda draw: 400.0, False, [cuda.TRIES]),
        ((500.0, 200.0), lambda draw: draw.choices([10.0, 400.0], [9, 1])[0], False, range(1, 99)),
        ((12_000.0, 0.0), lambda draw: draw.lognormvariate(7.0, 1.0), True, range(2, 99)),
    ],
)
def test_what_is_left_behind_is_seen_however_slow_the_device(
    spent_us: tuple[float, float],
    answer_us: Callable[[random.Random], float],
    joins: object,
    launches: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(10):
        device = SlowDevice(spent_us, partial(answer_us, random.Random(seed)))  # noqa: S311
        monkeypatch.setattr(time, "perf_counter", lambda device=device: device.now_us / 1e6)
        assert device.joins() is joins
        assert device.launches in launches
    device = SlowDevice((500.0, 0.0), lambda: 10.0)
    another_s = iter([1.0, 1.0, -1.0])  # ranks launch until the latest is believed
    assert (device.joins(lambda own: max(own, next(another_s))), device.launches) == (True, 3)
    assert not device.joins(lambda own: max(own, 1.0))  # one rank that leaves work is enough


@NEEDS_GPU
@pytest.mark.parametrize("joins", [True, False])
def test_what_a_launch_leaves_behind_is_seen_on_the_gpu(joins: object) -> None:
    device, side = open_device("cuda"), torch.cuda.Stream()

    def launch(x: Any) -> None:
        """Ten products on another stream, for whose end the launch waits, or not."""
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(10):
                torch.mm(x, x)
        if joins:
            here.wait_stream(side)

    x = device.rng(1).randn(4096, 4096)
    assert device.joins_streams(device.group(launch, [(x,)], 1, backend="loop")) is joins
