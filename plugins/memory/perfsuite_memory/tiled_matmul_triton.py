"""Matrix product in float32 through tiles, in Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

TILE = 64
DEPTH = 32


@triton.jit
def matmul_kernel(a_ptr, b_ptr, out_ptr, n, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Write one tile of ``out``; all products in float32, none rounded to TF32."""
    rows = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
    columns = (tl.program_id(0) * TILE + tl.arange(0, TILE))[None, :]
    steps = tl.arange(0, DEPTH)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, n, DEPTH):
        down, across = (k + steps)[:, None], (k + steps)[None, :]
        left = tl.load(a_ptr + rows * n + across, mask=(rows < n) & (across < n), other=0.0)
        right = tl.load(b_ptr + down * n + columns, mask=(down < n) & (columns < n), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(out_ptr + rows * n + columns, total, mask=(rows < n) & (columns < n))


def launch(n: int) -> Any:
    """Return the launch for matrices of n x n, n < 2**15."""
    tiles = triton.cdiv(n, TILE)

    def multiply(a: Any, b: Any, out: Any) -> None:
        matmul_kernel[(tiles, tiles)](a, b, out, n, TILE=TILE, DEPTH=DEPTH)

    return multiply
