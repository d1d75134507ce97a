"""A vector sum, sums of rows and a small matrix product as Triton's tutorials write them."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

BLOCK = 1024
TILE, DEPTH = 32, 64


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Write one block of x + y; n < 2**31."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seen = at < n
    x = tl.load(x_ptr + at, mask=seen)
    tl.store(out_ptr + at, x + tl.load(y_ptr + at, mask=seen), mask=seen)


@triton.jit
def rowsum_kernel(x_ptr, out_ptr, COLS: tl.constexpr):
    """Write the sum of one row; COLS is a power of two."""
    row = tl.program_id(0)
    tl.store(out_ptr + row, tl.sum(tl.load(x_ptr + row * COLS + tl.arange(0, COLS))))


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Write one tile of a @ b, all n x n; n is a multiple of TILE and DEPTH."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    sums = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, n, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * n + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * n + columns[None, :])
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], sums)


def add(x: Any, y: Any, out: Any) -> None:
    """Write x + y."""
    n = x.numel()
    add_kernel[(triton.cdiv(n, BLOCK),)](x, y, out, n, BLOCK=BLOCK)


def rowsum(x: Any, out: Any) -> None:
    """Write the sum of each row."""
    rows, cols = x.shape
    rowsum_kernel[(rows,)](x, out, COLS=cols)


def matmul(a: Any, b: Any, c: Any) -> None:
    """Write a @ b."""
    n = a.shape[0]
    matmul_kernel[(n // TILE, n // TILE)](a, b, c, n, TILE=TILE, DEPTH=DEPTH)
