"""What surrounds the products of a mixture of experts: align, permute, quantise, unpermute."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

from perfsuite_compute import fp8_block_triton

TILE = 128  # rows that an expert's begin at a multiple of
_BLOCK = tl.constexpr(128)  # values that share a scale


@triton.jit
def rank_kernel(ids, ranks, counts, pairs, CHUNK: tl.constexpr):
    """Number the pairs of one expert, in their order, and count them."""
    expert = tl.program_id(0)
    before = 0
    for first in range(0, pairs, CHUNK):
        at = first + tl.arange(0, CHUNK)
        mine = (tl.load(ids + at, mask=at < pairs, other=-1) == expert).to(tl.int32)
        tl.store(ranks + at, before + tl.cumsum(mine) - 1, mask=mine > 0)
        before += tl.sum(mine)
    tl.store(counts + expert, before)


@triton.jit
def store_codes(values, codes, scales, row, stride, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """Write a row's codes, and the scale of each 128 of them, [WIDTH / 128, stride]."""
    block = tl.arange(0, BLOCKS)
    is_one = block < WIDTH // _BLOCK
    scale = tl.maximum(tl.max(tl.abs(values), 1), 1e-12) / 448.0
    scaled = tl.clamp(values / scale[:, None], -448.0, 448.0)
    place = row.to(tl.int64) * WIDTH + block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    tl.store(codes + place, scaled.to(codes.dtype.element_ty), mask=is_one[:, None])
    tl.store(scales + block * stride + row, scale, mask=is_one)


@triton.jit
def permute_kernel(
    x, ids, ranks, counts, begins, places, codes, scales, stride, TOP: tl.constexpr,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Find a pair's row, and put its token there in e4m3; experts' rows begin with a tile."""
    pair = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    room = tl.cdiv(tl.load(counts + each), TILE) * TILE
    first = tl.cumsum(room) - room
    if pair == 0:
        tl.store(begins + each, first)
    expert = tl.load(ids + pair).to(tl.int32)
    row = tl.sum(tl.where(each == expert, first, 0)) + tl.load(ranks + pair)
    tl.store(places + pair, row)
    column = tl.arange(0, BLOCKS)[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    token = (pair // TOP).to(tl.int64) * WIDTH
    values = tl.load(x + token + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    store_codes(values, codes, scales, row, stride, WIDTH, BLOCKS)


@triton.jit
def swiglu_kernel(hidden, places, codes, scales, stride, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """Write silu(gate) * up of a pair's row, whose first half is the gate, in e4m3."""
    row = tl.load(places + tl.program_id(0))
    column = tl.arange(0, BLOCKS)[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    at = hidden + row.to(tl.int64) * 2 * WIDTH + column
    gate = tl.load(at, mask=column < WIDTH, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=column < WIDTH, other=0.0).to(tl.float32)
    store_codes(gate * tl.sigmoid(gate) * up, codes, scales, row, stride, WIDTH, BLOCKS)


@triton.jit
def combine_kernel(y, places, weights, out, TOP: tl.constexpr, WIDTH: tl.constexpr):
    """Add a token's rows, each times its weight; a program has 1024 columns."""
    token = tl.program_id(0)
    column = tl.program_id(1) * 1024 + tl.arange(0, 1024)
    sums = tl.zeros((1024,), tl.float32)
    for slot in tl.static_range(TOP):
        row = tl.load(places + token * TOP + slot).to(tl.int64)
        part = tl.load(y + row * WIDTH + column, mask=column < WIDTH, other=0.0)
        sums += tl.load(weights + token * TOP + slot) * part.to(tl.float32)
    to = out + token.to(tl.int64) * WIDTH + column
    tl.store(to, sums.to(out.dtype.element_ty), mask=column < WIDTH)


def launch(tokens: int, top: int, weights: tuple[int, int, int], place: Any) -> Any:
    """Return ``launch(x, ids, shares, w1, w1_scale, w2, w2_scale, out)``.

    ``weights`` is the shape of w2, [experts, width, inner]; all three are a multiple of 128 but
    the experts, which are a power of two.
    """
    experts, width, inner = weights
    pairs = tokens * top
    rows = triton.cdiv(pairs + experts * (TILE - 1), TILE) * TILE

    def room(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=place)

    ranks, places, counts, begins = (room(of) for of in (pairs, pairs, experts, experts))
    codes, inner_codes = (room(rows, of, dtype=torch.float8_e4m3fn) for of in (width, inner))
    scales, inner_scales = (room(1, of // 128, rows, dtype=torch.float) for of in (width, inner))
    hidden, y = (room(rows, of, dtype=torch.bfloat16) for of in (2 * inner, width))
    multiply = fp8_block_triton.launch(begins, counts, rows=pairs // experts)
    wide, narrow = (triton.next_power_of_2(of // 128) for of in (width, inner))

    def run(x: Any, ids: Any, shares: Any, *rest: Any) -> None:
        w1, w1_scale, w2, w2_scale, out = rest
        rank_kernel[(experts,)](ids, ranks, counts, pairs, CHUNK=2048)
        permute_kernel[(pairs,)](
            x, ids, ranks, counts, begins, places, codes, scales, rows, TOP=top,
            EXPERTS=experts, WIDTH=width, BLOCKS=wide, TILE=TILE,
        )  # fmt: skip
        multiply(codes, scales, w1, w1_scale, hidden)
        swiglu_kernel[(pairs,)](
            hidden, places, inner_codes, inner_scales, rows, WIDTH=inner, BLOCKS=narrow
        )
        multiply(inner_codes, inner_scales, w2, w2_scale, y)
        combine_kernel[(tokens, triton.cdiv(width, 1024))](
            y, places, shares, out, TOP=top, WIDTH=width
        )

    return run
