"""A row-wise softmax in Triton: one program reads a row once and writes it once."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# A row of 64 KiB fills an SM's registers: nothing would be on its way while it is computed. Its
# programs, one an SM, copy their next rows to shared memory meanwhile.
AHEAD_BYTES, AHEAD_COLS, STAGES = 1 << 16, 32768, 3


@triton.jit
def softmax_kernel(  # type: ignore[no-untyped-def]
    x, y, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    """Write the softmax of each ``num_programs``-th row of x to y, in fp32 registers throughout."""
    columns = tl.arange(0, BLOCK)
    inside = columns < COLS
    first = tl.program_id(0).to(tl.int64)
    for later in tl.range(0, rows - tl.program_id(0), tl.num_programs(0), num_stages=STAGES):
        start = (first + later) * COLS
        values = tl.load(x + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp2((values - tl.max(values, axis=0)) * 1.4426950408889634)
        shares = powers * (1 / tl.sum(powers, axis=0))
        tl.store(y + start + columns, shares.to(y.dtype.element_ty), inside)


def warps_for(cols: int) -> int:
    """Return the warps of a program: 32 values a thread, and 64 from 32,768 columns on."""
    return min(16, max(4, int(triton.next_power_of_2(cols)) // 1024))


def stages_for(cols: int, element_bytes: int) -> int:
    """Return the rows that a program has on their way at once."""
    return STAGES if cols >= AHEAD_COLS and cols * element_bytes <= AHEAD_BYTES else 1


def softmax(x: Any, y: Any) -> None:
    """Write the softmax of each row of x to y; both are contiguous."""
    rows, cols = x.shape
    block, stages = triton.next_power_of_2(cols), stages_for(cols, x.element_size())
    programs = rows if stages == 1 else min(rows, _sm_count(x))
    softmax_kernel[(programs,)](
        x, y, rows, COLS=cols, BLOCK=block, STAGES=stages, num_warps=warps_for(cols)
    )


def _sm_count(x: Any) -> int:
    import torch

    # The interpreter's tensors are on the CPU; two programs make it take more than one row each.
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
