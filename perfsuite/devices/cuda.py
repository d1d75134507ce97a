"""An NVIDIA GPU as a device: two clocks from per-SM stamps, pacing, graphs, coldness."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from cuda.core import Device
from msgspec.structs import replace

from perfsuite.boundary import DeviceError
from perfsuite.devices import tensors
from perfsuite.devices.kernels import ROWS, CudaContext, CudaGroup, Stopwatch, compile_ahead
from perfsuite.devices.nvml import HealthWatch, Nvml, arch_of, together
from perfsuite.devices.protocol import (
    NCCL,
    Arguments,
    Fn,
    Gang,
    Group,
    Loaded,
    Sample,
    Sets,
)
from perfsuite.devices.sass import triton_kernels, triton_loaded
from perfsuite.model import DeviceFacts, Health, Regime

# A synchronisation takes longer after a long wait (H200: 45 us after 6 ms, 120 after 40 ms).
SLACK_S, SLACK_SHARE = 50e-6, 0.005
TRIES = 30
# Of calling what is late by chance left behind.
MOST_CHANCE = 1e-3
# Queued launches beyond this many block the host inside a sample (the queue holds about 1,000).
QUEUE_LAUNCHES = 500
# Launches without a gap are queued in parts of that, one running and one waiting.
QUEUE_PARTS = 8


class CudaDevice(tensors.TensorDevice):
    """The process's first visible GPU."""

    # Of Dynamo's 800 modules compiled functions, dispatch modes and some gradients make use,
    # seconds in each process. Triton only where there is a GPU: without one its interpreter may be
    # asked for later, by an environment variable that it reads when it is imported.
    preload: ClassVar[tuple[str, ...]] = ("triton", "torch._dynamo")
    backend: ClassVar[str] = NCCL
    name = "cuda"
    has_cycles = True
    settle_tolerance = 0.002
    # What the pacing spin misses of the timer: alone 0 in all of 1,314 blocks, beside a process
    # that multiplied matrices without end 8 to 84 %, in the middle 65 % of 90 (H200).
    foreign_most = 2.0
    untimed = "stamps missed an SM"
    traced = staticmethod(tensors.gpu_kernels)
    shown = staticmethod(tensors.shown)

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        if not torch.cuda.is_available():
            remedy = "check the driver and that this torch is a CUDA build, or use cpu"
            raise DeviceError("torch sees no CUDA GPU", remedy=remedy)
        self._properties = torch.cuda.get_device_properties(0)
        super().__init__(gang, int(self._properties.L2_cache_size))
        self.arch = arch_of(*torch.cuda.get_device_capability(0))
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        Device().set_current()  # cuda.core shares torch's primary context
        self._nvml = Nvml(f"GPU-{self._properties.uuid}")
        self._health = HealthWatch(self._nvml.health)
        self._foreign: list[float] = []
        # Random padding: two processes should not share their addresses' luck.
        self._padding = torch.empty((1 + seed % 61) << 18, dtype=torch.uint8, device="cuda")
        self._watch = Stopwatch(self._stream, self.arch, self._gang.line_up)
        self._own: list[Callable[[], Loaded]] = []
        self._compiled_before = triton_kernels()

    @classmethod
    def prepare_server(cls) -> None:
        """Compile the stamps for the workers."""
        compile_ahead()

    @classmethod
    def wake(cls) -> None:
        """Let the driver make this process's context."""
        torch.cuda.synchronize()

    def facts(self) -> DeviceFacts:
        """Describe the GPU, its state and the software on it."""
        gpu, nvml = self._properties, self._nvml
        seen, state = nvml.environment(), nvml.state()
        ways = tensors.sharing(seen.get("driver", ""), state.get("mig", ""))
        return DeviceFacts(
            device="cuda",
            name=gpu.name,
            unit=hashlib.sha256(f"perfsuite:{gpu.uuid}".encode()).hexdigest()[:12],
            identity={
                "vendor": "nvidia",
                "name": gpu.name,
                "sm_count": str(self._watch.sms),
                "memory_gib": str(round(gpu.total_memory / 2**30)),
                **nvml.identity(),
            },
            state=state,
            environment={**seen, **tensors.software(), "arch": self.arch},
            arch=self.arch,
            gpus=torch.cuda.device_count(),
            memory_bytes=int(gpu.total_memory),
            clocks=("time_us", "cycles"),
            features=(*tensors.features(self.arch), *tensors.compilers(), *ways),
        )

    def context(self, seed: int) -> CudaContext:
        """Return a builder's context."""
        names = ("cuda", "cuda", self.arch)
        return CudaContext(seed, *names, self._gang.rank, self._gang.ranks, loaded=self._own)

    def synchronize(self) -> None:
        """Wait for all work; a sticky error surfaces here."""
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            what = f"the GPU reports: {str(error).splitlines()[0]}"
            remedy = "run the variant alone under compute-sanitizer"
            raise DeviceError(what, remedy=remedy) from error

    def group(self, fn: Fn, sets: Sets, launches: int, *, backend: str) -> Group:
        """Make a group: "graph" (a loop where capture fails), "loop", or "host"."""
        returned: list[Any] = []

        def issue() -> None:
            for index in range(launches - 1):
                fn(*sets[index % len(sets)])
            last = fn(*sets[(launches - 1) % len(sets)])
            # What is timed keeps nothing: the next launch would be handed other memory.
            if torch.cuda.is_current_stream_capturing():
                returned.append(last)

        def await_each() -> None:
            for index in range(launches):
                fn(*sets[index % len(sets)])
                torch.cuda.synchronize()

        if backend == "host":
            return CudaGroup(await_each, launches, "host")
        if backend == "graph":
            replay: Callable[[], None] | None = None
            with contextlib.suppress(RuntimeError):
                replay = self._watch.captured(issue)
            torch.cuda.synchronize()
            # A graph, unless one rank's capture failed.
            if not self._gang.agree(float(replay is None)) and replay is not None:
                return CudaGroup(replay, launches, "graph", returned)
        return CudaGroup(lambda: self._watch.stamped(issue), launches, "loop")

    def sample(
        self, group: Group, count: int, *, regime: Regime, spin_us: float, flush: bool
    ) -> list[Sample]:
        """Time the group ``count`` times between stamps, the empty window taken off."""
        self._health.seen = []
        self._foreign = []
        samples: list[Sample] = []
        for start in range(0, count, ROWS):
            rows = min(ROWS, count - start)
            if group.backend == "host":
                samples += [self._host_sample(group, flush=flush) for _ in range(rows)]
            else:
                samples += self._stamped_samples(group, rows, regime, spin_us=spin_us, flush=flush)
        self.busy_s += sum(sample.time_us for sample in samples if sample.time_us > 0) / 1e6
        return samples

    def joins_streams(self, group: Group) -> bool:
        """Say whether all that a launch starts ends before the measuring stream does."""
        if group.backend == "graph":  # no capture ends while a stream has not joined
            return True
        self._watch.reset()
        waits = self._stream.synchronize, torch.cuda.synchronize
        return joins_streams(group, self._watch.spin, *waits, self._gang.agree)

    def again(self, group: Group, fn: Fn, arguments: Arguments) -> Any:
        """Replay a graph, and return what the last launch in it writes; else launch."""
        if not isinstance(group, CudaGroup) or group.backend != "graph":
            return fn(*arguments)
        group()
        return group.returned[-1]

    def health(self) -> Health:
        """Return what NVML said while the last samples were running."""
        foreign = max(self._foreign, default=None)
        return replace(together(self._health.seen), foreign_percent=foreign)

    def energy_j(self, group: Group, time_s: float) -> float | None:
        """Return what NVML's counter of energy says one launch took.

        A batch is always queued behind the one that runs, so that the GPU never waits for the host.
        """
        queued = group.launches if group.backend == "loop" else 1
        batch = max(1, QUEUE_LAUNCHES // (QUEUE_PARTS * queued))
        torch.cuda.synchronize()
        before, started, count = self._nvml.energy_j(), time.monotonic(), 0
        last: torch.cuda.Event | None = None
        while time.monotonic() - started < time_s:
            for _ in range(batch):
                group()
            count += batch
            event = torch.cuda.Event()
            event.record()
            if last is not None:
                last.synchronize()
            last = event
        torch.cuda.synchronize()
        after = self._nvml.energy_j()
        if before is None or after is None:
            return None
        return (after - before) / count / group.launches

    def peak_bytes(self, fn: Fn, inputs: Arguments) -> int | None:
        """Return what torch's allocator held at most during one launch, beyond the inputs."""
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn(*inputs)
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - held)

    def loaded(self) -> list[Loaded]:
        """Return what NVRTC and Triton compiled since the device was opened."""
        return [*(own() for own in self._own), *triton_loaded(self._compiled_before)]

    def close(self) -> None:
        """Let go of NVML and of memory that nothing holds any more."""
        torch.cuda.empty_cache()
        self._health.close()
        self._nvml.close()

    def _host_sample(self, group: Group, *, flush: bool) -> Sample:
        if flush:
            self._flush()
        torch.cuda.synchronize()
        self._gang.meet()
        start = time.perf_counter_ns()
        group()
        sample = Sample((time.perf_counter_ns() - start) / 1e3)
        self._health.note()
        return sample

    def _stamped_samples(
        self, group: Group, rows: int, regime: Regime, *, spin_us: float, flush: bool
    ) -> list[Sample]:
        self._watch.reset()
        in_flight = 0
        for _ in range(rows):
            if regime is Regime.PACED:
                self._watch.spin(spin_us)
            if flush:
                self._flush()
            group()
            in_flight += group.launches if group.backend == "loop" else 1
            if in_flight >= QUEUE_LAUNCHES:
                self.synchronize()
                in_flight = 0
        self._health.note()
        with self._health.watching():
            self.synchronize()
        self.spun_s += self._watch.spun_ns / 1e9
        foreign = self._watch.foreign_percent()
        self._foreign += [] if foreign is None else [foreign]
        return self._watch.read(rows)


def joins_streams(
    launch: Callable[[], object],
    spin: Callable[[float], object],
    wait_stream: Callable[[], object],
    wait_device: Callable[[], object],
    agree: Callable[[float], float],
) -> bool:
    """Tell work that a launch leaves on other streams from a device that is slow to answer.

    Compare waiting for the measuring stream with waiting for the whole device. The host may be late
    for other reasons, work left behind is late every time. Some devices are slow to say that
    nothing is left, and so they are after a ``spin`` of as many microseconds, which leaves nothing:
    where all waits after launches are long, they are held against waits after spins, by their
    ranks. Ranks that did not ``agree`` would launch unequally often.
    """

    def late(issue: Callable[[], object]) -> tuple[float, float]:
        wait_device()
        begun = time.perf_counter()
        issue()
        wait_stream()
        ended = time.perf_counter()
        wait_device()
        return time.perf_counter() - ended, ended - begun

    after_launch: list[float] = []
    after_spin: list[float] = []
    for _ in range(TRIES):
        left_s, took_s = late(launch)
        after_launch.append(left_s - SLACK_S - SLACK_SHARE * took_s)
        if agree(after_launch[-1]) < 0:
            return True
        after_spin.append(late(partial(spin, 1e6 * took_s))[0])
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(after_launch, after_spin, alternative="greater")
    return agree(float(found.pvalue < MOST_CHANCE)) == 0.0
