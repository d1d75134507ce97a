"""The CPU as a device: time, less what a thread waited for a core."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import platform
import resource
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from perfsuite.devices.plain import compilers
from perfsuite.devices.protocol import Context, Fn, Gang, Group, Sample, Sets, own_ns
from perfsuite.model import DeviceFacts

# Workloads of plain Python need no torch.
if TYPE_CHECKING or find_spec("torch"):
    from perfsuite.devices.tensors import TensorDevice as Data
else:
    from perfsuite.devices.plain import PlainDevice as Data

# What other threads may spend of a launch that is said to run in one.
OTHERS_MOST = 0.1
# Rotating more than this evicts nothing that a smaller working set leaves in a shared cache.
CACHE_MOST = 32 << 20
# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def last_level_cache() -> int:
    """Return the bytes of the cache that all cores share."""
    size = _told("/sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    scale = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:], 1)
    return int(size.rstrip("KM")) * scale if size else CACHE_MOST


def _others_s() -> float:
    """Return what other threads of this process have spent, and its children that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() - time.thread_time() + ended.ru_utime + ended.ru_stime


def _told(file: str, *, otherwise: str = "") -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return otherwise


class CpuDevice(Data):
    """Times calls with perf_counter_ns; time is its only clock.

    What the measuring thread spends ready to run but without a core is taken off: it belongs to
    whatever else runs here. Three busy processes on two cores stretch a GEMM of 26 ms to 166 ms;
    33 ms are left of that. What runs in one thread has one core, the same for all processes: in a
    virtual machine each core has neighbours of its own. Least times of two processes in turns then
    differed by 0.5 to 0.8 % (sd, 2 s, four kernels), and by 1 to 19 % on any core.
    """

    backend: ClassVar[str] = "gloo"
    name = "cpu"
    settle_tolerance = 0.05
    settle_s = 0.5

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        super().__init__(gang, min(CACHE_MOST, last_level_cache()))
        # One core is left to everything else: threads that wait for each other take as long as the
        # one interrupted (a copy by two of two: 2 to 8 ms). A gang's ranks share the rest.
        self._cores = os.sched_getaffinity(0)
        self.limit_threads(max(1, (len(self._cores) - 1) // self._gang.ranks))
        self._is_alone = False

    @classmethod
    def prepare_server(cls) -> contextlib.AbstractContextManager[object]:
        """Have workers keep what they free.

        The C library gives large blocks back to the kernel, or not, by where in memory they lie. If
        it does, each launch takes all its pages anew: of two processes of one function one took
        0.5 ms and the other 5 ms.
        """
        if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # musl has none
            mallopt(M_TRIM_THRESHOLD, -1)
            mallopt(M_MMAP_MAX, 0)
        return contextlib.nullcontext()

    @classmethod
    def facts(cls) -> DeviceFacts:
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
            environment={**cls.software(), "os": system},
            arch="cpu",
            features=compilers(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )

    def context(self, seed: int) -> Context:
        """Return a builder's context."""
        return Context(seed, "cpu", "cpu", "cpu", self._gang.rank, self._gang.ranks)

    def group(self, fn: Fn, sets: Sets, launches: int, *, backend: str) -> Group:
        """Make a loop; a CPU has no graphs and nothing to await."""
        return super().group(fn, sets, launches, backend="loop")

    def sample(self, group: Group, count: int, *, flush: bool, **_conditions: Any) -> list[Sample]:
        """Time the group ``count`` times; a CPU needs no spin and all regimes are one."""
        samples: list[Sample] = []
        gc.disable()
        others_s, own_s = _others_s(), time.thread_time()
        if self._is_alone:
            os.sched_setaffinity(0, {max(self._cores)})
        try:
            for _ in range(count):
                if flush:
                    self._flush()
                self._gang.meet()
                sample = Sample(own_ns(group) / 1e3)
                samples.append(sample)
        finally:
            gc.enable()
            if self._is_alone:
                os.sched_setaffinity(0, self._cores)
        own_s = time.thread_time() - own_s
        is_alone = _others_s() - others_s <= OTHERS_MOST * own_s
        self._is_alone = is_alone and self._gang.ranks == 1
        self.busy_s += sum(sample.time_us for sample in samples) / 1e6
        return samples
