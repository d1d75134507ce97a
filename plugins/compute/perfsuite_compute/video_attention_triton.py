"""Attention over a box of tiles for each tile of a video, in Triton: rows of tiles lie together."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite_compute.attention_triton import BLOCK_M, BLOCK_N, STAGES, WARPS, store, weigh


@triton.jit
def tile_attention_kernel(
    q_desc, k_desc, v_desc, out, s, scale, depth, height, width, box_depth, box_width,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TILE: tl.constexpr,
    BOX_HEIGHT: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Let BLOCK_M queries of one tile of one head see the box of tiles around theirs.

    A video is depth x height x width tiles of TILE tokens. A box that would reach over an edge is
    moved inside. Its tiles of one row have RUN blocks of keys that follow one another.
    """
    start_row = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1) * s
    tile = start_row // TILE
    z = tile // (height * width) - box_depth // 2
    y = tile // width % height - BOX_HEIGHT // 2
    x = tile % width - box_width // 2
    z = tl.maximum(tl.minimum(z, depth - box_depth), 0)
    y = tl.maximum(tl.minimum(y, height - BOX_HEIGHT), 0)
    x = tl.maximum(tl.minimum(x, width - box_width), 0)
    q = q_desc.load([head + start_row, 0])
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    for block in range(box_depth * BOX_HEIGHT * RUN):
        row = block // RUN
        first = ((z + row // BOX_HEIGHT) * height + y + row % BOX_HEIGHT) * width + x
        start = head + first * TILE + block % RUN * BLOCK_N
        k = k_desc.load([start, 0])
        scores = tl.dot(q, k.T)
        powers, sums, total, peak = weigh(scores, scale, sums, total, peak)
        v = v_desc.load([start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
    store(out, sums, total, head, start_row + tl.arange(0, BLOCK_M), s, D)


def attention(
    q: Any, k: Any, v: Any, out: Any, *, video: tuple[int, ...], box: tuple[int, ...], tile: int
) -> None:
    """Write the attention of each tile of a video over the box of tiles around it to out.

    All are contiguous and [batch, heads, s, d]. A video of depth x height x width tiles has them in
    that order, ``tile`` tokens each, which is a multiple of a block of keys.
    """
    b, h, s, d = q.shape
    rows = b * h * s
    tile_attention_kernel[(s // BLOCK_M, b * h)](
        TensorDescriptor(q, [rows, d], [d, 1], [BLOCK_M, d]),
        TensorDescriptor(k, [rows, d], [d, 1], [BLOCK_N, d]),
        TensorDescriptor(v, [rows, d], [d, 1], [BLOCK_N, d]),
        out, s, math.log2(math.e) / math.sqrt(d), *video, box[0], box[2],
        D=d, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, TILE=tile, BOX_HEIGHT=box[1],
        RUN=box[2] * tile // BLOCK_N, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
