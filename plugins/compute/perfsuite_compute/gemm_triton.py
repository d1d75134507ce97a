"""A persistent bf16 matrix multiplication in Triton: bulk tensor copies into tensor cores."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# (block_m, block_n, block_k, stages, warps) by the smallest of m and n they are meant for. Fixed
# rather than autotuned, so that two runs time the same kernel. 128 x 256 gives each of two
# warpgroups a 64 x 256 instruction, the widest there is; its stages and the two halves of the
# epilogue fill the 227 KiB that a block may have. Below 2048 those tiles are fewer than the SMs.
_TILES = {2048: (128, 256, 64, 4, 8), 0: (64, 128, 64, 4, 4)}
_GROUP = 8  # rows of tiles that walk the columns together, so that their B tiles stay in L2


@triton.jit
def tile_at(index, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Return the row and column of tile ``index``, GROUP rows at a time."""
    group_tiles = GROUP * tiles_n
    first = index // group_tiles * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + index % group_tiles % rows, index % group_tiles // rows


@triton.jit
def gemm_kernel(
    a_desc, b_desc, c_desc, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write a @ b to c: each program takes every ``num_programs``-th tile of c."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    stride = tl.num_programs(0)
    # Flattening makes one loop of tiles and steps, so that the copies for the next tile are
    # under way while this one is stored.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, stride, flatten=True):
        tile_m, tile_n = tile_at(tile, tiles_m, tiles_n, GROUP)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(steps):
            a = a_desc.load([row, step * BLOCK_K])
            b = b_desc.load([step * BLOCK_K, column])
            sums = tl.dot(a, b, sums)
        # Two halves need half the shared memory that one store of the whole tile would.
        halves = tl.permute(tl.reshape(sums, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c_desc.store([row, column], left.to(c_desc.dtype))
        c_desc.store([row, column + BLOCK_N // 2], right.to(c_desc.dtype))


def tiles_for(m: int, n: int) -> tuple[int, int, int, int, int]:
    """Return (block_m, block_n, block_k, stages, warps) for an m x n result."""
    return next(tiles for least, tiles in _TILES.items() if min(m, n) >= least)


def gemm(a: Any, b: Any, c: Any) -> None:
    """Write a @ b to c; rows of all three must be multiples of 16 bytes."""
    (m, k), n = a.shape, b.shape[1]
    block_m, block_n, block_k, stages, warps = tiles_for(m, n)
    tiles = triton.cdiv(m, block_m) * triton.cdiv(n, block_n)
    # The interpreter's tensors are on the CPU; three programs make it take more than one tile each.
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count if a.is_cuda else 3
    gemm_kernel[(min(tiles, sms),)](
        TensorDescriptor.from_tensor(a, [block_m, block_k]),
        TensorDescriptor.from_tensor(b, [block_k, block_n]),
        TensorDescriptor.from_tensor(c, [block_m, block_n // 2]), m, n, k,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=_GROUP, num_stages=stages,
        num_warps=warps,
    )  # fmt: skip
