"""The ``perf`` fixture: how long a call takes in this very process, without a verdict."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfsuite.device import Device, Sample

TIME_LIMIT_S = 0.5
MOST_RUNS = 1000
# On a GPU each run has its stamps and its spin; more of them show nothing new.
MOST_STAMPED = 256
EMPTY_RUNS = 5
# The spin before a run outlasts the host's issuing of it, as when a variant is calibrated.
ISSUE_MARGIN = 1.3
# No kernel is shorter; what takes less than this beyond two bare stamps left the GPU alone.
SHORTEST_US = 0.5
NAN = float("nan")
HOST, GPU = "host", "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a call returned, and how long its runs took: the median and the middle half around it.

    ``clock`` is where time was taken, "GPU" or "host"; ``cycles`` are SM cycles, NaN on the host.
    Nothing was timed where ``runs`` is 0, as without --perf: times are NaN then.
    """

    name: str
    result: Any
    runs: int = 0
    time_us: float = NAN
    low_us: float = NAN
    high_us: float = NAN
    cycles: float = NAN
    clock: str = HOST
    note: str = ""

    def line(self) -> str:
        """Return the look as one line of the summary."""
        clocks = f"{self.cycles:,.0f} cycles, " if self.clock == GPU else ""
        told = f"{self.low_us:,.2f} to {self.high_us:,.2f}, {clocks}{self.runs} runs, {self.clock}"
        note = f"  ({self.note})" if self.note else ""
        return f"{self.time_us:14,.2f} us  ({told})  {self.name}{note}"


class PerfFixture:
    """What a test is handed as ``perf``: ``look = perf(fn, *args, **kwargs)``.

    Calls ``fn`` once and, under --perf, again and again for half a second; ``look.result`` is what
    the first call returned. If calls of ``fn`` put work on the GPU that this process uses, the GPU
    is timed on both of its clocks, else the host. Inputs are the same in each run, and so lie in
    the caches. A look gives no verdict; for a verdict, write a case.
    """

    def __init__(self, name: str, *, is_on: bool, looks: list[Look]) -> None:
        self.name = name
        self.is_on = is_on
        self.looks = looks

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Look:
        """Call ``fn`` with the arguments; return its result and, under --perf, its time."""
        if not self.is_on:
            return Look(name=self.name, result=fn(*args, **kwargs))
        look = take_look(self.name, lambda: fn(*args, **kwargs))
        self.looks.append(look)
        return look


def take_look(name: str, call: Callable[[], Any], *, time_limit_s: float = TIME_LIMIT_S) -> Look:
    """Call once to warm up and for the result, then until the time is up."""
    bare = Look(name=name, result=call())
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return _timed(bare, _host_times(call, lambda: None, time_limit_s))
    from perfsuite.device.guest import guest_device, wait_for_gpu
    from perfsuite.errors import DeviceError

    with guest_device() as device:
        samples = [] if isinstance(device, DeviceError) else gpu_samples(device, call, time_limit_s)
    if samples:
        cycles = statistics.median(sample.cycles for sample in samples)
        timed = _timed(bare, [sample.time_us for sample in samples])
        return replace(timed, cycles=cycles, clock=GPU)
    note = device.what if isinstance(device, DeviceError) else ""
    return replace(_timed(bare, _host_times(call, wait_for_gpu, time_limit_s)), note=note)


def gpu_samples(device: Device, call: Callable[[], Any], time_limit_s: float) -> Sequence[Sample]:
    """Time runs of a call between stamps; nothing if it leaves the GPU alone or work behind."""
    from perfsuite.model import Regime

    group = device.group(call, [()], 1, backend="loop")
    device.synchronize()
    started = time.perf_counter()
    group()
    issue_us = 1e6 * (time.perf_counter() - started)
    device.synchronize()
    run_us = 1e6 * (time.perf_counter() - started)
    if issue_us > 1e6 * time_limit_s or not device.joins_streams(group):
        return ()
    spin_us = ISSUE_MARGIN * issue_us
    runs = min(MOST_STAMPED, int(1e6 * time_limit_s / (run_us + spin_us)))
    least = least_us(device)
    samples = device.sample(group, max(1, runs), regime=Regime.PACED, spin_us=spin_us, flush=False)
    good = [sample for sample in samples if math.isfinite(sample.time_us)]
    is_busy = good and statistics.median(sample.time_us for sample in good) > least
    return good if is_busy else ()


def least_us(device: Device) -> float:
    """Return what a call takes at least that puts work on the device, by two stamps around none."""
    from perfsuite.model import Regime

    nothing = device.group(lambda: None, [()], 1, backend="loop")
    empty = device.sample(nothing, EMPTY_RUNS, regime=Regime.PACED, spin_us=0.0, flush=False)
    times_us = (sample.time_us for sample in empty if math.isfinite(sample.time_us))
    return min(times_us, default=math.inf) + SHORTEST_US


def _host_times(
    call: Callable[[], Any], wait: Callable[[], object], time_limit_s: float
) -> Iterator[float]:
    wait()
    end = time.perf_counter() + time_limit_s
    for runs in range(MOST_RUNS):
        if runs and time.perf_counter() > end:
            return
        start = time.perf_counter_ns()
        call()
        wait()
        yield (time.perf_counter_ns() - start) / 1e3


def _timed(look: Look, times: Iterator[float] | Sequence[float]) -> Look:
    times_us = list(times)
    low, middle, high = statistics.quantiles(times_us * 2, n=4, method="inclusive")
    return replace(look, runs=len(times_us), time_us=middle, low_us=low, high_us=high)
