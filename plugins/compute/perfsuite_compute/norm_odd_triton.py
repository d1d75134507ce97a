"""The norm forward where rows are no multiple of 16 bytes long, still in 16-byte accesses."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl


@triton.jit
def norm_odd_kernel(
    x, residual, weight, bias, y, total, eps, COLS: tl.constexpr, BLOCK: tl.constexpr,
    CENTRED: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write total = x + residual and its norm y, one row each: its whole vectors, then its ends.

    Masks and addresses of the vectors are multiples of VECTOR, so that accesses stay 16 bytes wide;
    what lies before the first of them and behind the last is less than a vector each.
    """
    first = tl.program_id(0).to(tl.int64) * COLS
    start = (first + VECTOR - 1) // VECTOR * VECTOR
    stop = (first + COLS) // VECTOR * VECTOR
    at = start + tl.arange(0, BLOCK)
    inside = at < stop
    lanes = tl.arange(0, 2 * VECTOR)
    ends = tl.where(lanes < VECTOR, first + lanes, stop + lanes - VECTOR)
    is_end = ends < tl.where(lanes < VECTOR, start, first + COLS)
    values = _added(x, residual, total, at, inside)
    others = _added(x, residual, total, ends, is_end)
    if CENTRED:
        average = (tl.sum(values, 0) + tl.sum(others, 0)) / COLS
        values = tl.where(inside, values - average, 0.0)
        others = tl.where(is_end, others - average, 0.0)
    squares = tl.sum(values * values, 0) + tl.sum(others * others, 0)
    scale = tl.rsqrt(squares / COLS + eps)
    _scaled(values * scale, weight, bias, y, at, first, inside, CENTRED)
    _scaled(others * scale, weight, bias, y, ends, first, is_end, CENTRED)


@triton.jit
def _added(x, residual, total, at, inside):
    """Store the sum, and return it as it was stored."""
    added = tl.load(x + at, inside, 0.0).to(tl.float32)
    added += tl.load(residual + at, inside, 0.0).to(tl.float32)
    stored = added.to(total.dtype.element_ty)
    tl.store(total + at, stored, inside)
    return stored.to(tl.float32)


@triton.jit
def _scaled(values, weight, bias, y, at, first, inside, CENTRED: tl.constexpr):
    out = values * tl.load(weight + (at - first), inside, 0.0).to(tl.float32)
    if CENTRED:
        out += tl.load(bias + (at - first), inside, 0.0).to(tl.float32)
    tl.store(y + at, out.to(y.dtype.element_ty), inside)


def applies(x: Any) -> bool:
    """Say whether rows begin anywhere and are long enough to hold whole vectors."""
    cols, vector = x.shape[1], vector_of(x)
    return bool(cols % vector and cols >= 2 * vector)


def vector_of(x: Any) -> int:
    """Return the elements of 16 bytes."""
    return 16 // int(x.element_size())


def forward(
    arrays: tuple[Any, Any, Any, Any], y: Any, total: Any,
    *, eps: float, centred: bool, warps: int,
) -> None:  # fmt: skip
    """Write the norm of x + residual, and the sum itself; arrays: x, residual, weight, bias."""
    rows, cols = y.shape
    norm_odd_kernel[(rows,)](
        *arrays, y, total, eps, COLS=cols, BLOCK=triton.next_power_of_2(cols), CENTRED=centred,
        VECTOR=vector_of(y), num_warps=warps,
    )  # fmt: skip
