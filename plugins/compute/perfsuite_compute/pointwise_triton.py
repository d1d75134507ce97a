"""A chain of pointwise operations in Triton: one read, one write, all steps in registers."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

BLOCK, WARPS = 1024, 4  # 8 values a thread


@triton.jit
def chain_kernel(
    x, y, n, STEPS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write to y what STEPS operations, in turn a factor, a shift, a clamp and abs, make of x."""
    first = tl.program_id(0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    # A mask is as coarse as n is round: of an odd n all accesses would be of one value.
    is_whole = first <= n - BLOCK
    if is_whole:  # noqa: SIM108 - Triton branches on statements
        values = tl.load(x + at)
    else:
        values = tl.load(x + at, at < n, 0.0)
    for step in tl.static_range(STEPS):
        if step % 4 == 0:
            values = values * SCALE
        elif step % 4 == 1:
            values = values - SHIFT
        elif step % 4 == 2:  # noqa: PLR2004 - the third of four
            values = tl.minimum(tl.maximum(values, -LIMIT), LIMIT)
        else:
            values = tl.abs(values)
    if is_whole:
        tl.store(y + at, values)
    else:
        tl.store(y + at, values, at < n)


def chain(x: Any, y: Any, *, steps: int, constants: tuple[float, float, float]) -> None:
    """Write the chain's result to y; both are contiguous and shorter than 2^31."""
    scale, shift, limit = constants
    chain_kernel[(triton.cdiv(x.numel(), BLOCK),)](
        x, y, x.numel(),
        STEPS=steps, SCALE=scale, SHIFT=shift, LIMIT=limit, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
