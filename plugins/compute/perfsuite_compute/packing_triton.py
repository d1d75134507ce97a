"""Rows of a padded batch packed behind each other, and put back, in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

from perfsuite.gpu import torch

WARPS = 4


@triton.jit
def unpad_kernel(
    x, bounds, packed, positions, batch, longest, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Copy one packed token from x [batch, longest, WIDTH], and write its place in its row."""
    token = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    # Its row is that behind the last one that has ended; rows without tokens end with another.
    ends = tl.load(bounds + 1 + rows, rows < batch, 0x7FFFFFFF)
    row = tl.sum((ends <= token).to(tl.int32), 0)
    position = token - tl.load(bounds + row)
    tl.store(positions + token, position.to(tl.int64))
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    source = (row.to(tl.int64) * longest + position) * WIDTH
    values = tl.load(x + source + columns, inside)
    tl.store(packed + token.to(tl.int64) * WIDTH + columns, values, inside)


@triton.jit
def pad_kernel(packed, bounds, out, longest, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write one token of out [batch, longest, WIDTH]: zeros behind its row's last."""
    position, row = tl.program_id(0), tl.program_id(1)
    token = tl.load(bounds + row) + position
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    seen = inside & (token < tl.load(bounds + row + 1))
    values = tl.load(packed + token.to(tl.int64) * WIDTH + columns, seen, 0.0)
    at = (row.to(tl.int64) * longest + position) * WIDTH + columns
    tl.store(out + at, values, inside)


def unpad(x: Any, mask: Any, bounds: Any, tokens: int) -> tuple[Any, Any]:
    """Return the first tokens of each row of x [batch, longest, width], and their places in it.

    ``bounds`` [batch + 1], int32, are where rows begin among the ``tokens``. Shapes are
    [tokens, width] and [tokens]. The mask is not looked at.
    """
    batch, longest, width = x.shape
    packed = x.new_empty((tokens, width))
    positions = torch.empty(tokens, dtype=torch.int64, device=x.device)
    unpad_kernel[(tokens,)](
        x, bounds, packed, positions, batch, longest, WIDTH=width,
        BLOCK=triton.next_power_of_2(width), ROWS=triton.next_power_of_2(batch), num_warps=WARPS,
    )  # fmt: skip
    return packed, positions


def pad(packed: Any, mask: Any, bounds: Any) -> Any:
    """Return packed tokens [tokens, width] as rows [*mask.shape, width] with zeros behind them."""
    batch, longest = mask.shape
    width = packed.shape[1]
    out = packed.new_empty((batch, longest, width))
    pad_kernel[(longest, batch)](
        packed, bounds, out, longest, WIDTH=width, BLOCK=triton.next_power_of_2(width),
        num_warps=WARPS,
    )  # fmt: skip
    return out
