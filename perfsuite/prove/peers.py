"""Other tools that measure the same functions, in processes of their own."""

from __future__ import annotations

import importlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from perfsuite.boundary import PerfError
from perfsuite.devices.protocol import open_device
from perfsuite.model import Axes, Workload
from perfsuite.packs.load import load_pack
from perfsuite.prove.raw import Reading

# What other tools say of a variant, each through its own interface with its own defaults.


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


# A server that forks a process for each order, in which other tools time a variant.
#
# Run as ``python -m perfsuite.prove.peers``; orders come in as JSON lines, readings go out.


def _built(order: Order) -> Built:
    device = open_device(order.device, seed=order.seed)
    case = load_pack(order.pack, order.origin).cases[order.case]
    workload = case.build(device.context(order.seed), **order.axes)
    if not isinstance(workload, Workload):
        raise PerfError(f"case {order.case!r} is no workload")

    def inputs(index: int) -> tuple[Any, ...]:
        return workload.make_inputs(device.rng(order.seed + index))

    launch = partial(workload.fn, *inputs(0))
    launch()
    device.synchronize()
    return Built(order, launch, device.synchronize, inputs, workload)


def answers(order: Order) -> list[Reading]:
    """Return what each tool says, asked in random order; a tool that fails says why."""
    built = _built(order)
    found = []
    for tool in random.Random(order.seed).sample(order.tools, len(order.tools)):  # noqa: S311
        started = time.monotonic()
        try:
            time_us, reason = ASKED[tool](built), ""
        except Exception as error:  # noqa: BLE001 - whatever a tool has against this machine
            time_us, reason = None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        seconds = round(time.monotonic() - started, 4)
        found.append(
            Reading(
                variant=order.variant,
                unit=order.unit,
                tool=tool,
                time_us=time_us,
                seconds=seconds,
                reason=reason,
            )
        )
    return found


def _fork(order: Order, out: int) -> None:
    """Answer in a process of its own; one that dies answers nothing."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            os.write(write, msgspec.json.encode(answers(order)))
        except BaseException as error:  # noqa: BLE001 - the child leaves here, whatever happened
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    os.write(out, (said or b"[]") + b"\n")


def main() -> None:
    """Import what the tools share, then fork for each line of the standard input."""
    out = os.dup(1)
    # What tools and libraries print is no answer.
    os.dup2(2, 1)
    for module in ("torch", "triton.testing"):
        with suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        _fork(msgspec.json.decode(line, type=Order), out)


if __name__ == "__main__":
    main()
