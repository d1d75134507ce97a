"""An NVIDIA GPU as a device: kernels, two clocks from per-SM stamps, pacing, graphs, coldness."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar, cast

import cuda.core as core  # noqa: PLR0402 - names cuda.core where it is missing
import torch
from cuda.bindings import driver

from perfsuite.boundary import DeviceError, PerfError
from perfsuite.devices import protocol, tensors
from perfsuite.devices.nvml import Nvml, arch_of, together, visible_arch, watching
from perfsuite.devices.plain import compilers
from perfsuite.devices.protocol import Act
from perfsuite.devices.sass import plain_ptx, triton_kernels, triton_loaded
from perfsuite.gpu import INCLUDED, stream
from perfsuite.model import DeviceFacts, Health, Regime

# The option of kernels that launch kernels: nvcc links them with the device's own runtime, which
# NVRTC alone does not.
RELOCATABLE = "-rdc=true"
COMPILER = "nvcc"
FAST_MATH = ("-use_fast_math", "--use_fast_math")
LIMIT_S = 100.0
# More dynamic shared memory than this must be asked for (CUDA C++ Programming Guide, 7.x).
FREE_SHARED_BYTES = 48 << 10

Dim = int | tuple[int, ...]
Agree = Callable[[float], float]


@dataclass(slots=True)
class CudaContext(protocol.Context):
    """A builder's context on a GPU; ``loaded`` returns each kernel that it compiled."""

    loaded: list[Callable[[], protocol.Loaded]] = field(default_factory=list)

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Compile kernel ``name`` (``extern "C"`` or a template instance) of a .cu file.

        ``options`` are NVRTC options, such as ``-DN=4``; a compile error carries NVRTC's own log.
        With ``-rdc=true`` nvcc compiles it, and links it so that kernels can launch kernels.
        """
        asked = str(path), name, self.arch, tuple(options)
        kernel = _kernel(*asked)
        if RELOCATABLE not in options:  # nvcc's code is not compiled a second time to be explained
            self.loaded.append(partial(_loaded, *asked))
        return kernel

    def count_kernels(self, launch: Callable[[], Any]) -> float:
        """Return the kernels, copies and fills in a graph of one launch."""
        return protocol.graph_kernels(protocol.capture(launch))


class CudaKernel:
    """A compiled kernel; ``kernel(grid, block, *args, shared_bytes=0)`` launches it."""

    def __init__(self, kernel: core.Kernel) -> None:
        self._kernel = kernel
        self._allowed = FREE_SHARED_BYTES

    def __call__(self, grid: Dim, block: Dim, *args: Any, shared_bytes: int = 0) -> None:
        """Launch on torch's current stream; tensors pass their pointer, ints are 64 bits wide."""
        self._allow(shared_bytes)
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        config = _config(grid, block, shared_bytes)
        core.launch(_stream(stream()), config, self._kernel, *values)

    def active_blocks(self, threads: int, shared_bytes: int = 0) -> int:
        """Return how many blocks of ``threads`` one SM holds at once."""
        self._allow(shared_bytes)
        occupancy = self._kernel.occupancy
        return int(occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes))

    def _allow(self, shared_bytes: int) -> None:
        if shared_bytes <= self._allowed:
            return
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        kernel, device = int(self._kernel.handle), torch.cuda.current_device()
        (error,) = driver.cuKernelSetAttribute(attribute, shared_bytes, kernel, device)
        if error != driver.CUresult.CUDA_SUCCESS:
            what = f"the GPU gives no block {shared_bytes} bytes of shared memory ({error.name})"
            raise DeviceError(what, remedy="ask for less shared memory")
        self._allowed = shared_bytes


def linked(path: str, arch: str, options: tuple[str, ...]) -> bytes:
    """Return the cubin of a .cu file, device runtime included; raises PerfError with nvcc's log."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "linked.cubin")
        command = [COMPILER, "-std=c++17", f"-arch={arch}", "-cubin", "-dlink", *options]
        command += [path, "-lcudadevrt", "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        except subprocess.CalledProcessError as error:
            raise _refused(path, arch, options, error.stderr.strip() or error.stdout) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            remedy = f"needs=[perfsuite.feature({COMPILER!r})] skips where there is no nvcc"
            raise PerfError(f"nvcc cannot be run: {error}", where=path, remedy=remedy) from error
        return made.read_bytes()


@cache
def compiled(
    path: str, names: tuple[str, ...], arch: str, options: tuple[str, ...] = ()
) -> core.ObjectCode:
    """Return kernels of a .cu file as code for ``arch``, not loaded yet: it needs no GPU.

    What a process has compiled, those that it forks have too.
    """
    if RELOCATABLE in options:
        return core.ObjectCode.from_cubin(linked(path, arch, options))
    try:
        return _program(path, arch, options).compile("cubin", name_expressions=names)
    except Exception as error:
        raise _refused(path, arch, options, f"{', '.join(names)!r}: {error}") from error


def _refused(path: str, arch: str, options: tuple[str, ...], why: str) -> PerfError:
    remedy = "fix the source; options were " + (" ".join(options) or "none")
    return PerfError(f"kernel does not compile for {arch}: {why}", where=path, remedy=remedy)


@cache
def _kernel(path: str, name: str, arch: str, options: tuple[str, ...]) -> CudaKernel:
    return CudaKernel(compiled(path, (name,), arch, options).get_kernel(name))


@cache
def _loaded(path: str, name: str, arch: str, options: tuple[str, ...]) -> protocol.Loaded:
    """Return what a kernel is compiled to: a second time, since a kernel does not keep it."""

    def made(kind: str) -> core.ObjectCode:
        return _program(path, arch, options).compile(kind, name_expressions=(name,))

    ptx = made("ptx")
    lowered = ptx.symbol_mapping.get(name, name)
    symbol = lowered.decode() if isinstance(lowered, bytes) else str(lowered)
    text = plain_ptx(bytes(ptx.code).decode().rstrip("\0"), symbol)
    return protocol.Loaded(
        name, symbol, text, lambda: bytes(made("cubin").code), file=path, options=options
    )


def _program(path: str, arch: str, options: tuple[str, ...]) -> core.Program:
    """Return a file with cuda.core's names of -D, -I and one switch; refuse what is unknown."""
    known: dict[str, Any] = {"include_path": [str(Path(path).parent), INCLUDED], "define_macro": []}
    for option in options:
        name, _, value = option[2:].partition("=")
        if option.startswith("-D"):
            known["define_macro"].append((name, value) if value else name)
        elif option.startswith("-I"):
            known["include_path"].append(option[2:])
        elif option in FAST_MATH:
            known["use_fast_math"] = True
        else:
            what, remedy = f"unknown NVRTC option {option!r}", "use -DN=4, -IFOLDER, -use_fast_math"
            raise PerfError(what, where=path, remedy=remedy)
    known = {name: value for name, value in known.items() if value}
    source = Path(path).read_text(encoding="utf-8")
    return core.Program(source, "c++", core.ProgramOptions(std="c++17", arch=arch, **known))


# Each stream's is made once: making it costs more than a launch.
_stream = cache(core.Stream.from_handle)


@cache
def _config(grid: Dim, block: Dim, shared_bytes: int) -> core.LaunchConfig:
    return core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)


# Two clocks from one window: per-SM stamps around a group, in the stream or inside its graph.

STAMPS = Path(__file__).with_name("stamps.cu")
STAMP, ADVANCE, SPIN = "stamp", "advance", "spin"
ROWS = 64
THREADS = 1024
EMPTY_SAMPLES = 16
# Two looks of the spin at the timer lie 0.4 us apart at most; a slice of another process takes
# milliseconds.
AWAY_NS = 50_000
# A spin shorter than this does not hide the host's issuing of a sample.
LEAST_SPIN_US = 100.0
# The CUDA runtime keeps a little of each block's shared memory for itself.
RESERVED_SHARED_BYTES = 1024


# By architecture, what a server compiled for the workers that it forks.
_ahead: dict[str, bytes] = {}


def stamps(arch: str) -> core.ObjectCode:
    """Return the code of the stamps."""
    if arch in _ahead:
        return core.ObjectCode.from_cubin(_ahead[arch])
    options = (f"-DROWS={ROWS}", f"-DAWAY_NS={AWAY_NS}ull")
    return compiled(str(STAMPS), (STAMP, ADVANCE, SPIN), arch, options)


@contextlib.contextmanager
def compiling_ahead() -> Iterator[None]:
    """Have the stamps compiled meanwhile for processes that this one forks; nothing if that fails.

    A child does it: compiling initialises CUDA, and what then forks has no GPU (cuda.core 1.2).
    """
    if not (arch := visible_arch()):
        yield
        return
    with ProcessPoolExecutor(1, get_context("fork")) as child:
        code = child.submit(_code_of_stamps, arch)
        yield
        # It may fail or be killed: then each worker compiles its own.
        with contextlib.suppress(Exception):
            _ahead[arch] = code.result()


def _code_of_stamps(arch: str) -> bytes:
    return bytes(stamps(arch).code)


class Stopwatch:
    """Stamps of one GPU: ``row`` by row, a stamp before, a stamp after, and the cursor moves on.

    ``spun_ns`` is how long the spins since ``reset`` took, ``empty`` what two stamps take alone.
    """

    def __init__(self, stream: torch.cuda.Stream, arch: str, line_up: Callable[[], None]) -> None:
        properties = torch.cuda.get_device_properties(0)
        self.sms = int(properties.multi_processor_count)
        self._slots = 2 * self.sms  # %smid need not be dense, on a MIG slice for one
        self._stream = stream
        self._line_up = line_up
        self._rows = torch.zeros(ROWS, 2, self._slots, 2, dtype=torch.int64, device="cuda")
        self._cursor = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._shared = int(properties.shared_memory_per_block_optin) - RESERVED_SHARED_BYTES
        self._away = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.spun_ns = 0
        code = stamps(arch)
        self._stamp, self._advance, self._spin = (
            CudaKernel(code.get_kernel(name)) for name in (STAMP, ADVANCE, SPIN)
        )
        self.empty = protocol.Sample(0.0, 0.0)
        replay = self.captured(lambda: None)
        self.reset()
        for _ in range(EMPTY_SAMPLES):
            self.spin(LEAST_SPIN_US)
            replay()
        torch.cuda.synchronize()
        good = [s for s in self.read(EMPTY_SAMPLES) if s.time_us == s.time_us]
        if not good:
            raise DeviceError("stamps do not reach every SM", remedy="report this GPU and driver")
        middle_us = statistics.median(s.time_us for s in good)
        self.empty = protocol.Sample(middle_us, statistics.median(s.cycles for s in good))

    def reset(self) -> None:
        """Start at the first row, with no stamps in any."""
        self._rows.zero_()
        self._cursor.zero_()
        self._away.zero_()
        self.spun_ns = 0

    def foreign_percent(self) -> float | None:
        """Return how much of the spins since ``reset`` the GPU gave to other processes."""
        return 100 * int(self._away) / self.spun_ns if self.spun_ns else None

    def spin(self, wait_us: float) -> None:
        """Keep the GPU awake but cool with one thread."""
        wait_ns = int(1e3 * max(LEAST_SPIN_US, wait_us))
        self.spun_ns += wait_ns
        self._spin(1, 1, wait_ns, self._away)

    def stamped(self, issue: Callable[[], None]) -> None:
        """Issue launches between two stamps, the first when all ranks' streams have come here."""
        self._line_up()
        self._mark(0)
        issue()
        self._mark(1)
        self._advance(1, 1, self._cursor)

    def captured(self, issue: Callable[[], None]) -> Callable[[], None]:
        """Capture stamps and launches as one graph, so that no gap of the host's lies between."""
        self._line_up()
        issue()  # Handles, workspaces and lazily loaded modules must exist before capture.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # A destructor that frees device memory breaks the capture.
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self.stamped(issue)
        finally:
            gc.enable()
        return cast("Callable[[], None]", graph.replay)

    def read(self, count: int) -> list[protocol.Sample]:
        """Return the first ``count`` rows; a row whose stamps missed an SM has NaN as its time."""
        return [self._read(row) for row in self._rows[:count].cpu().unbind(0)]

    def _mark(self, which: int) -> None:
        where: tuple[Any, ...] = (self._rows, self._cursor, which, self._slots)
        self._stamp(self.sms, THREADS, *where, shared_bytes=self._shared)

    def _read(self, row: torch.Tensor) -> protocol.Sample:
        seen = (row[0, :, 0] > 0) & (row[1, :, 0] > 0)
        if int(seen.sum()) != self.sms:
            return protocol.Sample(float("nan"))
        elapsed = (row[1, seen] - row[0, seen]).double().median(dim=0).values
        time_us = float(elapsed[1]) / 1e3 - self.empty.time_us
        return protocol.Sample(time_us, float(elapsed[0]) - self.empty.cycles)


# The device.

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

    # Triton only where there is a GPU: without one its interpreter may be asked for later, by an
    # environment variable that it reads when it is imported.
    preload: ClassVar[tuple[str, ...]] = ("triton",)
    # Of Dynamo's 800 modules compiled functions, dispatch modes and some gradients make use: 3.2 of
    # the 8 s until a run measured, on a host with an H100.
    # Triton hashes its own files before its first kernel: 200 MB, 0.4 to 0.7 s.
    late: ClassVar[tuple[str, ...]] = ("torch._dynamo", "triton.runtime.cache:triton_key")
    backend: ClassVar[str] = "nccl"
    rank_place: ClassVar[str] = "cuda"
    name = "cuda"
    has_cycles = True
    settle_tolerance = 0.002
    # What the pacing spin misses of the timer: alone 0 in all of 1,314 blocks, beside a process
    # that multiplied matrices without end 8 to 84 %, in the middle 65 % of 90 (H200).
    foreign_most = 2.0
    untimed = "stamps missed an SM"
    traced = staticmethod(tensors.gpu_kernels)

    def __init__(self, *, seed: int = 0, gang: protocol.Gang | None = None) -> None:
        if not torch.cuda.is_available():
            remedy = "check the driver and that this torch is a CUDA build, or use cpu"
            raise DeviceError("torch sees no CUDA GPU", remedy=remedy)
        self._properties = torch.cuda.get_device_properties(0)
        super().__init__(gang, int(self._properties.L2_cache_size))
        self.arch = arch_of(*torch.cuda.get_device_capability(0))
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        core.Device().set_current()  # cuda.core shares torch's primary context
        self._nvml = Nvml(f"GPU-{self._properties.uuid}")
        self._seen: list[Health] = []
        # Random padding: two processes should not share their addresses' luck.
        self._padding = torch.empty((1 + seed % 61) << 18, dtype=torch.uint8, device="cuda")
        self._watch = Stopwatch(self._stream, self.arch, self._gang.line_up)
        self._own: list[Callable[[], protocol.Loaded]] = []
        self._compiled_before = triton_kernels()

    # The stamps are compiled for the workers.
    prepare_server = staticmethod(compiling_ahead)

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
            environment={**seen, **self.software(), "arch": self.arch},
            arch=self.arch,
            gpus=torch.cuda.device_count(),
            memory_bytes=int(gpu.total_memory),
            clocks=("time_us", "cycles"),
            features=(*tensors.features(self.arch), *compilers(), *ways),
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

    def group(
        self, fn: protocol.Fn, sets: protocol.Sets, launches: int, *, backend: str
    ) -> protocol.Group:
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
            return protocol.Group(await_each, launches, "host")
        if backend == "graph":
            replay: Callable[[], None] | None = None
            with contextlib.suppress(RuntimeError):
                replay = self._watch.captured(issue)
            torch.cuda.synchronize()
            # A graph, unless one rank's capture failed.
            if not self._gang.agree(float(replay is None)) and replay is not None:
                return protocol.Group(replay, launches, "graph", returned)
        return protocol.Group(lambda: self._watch.stamped(issue), launches, "loop")

    def sample(
        self, group: protocol.Group, count: int, *, regime: Regime, spin_us: float, flush: bool
    ) -> list[protocol.Sample]:
        """Time the group ``count`` times between stamps, the empty window taken off."""
        self._seen = []
        samples: list[protocol.Sample] = []
        for start in range(0, count, ROWS):
            rows = min(ROWS, count - start)
            if group.backend == "host":
                samples += [self._host_sample(group, flush=flush) for _ in range(rows)]
            else:
                samples += self._stamped_samples(group, rows, regime, spin_us=spin_us, flush=flush)
        self.busy_s += sum(sample.time_us for sample in samples if sample.time_us > 0) / 1e6
        return samples

    def joins_streams(self, group: protocol.Group) -> bool:
        """Say whether all that a launch starts ends before the measuring stream does."""
        if group.backend == "graph":  # no capture ends while a stream has not joined
            return True
        self._watch.reset()
        waits = self._stream.synchronize, torch.cuda.synchronize
        return joins_streams(group, self._watch.spin, *waits, self._gang.agree)

    def again(self, group: protocol.Group, fn: protocol.Fn, arguments: protocol.Arguments) -> Any:
        """Replay a graph, and return what the last launch in it writes; else launch."""
        if group.backend != "graph":
            return fn(*arguments)
        group()
        return group.returned[-1]

    def health(self) -> Health:
        """Return what NVML and the spins said while the last samples were running."""
        return together(self._seen)

    def energy_j(self, group: protocol.Group, time_s: float) -> float | None:
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

    def peak_bytes(self, fn: protocol.Fn, inputs: protocol.Arguments) -> int | None:
        """Return what torch's allocator held at most during one launch, beyond the inputs."""
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fn(*inputs)
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - held)

    def shown(self, issue: Act) -> None:
        """Call ``issue`` between the start and the stop that NVIDIA's profilers wait for."""
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        issue()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()

    def loaded(self) -> list[protocol.Loaded]:
        """Return what NVRTC and Triton compiled since the device was opened."""
        return [*(own() for own in self._own), *triton_loaded(self._compiled_before)]

    def close(self) -> None:
        """Let go of NVML and of memory that nothing holds any more."""
        torch.cuda.empty_cache()
        self._nvml.close()

    def _note(self) -> None:
        self._seen.append(self._nvml.health())

    def _host_sample(self, group: protocol.Group, *, flush: bool) -> protocol.Sample:
        if flush:
            self._flush()
        torch.cuda.synchronize()
        self._gang.meet()
        start = time.perf_counter_ns()
        group()
        sample = protocol.Sample((time.perf_counter_ns() - start) / 1e3)
        self._note()
        return sample

    def _stamped_samples(
        self, group: protocol.Group, rows: int, regime: Regime, *, spin_us: float, flush: bool
    ) -> list[protocol.Sample]:
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
        self._note()
        with watching(self._note):
            self.synchronize()
        self.spun_s += self._watch.spun_ns / 1e9
        self._seen.append(Health(foreign_percent=self._watch.foreign_percent()))
        return self._watch.read(rows)


def joins_streams(
    launch: Act, spin: Callable[[float], object], wait_stream: Act, wait_device: Act, agree: Agree
) -> bool:
    """Tell work that a launch leaves on other streams from a device that is slow to answer.

    Compare waiting for the measuring stream with waiting for the whole device. The host may be late
    for other reasons, work left behind is late every time. Some devices are slow to say that
    nothing is left, and so they are after a ``spin`` of as many microseconds, which leaves nothing:
    where all waits after launches are long, they are held against waits after spins, by their
    ranks. Ranks that did not ``agree`` would launch unequally often.
    """

    def late(issue: Act) -> tuple[float, float]:
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
