"""What other tools say of a variant, each through its own interface with its own defaults."""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perfsuite.model import Axes, Workload

PROFILED = 30
FEWEST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A variant, the tools to ask about it, and the seconds of GPU each has.

    ``time_us``, ``pace``, ``launches`` and ``sets`` say how the panel sampled it: the profiler
    does alike.
    """

    variant: str
    unit: str
    pack: str
    origin: str
    case: str
    axes: Axes
    device: str
    seed: int
    seconds: float
    tools: tuple[str, ...]
    time_us: float = 0.0
    pace: float = 0.0
    launches: int = 1
    sets: int = 1


@dataclass(frozen=True, slots=True)
class Built:
    """The built variant: ``launch`` starts one launch, ``wait`` waits for the device."""

    order: Order
    launch: Callable[[], object]
    wait: Callable[[], None]
    inputs: Callable[[int], tuple[Any, ...]]
    workload: Workload


def _triton(built: Built) -> float:
    """Return triton.testing.do_bench's median: back to back, the L2 flushed before each launch."""
    from triton.testing import do_bench

    rep_ms = 1e3 * built.order.seconds
    return 1e3 * float(do_bench(built.launch, rep=rep_ms, return_mode="median"))


def _torch_timer(built: Built) -> float:
    """Return torch.utils.benchmark's median: host time of many launches and one wait."""
    from torch.utils.benchmark import Timer

    timer = Timer("launch()", globals={"launch": built.launch})
    return 1e6 * float(timer.blocked_autorange(min_run_time=built.order.seconds).median)


def _pytest_benchmark(built: Built) -> float:
    """Return pytest-benchmark's median of a launch that is awaited."""
    from pytest_benchmark.fixture import BenchmarkFixture

    def silent(*_: Any, **__: Any) -> None: ...

    def awaited() -> None:
        built.launch()
        built.wait()

    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="launch", nodeid="launch"),
        timer=SimpleNamespace(target=time.perf_counter),
        disable_gc=False,
        min_rounds=FEWEST_ROUNDS,
        min_time=5e-6,
        max_time=built.order.seconds,
        precision=None,
        confidence=None,
        warmup=False,
        warmup_iterations=0,
        calibration_precision=10,
        add_stats=silent,
        logger=SimpleNamespace(debug=silent, info=silent),
        warner=silent,
        disabled=False,
        cprofile=None,
        cprofile_loops=None,
        cprofile_dump=None,
    )
    fixture(awaited)
    return 1e6 * float(fixture.stats.stats.median)


def _nvbench(built: Built) -> float:
    """Return nvbench's cold measurement: its median where it has one, else its mean."""
    import torch

    bench = importlib.import_module("cuda.bench")
    results = importlib.import_module("cuda.bench.results")

    def body(state: Any) -> None:
        def once(launch: Any) -> None:
            stream = torch.cuda.ExternalStream(launch.get_stream().addressof())
            with torch.cuda.stream(stream):
                built.launch()

        state.exec(once, batched=False)

    bench.register(body).set_timeout(built.order.seconds).set_min_samples(FEWEST_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nvbench.json")
        bench.run_all_benchmarks(["prove", "--json", str(file), "--quiet"])
        (found,) = results.BenchmarkResult.from_json(file).values()
    summaries = found[0].summaries
    chosen = next(
        summaries[tag]
        for tag in ("nv/cold/time/gpu/median", "nv/cold/time/gpu/mean")
        if tag in summaries
    )
    return 1e6 * float(chosen.value)


def _cupti(built: Built) -> float:
    """Return the median over samples of CUPTI's kernel durations per launch.

    Paced as the panel paces, and as many launches in a row: the first after a pause takes longer.
    """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    order = built.order
    sets = [built.inputs(index) for index in range(order.sets)]
    spin = int(1980 * max(100.0, order.pace * order.launches * order.time_us))
    fn = built.workload.fn
    fn(*sets[0])
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            torch.cuda._sleep(spin)  # noqa: SLF001 - as torch's own benchmarks do
            for index in range(order.launches):
                fn(*sets[index % len(sets)])
        torch.cuda.synchronize()
    groups: list[float] = []
    kernels = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    for event in sorted(kernels, key=lambda event: event.time_range.start):
        if "spin" in event.name:
            groups.append(0.0)
        elif groups:
            groups[-1] += event.time_range.elapsed_us()
    return statistics.median(groups) / order.launches


TOOLS: Mapping[str, Callable[[Built], float]] = {
    "do_bench": _triton,
    "torch.utils.benchmark": _torch_timer,
    "pytest-benchmark": _pytest_benchmark,
    "nvbench": _nvbench,
}
CUPTI = "CUPTI"
ASKED = {**TOOLS, CUPTI: _cupti}
# What needs no GPU.
ON_HOST = ("torch.utils.benchmark", "pytest-benchmark")
