"""A row-wise softmax in Triton: one program reads a row once and writes it once."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# A row of 64 KiB takes an SM's registers once it is fp32: nothing would be on its way while it is
# computed. Programs, one an SM, copy their next rows to shared memory meanwhile.
AHEAD_COLS, AHEAD_BYTES, STAGES = 32768, 65536, 3


@triton.jit
def _whole(x, y, start, columns, COLS: tl.constexpr):
    """Write the softmax of COLS values from start on; columns are as many or more."""
    inside = columns < COLS
    values = tl.load(x + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp2(values * LOG2_E - tl.max(values, axis=0) * LOG2_E)
    shares = powers * (1 / tl.sum(powers, axis=0))
    tl.store(y + start + columns, shares.to(y.dtype.element_ty), inside)


@triton.jit
def _ragged(x, y, start, columns, COLS: tl.constexpr, LANES: tl.constexpr):
    """Do the same from any start: 16-byte accesses, LANES values each, but for both ends.

    The ends are what comes before the first address and after the last that 16 divides.
    """
    head = ((LANES - start % LANES) % LANES).to(tl.int32)
    body = (COLS - head) // LANES * LANES
    at = tl.multiple_of(start + head, LANES) + columns
    # Compared by vectors, a mask is the same for all values of one.
    inside = columns // LANES < body // LANES
    edges = tl.arange(0, 2 * LANES)
    edge_at = start + tl.where(edges < head, edges, edges + body)
    is_edge = edges < COLS - body
    values = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
    ends = tl.load(x + edge_at, mask=is_edge, other=-float("inf")).to(tl.float32)
    peak = tl.maximum(tl.max(values, axis=0), tl.max(ends, axis=0)) * LOG2_E
    powers, end_powers = tl.exp2(values * LOG2_E - peak), tl.exp2(ends * LOG2_E - peak)
    scale = 1 / (tl.sum(powers, axis=0) + tl.sum(end_powers, axis=0))
    tl.store(y + at, (powers * scale).to(y.dtype.element_ty), inside)
    tl.store(y + edge_at, (end_powers * scale).to(y.dtype.element_ty), is_edge)


@triton.jit
def softmax_kernel(x, y, COLS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the softmax of the row of a program's number to y, in fp32 registers throughout."""
    LANES: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    columns = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * COLS
    if COLS % LANES == 0:
        _whole(x, y, start, columns, COLS)
    else:
        _ragged(x, y, start, columns, COLS, LANES)


@triton.jit
def softmax_ahead_kernel(x, y, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Write the softmax of each ``num_programs``-th row of x to y, STAGES under way at once."""
    columns = tl.arange(0, BLOCK)
    first = tl.program_id(0).to(tl.int64)
    for later in tl.range(0, rows - tl.program_id(0), tl.num_programs(0), num_stages=STAGES):
        _whole(x, y, (first + later) * COLS, columns, COLS)


def warps_for(cols: int) -> int:
    """Return the warps of a program: 32 values a thread, so that an SM holds 64 warps of them."""
    return min(32, max(4, int(triton.next_power_of_2(cols)) // 1024))


def softmax(x: Any, y: Any) -> None:
    """Write the softmax of each row of x to y; both are contiguous."""
    rows, cols = x.shape
    options = {"COLS": cols, "BLOCK": triton.next_power_of_2(cols), "num_warps": warps_for(cols)}
    # Programs may go through several rows, and copy the next ones while they compute one.
    is_ahead = cols == AHEAD_COLS and cols * x.element_size() <= AHEAD_BYTES
    if is_ahead and _has_room(x):
        programs = min(rows, _multiprocessors(x))
        softmax_ahead_kernel[(programs,)](x, y, rows, STAGES=STAGES, **options)
    else:
        softmax_kernel[(rows,)](x, y, **options)


def _has_room(x: Any) -> bool:
    """Whether a block may have the shared memory for two rows on their way: not on sm_120."""
    import torch

    if not x.is_cuda:
        return True
    most = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
    return int(most) > (STAGES - 1) * AHEAD_BYTES


def _multiprocessors(x: Any) -> int:
    import torch

    # The interpreter's tensors are on the CPU; two programs make it take more than one row each.
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
