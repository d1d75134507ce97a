"""CUDA kernels: compiled and launched; stamps of a GPU's clocks are such kernels, too."""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch
from cuda.bindings import driver
from cuda.core import (
    Kernel,
    LaunchConfig,
    ObjectCode,
    Program,
    ProgramOptions,
    Stream,
    launch,
)

from perfsuite.boundary import DeviceError, PerfError
from perfsuite.devices.nvml import visible_arch
from perfsuite.devices.protocol import Loaded, PlainContext, Sample
from perfsuite.devices.sass import plain_ptx

# The option of kernels that launch kernels: nvcc links them with the device's own runtime, which
# NVRTC alone does not.
RELOCATABLE = "-rdc=true"
COMPILER = "nvcc"
FAST_MATH = ("-use_fast_math", "--use_fast_math")
LIMIT_S = 100.0
# More dynamic shared memory than this must be asked for (CUDA C++ Programming Guide, 7.x).
FREE_SHARED_BYTES = 48 << 10

Dim = int | tuple[int, ...]


@dataclass(slots=True)
class CudaContext(PlainContext):
    """A builder's context on a GPU; ``loaded`` returns each kernel that it compiled."""

    loaded: list[Callable[[], Loaded]] = field(default_factory=list)

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Compile kernel ``name`` (``extern "C"`` or a template instance) of a .cu file.

        ``options`` are NVRTC options, such as ``-DN=4``; a compile error carries NVRTC's own log.
        With ``-rdc=true`` nvcc compiles it, and links it so that kernels can launch kernels.
        """
        asked = str(path), name, self.arch, tuple(options)
        if RELOCATABLE not in options:  # nvcc's code is not compiled a second time to be explained
            self.loaded.append(functools.partial(_loaded, *asked))
        return _kernel(*asked)


class CudaKernel:
    """A compiled kernel; ``kernel(grid, block, *args, shared_bytes=0)`` launches it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._allowed = FREE_SHARED_BYTES

    def __call__(self, grid: Dim, block: Dim, *args: Any, shared_bytes: int = 0) -> None:
        """Launch on torch's current stream; tensors pass their pointer, ints are 64 bits wide."""
        self._allow(shared_bytes)
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        stream = _stream(torch.cuda.current_stream().cuda_stream)
        launch(stream, _config(grid, block, shared_bytes), self._kernel, *values)

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


@functools.cache
def compiled(
    path: str, names: tuple[str, ...], arch: str, options: tuple[str, ...] = ()
) -> ObjectCode:
    """Return kernels of a .cu file as code for ``arch``, not loaded yet: it needs no GPU.

    What a process has compiled, those that it forks have too.
    """
    if RELOCATABLE in options:
        return ObjectCode.from_cubin(linked(path, arch, options))
    try:
        return _program(path, arch, options).compile("cubin", name_expressions=names)
    except Exception as error:
        raise _refused(path, arch, options, f"{', '.join(names)!r}: {error}") from error


def _refused(path: str, arch: str, options: tuple[str, ...], why: str) -> PerfError:
    remedy = "fix the source; options were " + (" ".join(options) or "none")
    return PerfError(f"kernel does not compile for {arch}: {why}", where=path, remedy=remedy)


@functools.cache
def _kernel(path: str, name: str, arch: str, options: tuple[str, ...]) -> CudaKernel:
    return CudaKernel(compiled(path, (name,), arch, options).get_kernel(name))


@functools.cache
def _loaded(path: str, name: str, arch: str, options: tuple[str, ...]) -> Loaded:
    """Return what a kernel is compiled to: a second time, since a kernel does not keep it."""

    def made(kind: str) -> ObjectCode:
        return _program(path, arch, options).compile(kind, name_expressions=(name,))

    ptx = made("ptx")
    lowered = ptx.symbol_mapping.get(name, name)
    symbol = lowered.decode() if isinstance(lowered, bytes) else str(lowered)
    text = plain_ptx(bytes(ptx.code).decode().rstrip("\0"), symbol)
    return Loaded(name, symbol, text, image=lambda: bytes(made("cubin").code))


def _program(path: str, arch: str, options: tuple[str, ...]) -> Program:
    """Return a file with cuda.core's names of -D, -I and one switch; refuse what is unknown."""
    known: dict[str, Any] = {"include_path": [str(Path(path).parent)], "define_macro": []}
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
    return Program(source, "c++", ProgramOptions(std="c++17", arch=arch, **known))


@functools.cache
def _stream(handle: int) -> Stream:
    return Stream.from_handle(handle)


@functools.cache
def _config(grid: Dim, block: Dim, shared_bytes: int) -> LaunchConfig:
    return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)


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


@dataclass(slots=True)
class CudaGroup:
    """Launches timed as one sample: a captured graph, a loop, or calls awaited one by one.

    ``returned`` ends with what the last launch of a graph returned.
    """

    issue: Callable[[], None]
    launches: int
    backend: str
    returned: Sequence[Any] = ()

    def __call__(self) -> None:
        """Issue all launches."""
        self.issue()


# By architecture, what a server compiled for the workers that it forks.
_ahead: dict[str, bytes] = {}


def stamps(arch: str) -> ObjectCode:
    """Return the code of the stamps."""
    if arch in _ahead:
        return ObjectCode.from_cubin(_ahead[arch])
    options = (f"-DROWS={ROWS}", f"-DAWAY_NS={AWAY_NS}ull")
    return compiled(str(STAMPS), (STAMP, ADVANCE, SPIN), arch, options)


def compile_ahead() -> None:
    """Compile the stamps for processes that this one forks; nothing where that fails.

    A child does it: compiling initialises CUDA, and what then forks has no GPU (cuda.core 1.2).
    """
    if arch := visible_arch():
        # It may fail or be killed: then each worker compiles its own.
        with contextlib.suppress(Exception), ProcessPoolExecutor(1, get_context("fork")) as child:
            _ahead[arch] = child.submit(_code_of_stamps, arch).result()


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
        self.empty = Sample(0.0, 0.0)
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
        self.empty = Sample(middle_us, statistics.median(s.cycles for s in good))

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

    def read(self, count: int) -> list[Sample]:
        """Return the first ``count`` rows; a row whose stamps missed an SM has NaN as its time."""
        return [self._read(row) for row in self._rows[:count].cpu().unbind(0)]

    def _mark(self, which: int) -> None:
        where: tuple[Any, ...] = (self._rows, self._cursor, which, self._slots)
        self._stamp(self.sms, THREADS, *where, shared_bytes=self._shared)

    def _read(self, row: torch.Tensor) -> Sample:
        seen = (row[0, :, 0] > 0) & (row[1, :, 0] > 0)
        if int(seen.sum()) != self.sms:
            return Sample(float("nan"))
        elapsed = (row[1, seen] - row[0, seen]).double().median(dim=0).values
        time_us = float(elapsed[1]) / 1e3 - self.empty.time_us
        return Sample(time_us, float(elapsed[0]) - self.empty.cycles)
