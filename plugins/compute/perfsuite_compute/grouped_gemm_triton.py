"""All experts' matrix multiplications in one persistent Triton kernel."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# 128 x 256: with smaller tiles, what they read again from L2 takes longer than their products.
BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
STAGES, WARPS = 4, 8


@triton.jit
def grouped_kernel(
    x_desc, w_desc, y_ptr, ends_ptr, groups, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write x [rows, k] times w [group, n, k], transposed, to y [rows, n].

    Group g has the rows from ends[g - 1] to ends[g]. Each program takes every ``num_programs``-th
    tile; the rows of tiles of a column follow one another, so that their tile of w stays in L2. A
    copy may reach into the next group, whose rows are not stored.
    """
    tiles_n = tl.cdiv(n, BLOCK_N)
    steps = tl.cdiv(k, BLOCK_K)
    tile = tl.program_id(0)
    first = 0  # the group's first tile, of all groups' tiles
    begin = 0
    for group in range(groups):
        end = tl.load(ends_ptr + group)
        tiles_m = tl.cdiv(end - begin, BLOCK_M)
        while tile < first + tiles_m * tiles_n:
            row = begin + (tile - first) % tiles_m * BLOCK_M
            column = (tile - first) // tiles_m * BLOCK_N
            sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for step in range(steps):
                x = x_desc.load([row, step * BLOCK_K])
                w = w_desc.load([group * n + column, step * BLOCK_K])
                sums = tl.dot(x, w.T, sums)
            rows = row + tl.arange(0, BLOCK_M)
            columns = column + tl.arange(0, BLOCK_N)
            at = rows[:, None].to(tl.int64) * n + columns[None, :]
            seen = (rows[:, None] < end) & (columns[None, :] < n)
            tl.store(y_ptr + at, sums.to(y_ptr.dtype.element_ty), mask=seen)
            tile += tl.num_programs(0)
        first += tiles_m * tiles_n
        begin = end


def launch(*, programs: int) -> Any:
    """Return ``launch(x, w, ends, y)``; k is a multiple of 8, ``programs`` run at once."""

    def run(x: Any, w: Any, ends: Any, y: torch.Tensor) -> None:
        groups, n, k = w.shape
        grouped_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [BLOCK_M, BLOCK_K]),
            TensorDescriptor.from_tensor(w.view(groups * n, k), [BLOCK_N, BLOCK_K]),
            y, ends, groups, n, k,
            BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K,
            num_stages=STAGES, num_warps=WARPS,
        )  # fmt: skip

    return run
