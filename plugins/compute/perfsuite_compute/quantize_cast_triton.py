"""Rows of bf16 into 8-bit codes and a scale, read once, in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

# Adding and taking away 1.5 x 2**23 rounds a float to a whole number, ties to even.
ROUNDING = 12582912.0


@triton.jit
def quantise_kernel(
    x_ptr, codes_ptr, scale_ptr, COLS: tl.constexpr, BLOCK: tl.constexpr, LARGEST: tl.constexpr,
    INVERSE: tl.constexpr, ROUNDING: tl.constexpr,
):  # fmt: skip
    """Write the codes and the scale of one row, which stays in registers between its two uses."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    seen = columns < COLS
    x = tl.load(x_ptr + row * COLS + columns, mask=seen, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(x))
    # Each of these is rounded as IEEE 754 says, so that codes are equal to the bit everywhere.
    factor = tl.div_rn(1.0, largest) * LARGEST
    codes = tl.clamp(x * factor, -LARGEST, LARGEST)
    if ROUNDING > 0:
        # The clamp also keeps the product from being fused with this sum, and rounded once less.
        codes = (codes + ROUNDING) - ROUNDING
    tl.store(codes_ptr + row * COLS + columns, codes.to(codes_ptr.dtype.element_ty), mask=seen)
    tl.store(scale_ptr + row, largest * INVERSE)


def warps_for(cols: int) -> int:
    """Return the warps of a row: 32 values a thread or fewer."""
    return min(16, max(4, int(triton.next_power_of_2(cols)) // 1024))


def quantise(x: Any, codes: Any, scale: Any, *, largest: float, inverse: float) -> None:
    """Write x in codes whose largest is ``largest``, and what undoes each row's scaling."""
    rows, cols = x.shape
    quantise_kernel[(rows,)](
        x, codes, scale,
        COLS=cols, BLOCK=triton.next_power_of_2(cols), LARGEST=largest, INVERSE=inverse,
        ROUNDING=0.0 if codes.is_floating_point() else ROUNDING, num_warps=warps_for(cols),
    )  # fmt: skip
