"""Tokens chosen from filtered logits in Triton, without a sort."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl

# Logits that a program holds at a time.
BLOCK, WARPS = 4096, 8

_INF = tl.constexpr(math.inf)


@triton.jit
def _part(row, first, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return a block of a row in fp32, with nothing behind its end."""
    places = first + tl.arange(0, BLOCK)
    return tl.load(row + places, places < VOCAB, -_INF).to(tl.float32)


@triton.jit
def _least(row, low, top, target, KEEP: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest logit such that those not below it are enough, by halving.

    Enough is ``target`` of them (top_k), or that part of all shares (top_p). ``low`` and ``top``
    are the least and the largest logit; both stay logits of the row, so that the search ends.
    """
    wanted = target
    if KEEP == "top_p":
        sums = tl.zeros((BLOCK,), dtype=tl.float32)
        for first in range(0, VOCAB, BLOCK):
            sums += tl.exp(_part(row, first, VOCAB, BLOCK) - top)
        wanted = target * tl.sum(sums, 0)
    high = top
    while low < high:
        middle = low + (high - low) * 0.5
        middle = tl.where(middle > low, middle, high)
        amounts = tl.zeros((BLOCK,), dtype=tl.float32)
        above = tl.full((BLOCK,), _INF, dtype=tl.float32)
        below = tl.full((BLOCK,), -_INF, dtype=tl.float32)
        for first in range(0, VOCAB, BLOCK):
            values = _part(row, first, VOCAB, BLOCK)
            is_above = values >= middle
            amount = tl.exp(values - top) if KEEP == "top_p" else 1.0
            amounts += tl.where(is_above, amount, 0.0)
            above = tl.minimum(above, tl.where(is_above, values, _INF))
            below = tl.maximum(below, tl.where(is_above, -_INF, values))
        is_enough = tl.sum(amounts, 0) >= wanted
        low = tl.where(is_enough, tl.min(above, 0), low)
        high = tl.where(is_enough, high, tl.max(below, 0))
    return low


@triton.jit
def block_of(sums, wanted):
    """Return the last block that begins before ``wanted``, and where: sums of blocks, in order."""
    before = tl.cumsum(sums, 0) - sums
    begins_before = (before <= wanted) & (sums > 0)
    blocks = tl.arange(0, sums.shape[0])
    found = tl.max(tl.where(begins_before, blocks, 0), 0)
    return found, tl.max(tl.where(begins_before, before, 0.0), 0)


@triton.jit
def place_in(masses, wanted):
    """Return the first word of a block that ends behind ``wanted``, and is no empty one.

    Where rounding leaves none, it is the last of those.
    """
    places = tl.arange(0, masses.shape[0])
    is_kept = masses > 0
    is_behind = is_kept & (tl.cumsum(masses, 0) > wanted)
    first = tl.min(tl.where(is_behind, places, masses.shape[0]), 0)
    return tl.minimum(first, tl.max(tl.where(is_kept, places, 0), 0))


@triton.jit
def sample_kernel(
    logits, uniforms, tokens, counts, target, KEEP: tl.constexpr, VOCAB: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the token of one row, and how many are kept."""
    number = tl.program_id(0)
    row = logits + number.to(tl.int64) * VOCAB
    peaks = tl.full((BLOCK,), -_INF, dtype=tl.float32)
    floors = tl.full((BLOCK,), _INF, dtype=tl.float32)
    for first in range(0, VOCAB, BLOCK):
        values = _part(row, first, VOCAB, BLOCK)
        peaks = tl.maximum(peaks, values)
        floors = tl.minimum(floors, tl.where(values > -_INF, values, _INF))
    top = tl.max(peaks, 0)
    if KEEP == "min_p":
        least = top + target
    else:
        least = _least(row, tl.min(floors, 0), top, target, KEEP, VOCAB, BLOCK)
    blocks = tl.arange(0, BLOCKS)
    sums = tl.zeros((BLOCKS,), dtype=tl.float32)
    kept = tl.zeros((BLOCK,), dtype=tl.int32)
    for block in range(tl.cdiv(VOCAB, BLOCK)):
        values = _part(row, block * BLOCK, VOCAB, BLOCK)
        is_kept = values >= least
        kept += is_kept.to(tl.int32)
        mass = tl.sum(tl.where(is_kept, tl.exp(values - top), 0.0), 0)
        sums = tl.where(blocks == block, mass, sums)
    wanted = tl.load(uniforms + number) * tl.sum(sums, 0)
    found, start = block_of(sums, wanted)
    values = _part(row, found * BLOCK, VOCAB, BLOCK)
    masses = tl.where(values >= least, tl.exp(values - top), 0.0)
    token = found * BLOCK + place_in(masses, wanted - start)
    tl.store(tokens + number, token)
    tl.store(counts + number, tl.sum(kept, 0))


def sample(
    logits: Any, uniforms: Any, tokens: Any, counts: Any, *, keep: str, target: float
) -> None:
    """Write a token, and how many are kept, for each row of logits [rows, vocabulary].

    ``target`` is how many are kept (top_k), the part of all shares that they make up (top_p), or
    how far below the largest a logit may lie, a negative number (min_p). Logits are finite.
    """
    rows, vocab = logits.shape
    sample_kernel[(rows,)](
        logits, uniforms, tokens, counts, float(target), KEEP=keep, VOCAB=vocab, BLOCK=BLOCK,
        BLOCKS=triton.next_power_of_2(triton.cdiv(vocab, BLOCK)), num_warps=WARPS,
    )  # fmt: skip
