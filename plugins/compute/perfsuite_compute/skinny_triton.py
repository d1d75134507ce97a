"""A few rows times a large weight matrix in Triton, in bf16 or from 8- and 4-bit weights."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

# Weights are the tall operand of the tensor cores, and the few rows of x the narrow one: they are
# what is read, and 8- and 4-bit ones become bf16 in the registers that the instruction takes.
GROUP = 128  # 4-bit weights that share a scale
FEWEST = 16  # columns that tl.dot takes
FEW = 64  # rows up to which the weights' bytes are what takes time
# Two programs of bf16 fit a multiprocessor, with 128 KiB in flight: several times what HBM's
# latency times its share of the bandwidth asks for. More splits would be more sums to add.
PROGRAMS_PER_SM = 2
# A 4-bit code in the low bits of a float of this exponent is that float plus the code; codes are
# 8 too large.
MAGIC = {torch.bfloat16: (0x4300, 136.0), torch.float16: (0x6400, 1032.0)}


@triton.jit
def _nibble(code, MAGIC: tl.constexpr, OFFSET: tl.constexpr, dtype: tl.constexpr):
    """Return a 4-bit code minus 8 in the dtype of x."""
    return (code.to(tl.int16) | MAGIC).to(dtype, bitcast=True) - OFFSET


@triton.jit
def _step_of_nibbles(
    sums, x_ptr, w_ptr, scale_ptr, rows, outs, first, m, n, k, BLOCK_K: tl.constexpr,
    MAGIC: tl.constexpr, OFFSET: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Add a group of 4-bit weights, times x; with SCALED each is multiplied by its scale in bf16.

    Otherwise the group's sum is, in fp32: more exact, for twice the registers.
    """
    HALF: tl.constexpr = BLOCK_K // 2
    dtype = x_ptr.dtype.element_ty
    inner = tl.arange(0, HALF)
    # Byte j of a group holds its weights j (low) and j + 64 (high).
    at = outs[:, None].to(tl.int64) * (k // 2) + (first // 2 + inner)[None, :]
    packed = tl.load(w_ptr + at, mask=outs[:, None] < n, other=0)
    x_at = x_ptr + rows[None, :] * k + (first + inner)[:, None]
    seen = rows[None, :] < m
    low = tl.load(x_at, mask=seen, other=0.0)
    high = tl.load(x_at + HALF, mask=seen, other=0.0)
    scale_at = scale_ptr + outs * (k // BLOCK_K) + first // BLOCK_K
    scale = tl.load(scale_at, mask=outs < n, other=0.0)[:, None]
    lower = _nibble(packed & 15, MAGIC, OFFSET, dtype)
    upper = _nibble(packed >> 4, MAGIC, OFFSET, dtype)
    if SCALED:
        sums = tl.dot(lower * scale.to(dtype), low, sums)
        return tl.dot(upper * scale.to(dtype), high, sums)
    return sums + tl.dot(upper, high, tl.dot(lower, low)) * scale


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
    return tl.dot(w.to(x.dtype), x, sums)


@triton.jit
def _total(parts, splits):
    """Return the sum of all parts of a tile, one behind the other; the first lies at ``parts``."""
    sums = tl.zeros(parts.shape, dtype=tl.float32)
    for part in range(splits):
        sums += tl.load(parts + part * (parts.shape[0] * parts.shape[1]), cache_modifier=".cg")
    return sums


@triton.jit
def skinny_kernel(
    x_ptr, w_ptr, scale_ptr, y_ptr, partial_ptr, arrived_ptr, m, n, k, steps, splits,
    KIND: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    MAGIC: tl.constexpr, OFFSET: tl.constexpr, SCALED: tl.constexpr, WHOLE: tl.constexpr,
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
        if KIND == "int4":
            sums = _step_of_nibbles(
                sums, x_ptr, w_ptr, scale_ptr, rows, outs, first, m, n, k,
                BLOCK_K, MAGIC, OFFSET, SCALED,
            )  # fmt: skip
        else:
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
        if KIND == "int8":
            sums = sums * tl.load(scale_ptr + outs, mask=outs < n, other=0.0)[:, None]
        seen = (rows[None, :] < m) & (outs[:, None] < n)
        tl.store(y_ptr + rows[None, :] * n + outs[:, None], sums.to(y_ptr.dtype.element_ty), seen)


def tiles_for(m: int, kind: str) -> tuple[int, int, int, int, int]:
    """Return (block_n, block_m, block_k, stages, warps) for m rows and weights of ``kind``.

    With more than FEW rows tensor cores wait for weights to become bf16: a tile has all of 256
    rows, so that each weight is converted once, and as many stages as shared memory has room for.
    """
    if m <= FEW:
        outs, warps = (128, 8) if kind == "int4" else (64, 4)
        return outs, max(FEWEST, triton.next_power_of_2(m)), 128, 4, warps
    return (128, 256, GROUP, 3, 8) if kind == "int4" else (128, 256, 64, 5, 8)


def launch(m: int, n: int, k: int, *, kind: str, place: str, programs: int) -> Any:
    """Return ``launch(x, w, scale, y)`` for weights of ``kind``: bf16, int8 or int4.

    k is a multiple of 128 for int4. ``programs`` run at once; scratch memory is allocated once,
    here.
    """
    block_n, block_m, block_k, stages, warps = tiles_for(m, kind)
    grid = triton.cdiv(m, block_m), triton.cdiv(n, block_n)
    tiles, blocks = grid[0] * grid[1], triton.cdiv(k, block_k)
    steps = max(stages, triton.cdiv(blocks, max(1, programs // tiles)))
    splits = triton.cdiv(blocks, steps)
    partials = torch.empty(tiles * splits * block_n * block_m * (splits > 1) + 1, device=place)
    arrived = torch.zeros(tiles, dtype=torch.int32, device=place)

    def run(x: Any, w: Any, scale: Any, y: Any) -> None:
        magic, offset = MAGIC[x.dtype]
        skinny_kernel[(*grid, splits)](
            x, w, scale, y, partials, arrived, m, n, k, steps, splits,
            KIND=kind, BLOCK_N=block_n, BLOCK_M=block_m, BLOCK_K=block_k, MAGIC=magic,
            OFFSET=offset, SCALED=m > FEW, WHOLE=k % block_k == 0, num_stages=stages,
            num_warps=warps,
        )  # fmt: skip

    return run
