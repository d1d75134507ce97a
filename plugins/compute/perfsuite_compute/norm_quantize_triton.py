"""RMSNorm and its 8-bit codes in Triton: a row stays in registers from one to the other."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

WARPS = 8


@triton.jit
def norm_quantize_kernel(
    x, weight, codes, scales, eps, most, COLS: tl.constexpr, BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """Normalise one row, and write the codes and the scale of each GROUP of its numbers."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < COLS
    values = tl.load(x + row * COLS + columns, inside, 0.0).to(tl.float32)
    values *= tl.rsqrt(tl.sum(values * values, 0) / COLS + eps)
    values *= tl.load(weight + columns, inside, 0.0).to(tl.float32)
    groups = tl.reshape(values, (BLOCK // GROUP, GROUP))
    largest = tl.max(tl.abs(groups), 1)
    # Behind the end there is nothing to divide by.
    factor = most / tl.where(largest > 0, largest, 1.0)
    scaled = tl.reshape(groups * factor[:, None], (BLOCK,))
    tl.store(codes + row * COLS + columns, scaled.to(codes.dtype.element_ty), inside)
    number = tl.arange(0, BLOCK // GROUP)
    to = scales + row * (COLS // GROUP) + number
    tl.store(to, largest / most, number < COLS // GROUP)


def quantise(
    x: Any, weight: Any, codes: Any, scales: Any, *, eps: float, most: float, group: int
) -> None:
    """Write codes [rows, cols] and scales [rows, cols / group] of x normalised, times weight.

    ``most`` is the largest number that a code stands for; cols are a multiple of ``group``.
    """
    rows, cols = x.shape
    norm_quantize_kernel[(rows,)](
        x, weight, codes, scales, eps, most,
        COLS=cols, BLOCK=triton.next_power_of_2(cols), GROUP=group, num_warps=WARPS,
    )  # fmt: skip
