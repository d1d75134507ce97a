"""The CPU as a device: time, less what a thread waited for a core; what others took of it."""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import time
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from perfsuite.devices.plain import compilers
from perfsuite.devices.protocol import Fn, Gang, Group, Loop, PlainContext, Sample, Sets, own_ns
from perfsuite.model import DeviceFacts, Health

# Workloads of plain Python need no torch.
if TYPE_CHECKING or find_spec("torch"):
    from perfsuite.devices.tensors import TensorDevice as Data
else:
    from perfsuite.devices.plain import PlainDevice as Data

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The kernel counts in ticks of 10 ms: a shorter time has no share worth telling.
LEAST_S = 0.1
# user, nice, system, irq, softirq and steal of a line of /proc/stat (proc_stat(5)).
BUSY = (1, 2, 3, 6, 7, 8)
# Seconds up to a moment: by the clock, of all processes on our cores, and of our own.
Spent = tuple[float, float, float]

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
        environment={**Data.software(), "os": system},
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


# What else runs on the cores.


class Load:
    """The cores this process may use, ``used`` of them by what is measured."""

    def __init__(self, cores: frozenset[int], used: int) -> None:
        self._cores = cores
        self._used = used

    def now(self) -> Spent | None:
        """Return what has been spent so far, None where the kernel does not tell."""
        try:
            # A worker's parent is its server, whose parent is the controller: all of it is ours.
            root = int(_stat(os.getppid())[1]) or os.getpid()
            ticks = 0
            for line in (PROC / "stat").read_text(encoding="ascii").splitlines():
                name, *_ = words = line.split()
                if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores:
                    ticks += sum(int(words[place]) for place in BUSY)
            return time.monotonic(), ticks / TICKS_PER_S, _tree_s(root)
        except (OSError, ValueError, IndexError):
            return None

    def foreign_percent(self, start: Spent | None, end: Spent | None) -> float | None:
        """Return what others took beyond the cores left free, in percent of those used."""
        if start is None or end is None or end[0] - start[0] < LEAST_S:
            return None
        took_s, busy_s, own_s = (after - before for before, after in zip(start, end, strict=True))
        foreign = max(0.0, busy_s - max(0.0, own_s)) / took_s
        free = max(0, len(self._cores) - self._used)
        return 100 * max(0.0, foreign - free) / self._used


def _tree_s(root: int) -> float:
    """Return the CPU seconds of a process, its children, and those it has waited for."""
    ticks, left = 0, [root]
    while left:
        pid = left.pop()
        try:
            ticks += sum(map(int, _stat(pid)[11:15]))  # utime, stime, cutime, cstime
            for task in (PROC / str(pid) / "task").iterdir():
                left += map(int, (task / "children").read_text(encoding="ascii").split())
        except FileNotFoundError:  # it ended a moment ago; its parent has its time
            continue
    return ticks / TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """Return a process's fields from its state on: the name before may hold anything."""
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


# How much slower this core is than it has been: what shares it need not be visible here.
#
# A virtual machine's core may be one of two hardware threads whose other is another machine's. On
# such a host short Python loops, small FMA chains and whole launches took 1.4 to 1.9 times as long
# for tenths of a second or seconds at a time, with no steal and no load in /proc/stat.

# Integer work with branches and lookups, which a second thread on the core slows as it does most
# code; about 0.1 ms. The least of three leaves interruptions out.
_TEXT = bytes((i * i * 7 + i // 3) % 251 for i in range(1 << 14))
_READINGS = 3


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


SPEED = Speed(lambda: own_ns(lambda: zlib.compress(_TEXT, 6)))


# The device.


class CpuDevice(Data):
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

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        super().__init__(gang, min(CACHE_MOST, last_level_cache()))
        # One core is left to everything else: threads that wait for each other take as long as the
        # one interrupted (a copy by two of two: 2 to 8 ms). A gang's ranks share the rest.
        cores = frozenset(os.sched_getaffinity(0))
        threads = max(1, (len(cores) - 1) // self._gang.ranks)
        self.limit_threads(threads)
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
