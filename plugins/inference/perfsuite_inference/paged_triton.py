"""Decode attention through a block table in Triton: each row's tokens are split over programs."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from perfsuite.gpu import torch

# Programs wanted in all, about four a multiprocessor of an H200 (132), so that a few long rows
# fill it; tokens of a tile; the fewest rows that tl.dot takes.
PROGRAMS, TILE, FEWEST = 512, 64, 16
WARPS, STAGES = 4, 3


@triton.jit
def _attend(
    query, k, v, row_table, shared, start, end, scale, KV_HEADS: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return the sums, totals and peaks of a group of query heads over tokens start..end.

    Values in fp8 are loaded two by two: the matrix product takes them transposed, and Hopper's
    shared memory transposes 16 bits at once, but single bytes one by one.
    """
    PACKED: tl.constexpr = v.dtype.element_ty.primitive_bitwidth < 16  # noqa: PLR2004 - of a byte
    WIDTH: tl.constexpr = D // 2 if PACKED else D
    columns, wide = tl.arange(0, D), tl.arange(0, WIDTH)
    total = tl.zeros((query.shape[0],), dtype=tl.float32)
    peak = tl.full((query.shape[0],), -1.0e30, dtype=tl.float32)
    result = tl.zeros((query.shape[0], WIDTH), dtype=tl.float32)
    odd = tl.zeros((query.shape[0], WIDTH), dtype=tl.float32)
    for first in range(start, end, TILE):
        tokens = first + tl.arange(0, TILE)
        seen = tokens < end
        block = tl.load(row_table + tokens // BLOCK, mask=seen, other=0).to(tl.int64)
        row = ((block * KV_HEADS + shared) * BLOCK + tokens % BLOCK)[:, None]
        at = row * D + columns[None, :]
        keys = tl.load(k + at, mask=seen[:, None], other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        powers = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(powers, 1)
        if PACKED:
            pairs = v.to(tl.pointer_type(tl.int16)) + row * WIDTH + wide[None, :]
            word = tl.load(pairs, mask=seen[:, None], other=0)
            values = word.to(tl.int8).to(v.dtype.element_ty, bitcast=True).to(query.dtype)
            second = (word >> 8).to(tl.int8).to(v.dtype.element_ty, bitcast=True).to(query.dtype)
            odd = tl.dot(powers.to(second.dtype), second, odd * shrink[:, None])
        else:
            values = tl.load(v + at, mask=seen[:, None], other=0.0).to(query.dtype)
        # In fp32 the default is tf32, which rounds to 10 bits.
        shrunk = result * shrink[:, None]
        result = tl.dot(powers.to(values.dtype), values, shrunk, input_precision="ieee")
        peak = new_peak
    if PACKED:
        result = tl.join(result, odd).reshape(query.shape[0], D)
    return result, total, peak


@triton.jit
def paged_part_kernel(
    q, k, v, table, lengths, scales, sums, weights, most, scale, KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attend from the query heads of one key head to one part of one row's tokens.

    q is [rows, KV_HEADS * GROUP, D]; k and v are [blocks, KV_HEADS, BLOCK, D]; table is
    [rows, most]. Of keys and values in fp8, scales [2, KV_HEADS] is what a head's codes count; of
    others it is None. Writes the part's sums [rows, heads, SPLITS, D], each divided by its total,
    and the base-2 logarithm of that total [rows, heads, SPLITS], both fp32.
    """
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    row, shared, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row).to(tl.int32)
    share = tl.cdiv(length, SPLITS * TILE) * TILE
    start = part * share
    members, columns = tl.arange(0, PADDED), tl.arange(0, D)
    heads = (row * KV_HEADS + shared) * GROUP + members
    inside = members[:, None] < GROUP
    query = tl.load(q + heads[:, None] * D + columns[None, :], mask=inside, other=0.0)
    if scales is not None:
        # Every e4m3 is an fp16, and one instruction converts two; to bf16 it takes three.
        query = query.to(tl.float16)
        scale *= tl.load(scales + shared)
    result, total, peak = _attend(
        query, k, v, table + row * most, shared, start, tl.minimum(start + share, length), scale,
        KV_HEADS, D, BLOCK, TILE,
    )  # fmt: skip
    if scales is not None:
        result *= tl.load(scales + KV_HEADS + shared)
    # A part without tokens weighs nothing: exp2 of minus infinity.
    divisor = tl.where(total > 0, total, 1.0)
    weight = tl.where(total > 0, peak + tl.log2(divisor), -float("inf"))
    out = heads * SPLITS + part
    each = result / divisor[:, None]
    tl.store(sums + out[:, None] * D + columns[None, :], each, mask=inside)
    tl.store(weights + out, weight, mask=members < GROUP)


@triton.jit
def paged_join_kernel(
    sums, weights, out, D: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Write the mean of one head's parts, weighted by 2 ** weight; out is [rows, heads, D]."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0).to(tl.int64)
    parts, columns = tl.arange(0, PADDED), tl.arange(0, D)
    inside = parts < SPLITS
    weight = tl.load(weights + head * SPLITS + parts, mask=inside, other=-float("inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    at = (head * SPLITS + parts)[:, None] * D + columns[None, :]
    each = tl.load(sums + at, mask=inside[:, None], other=0.0)
    mean = tl.sum(each * share[:, None], 0) / tl.sum(share, 0)
    tl.store(out + head * D + columns, mean.to(out.dtype.element_ty))


def splits_for(rows: int, kv_heads: int, tokens: int) -> int:
    """Return the parts that a row of up to ``tokens`` is split into; a part is a tile at least."""
    wanted = -(-PROGRAMS // (rows * kv_heads))
    return max(1, min(wanted, -(-tokens // TILE)))


def attend_paged(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, scales: Any = None, *, early: bool = False,
    splits: int = 0,
) -> Any:  # fmt: skip
    """Attend from q [rows, heads, d] to the first ``lengths`` [rows] tokens of the table's blocks.

    k and v are [blocks, kv_heads, block, d], table [rows, most] int32, all contiguous; lengths are
    at least 1. Keys and values in fp8 (e4m3) take ``scales`` [2, kv_heads] in fp32, and queries
    that fp16 holds. A row is split into ``splits`` parts, or as many as fill the GPU where that is
    0. Returns [rows, heads, d]. With ``early`` (sm_90 and newer) a kernel's programs are
    on the GPU before the one ahead has ended. Source: Flash-Decoding (T. Dao et al., 2023) for the
    split, arXiv:2309.06180 for the table.
    """
    rows, heads, d = q.shape
    kv_heads, block = k.shape[1:3]
    q = q.contiguous()  # a slice of the packed q, k, v
    group, most = heads // kv_heads, table.shape[1]
    splits = splits or splits_for(rows, kv_heads, most * block)
    sums = q.new_empty((rows, heads, splits, d), dtype=torch.float32)
    weights = q.new_empty((rows, heads, splits), dtype=torch.float32)
    out = q.new_empty(q.shape)
    # The interpreter knows no such option.
    options: dict[str, Any] = {"EARLY": early, **({"launch_pdl": True} if early else {})}
    paged_part_kernel[(rows, kv_heads, splits)](
        q, k, v, table, lengths, scales, sums, weights, most, math.log2(math.e) / math.sqrt(d),
        KV_HEADS=kv_heads, GROUP=group, PADDED=max(FEWEST, triton.next_power_of_2(group)), D=d,
        BLOCK=block, TILE=TILE, SPLITS=splits, num_warps=WARPS, num_stages=STAGES, **options,
    )  # fmt: skip
    paged_join_kernel[(rows * heads,)](
        sums, weights, out, D=d, SPLITS=splits, PADDED=triton.next_power_of_2(splits),
        num_warps=4, **options,
    )  # fmt: skip
    return out
