"""The CPU as a device: time, less the time that a thread waited for a core."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch

from perfsuite.devices.load import SPEED, Load, own_ns
from perfsuite.devices.protocol import Fn, Gang, Group, Loop, PlainContext, Sample, Sets
from perfsuite.devices.tensors import TensorDevice, compilers, cpu_operators, software
from perfsuite.model import DeviceFacts, Health

# Quiet readings of the core's speed differ by 6 %, those beside something by 30 to 50 %.
SLOWED_MOST = 0.2
# How long one process takes samples anew, in all, because its core was slower than it has been.
PATIENCE_S = 1.5
# Rotating more than this evicts nothing that a smaller working set leaves in a shared cache.
CACHE_MOST = 32 << 20


def cpu_facts() -> DeviceFacts:
    """Describe the processor and the software on it, without taking anything of it."""
    cores = len(os.sched_getaffinity(0))
    lines = _told("/proc/cpuinfo").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = [*models, platform.machine()][0]
    # A hash tells this machine from another without naming it.
    machine = _told("/etc/machine-id", otherwise=platform.node()).strip()
    system = " ".join((platform.system(), platform.machine(), *platform.libc_ver()))
    return DeviceFacts(
        device="cpu",
        name=model,
        unit=hashlib.sha256(f"perfsuite:{machine}".encode()).hexdigest()[:12],
        identity={"vendor": "cpu", "name": model, "cores": str(cores)},
        environment={**software(), "os": system},
        arch="cpu",
        features=compilers(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def last_level_cache() -> int:
    """Return the bytes of the cache that all cores share."""
    size = _told("/sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
    return int(size.rstrip("KM")) * scale if size else CACHE_MOST


def _told(file: str, *, otherwise: str = "") -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return otherwise


class CpuDevice(TensorDevice):
    """Times calls with perf_counter_ns; time is its only clock.

    What the measuring thread spends ready to run but without a core is taken off: it belongs to
    whatever else runs here. Three busy processes on two cores stretch a GEMM of 26 ms to 166 ms;
    33 ms are left of that.
    """

    backend: ClassVar[str] = "gloo"
    name = "cpu"
    settle_tolerance = 0.05
    settle_s = 0.5
    # One of ours beside three busy processes on two cores is at 50 %: what it waits for a core is
    # taken off, and a GEMM of 26 ms still takes 33. Beyond four, nothing is left to compare.
    foreign_most = 60.0
    facts = staticmethod(cpu_facts)
    traced = staticmethod(cpu_operators)

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        super().__init__(gang, min(CACHE_MOST, last_level_cache()))
        # One core is left to everything else: threads that wait for each other take as long as the
        # one interrupted (a copy by two of two: 2 to 8 ms). A gang's ranks share the rest.
        cores = frozenset(os.sched_getaffinity(0))
        threads = max(1, (len(cores) - 1) // self._gang.ranks)
        torch.set_num_threads(threads)
        self._load = Load(cores, used=threads * self._gang.ranks)
        self._health = Health()
        self._slowed: Callable[[], float] = SPEED.slowed
        self._patience_s = PATIENCE_S
        if self._gang.ranks > 1:  # ranks take all cores: what shares them is in their noise
            self.foreign_most, self._patience_s, self._slowed = float("inf"), 0.0, float

    @classmethod
    def before_fork(cls) -> None:
        """Read the core's speed while nothing runs: workers inherit the fastest."""
        SPEED.slowed()

    def context(self, seed: int) -> PlainContext:
        """Return a builder's context."""
        return PlainContext(seed, "cpu", "cpu", "cpu", self._gang.rank, self._gang.ranks)

    def group(self, fn: Fn, sets: Sets, launches: int, *, backend: str) -> Group:
        """Make a loop; a CPU has no graphs and nothing to await."""
        return Loop(fn, sets, launches)

    def sample(self, group: Group, count: int, *, flush: bool, **_conditions: Any) -> list[Sample]:
        """Time the group ``count`` times; a CPU needs no spin and all regimes are one."""
        started = self._load.now()
        samples: list[Sample] = []
        slowed: list[float] = []
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            before = self._slowed()
            while len(samples) < count:
                began_s = time.monotonic()
                if flush:
                    self._flush()
                self._gang.meet()
                sample = Sample(own_ns(group) / 1e3)
                after = self._slowed()
                felt, before = max(before, after), after
                if felt > SLOWED_MOST and self._patience_s > 0:
                    self._patience_s -= time.monotonic() - began_s
                    continue
                samples.append(sample)
                slowed.append(felt)
        finally:
            gc.enable()
            gc.unfreeze()
        self.busy_s += sum(sample.time_us for sample in samples) / 1e6
        foreign = self._load.foreign_percent(started, self._load.now()) or 0.0
        # A slower core is a doubt and spoils nothing: it may stay so.
        shared = median(slowed)
        felt = min(100 * shared, self.foreign_most) if shared > SLOWED_MOST else 0.0
        self._health = Health(foreign_percent=max(foreign, felt))
        return samples

    def health(self) -> Health:
        """Return the load by others, seen or felt."""
        return self._health
