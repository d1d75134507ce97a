"""Kernels in numba-cuda, compiled by NVVM to PTX and by ptxas to machine code."""

import math
import re
import subprocess
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from perfsuite import CaseError
from perfsuite_codegen.compiling import Binary

# numba ships no types, and is not there on every machine.
numba: Any = import_module("numba")
cuda: Any = import_module("numba.cuda")
COLUMNS = 1024
WARPS = COLUMNS // 32
EVERY_LANE = 0xFFFFFFFF


def add(a: Any, b: Any, c: Any) -> None:
    """Write one element of a + b a thread."""
    i = cuda.grid(1)
    if i < c.size:
        c[i] = a[i] + b[i]


def softmax(x: Any, y: Any) -> None:
    """Write the softmax of one row a block, one element a thread."""
    parts = cuda.shared.array(WARPS, numba.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    top = x[row, thread]
    for step in (16, 8, 4, 2, 1):
        top = max(top, cuda.shfl_down_sync(EVERY_LANE, top, step))
    if thread % 32 == 0:
        parts[thread // 32] = top
    cuda.syncthreads()
    top = parts[0]
    for warp in range(1, WARPS):
        top = max(top, parts[warp])
    cuda.syncthreads()
    grown = math.exp(x[row, thread] - top)
    total = grown
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(EVERY_LANE, total, step)
    if thread % 32 == 0:
        parts[thread // 32] = total
    cuda.syncthreads()
    total = numba.float32(0)
    for warp in range(WARPS):
        total += parts[warp]
    y[row, thread] = grown / total


def compile_kernel(kernel: str, target: str) -> Binary:
    """Return the machine code of a kernel for sm_90a, sm_100a; numba itself knows no ``a``."""
    function, ranks = {"add": (add, (1, 1, 1)), "softmax": (softmax, (2, 2))}[kernel]
    types = numba.types
    signature = types.void(*(types.Array(types.float32, rank, "C") for rank in ranks))
    capability = divmod(int(re.sub(r"\D", "", target)), 10)
    ptx, _ = cuda.compile(function, signature, device=False, abi="numba", cc=capability)
    (symbol,) = re.findall(r"\.entry\s+([^\s(]+)\(", ptx)
    ptxas = import_module("cuda.pathfinder").find_nvidia_binary_utility("ptxas")
    if ptxas is None:
        raise CaseError(
            "there is no ptxas", remedy="install nvidia-cuda-nvcc, as old as nvidia-nvvm"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        subprocess.run([ptxas, f"-arch={target}", source, "-o", image], check=True)
        return Binary(image.read_bytes(), symbol, 0)
