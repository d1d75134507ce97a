"""The same kernel through the launchers of numba-cuda and of CuPy, on torch's stream."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from perfsuite.gpu import stream

SOURCE = Path(__file__).with_name("launch_latency.cu")


def numba_add() -> Any:
    """Return the launch by numba-cuda, which takes arrays."""
    cuda: Any = import_module("numba.cuda")  # it may be missing, and has no types

    def add_one(source: Any, target: Any) -> None:
        target[0] = source[0] + 1

    kernel, stream_at = cuda.jit(add_one), cache(cuda.external_stream)

    def add(source: Any, target: Any) -> None:
        arrays = (cuda.as_cuda_array(tensor, sync=False) for tensor in (source, target))
        kernel[1, 1, stream_at(stream())](*arrays)

    return add


def cupy_add() -> Any:
    """Return the launch by CuPy of the kernel in CUDA C++, which takes addresses."""
    cupy: Any = import_module("cupy")  # it may be missing, and has no types
    kernel = cupy.RawKernel(SOURCE.read_text(encoding="utf-8"), "add_one")
    stream_at = cache(cupy.cuda.ExternalStream)

    def add(source: Any, target: Any) -> None:
        with stream_at(stream()):
            kernel((1,), (1,), (source.data_ptr(), target.data_ptr()))

    return add
