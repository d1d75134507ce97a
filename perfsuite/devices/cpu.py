"""The CPU as a device: time, less the time that a thread waited for a core."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import platform
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from perfsuite.boundary import DeviceError
from perfsuite.devices import tensors
from perfsuite.devices.load import Load, own_ns
from perfsuite.devices.protocol import Comparison, Device, Gang, Group, Loaded, Sample
from perfsuite.devices.tensors import compilers, cpu_operators, digest, refill, software
from perfsuite.model import DeviceFacts, Health, Regime

# What the kernel tells of this machine's processor.


CACHE_FALLBACK = 32 << 20


def last_level_cache() -> int:
    """Return the bytes of the cache that all cores share."""
    text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    try:
        size = text.read_text(encoding="ascii").strip()
    except OSError:
        return CACHE_FALLBACK
    scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
    return int(size.rstrip("KM")) * scale


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine_unit() -> str:
    """Return a hash that tells this machine from another without naming it."""
    try:
        key = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        key = platform.node()
    return hashlib.sha256(f"perfsuite:{key}".encode()).hexdigest()[:12]


# Tells how much slower this core is than it has been: what shares it need not be visible here.
#
# A virtual machine's core may be one of two hardware threads whose other is another machine's. On
# such a host short Python loops, small FMA chains and whole launches took 1.4 to 1.9 times as long
# for tenths of a second or seconds at a time, with no steal and no load in /proc/stat.


# Integer work with branches and lookups, which a second thread on the core slows as it does most
# code; about 0.1 ms. The least of three leaves interruptions out.
_TEXT = bytes((i * i * 7 + i // 3) % 251 for i in range(1 << 14))
_READINGS = 3
# Quiet readings differ by 6 %, those beside something by 30 to 50 %.
SLOWED_MOST = 0.2


class Speed:
    """A fixed piece of work, timed by ``read_ns``, against the fastest it was in this process.

    A server's workers inherit its own fastest reading when they are forked.
    """

    def __init__(self, read_ns: Callable[[], int]) -> None:
        self._read_ns = read_ns
        self._fastest_ns = float("inf")

    def slowed(self) -> float:
        """Return how much longer the work takes than at its fastest, as a share of that."""
        now_ns = min(self._read_ns() for _ in range(_READINGS))
        if now_ns <= 0:  # a workload stopped the clock: its samples have no time either
            return 0.0
        self._fastest_ns = min(self._fastest_ns, now_ns)
        return now_ns / self._fastest_ns - 1


def _reading_ns() -> int:
    return own_ns(lambda: zlib.compress(_TEXT, 6))


SPEED = Speed(_reading_ns)


# The CPU as a device: one clock, a core left free, a frozen garbage collector.


# How long one process takes samples anew, in all, because its core was slower than it has been.
PATIENCE_S = 1.5
# Rotating more than this evicts nothing that a smaller working set leaves in a shared cache.
CACHE_MOST = 32 << 20


@dataclass(slots=True)
class CpuContext:
    """A builder's context on the CPU."""

    seed: int
    device: str = "cpu"
    place: str = "cpu"
    arch: str = "cpu"
    rank: int = 0
    ranks: int = 1

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Refuse: there is no GPU here."""
        raise DeviceError(
            f"the CPU cannot run kernel {name!r} {list(options)}",
            where=str(path),
            remedy="give this implementation needs=[perfsuite.cuda()]",
        )


@dataclass(slots=True)
class LoopGroup:
    """Launches issued one after another over rotated input sets."""

    fn: Callable[..., Any]
    sets: Sequence[tuple[Any, ...]]
    launches: int
    backend: str = "loop"

    def __call__(self) -> None:
        """Issue all launches."""
        for index in range(self.launches):
            self.fn(*self.sets[index % len(self.sets)])


class CpuDevice:
    """Times calls with perf_counter_ns; time is its only clock.

    What the measuring thread spends ready to run but without a core is taken off: it belongs to
    whatever else runs here. Three busy processes on two cores stretch a GEMM of 26 ms to 166 ms;
    33 ms are left of that.
    """

    name = "cpu"
    has_cycles = False
    settle_tolerance = 0.05
    settle_s = 0.5
    # One of ours beside three busy processes on two cores is at 50 %: what it waits for a core is
    # taken off, and a GEMM of 26 ms still takes 33. Beyond four, nothing is left to compare.
    foreign_most = 60.0
    busy_s = 0.0
    spun_s = 0.0
    again = Device.again
    digest = staticmethod(digest)
    refill = staticmethod(refill)
    traced = staticmethod(cpu_operators)
    shown = Device.shown

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        del seed
        self._gang = gang or Gang()
        self.cache_bytes = min(CACHE_MOST, last_level_cache())
        self._flush = tensors.Flush("cpu", self.cache_bytes)
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

    def facts(self) -> DeviceFacts:
        """Describe the processor and the software on it."""
        return cpu_facts()

    def context(self, seed: int) -> CpuContext:
        """Return a builder's context."""
        return CpuContext(seed, rank=self._gang.rank, ranks=self._gang.ranks)

    def rng(self, seed: int) -> tensors.TensorRng:
        """Return a maker of CPU tensors."""
        return tensors.TensorRng("cpu", seed)

    def bytes_of(self, values: Sequence[Any]) -> int:
        """Return the bytes of the tensors among ``values``."""
        return tensors.bytes_of(values)

    def poison(self, outputs: Sequence[Any]) -> None:
        """Fill outputs with NaN."""
        tensors.poison(outputs)

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> Comparison:
        """Compare an output with its reference."""
        return tensors.compare(actual, expected, tolerance)

    def synchronize(self) -> None:
        """Do nothing: what was called is done."""

    def group(
        self,
        fn: Callable[..., Any],
        sets: Sequence[tuple[Any, ...]],
        launches: int,
        *,
        backend: str,
    ) -> Group:
        """Make a loop; a CPU has no graphs and nothing to await."""
        del backend
        return LoopGroup(fn, sets, launches)

    def sample(
        self, group: Group, count: int, *, regime: Regime, spin_us: float, flush: bool
    ) -> list[Sample]:
        """Time the group ``count`` times; a CPU needs no spin and all regimes are one."""
        del regime, spin_us
        started = self._load.now()
        samples: list[Sample] = []
        slowed: list[float] = []
        with _frozen_collector():
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
        self.busy_s += sum(sample.time_us for sample in samples) / 1e6
        foreign = self._load.foreign_percent(started, self._load.now()) or 0.0
        # A slower core is a doubt and spoils nothing: it may stay so.
        shared = median(slowed)
        felt = min(100 * shared, self.foreign_most) if shared > SLOWED_MOST else 0.0
        self._health = Health(foreign_percent=max(foreign, felt))
        return samples

    def joins_streams(self, group: Group) -> bool:
        """Say yes: there are no streams."""
        del group
        return True

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks."""
        return self._gang.agree(value)

    def health(self) -> Health:
        """Return the load by others, seen or felt."""
        return self._health

    def energy_j(self, group: Group, time_s: float) -> float | None:
        """Return nothing: a counter of energy, where there is one, is the administrator's."""
        del group, time_s
        return None

    def peak_bytes(self, fn: Callable[..., Any], inputs: tuple[Any, ...]) -> int | None:
        """Return nothing: torch keeps no peak for the CPU."""
        del fn, inputs
        return None

    def loaded(self) -> list[Loaded]:
        """Return nothing: no kernel of a CPU is compiled here."""
        return []

    def close(self) -> None:
        """Hold nothing."""


def cpu_facts() -> DeviceFacts:
    """Describe the processor and the software on it, without taking anything of it."""
    cores = len(os.sched_getaffinity(0))
    model = cpu_model()
    return DeviceFacts(
        device="cpu",
        name=model,
        unit=machine_unit(),
        identity={"vendor": "cpu", "name": model, "cores": str(cores)},
        environment={
            **software(),
            "os": " ".join((platform.system(), platform.machine(), *platform.libc_ver())),
        },
        arch="cpu",
        features=compilers(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


@contextlib.contextmanager
def _frozen_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
