"""A process of its own that loads cuBLAS, multiplies once and times it, by the driver alone.

Prints one JSON line. CUDA_MODULE_LOADING has to be set before: the driver reads it when it starts.
"""

import ctypes
import json
import sys
import time
from typing import Any

SIZE = 64


def main(library: str) -> None:
    """Load ``library``, which is cuBLAS, and multiply one pair of matrices of ones."""
    driver = ctypes.CDLL("libcuda.so.1")
    begun = time.perf_counter()
    _good(driver.cuInit(0), "cuInit")
    context = ctypes.c_void_p()
    _good(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    _good(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    opened = time.perf_counter()
    blas = ctypes.CDLL(library)
    mapped = time.perf_counter()
    handle = ctypes.c_void_p()
    _good(blas.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    loaded = time.perf_counter()
    total = _multiply(driver, blas, handle)
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


def _multiply(driver: Any, blas: Any, handle: Any) -> float:
    """Return the sum of the product of two matrices of ones."""
    ones = (ctypes.c_float * (SIZE * SIZE))(*[1.0] * (SIZE * SIZE))
    size = ctypes.c_size_t(ctypes.sizeof(ones))
    places = [ctypes.c_uint64() for _ in range(3)]
    for place in places:
        _good(driver.cuMemAlloc_v2(ctypes.byref(place), size), "cuMemAlloc")
        _good(driver.cuMemcpyHtoD_v2(place, ones, size), "cuMemcpyHtoD")
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    left, right, product = places
    shape = (0, 0, SIZE, SIZE, SIZE, ctypes.byref(one), left, SIZE, right, SIZE)
    done = blas.cublasSgemm_v2(handle, *shape, ctypes.byref(zero), product, SIZE)
    _good(done, "cublasSgemm")
    _good(driver.cuMemcpyDtoH_v2(ones, product, size), "cuMemcpyDtoH")
    return float(sum(ones))


def _good(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what} failed with {error}")


if __name__ == "__main__":
    main(sys.argv[1])
