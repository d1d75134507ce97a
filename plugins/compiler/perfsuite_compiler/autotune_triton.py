"""Softmax of rows in Triton, a block a row: how many warps share a row is what is tuned."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import triton
import triton.language as tl

from perfsuite_compiler.autotune import WARPS


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    """Write the softmax of a row of ``cols`` fp32 numbers, at most ``BLOCK``."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * cols
    values = tl.load(x + row + at, at < cols, -float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(y + row + at, powers / tl.sum(powers, 0), at < cols)


CONFIGS = [triton.Config({}, num_warps=warps) for warps in WARPS]
tuned_kernel = triton.autotune(CONFIGS, key=["cols"])(softmax_kernel)
