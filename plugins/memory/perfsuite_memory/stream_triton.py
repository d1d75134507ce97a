"""The STREAM operations in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

# 16 elements per thread with 8 warps: four vectors of 16 bytes in flight for each input.
BLOCK = 4096
WARPS = 8


@triton.jit
def map_kernel(
    x_ptr, y_ptr, out_ptr, n, OP: tl.constexpr, SCALAR: tl.constexpr, BLOCK: tl.constexpr
):
    """Write one block of ``out``; n < 2**31."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    if OP == "init":
        value = tl.full((BLOCK,), SCALAR, tl.float32)
    else:
        value = tl.load(x_ptr + offsets, mask=mask)
    if OP == "scale":
        value = SCALAR * value
    if OP == "add":
        value += tl.load(y_ptr + offsets, mask=mask)
    if OP == "triad":
        value += SCALAR * tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, value, mask=mask)


@triton.jit
def reduce_kernel(x_ptr, y_ptr, partial_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sum of every num_programs-th block to this program's place."""
    program = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(program * BLOCK, n, tl.num_programs(0) * BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < n
        value = tl.load(x_ptr + offsets, mask=mask, other=0.0)
        if OP == "dot":
            value *= tl.load(y_ptr + offsets, mask=mask, other=0.0)
        total += value
    tl.store(partial_ptr + program, tl.sum(total))


@triton.jit
def finish_kernel(partial_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Add the partial sums in one program."""
    offsets = tl.arange(0, BLOCK)
    partials = tl.load(partial_ptr + offsets, mask=offsets < count, other=0.0)
    tl.store(out_ptr, tl.sum(partials))


def tiles(n: int) -> int:
    """Return how many blocks cover n elements."""
    return -(-n // BLOCK)


def map_launch(op: str, n: int, *, scalar: float) -> Any:
    """Return the launch of an element-wise operation on its inputs and output."""

    def launch(*arrays: Any) -> None:
        *inputs, out = arrays
        x, y = (*inputs, out, out)[:2]
        map_kernel[(tiles(n),)](x, y, out, n, OP=op, SCALAR=scalar, BLOCK=BLOCK, num_warps=WARPS)

    return launch


def reduce_launch(op: str, n: int, *, partials: Any) -> Any:
    """Return the launch of a reduction; ``partials`` has one place per program."""
    count = partials.numel()

    def launch(*arrays: Any) -> None:
        *inputs, out = arrays
        x, y = inputs[0], inputs[-1]
        reduce_kernel[(count,)](x, y, partials, n, OP=op, BLOCK=BLOCK, num_warps=WARPS)
        finish_kernel[(1,)](partials, out, count, BLOCK=triton.next_power_of_2(count))

    return launch
