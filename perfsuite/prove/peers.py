"""Other tools that measure the same functions, in processes of their own."""

from __future__ import annotations

import importlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfsuite.devices.protocol import Device, open_device
from perfsuite.engine.measure import Session
from perfsuite.model import Settings, Variant
from perfsuite.packs.load import load_pack
from perfsuite.prove.raw import Reading, Wave
from perfsuite.workers.messages import read
from perfsuite.workers.process import EndedError, Slot

PROFILED = 30
FEWEST_ROUNDS = 5
# nvbench and the profiler start slowly; a tool that hangs is given up after this.
ANSWER_LIMIT_S = 120.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A variant, the tools to ask about it, and the seconds of GPU each has.

    ``wave`` says how the panel sampled it: the profiler does alike.
    """

    variant: Variant
    origin: str
    unit: str
    device: str
    seed: int
    seconds: float
    tools: tuple[str, ...]
    wave: Wave

    def reading(self, tool: str, **said: Any) -> Reading:
        """Return what a tool said of it."""
        return Reading(variant=self.variant.id, unit=self.unit, tool=tool, **said)


class Built(NamedTuple):
    """The built variant: each of ``launches`` starts it once, on inputs of its own."""

    order: Order
    device: Device
    launches: list[Callable[[], object]]


def _triton(built: Built) -> float:
    """Return triton.testing.do_bench's median: back to back, the L2 flushed before each launch."""
    from triton.testing import do_bench

    rep_ms = 1e3 * built.order.seconds
    return 1e3 * float(do_bench(built.launches[0], rep=rep_ms, return_mode="median"))


def _torch_timer(built: Built) -> float:
    """Return torch.utils.benchmark's median: host time of many launches and one wait."""
    from torch.utils.benchmark import Timer

    timer = Timer("launch()", globals={"launch": built.launches[0]})
    return 1e6 * float(timer.blocked_autorange(min_run_time=built.order.seconds).median)


def _nvbench(built: Built) -> float:
    """Return nvbench's cold measurement: its median where it has one, else its mean."""
    import torch

    bench = importlib.import_module("cuda.bench")
    results = importlib.import_module("cuda.bench.results")

    def body(state: Any) -> None:
        def once(launch: Any) -> None:
            stream = torch.cuda.ExternalStream(launch.get_stream().addressof())
            with torch.cuda.stream(stream):
                built.launches[0]()

        state.exec(once, batched=False)

    bench.register(body).set_timeout(built.order.seconds).set_min_samples(FEWEST_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "nvbench.json")
        bench.run_all_benchmarks(["prove", "--json", str(file), "--quiet"])
        (found,) = results.BenchmarkResult.from_json(file).values()
    summaries = found[0].summaries
    median, mean = "nv/cold/time/gpu/median", "nv/cold/time/gpu/mean"
    return 1e6 * float(summaries[median if median in summaries else mean].value)


def _cupti(built: Built) -> float:
    """Return the median over samples of CUPTI's kernel durations per launch.

    Paced as the panel paces, and as many launches in a row: the first after a pause takes longer.
    """
    import torch

    wave, launches = built.order.wave, built.launches
    sample_us = wave.launches * statistics.fmean(wave.processes[0].time_us)
    spin = int(1980 * max(100.0, wave.pace * sample_us))

    def issue() -> None:
        for _ in range(PROFILED):
            torch.cuda._sleep(spin)  # noqa: SLF001 - as torch's own benchmarks do
            for index in range(wave.launches):
                launches[index % len(launches)]()

    kernels = [each for each in built.device.traced(issue) if "spin" not in each.name]
    samples = np.reshape([each.duration_us for each in kernels], (PROFILED, -1))
    return float(np.median(samples.sum(axis=1))) / wave.launches


CUPTI = "CUPTI"
TOOLS: Mapping[str, Callable[[Built], float]] = {
    "do_bench": _triton,
    "torch.utils.benchmark": _torch_timer,
    "nvbench": _nvbench,
    CUPTI: _cupti,
}
# Those that are asked on each device; CUPTI is no rival.
RIVALS = {
    "cuda": ("do_bench", "torch.utils.benchmark", "nvbench"),
    "cpu": ("torch.utils.benchmark",),
}


def answers(given: msgspec.Raw) -> list[Reading]:
    """Return what each tool of an ``Order`` says, asked in random order; or why it failed."""
    order = read(given, Order)
    variant = order.variant
    device = open_device(order.device, seed=order.seed)
    case = load_pack(variant.pack, order.origin).cases[variant.case.name]
    session = Session(device, case, variant.axes, Settings(), order.seed)
    built = Built(order, device, session.launches(order.wave.sets))
    built.launches[0]()
    device.synchronize()
    found = []
    for tool in random.Random(order.seed).sample(order.tools, len(order.tools)):  # noqa: S311
        started = time.monotonic()
        try:
            said: dict[str, Any] = {"time_us": TOOLS[tool](built)}
        except Exception as error:  # noqa: BLE001 - whatever a tool has against this machine
            first = str(error).partition("\n")[0]
            said = {"reason": f"{type(error).__name__}: {first}"}
        found.append(order.reading(tool, seconds=round(time.monotonic() - started, 4), **said))
    return found


def ask(slot: Slot, order: Order) -> list[Reading]:
    """Return what each tool says in a process that the slot forks for them, or why none does."""
    worker = slot.fork()
    try:
        asked = (f"{__name__}:{answers.__name__}", order)
        found = worker.do("call", ANSWER_LIMIT_S, asked)
        return list(read(found, list[Reading]))
    except EndedError as ended:
        return [order.reading(tool, reason=ended.reason) for tool in order.tools]
    finally:
        worker.close(0.0)
