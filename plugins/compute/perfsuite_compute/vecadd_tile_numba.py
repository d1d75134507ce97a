"""A vector sum, sums of rows and a small matrix product as numba-cuda's documentation has them."""

from importlib import import_module
from typing import Any

# numba ships no types, and is not there on every machine.
numba: Any = import_module("numba")
cuda: Any = import_module("numba.cuda")
THREADS = 256
TILE = 16


def add_kernel(x: Any, y: Any, out: Any) -> None:
    """Write one element of x + y a thread."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def rowsum_kernel(x: Any, out: Any) -> None:
    """Write the sum of one row a block: a tree in shared memory; rows are THREADS wide."""
    sums = cuda.shared.array(THREADS, numba.float32)
    i = cuda.threadIdx.x
    sums[i] = x[cuda.blockIdx.x, i]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if i < half:
            sums[i] += sums[i + half]
        cuda.syncthreads()
        half //= 2
    if i == 0:
        out[cuda.blockIdx.x] = sums[0]


def matmul_kernel(a: Any, b: Any, c: Any) -> None:
    """Write one tile of a @ b a block through shared memory; sizes are multiples of TILE."""
    left = cuda.shared.array((TILE, TILE), numba.float32)
    right = cuda.shared.array((TILE, TILE), numba.float32)
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    to_row = cuda.blockIdx.y * TILE + row
    to_column = cuda.blockIdx.x * TILE + column
    total = numba.float32(0.0)
    for start in range(0, a.shape[1], TILE):
        left[row, column] = a[to_row, start + column]
        right[row, column] = b[start + row, to_column]
        cuda.syncthreads()
        for i in range(TILE):
            total += left[row, i] * right[i, column]
        cuda.syncthreads()
    c[to_row, to_column] = total


def launch(op: str) -> Any:
    """Return the launch of an operation on torch's tensors and stream."""
    kernels = {"add": add_kernel, "rowsum": rowsum_kernel, "matmul": matmul_kernel}
    compiled = cuda.jit(kernels[op])

    def run(*tensors: Any) -> None:
        import torch

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        arrays = [cuda.as_cuda_array(tensor, sync=False) for tensor in tensors]
        compiled[(*geometry(op, tensors[-1]), stream)](*arrays)

    return run


def geometry(op: str, out: Any) -> tuple[Any, Any]:
    """Return the grid and the block."""
    if op == "matmul":
        return (out.shape[1] // TILE, out.shape[0] // TILE), (TILE, TILE)
    return (-(-out.shape[0] // THREADS) if op == "add" else out.shape[0]), THREADS
