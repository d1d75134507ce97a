"""A bf16 matrix multiplication in Triton: its `tl.dot` becomes whatever tensor cores there are."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite_blackwell.tiles import GROUP, dense_tiles


@triton.jit
def tile_at(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return the row and column of tile ``index``, GROUP rows at a time."""
    first = index // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + index % (GROUP * tiles_n) % rows, index % (GROUP * tiles_n) // rows


@triton.jit
def gemm_kernel(
    a_desc, b_desc, c_desc, tiles_m, tiles_n, steps, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write one BLOCK_M x BLOCK_N tile of a @ b, from bulk copies of its operands' tiles."""
    tile_m, tile_n = tile_at(tl.program_id(0), tiles_m, tiles_n, GROUP)
    row = tile_m * BLOCK_M
    column = tile_n * BLOCK_N
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(steps):
        a = a_desc.load([row, step * BLOCK_K])
        b = b_desc.load([step * BLOCK_K, column])
        sums = tl.dot(a, b, sums)
    c_desc.store([row, column], sums.to(c_desc.dtype))


@cache
def chip() -> int:
    """Return the major number of the GPU's compute capability; 0 in Triton's interpreter."""
    return int(torch.cuda.get_device_capability()[0]) if torch.cuda.is_available() else 0


def gemm(a: Any, b: Any, c: Any) -> None:
    """Write a @ b to c; all row-major bf16, m, n and k multiples of the tile's."""
    (m, k), n = a.shape, b.shape[1]
    tiles = dense_tiles(chip())
    gemm_kernel[(m // tiles.m * (n // tiles.n),)](
        TensorDescriptor.from_tensor(a, [tiles.m, tiles.k]),
        TensorDescriptor.from_tensor(b, [tiles.k, tiles.n]),
        TensorDescriptor.from_tensor(c, [tiles.m, tiles.n]), m // tiles.m, n // tiles.n,
        k // tiles.k,
        BLOCK_M=tiles.m, BLOCK_N=tiles.n, BLOCK_K=tiles.k, GROUP=GROUP, num_stages=tiles.stages,
        num_warps=tiles.warps,
    )  # fmt: skip
