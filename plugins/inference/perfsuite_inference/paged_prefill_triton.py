"""Attention of a prompt's chunk through a block table in Triton: all query heads of a key head."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl

from perfsuite.gpu import torch

# Rows of a tile are tokens times the query heads that share a key head.
BLOCK_M, BLOCK_N, STAGES, WARPS = 128, 64, 2, 8


@triton.jit
def paged_prefill_kernel(
    q, k, v, table, lengths, out, most, chunk, scale, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attend from BLOCK_M / GROUP tokens of a row's chunk, which are its last, to all before them.

    q and out are [rows * chunk, KV_HEADS * GROUP, D]; k and v are [blocks, KV_HEADS, BLOCK, D];
    table is [rows, most]. A length counts the chunk.
    """
    shared, row = tl.program_id(0), tl.program_id(1)
    # The last queries see the most keys: they start first, so that no long tile ends alone.
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    columns = tl.arange(0, D)
    members = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    query_token = members // GROUP
    inside = (query_token < chunk)[:, None]
    heads = ((row * chunk + query_token) * KV_HEADS + shared) * GROUP + members % GROUP
    at_query = heads.to(tl.int64)[:, None] * D + columns[None, :]
    query = tl.load(q + at_query, inside, 0.0)
    length = tl.load(lengths + row).to(tl.int32)
    begin = length - chunk
    first = begin + tile * (BLOCK_M // GROUP)
    end = tl.minimum(first + BLOCK_M // GROUP, length)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    for start in range(0, end, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        here = tokens < end
        block = tl.load(table + row * most + tokens // BLOCK, here, 0).to(tl.int64)
        at = ((block * KV_HEADS + shared) * BLOCK + tokens % BLOCK)[:, None] * D + columns[None, :]
        keys = tl.load(k + at, here[:, None], 0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if start + BLOCK_N > first + 1:
            seen = tokens[None, :] <= (begin + query_token)[:, None]
            scores = tl.where(seen, scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
        powers = tl.exp2(scores * scale - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(powers, 1)
        values = tl.load(v + at, here[:, None], 0.0)
        shrunk = sums * shrink[:, None]
        sums = tl.dot(powers.to(values.dtype), values, shrunk, input_precision="ieee")
        peak = new_peak
    shares = sums * (1 / total)[:, None]
    tl.store(out + at_query, shares.to(out.dtype.element_ty), inside)


def attend_chunk(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    """Attend causally from each row's last tokens to the first ``lengths`` of its blocks.

    q is [rows * chunk, heads, d], k and v are [blocks, kv_heads, block, d], table [rows, most]
    int32, all contiguous; lengths [rows] are at least a chunk, and heads that share a key head a
    power of two. Returns a tensor like q.
    """
    rows, most = table.shape
    tokens, heads, d = q.shape
    kv_heads, block = k.shape[1:3]
    group, chunk = heads // kv_heads, tokens // rows
    out = torch.empty_like(q)
    paged_prefill_kernel[(kv_heads, rows, triton.cdiv(chunk * group, BLOCK_M))](
        q, k, v, table, lengths, out, most, chunk, math.log2(math.e) / math.sqrt(d),
        KV_HEADS=kv_heads, GROUP=group, D=d, BLOCK=block, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out
