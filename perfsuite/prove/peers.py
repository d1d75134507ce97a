"""What other tools say of a variant: a server that forks a process for each order.

Run as ``python -m perfsuite.prove.peers``; orders come in as JSON lines, readings go out.
"""

from __future__ import annotations

import importlib
import json
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

from perfsuite.device import open_device
from perfsuite.errors import PerfError
from perfsuite.model import Axes, Workload
from perfsuite.packs import load_pack

PROFILED = 30
FEWEST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A variant, the tools to ask about it, and the seconds of GPU each has.

    ``time_us``, ``pace`` and ``sets`` say how the panel sampled it: the profiler paces alike.
    """

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
    sets: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A tool's time per launch, or why it has none."""

    tool: str
    time_us: float | None = None
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The built variant: ``launch`` starts one launch, ``wait`` waits for the device."""

    order: Order
    launch: Callable[[], object]
    wait: Callable[[], None]
    inputs: Callable[[int], tuple[Any, ...]]
    workload: Workload


def _do_bench(subject: Subject) -> float:
    """Return triton.testing.do_bench's median: back to back, the L2 flushed before each launch."""
    from triton.testing import do_bench

    rep_ms = 1e3 * subject.order.seconds
    return 1e3 * float(do_bench(subject.launch, rep=rep_ms, return_mode="median"))


def _torch_timer(subject: Subject) -> float:
    """Return torch.utils.benchmark's median: host time of many launches and one wait."""
    from torch.utils.benchmark import Timer

    timer = Timer("launch()", globals={"launch": subject.launch})
    return 1e6 * float(timer.blocked_autorange(min_run_time=subject.order.seconds).median)


def _pytest_benchmark(subject: Subject) -> float:
    """Return pytest-benchmark's median of a launch that is awaited."""
    from pytest_benchmark.fixture import BenchmarkFixture

    def silent(*_: Any, **__: Any) -> None: ...

    def awaited() -> None:
        subject.launch()
        subject.wait()

    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="launch", nodeid="launch"),
        timer=SimpleNamespace(target=time.perf_counter),
        disable_gc=False,
        min_rounds=FEWEST_ROUNDS,
        min_time=5e-6,
        max_time=subject.order.seconds,
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


def _nvbench(subject: Subject) -> float:
    """Return nvbench's cold measurement: its median where it has one, else its mean."""
    import torch

    bench = importlib.import_module("cuda.bench")
    results = importlib.import_module("cuda.bench.results")

    def body(state: Any) -> None:
        def once(launch: Any) -> None:
            stream = torch.cuda.ExternalStream(launch.get_stream().addressof())
            with torch.cuda.stream(stream):
                subject.launch()

        state.exec(once, batched=False)

    bench.register(body).set_timeout(subject.order.seconds).set_min_samples(FEWEST_ROUNDS)
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


def _cupti(subject: Subject) -> float:
    """Return the median over launches of CUPTI's kernel durations, paced as the panel paces."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    order = subject.order
    sets = [subject.inputs(index) for index in range(order.sets)]
    spin = int(1980 * max(100.0, order.pace * order.time_us))
    fn = subject.workload.fn
    fn(*sets[0])
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for index in range(PROFILED):
            torch.cuda._sleep(spin)  # noqa: SLF001 - as torch's own benchmarks do
            fn(*sets[index % len(sets)])
        torch.cuda.synchronize()
    groups: list[float] = []
    for event in sorted(profiler.events(), key=lambda event: event.time_range.start):
        if "spin" in event.name:
            groups.append(0.0)
        elif groups:
            groups[-1] += event.device_time_total
    return statistics.median(groups)


TOOLS: Mapping[str, Callable[[Subject], float]] = {
    "do_bench": _do_bench,
    "torch.utils.benchmark": _torch_timer,
    "pytest-benchmark": _pytest_benchmark,
    "nvbench": _nvbench,
}
CUPTI = "CUPTI"
_ASKED = {**TOOLS, CUPTI: _cupti}
# What needs no GPU.
ON_HOST = ("torch.utils.benchmark", "pytest-benchmark")


def _subject(order: Order) -> Subject:
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
    return Subject(order, launch, device.synchronize, inputs, workload)


def answers(order: Order) -> list[Answer]:
    """Return what each tool says, asked in random order; a tool that fails says why."""
    subject = _subject(order)
    found = []
    for tool in random.Random(order.seed).sample(order.tools, len(order.tools)):  # noqa: S311
        started = time.monotonic()
        try:
            time_us, reason = _ASKED[tool](subject), ""
        except Exception as error:  # noqa: BLE001 - whatever a tool has against this machine
            time_us, reason = None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        seconds = round(time.monotonic() - started, 4)
        found.append(Answer(tool=tool, time_us=time_us, seconds=seconds, reason=reason))
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
        _fork(msgspec.convert(json.loads(line), Order), out)


if __name__ == "__main__":
    main()
