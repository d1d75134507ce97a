"""A few rows times a large weight matrix in Triton, in bf16 or from 8- and 4-bit weights."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Weights are the tall operand of the tensor cores, and the few rows of x the narrow one: they are
# what is read, and 8- and 4-bit ones become bf16 in the registers that the instruction takes.
BLOCK_K = 128  # also how many 4-bit weights share a scale
FEWEST = 16  # columns that tl.dot takes
STAGES = 4
# Two programs of bf16 fit a multiprocessor, with 128 KiB in flight: several times what HBM's
# latency times its share of the bandwidth asks for. More splits would be more sums to add.
PROGRAMS_PER_SM = 2
# A 4-bit code in the low bits of a float of this exponent is that float plus the code; codes are
# 8 too large.
MAGIC = {torch.bfloat16: (0x4300, 136.0), torch.float16: (0x6400, 1032.0)}


@triton.jit
def _nibble(code, MAGIC: tl.constexpr, OFFSET: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a 4-bit code minus 8 in the dtype of x."""
    return (code.to(tl.int16) | MAGIC).to(dtype, bitcast=True) - OFFSET


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    sums, x_ptr, w_ptr, scale_ptr, rows, outs, first, m, n, k,
    KIND: tl.constexpr, BLOCK_K: tl.constexpr, MAGIC: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Add BLOCK_K columns of w, times those of x, to sums [outs, rows]."""
    HALF: tl.constexpr = BLOCK_K // 2
    if KIND == "int4":
        inner = tl.arange(0, HALF)
        # Byte j of a group holds its weights j (low) and j + 64 (high).
        at = outs[:, None].to(tl.int64) * (k // 2) + (first // 2 + inner)[None, :]
        packed = tl.load(w_ptr + at, mask=outs[:, None] < n, other=0)
        x_at = x_ptr + rows[None, :] * k + (first + inner)[:, None]
        seen = rows[None, :] < m
        low = tl.load(x_at, mask=seen, other=0.0)
        high = tl.load(x_at + HALF, mask=seen, other=0.0)
        part = tl.dot(_nibble(packed & 15, MAGIC, OFFSET, x_ptr.dtype.element_ty), low)
        part = tl.dot(_nibble(packed >> 4, MAGIC, OFFSET, x_ptr.dtype.element_ty), high, part)
        groups = k // BLOCK_K
        scale = tl.load(scale_ptr + outs * groups + first // BLOCK_K, mask=outs < n, other=0.0)
        return sums + part * scale[:, None]
    inner = first + tl.arange(0, BLOCK_K)
    at = outs[:, None].to(tl.int64) * k + inner[None, :]
    w = tl.load(w_ptr + at, mask=(outs[:, None] < n) & (inner[None, :] < k), other=0)
    x_at = x_ptr + rows[None, :] * k + inner[:, None]
    x = tl.load(x_at, mask=(rows[None, :] < m) & (inner[:, None] < k), other=0.0)
    return tl.dot(w.to(x.dtype), x, sums)


@triton.jit
def skinny_kernel(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, scale_ptr, y_ptr, partial_ptr, arrived_ptr, m, n, k, steps, splits,
    KIND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    MAGIC: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Write x [m, k] times the transpose of w [n, k] to y [m, n].

    Program (i, j, s) takes part s of k, ``steps`` blocks of it. Of ``splits`` parts, the program
    that finishes last adds all of them in order, so that the result does not depend on who that
    is, and sets its counter back to 0.
    """
    tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    part = tl.program_id(2)
    outs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    start = part * steps * BLOCK_K
    for first in range(start, min(k, start + steps * BLOCK_K), BLOCK_K):
        sums = _step(
            sums, x_ptr, w_ptr, scale_ptr, rows, outs, first, m, n, k, KIND, BLOCK_K, MAGIC, OFFSET
        )  # fmt: skip
    inside = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    is_last = splits == 1
    if splits > 1:
        mine = partial_ptr + (tile * splits + part) * (BLOCK_N * BLOCK_M)
        tl.store(mine + inside, sums)
        tl.debug_barrier()  # all of the tile is written before it is counted
        is_last = tl.atomic_add(arrived_ptr + tile, 1) == splits - 1
        if is_last:
            sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
            for other in range(splits):
                theirs = partial_ptr + (tile * splits + other) * (BLOCK_N * BLOCK_M)
                sums += tl.load(theirs + inside, cache_modifier=".cg")
            tl.store(arrived_ptr + tile, 0)
    if is_last:
        if KIND == "int8":
            sums = sums * tl.load(scale_ptr + outs, mask=outs < n, other=0.0)[:, None]
        seen = (rows[None, :] < m) & (outs[:, None] < n)
        tl.store(y_ptr + rows[None, :] * n + outs[:, None], sums.to(y_ptr.dtype.element_ty), seen)


def tiles_for(m: int) -> tuple[int, int, int]:
    """Return (block_n, block_m, warps) for m rows."""
    return (128, 128, 8) if m > 64 else (64, max(FEWEST, triton.next_power_of_2(m)), 4)  # noqa: PLR2004


def launch(m: int, n: int, k: int, *, kind: str, place: str, programs: int) -> Any:
    """Return ``launch(x, w, scale, y)`` for weights of ``kind``: bf16, int8 or int4.

    k is a multiple of 128 for int4. ``programs`` run at once; scratch memory is allocated once,
    here.
    """
    block_n, block_m, warps = tiles_for(m)
    grid = triton.cdiv(n, block_n), triton.cdiv(m, block_m)
    blocks = triton.cdiv(k, BLOCK_K)
    steps = max(STAGES, triton.cdiv(blocks, max(1, programs // (grid[0] * grid[1]))))
    splits = triton.cdiv(blocks, steps)
    tiles = grid[0] * grid[1]
    partials = torch.empty(tiles * splits * block_n * block_m * (splits > 1) + 1, device=place)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=place)

    def run(x: Any, w: Any, scale: Any, y: Any) -> None:
        magic, offset = MAGIC[x.dtype]
        skinny_kernel[(*grid, splits)](
            x, w, scale, y, partials, arrived, m, n, k, steps, splits,
            KIND=kind, BLOCK_N=block_n, BLOCK_M=block_m, BLOCK_K=BLOCK_K,
            MAGIC=magic, OFFSET=offset, num_stages=STAGES, num_warps=warps,
        )  # fmt: skip

    return run
