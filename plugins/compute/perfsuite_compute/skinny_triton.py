"""A few rows times a large weight matrix in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

# Weights are the tall operand of the tensor cores, and the few rows of x the narrow one: they are
# what is read.
BLOCK_N, BLOCK_K, STAGES, WARPS = 64, 128, 4, 4
FEWEST, MOST = 16, 64  # rows of a program; tl.dot takes 16 columns at least
# Two programs of bf16 fit a multiprocessor, with 128 KiB in flight: several times what HBM's
# latency times its share of the bandwidth asks for. More splits would be more sums to add.
PROGRAMS_PER_SM = 2


@triton.jit
def _step(
    sums, x_ptr, w_ptr, rows, outs, first, m, n, k, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr
):
    """Add BLOCK_K columns of w, times those of x, to sums [outs, rows]; WHOLE: none is beyond k."""
    inner = first + tl.arange(0, BLOCK_K)
    at = outs[:, None].to(tl.int64) * k + inner[None, :]
    x_at = x_ptr + rows[None, :] * k + inner[:, None]
    if WHOLE:
        w = tl.load(w_ptr + at, mask=outs[:, None] < n, other=0)
        x = tl.load(x_at, mask=rows[None, :] < m, other=0.0)
    else:
        w = tl.load(w_ptr + at, mask=(outs[:, None] < n) & (inner[None, :] < k), other=0)
        x = tl.load(x_at, mask=(rows[None, :] < m) & (inner[:, None] < k), other=0.0)
    return tl.dot(w, x, sums)


@triton.jit
def _total(parts, splits):
    """Return the sum of all parts of a tile, one behind the other; the first lies at ``parts``."""
    sums = tl.zeros(parts.shape, dtype=tl.float32)
    for part in range(splits):
        sums += tl.load(parts + part * (parts.shape[0] * parts.shape[1]), cache_modifier=".cg")
    return sums


@triton.jit
def skinny_kernel(
    x_ptr, w_ptr, y_ptr, partial_ptr, arrived_ptr, m, n, k, steps, splits,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Write x [m, k] times the transpose of w [n, k] to y [m, n].

    Program (i, j, s), for rows i and outputs j, takes part s of k, ``steps`` blocks of it. Programs
    of the same weights are neighbours: they are read once. Of ``splits`` parts, the program that
    finishes last adds all of them in order, so that the result does not depend on who that is, and
    sets its counter back to 0.
    """
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    part = tl.program_id(2)
    outs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    start = part * steps * BLOCK_K
    for first in range(start, min(k, start + steps * BLOCK_K), BLOCK_K):
        sums = _step(sums, x_ptr, w_ptr, rows, outs, first, m, n, k, BLOCK_K, WHOLE)
    inside = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    is_last = splits == 1
    if splits > 1:
        tl.store(partial_ptr + (tile * splits + part) * (BLOCK_N * BLOCK_M) + inside, sums)
        tl.debug_barrier()  # all of the tile is written before it is counted
        is_last = tl.atomic_add(arrived_ptr + tile, 1) == splits - 1
        if is_last:
            sums = _total(partial_ptr + tile * splits * (BLOCK_N * BLOCK_M) + inside, splits)
            tl.store(arrived_ptr + tile, 0)
    if is_last:
        seen = (rows[None, :] < m) & (outs[:, None] < n)
        tl.store(y_ptr + rows[None, :] * n + outs[:, None], sums.to(y_ptr.dtype.element_ty), seen)


def launch(m: int, n: int, k: int, *, place: str, programs: int) -> Any:
    """Return ``launch(x, w, y)``; ``programs`` run at once. Scratch memory is allocated here."""
    block_m = min(MOST, max(FEWEST, triton.next_power_of_2(m)))
    grid = triton.cdiv(m, block_m), triton.cdiv(n, BLOCK_N)
    tiles, blocks = grid[0] * grid[1], triton.cdiv(k, BLOCK_K)
    steps = max(STAGES, triton.cdiv(blocks, max(1, programs // tiles)))
    splits = triton.cdiv(blocks, steps)
    partials = torch.empty(tiles * splits * BLOCK_N * block_m * (splits > 1) + 1, device=place)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=place)

    def run(x: Any, w: Any, y: Any) -> None:
        skinny_kernel[(*grid, splits)](
            x, w, y, partials, arrived, m, n, k, steps, splits,
            BLOCK_N=BLOCK_N, BLOCK_M=block_m, BLOCK_K=BLOCK_K, WHOLE=k % BLOCK_K == 0,
            num_stages=STAGES, num_warps=WARPS,
        )  # fmt: skip

    return run
