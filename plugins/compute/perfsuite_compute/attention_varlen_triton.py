"""Causal attention of packed sequences in Triton: one grid over the tiles of all of them."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite.gpu import torch
from perfsuite_compute.attention_triton import BLOCK_M, WARPS, weigh

# An H100 takes 582 us for the packed prompts of ``chat``. It takes 633 with blocks of 128 keys, one
# stage, and registers held to 168 so that three blocks are on an SM.
BLOCK_N, STAGES = 64, 3


@triton.jit
def varlen_attention_kernel(
    q_desc, k_desc, v_desc, tiles, out, heads, group, scale, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write the attention of one head's BLOCK_M queries of one sequence.

    ``tiles`` says where the keys of its sequence begin, where these queries do, where those of the
    sequence end, and how many numbers later a query's own key is.
    """
    head, tile = tl.program_id(0), tiles + 4 * tl.program_id(1)
    begin, start_row, end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    later = tl.load(tile + 3)
    rows = start_row + tl.arange(0, BLOCK_M)
    q = q_desc.load([start_row, head * D])
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    # Rows behind the end are another sequence's: they see keys that no row of this one does, and
    # are not written.
    for start in range(begin, tl.minimum(start_row + BLOCK_M, end) + later, BLOCK_N):
        k = k_desc.load([start, head // group * D])
        scores = tl.dot(q, k.T)
        if start + BLOCK_N > start_row + later + 1:
            columns = start - later + tl.arange(0, BLOCK_N)
            scores = tl.where(columns[None, :] <= rows[:, None], scores, -float("inf"))
        powers, sums, total, peak = weigh(scores, scale, sums, total, peak)
        v = v_desc.load([start, head // group * D])
        sums = tl.dot(powers.to(v.dtype), v, sums)
    shares = sums * (1 / total)[:, None]
    out += (start_row.to(tl.int64) * heads + head) * D
    at = tl.arange(0, BLOCK_M)[:, None] * (heads * D) + tl.arange(0, D)[None, :]
    tl.store(out + at, shares.to(out.dtype.element_ty), mask=rows[:, None] < end)


def launch(queries: Sequence[int], keys: Sequence[int], place: Any) -> Callable[..., None]:
    """Return what writes causal attention of sequences with so many queries and keys to out.

    Queries are a sequence's last tokens. It takes q, k, v, the sequences' bounds, and out. q and
    out are [tokens, heads, width], k and v have fewer heads, each for as many heads of q. All are
    contiguous.
    """
    lengths = zip(queries, keys, *map(itertools.accumulate, (queries, keys)), strict=True)
    tiles = [
        (key_end - s, start, end, key_end - end)
        for new, s, end, key_end in lengths
        for start in range(end - new, end, BLOCK_M)
    ]
    # The last queries of the longest see the most keys: no long tile ends alone.
    tiles.sort(key=lambda tile: tile[0] - tile[1] - tile[3])
    order = torch.tensor(tiles, dtype=torch.int32, device=place)

    def run(q: Any, k: Any, v: Any, bounds: Any, out: Any) -> None:
        heads, d = q.shape[1:]
        rows = (BLOCK_M, BLOCK_N, BLOCK_N)
        given = (
            TensorDescriptor(x.flatten(1), x.flatten(1).shape, (x.stride(0), 1), [block, d])
            for x, block in zip((q, k, v), rows, strict=True)
        )
        varlen_attention_kernel[(heads, len(tiles))](
            *given, order, out, heads, heads // k.shape[1], math.log2(math.e) / math.sqrt(d),
            D=d, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_stages=STAGES, num_warps=WARPS,
        )  # fmt: skip

    return run
