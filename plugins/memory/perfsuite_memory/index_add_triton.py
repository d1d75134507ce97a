"""Rows added by index in Triton: an atomic addition of four floats, or a list for each sum."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

DIM = 128
# Rows whose floats a program adds by atomics.
ADD_ROWS, ADD_WARPS = 16, 4
# Rows that a program puts into lists, and sums that a program takes. A program goes on until the
# longest of its lists ends, so few sums lose little, but a warp has to have several in flight.
LINK_BLOCK, LINK_WARPS = 512, 4
SUM_ROWS, SUM_WARPS = 8, 2


@triton.jit
def index_add_kernel(values_ptr, index_ptr, out_ptr, count, DIM: tl.constexpr, ROWS: tl.constexpr):
    """Add ROWS rows to where their indices say, four floats at once and in any order."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)[None, :]
    mask = places < count
    rows = tl.load(index_ptr + places, mask=mask, other=0)
    at = places.to(tl.int64)[:, None] * DIM + columns
    values = tl.load(values_ptr + at, mask=mask[:, None], other=0.0)
    to = out_ptr + rows[:, None] * DIM + columns
    tl.atomic_add(to, values, mask=mask[:, None], sem="relaxed")


@triton.jit
def index_link_kernel(index_ptr, head_ptr, next_ptr, count, BLOCK: tl.constexpr):
    """Put each row at the head of its sum's list; rows are counted from 1, and 0 ends a list."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    rows = tl.load(index_ptr + places, mask=mask, other=0)
    after = tl.atomic_xchg(head_ptr + rows, places + 1, mask=mask, sem="relaxed")
    tl.store(next_ptr + places, after, mask=mask)


@triton.jit
def index_sum_kernel(
    values_ptr, head_ptr, next_ptr, out_ptr, sums, DIM: tl.constexpr, ROWS: tl.constexpr
):
    """Add up the rows of ROWS lists.

    The next rows are asked for before the last are added, so that a step waits for a pointer out
    of L2 and not for rows out of memory.
    """
    places = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = tl.arange(0, DIM)[None, :]
    mask = places < sums
    node = tl.load(head_ptr + places, mask=mask, other=0)
    total = tl.zeros((ROWS, DIM), tl.float32)
    at = values_ptr + (node.to(tl.int64) - 1) * DIM + columns
    rows = tl.load(at, mask=node > 0, other=0.0, eviction_policy="evict_first")
    while tl.max(tl.max(node, axis=1), axis=0) > 0:
        node = tl.load(next_ptr + node - 1, mask=node > 0, other=0)
        at = values_ptr + (node.to(tl.int64) - 1) * DIM + columns
        more = tl.load(at, mask=node > 0, other=0.0, eviction_policy="evict_first")
        total += rows
        rows = more
    tl.store(out_ptr + places.to(tl.int64) * DIM + columns, total, mask=mask)


def atomics(values: Any, index: Any, out: Any) -> None:
    """Launch out[index[i]] += values[i] on zeros."""
    count = index.numel()
    out.zero_()
    grid = (triton.cdiv(count, ADD_ROWS),)
    index_add_kernel[grid](values, index, out, count, DIM=DIM, ROWS=ADD_ROWS, num_warps=ADD_WARPS)


def lists(head: Any, after: Any) -> Any:
    """Return the launch that adds rows up; int32 scratch has a place for each sum and row."""
    sums, count = len(head), len(after)

    def launch(values: Any, index: Any, out: Any) -> None:
        head.zero_()
        index_link_kernel[(triton.cdiv(count, LINK_BLOCK),)](
            index, head, after, count, BLOCK=LINK_BLOCK, num_warps=LINK_WARPS
        )
        index_sum_kernel[(triton.cdiv(sums, SUM_ROWS),)](
            values, head, after, out, sums, DIM=DIM, ROWS=SUM_ROWS, num_warps=SUM_WARPS
        )

    return launch
