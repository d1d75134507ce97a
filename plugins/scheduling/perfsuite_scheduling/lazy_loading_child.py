"""A process of its own that loads torch's GPU libraries, without Python's torch, and times it.

Prints one JSON line. CUDA_MODULE_LOADING has to be set before: the driver reads it when it starts.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

SIZE = 64
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


def main(library: str) -> None:
    """Load ``library`` and multiply one pair of matrices of ones."""
    driver = ctypes.CDLL("libcuda.so.1")
    begun = time.perf_counter()
    _good(driver.cuInit(0), "cuInit")
    context = ctypes.c_void_p()
    _good(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    opened = time.perf_counter()
    ctypes.CDLL(library)
    mapped = time.perf_counter()
    runtime, blas = _loaded("libcudart.so"), _loaded("libcublas.so")
    _good(runtime.cudaFree(None), "cudaFree")
    loaded = time.perf_counter()
    total = _multiply(runtime, blas)
    ended = time.perf_counter()
    mode = ctypes.c_int()
    _good(driver.cuModuleGetLoadingMode(ctypes.byref(mode)), "cuModuleGetLoadingMode")
    told = {
        "mode": mode.value,
        "sum": total,
        "context_ms": 1e3 * (opened - begun),
        "map_ms": 1e3 * (mapped - opened),
        "load_ms": 1e3 * (loaded - mapped),
        "first_gemm_ms": 1e3 * (ended - loaded),
    }
    sys.stdout.write(json.dumps(told) + "\n")


def _loaded(name: str) -> Any:
    """Return a library that another one has brought, whatever its version is."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = Path(line.rpartition(" ")[2])
        if path.name.startswith(name):
            return ctypes.CDLL(str(path))
    raise RuntimeError(f"{name} was not brought along")


def _multiply(runtime: Any, blas: Any) -> float:
    """Return the sum of the product of two matrices of ones."""
    ones = (ctypes.c_float * (SIZE * SIZE))(*[1.0] * (SIZE * SIZE))
    size = ctypes.sizeof(ones)
    places = [ctypes.c_void_p() for _ in range(3)]
    for place in places:
        _good(runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)), "cudaMalloc")
        copied = runtime.cudaMemcpy(place, ones, ctypes.c_size_t(size), _HOST_TO_DEVICE)
        _good(copied, "cudaMemcpy")
    handle = ctypes.c_void_p()
    _good(blas.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    left, right, product = places
    shape = (0, 0, SIZE, SIZE, SIZE, ctypes.byref(one), left, SIZE, right, SIZE)
    done = blas.cublasSgemm_v2(handle, *shape, ctypes.byref(zero), product, SIZE)
    _good(done, "cublasSgemm")
    copied = runtime.cudaMemcpy(ones, product, ctypes.c_size_t(size), _DEVICE_TO_HOST)
    _good(copied, "cudaMemcpy")
    return float(sum(ones))


def _good(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what} failed with {error}")


if __name__ == "__main__":
    main(sys.argv[1])
