"""Rows of a vocabulary in Triton: taken by token, and written as the sum of what is their own."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

TAKE_WARPS = 4
# Columns and gradients that a program of the backward pass holds at a time: a frequent word has
# thousands of gradients, which few columns share out over many programs.
COLS, ROWS, SUM_WARPS = 512, 16, 4


@triton.jit
def take_kernel(table, index, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Copy the row of one token."""
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    row = tl.load(index + tl.program_id(0))
    values = tl.load(table + row * WIDTH + columns, inside)
    tl.store(out + tl.program_id(0).to(tl.int64) * WIDTH + columns, values, inside)


@triton.jit
def segment_kernel(
    grad, words, order, ends, out, WIDTH: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr
):
    """Write the sum of a word's gradients, which ``order`` has side by side, for the first one."""
    first = tl.program_id(0)
    word = tl.load(words + first)
    if tl.load(words + first - 1, first > 0, -1) != word:
        columns = tl.program_id(1) * COLS + tl.arange(0, COLS)
        last = tl.load(ends + first)
        total = tl.zeros((ROWS, COLS), dtype=tl.float32)
        for at in range(first, last, ROWS):
            places = at + tl.arange(0, ROWS)
            rows = tl.load(order + places, places < last, 0)
            inside = (places < last)[:, None] & (columns < WIDTH)[None, :]
            values = tl.load(grad + rows[:, None] * WIDTH + columns[None, :], inside, 0.0)
            total += values.to(tl.float32)
        to = out + word * WIDTH + columns
        tl.store(to, tl.sum(total, 0).to(out.dtype.element_ty), columns < WIDTH)


def take(table: Any, index: Any, out: Any) -> None:
    """Write table[index] to out, [tokens, width]; all are contiguous, index is int64."""
    width = table.shape[1]
    take_kernel[(len(index),)](
        table, index, out, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=TAKE_WARPS
    )


def segments(grad: Any, index: Any, out: Any) -> None:
    """Write to each row of out, [vocabulary, width], the sum of its tokens' gradients."""
    width = out.shape[1]
    words, order = index.sort(stable=True)
    ends = torch.searchsorted(words, words, right=True)
    out.zero_()  # most words have no gradient
    segment_kernel[(len(words), triton.cdiv(width, COLS))](
        grad, words, order, ends, out, WIDTH=width, COLS=COLS, ROWS=ROWS, num_warps=SUM_WARPS
    )
