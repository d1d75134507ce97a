"""A residual added, then RMSNorm or LayerNorm, and its gradient: one pass through memory each."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

from perfsuite_compute import norm_odd_triton

# Programs of the backward pass for each SM: enough rows in flight, few partial sums to add up.
PROGRAMS_PER_SM = 2
SUM_COLS, SUM_ROWS = 32, 32


@triton.jit
def norm_forward_kernel(
    x, residual, weight, bias, y, total, mean, rstd, eps, COLS: tl.constexpr, BLOCK: tl.constexpr,
    CENTRED: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    """Write total = x + residual and its norm y, one row each; what a gradient needs if KEEPS."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < COLS
    at = row * COLS + columns
    added = tl.load(x + at, inside, 0.0).to(tl.float32)
    added += tl.load(residual + at, inside, 0.0).to(tl.float32)
    stored = added.to(total.dtype.element_ty)
    tl.store(total + at, stored, inside)
    values = stored.to(tl.float32)  # what the gradient will read
    if CENTRED:
        average = tl.sum(values, 0) / COLS
        values = tl.where(inside, values - average, 0.0)
    scale = tl.rsqrt(tl.sum(values * values, 0) / COLS + eps)
    if KEEPS:
        tl.store(rstd + row, scale)
        if CENTRED:
            tl.store(mean + row, average)
    out = values * scale * tl.load(weight + columns, inside, 0.0).to(tl.float32)
    if CENTRED:
        out += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    tl.store(y + at, out.to(y.dtype.element_ty), inside)


@triton.jit
def norm_backward_kernel(
    dy, dtotal, total, weight, mean, rstd, dx, dweight, dbias, rows, COLS: tl.constexpr,
    BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Write dx of every n-th row, and one row of partial sums of the weight's gradient."""
    columns = tl.arange(0, BLOCK)
    inside = columns < COLS
    factor = tl.load(weight + columns, inside, 0.0).to(tl.float32)
    weight_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    bias_sum = tl.zeros((BLOCK,), dtype=tl.float32)
    # The next two rows are on their way while one is reduced.
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=3):
        at = row * COLS + columns  # below 2^31 in all sizes of the case
        values = tl.load(total + at, inside, 0.0).to(tl.float32)
        arriving = tl.load(dy + at, inside, 0.0).to(tl.float32)
        beside = tl.load(dtotal + at, inside, 0.0).to(tl.float32)
        scale = tl.load(rstd + row)
        if CENTRED:
            values = tl.where(inside, values - tl.load(mean + row), 0.0)
        normed = values * scale
        scaled = arriving * factor
        inner = scaled - normed * (tl.sum(normed * scaled, 0) / COLS)
        if CENTRED:
            inner -= tl.sum(scaled, 0) / COLS
            bias_sum += arriving
        weight_sum += arriving * normed
        tl.store(dx + at, (inner * scale + beside).to(dx.dtype.element_ty), inside)
    to = tl.program_id(0) * COLS + columns
    tl.store(dweight + to, weight_sum, inside)
    if CENTRED:
        tl.store(dbias + to, bias_sum, inside)


@triton.jit
def column_sum_kernel(
    partial, out, rows, COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):
    """Write the sum of each column of the partial sums."""
    columns = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_COLS), dtype=tl.float32)
    for start in range(0, rows, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        inside = (row[:, None] < rows) & (columns[None, :] < COLS)
        sums += tl.load(partial + row[:, None] * COLS + columns[None, :], inside, 0.0)
    tl.store(out + columns, tl.sum(sums, 0).to(out.dtype.element_ty), columns < COLS)


def warps_for(cols: int) -> int:
    """Return the warps of a program: 16 values a thread, and 32 from 16,384 columns on."""
    return min(16, max(1, int(triton.next_power_of_2(cols)) // 512))


def forward(
    x: Any, residual: Any, weight: Any, bias: Any, kept: Any = (None, None),
    *, eps: float, centred: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the norm of x + residual, and the sum itself; ``kept`` is filled for a gradient."""
    rows, cols = x.shape
    y, total = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = kept
    if rstd is None and norm_odd_triton.applies(x):
        arrays = (x, residual, weight, bias)
        norm_odd_triton.forward(arrays, y, total, eps=eps, centred=centred, warps=warps_for(cols))
        return y, total
    norm_forward_kernel[(rows,)](
        x, residual, weight, bias, y, total, mean, rstd, eps,
        COLS=cols, BLOCK=triton.next_power_of_2(cols), CENTRED=centred, KEEPS=rstd is not None,
        num_warps=warps_for(cols),
    )  # fmt: skip
    return y, total


def train(
    x: Any, residual: Any, weight: Any, bias: Any, grads: tuple[Any, Any],
    *, eps: float, centred: bool, programs: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the norm, the sum, and the gradients of x, weight and (centred) bias."""
    rows, cols = x.shape
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(rstd) if centred else None
    y, total = forward(x, residual, weight, bias, (mean, rstd), eps=eps, centred=centred)
    dx = torch.empty_like(x)
    sums = [torch.empty(programs, cols, dtype=torch.float32, device=x.device)]
    sums += [torch.empty_like(sums[0])] if centred else []
    norm_backward_kernel[(programs,)](
        *grads, total, weight, mean, rstd, dx, sums[0], sums[-1], rows,
        COLS=cols, BLOCK=triton.next_power_of_2(cols), CENTRED=centred, num_warps=warps_for(cols),
    )  # fmt: skip
    return y, total, dx, *(_summed(each, weight) for each in sums)


def _summed(partial: Any, like: Any) -> Any:
    rows, cols = partial.shape
    out = torch.empty_like(like)
    column_sum_kernel[(triton.cdiv(cols, SUM_COLS),)](
        partial, out, rows, COLS=cols, BLOCK_ROWS=SUM_ROWS, BLOCK_COLS=SUM_COLS
    )
    return out
