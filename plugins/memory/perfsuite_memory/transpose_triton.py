"""Matrix transpose in Triton, which lays out the tile in shared memory itself."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

TILE = 64
WARPS = 8


@triton.jit
def transpose_kernel(in_ptr, out_ptr, rows, columns, TILE: tl.constexpr):
    """Transpose one tile; rows x columns may be any size, addresses are 64 bits wide."""
    row = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(in_ptr + row[:, None] * columns + column[None, :], mask=is_inside)
    place = out_ptr + column[:, None] * rows + row[None, :]
    tl.store(place, tl.trans(tile), mask=tl.trans(is_inside))


def launch(rows: int, columns: int) -> Any:
    """Return the launch for a matrix of rows x columns."""
    grid = (triton.cdiv(columns, TILE), triton.cdiv(rows, TILE))

    def transpose(x: Any, out: Any) -> None:
        transpose_kernel[grid](x, out, rows, columns, TILE=TILE, num_warps=WARPS)

    return transpose
