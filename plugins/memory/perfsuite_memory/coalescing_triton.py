"""Copies one field out of n records, in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def take_field_kernel(record_ptr, field_ptr, n, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy word 0 of each of one block's records; 64-bit addresses, records may span 8 GB."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(record_ptr + offsets * STRIDE, mask=mask)
    tl.store(field_ptr + offsets, value, mask=mask)


def launch(n: int, stride: int) -> Any:
    """Return the launch for n records of ``stride`` words."""
    grid = (triton.cdiv(n, BLOCK),)

    def take(records: Any, field: Any) -> None:
        take_field_kernel[grid](records, field, n, STRIDE=stride, BLOCK=BLOCK)

    return take
