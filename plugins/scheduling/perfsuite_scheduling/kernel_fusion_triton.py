"""GELU, approximated by tanh, as one Triton kernel."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def gelu_kernel(x, y, n, BLOCK: tl.constexpr):
    """Write the GELU of x[0:n] to y; (1 + tanh u) / 2 is the logistic function of 2u."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    twice = 1.5957691216057308 * (value + 0.044715 * value * value * value)
    tl.store(y + at, value * tl.sigmoid(twice), mask=inside)


def gelu(x: Any, y: Any) -> None:
    """Write the GELU of x to y; both are contiguous, of fewer than 2**31 elements."""
    n = x.numel()
    gelu_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, BLOCK=BLOCK)
