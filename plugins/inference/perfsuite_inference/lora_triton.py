"""Each row's own adapter of low rank in Triton: shrunk in parts, then expanded."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

# Columns of a program of either kernel.
SHRINK, EXPAND = 512, 512
SHRINK_WARPS, EXPAND_WARPS = 4, 4


@triton.jit
def shrink_kernel(x, a, ids, parts, WIDTH: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sums of one row's x A over a part of the columns: [rows, parts, RANK] fp32."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    adapter = tl.load(ids + row)
    ranks, columns = tl.arange(0, RANK), part * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    values = tl.load(x + row * WIDTH + columns, inside, 0.0).to(tl.float32)
    at = (adapter * RANK + ranks[:, None]) * WIDTH + columns[None, :]
    weights = tl.load(a + at, inside[None, :], 0.0).to(tl.float32)
    to = parts + (row * tl.num_programs(1) + part) * RANK
    tl.store(to + ranks, tl.sum(weights * values[None, :], 1))


@triton.jit
def expand_kernel(
    parts, b, ids, base, out, count, WIDTH: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr
):
    """Write base + sums B for a part of one row's columns, the ``count`` parts added first."""
    row = tl.program_id(0).to(tl.int64)
    adapter = tl.load(ids + row)
    ranks, columns = tl.arange(0, RANK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    small = tl.zeros((RANK,), dtype=tl.float32)
    for part in range(count):
        small += tl.load(parts + (row * count + part) * RANK + ranks)
    at = (adapter * WIDTH + columns[:, None]) * RANK + ranks[None, :]
    weights = tl.load(b + at, inside[:, None], 0.0).to(tl.float32)
    before = tl.load(base + row * WIDTH + columns, inside, 0.0).to(tl.float32)
    found = before + tl.sum(weights * small[None, :], 1)
    tl.store(out + row * WIDTH + columns, found.to(out.dtype.element_ty), inside)


def add(x: Any, a: Any, b: Any, ids: Any, base: Any, out: Any) -> None:
    """Write base + x A B to out [rows, width], with the adapter that ``ids`` [rows] names, int64.

    x and base are [rows, width], a is [adapters, rank, width] and b [adapters, width, rank], all
    contiguous; the rank is a power of two. What a row is shrunk to stays in fp32.
    """
    rows, width = x.shape
    rank, count = a.shape[1], triton.cdiv(width, SHRINK)
    parts = torch.empty((rows, count, rank), dtype=torch.float32, device=x.device)
    sizes: dict[str, Any] = {"WIDTH": width, "RANK": rank}
    shrink_kernel[(rows, count)](x, a, ids, parts, **sizes, BLOCK=SHRINK, num_warps=SHRINK_WARPS)
    expand_kernel[(rows, triton.cdiv(width, EXPAND))](
        parts, b, ids, base, out, count, **sizes, BLOCK=EXPAND, num_warps=EXPAND_WARPS
    )
