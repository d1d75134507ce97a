"""CUDA kernels: compiled, loaded, launched and captured in graphs."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from perfsuite.devices.protocol import Loaded, plain_ptx

# Compiles CUDA C++ whose kernels launch kernels: nvcc links it with the device's own runtime.


# The option that asks for it; NVRTC alone does not link.
RELOCATABLE = "-rdc=true"
COMPILER = "nvcc"
LIMIT_S = 100.0


def linked(path: str, arch: str, options: tuple[str, ...]) -> bytes:
    """Return the cubin of a .cu file, device runtime included; raises PerfError with nvcc's log."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "linked.cubin")
        command = [COMPILER, "-std=c++17", f"-arch={arch}", "-cubin", "-dlink", *options]
        try:
            done = subprocess.run(
                [*command, path, "-lcudadevrt", "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            remedy = f"needs=[perfsuite.feature({COMPILER!r})] skips where there is no nvcc"
            raise PerfError(f"nvcc cannot be run: {error}", where=path, remedy=remedy) from error
        if done.returncode:
            raise PerfError(
                f"does not compile for {arch}: {done.stderr.strip() or done.stdout.strip()}",
                where=path,
                remedy="fix the source; options were " + " ".join(options),
            )
        return made.read_bytes()


# Compiles CUDA C++ through NVRTC and launches it on torch's current stream.


# More dynamic shared memory than this must be asked for (CUDA C++ Programming Guide, 7.x).
FREE_SHARED_BYTES = 48 << 10

Dim = int | tuple[int, ...]


@dataclass(slots=True)
class CudaContext:
    """A builder's context on a GPU."""

    arch: str
    seed: int
    device: str = "cuda"
    place: str = "cuda"
    rank: int = 0
    ranks: int = 1
    loaded: list[Callable[[], Loaded]] = field(default_factory=list)

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Compile a kernel of a .cu file for this GPU."""
        if RELOCATABLE not in options:  # nvcc's code is not compiled a second time to be explained
            made = functools.partial(_loaded, str(path), name, self.arch, tuple(options))
            self.loaded.append(made)
        return load_kernel(path, name, arch=self.arch, options=options)


class CudaKernel:
    """A compiled kernel; ``kernel(grid, block, *args, shared_bytes=0)`` launches it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._allowed = FREE_SHARED_BYTES

    def __call__(self, grid: Dim, block: Dim, *args: Any, shared_bytes: int = 0) -> None:
        """Launch on torch's current stream; tensors pass their pointer, ints are 64 bits wide."""
        if shared_bytes > self._allowed:
            self._allow(shared_bytes)
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        stream = _stream(torch.cuda.current_stream().cuda_stream)
        launch(stream, _config(grid, block, shared_bytes), self._kernel, *values)

    def active_blocks(self, threads: int, shared_bytes: int = 0) -> int:
        """Return how many blocks of ``threads`` one SM holds at once."""
        if shared_bytes > self._allowed:
            self._allow(shared_bytes)
        return int(
            self._kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared_bytes)
        )

    def _allow(self, shared_bytes: int) -> None:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = torch.cuda.current_device()
        (error,) = driver.cuKernelSetAttribute(
            attribute, shared_bytes, int(self._kernel.handle), device
        )
        if error != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(
                f"the GPU gives no block {shared_bytes} bytes of shared memory ({error.name})",
                remedy="ask for less shared memory",
            )
        self._allowed = shared_bytes


def load_kernel(
    path: str | Path, name: str, *, arch: str, options: Sequence[str] = ()
) -> Callable[..., None]:
    """Compile kernel ``name`` (``extern "C"`` or a template instance) of a .cu file for ``arch``.

    ``options`` are NVRTC options, such as ``-DN=4``; a compile error carries NVRTC's own log.
    With ``-rdc=true`` nvcc compiles it, and links it so that kernels can launch kernels.
    """
    return CudaKernel(_compile(str(path), name, arch, tuple(options)))


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
        raise PerfError(
            f"kernel {', '.join(names)!r} does not compile for {arch}: {error}",
            where=path,
            remedy="fix the source; options were " + (" ".join(options) or "none"),
        ) from error


@functools.cache
def _compile(path: str, name: str, arch: str, options: tuple[str, ...]) -> Kernel:
    return compiled(path, (name,), arch, options).get_kernel(name)


@functools.cache
def _loaded(path: str, name: str, arch: str, options: tuple[str, ...]) -> Loaded:
    """Return what a kernel is compiled to: a second time, since a kernel does not keep it."""

    def made(kind: str) -> ObjectCode:
        return _program(path, arch, options).compile(kind, name_expressions=(name,))

    ptx = made("ptx")
    lowered = ptx.symbol_mapping.get(name, name)
    symbol = lowered.decode() if isinstance(lowered, bytes) else str(lowered)
    return Loaded(
        name=name,
        symbol=symbol,
        ptx=plain_ptx(bytes(ptx.code).decode().rstrip("\0"), symbol),
        image=lambda: bytes(made("cubin").code),
    )


def _program(path: str, arch: str, options: tuple[str, ...]) -> Program:
    source = Path(path).read_text(encoding="utf-8")
    chosen = ProgramOptions(std="c++17", arch=arch, **_options(path, options))
    return Program(source, "c++", chosen)


def _options(path: str, options: tuple[str, ...]) -> dict[str, Any]:
    """Return the cuda.core names of -D, -I and a few switches; refuse what is unknown."""
    macros: list[Any] = []
    includes = [str(Path(path).parent)]
    switches: dict[str, Any] = {}
    for option in options:
        if option.startswith("-D"):
            macro, _, value = option[2:].partition("=")
            macros.append((macro, value) if value else macro)
        elif option.startswith("-I"):
            includes.append(option[2:])
        elif option in ("-use_fast_math", "--use_fast_math"):
            switches["use_fast_math"] = True
        else:
            raise PerfError(
                f"unknown NVRTC option {option!r}",
                where=path,
                remedy="use -DNAME=VALUE, -IFOLDER or -use_fast_math",
            )
    if macros:
        switches["define_macro"] = macros
    return {"include_path": includes, **switches}


@functools.cache
def _stream(handle: int) -> Stream:
    return Stream.from_handle(handle)


@functools.cache
def _config(grid: Dim, block: Dim, shared_bytes: int) -> LaunchConfig:
    return LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
