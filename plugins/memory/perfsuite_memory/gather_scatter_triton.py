"""Gather and jagged sum in Triton; rows of DIM floats, a power of two."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

DIM = 128
# 16 rows and 4 warps: four vectors of 16 bytes in flight for each thread.
ROWS = 16


@triton.jit
def gather_kernel(table_ptr, index_ptr, out_ptr, count, DIM: tl.constexpr, ROWS: tl.constexpr):
    """Copy the rows of ROWS indices."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)[None, :]
    mask = places < count
    rows = tl.load(index_ptr + places, mask=mask, other=0)
    values = tl.load(table_ptr + rows[:, None] * DIM + columns, mask=mask[:, None])
    to = places.to(tl.int64)[:, None] * DIM + columns
    tl.store(out_ptr + to, values, mask=mask[:, None])


@triton.jit
def jagged_kernel(values_ptr, ends_ptr, out_ptr, DIM: tl.constexpr, ROWS: tl.constexpr):
    """Add up the rows of one run, ROWS at a time."""
    run = tl.program_id(0)
    columns = tl.arange(0, DIM)
    first = tl.load(ends_ptr + run)
    last = tl.load(ends_ptr + run + 1)
    total = tl.zeros((ROWS, DIM), tl.float32)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        at = rows[:, None] * DIM + columns[None, :]
        total += tl.load(values_ptr + at, mask=(rows < last)[:, None], other=0.0)
    tl.store(out_ptr + run.to(tl.int64) * DIM + columns, tl.sum(total, axis=0))


def gather(table: Any, index: Any, out: Any) -> None:
    """Launch out[i] = table[index[i]]."""
    count = index.numel()
    gather_kernel[(triton.cdiv(count, ROWS),)](table, index, out, count, DIM=DIM, ROWS=ROWS)


def jagged(values: Any, ends: Any, out: Any) -> None:
    """Launch out[i] = the sum of values[ends[i] : ends[i + 1]]."""
    jagged_kernel[(out.shape[0],)](values, ends, out, DIM=DIM, ROWS=ROWS)
