"""Drafted tokens verified in Triton: blocks of one position summed, then a token found in one."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
import triton
import triton.language as tl

from perfsuite_inference.sampling_triton import block_of, place_in

# Words of a program.
BLOCK, SUM_WARPS, CHOOSE_WARPS = 4096, 8, 8


@triton.jit
def _accepted(
    target, draft, tokens, uniforms, row, VOCAB: tl.constexpr, DRAFTS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """Return how many drafted tokens of a row come before the first refused one."""
    places = tl.arange(0, PADDED)
    inside = places < DRAFTS
    at = row * DRAFTS + places
    token = tl.load(tokens + at, inside, 0)
    p = tl.load(target + (at + row) * VOCAB + token, inside, 1.0)
    q = tl.load(draft + at * VOCAB + token, inside, 1.0)
    is_refused = tl.load(uniforms + at, inside, 0.0) * q >= p
    return tl.min(tl.where(is_refused, places, DRAFTS), 0)


@triton.jit
def _left(
    target, draft, row, count, block, VOCAB: tl.constexpr, DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Return a block of max(p - q, 0) behind ``count`` accepted tokens; q is 0 behind all."""
    words = block * BLOCK + tl.arange(0, BLOCK)
    inside = words < VOCAB
    p = tl.load(target + (row * (DRAFTS + 1) + count) * VOCAB + words, inside, 0.0)
    at = draft + (row * DRAFTS + count) * VOCAB + words
    return tl.maximum(p - tl.load(at, inside & (count < DRAFTS), 0.0), 0.0)


@triton.jit
def sum_kernel(
    target, draft, tokens, uniforms, sums, VOCAB: tl.constexpr, DRAFTS: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the sum of a block of what one row's token is drawn from: [rows, blocks]."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = _accepted(target, draft, tokens, uniforms, row, VOCAB, DRAFTS, PADDED)
    masses = _left(target, draft, row, count, block, VOCAB, DRAFTS, BLOCK)
    tl.store(sums + row * tl.num_programs(1) + block, tl.sum(masses, 0))


@triton.jit
def choose_kernel(
    target, draft, tokens, uniforms, last, sums, out, count_of_blocks, VOCAB: tl.constexpr,
    DRAFTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the accepted tokens of one row, the chosen one, and -1 behind it."""
    row = tl.program_id(0).to(tl.int64)
    count = _accepted(target, draft, tokens, uniforms, row, VOCAB, DRAFTS, PADDED)
    blocks = tl.arange(0, BLOCKS)
    own = tl.load(sums + row * count_of_blocks + blocks, blocks < count_of_blocks, 0.0)
    wanted = tl.load(last + row) * tl.sum(own, 0)
    block, start = block_of(own, wanted)
    masses = _left(target, draft, row, count, block, VOCAB, DRAFTS, BLOCK)
    chosen = block * BLOCK + place_in(masses, wanted - start)
    places = tl.arange(0, PADDED)
    accepted = tl.load(tokens + row * DRAFTS + places, places < DRAFTS, 0)
    found = tl.where(places < count, accepted, tl.where(places == count, chosen, -1))
    tl.store(out + row * (DRAFTS + 1) + places, found, places <= DRAFTS)


def verify(target: Any, draft: Any, tokens: Any, uniforms: Any, last: Any, out: Any) -> None:
    """Write to out [rows, drafts + 1] the accepted tokens, the one behind them, and -1.

    target is [rows, drafts + 1, vocabulary] and draft [rows, drafts, vocabulary], shares in fp32;
    tokens and uniforms are [rows, drafts], last is [rows]. Tokens are int32.
    """
    rows, drafts, vocab = draft.shape
    count = triton.cdiv(vocab, BLOCK)
    sums = torch.empty((rows, count), dtype=torch.float32, device=draft.device)
    given = target, draft, tokens, uniforms
    sizes: dict[str, Any] = {"VOCAB": vocab, "DRAFTS": drafts, "BLOCK": BLOCK}
    sizes |= {"PADDED": triton.next_power_of_2(drafts + 1)}
    sum_kernel[(rows, count)](*given, sums, **sizes, num_warps=SUM_WARPS)
    choose_kernel[(rows,)](
        *given, last, sums, out, count, **sizes, BLOCKS=triton.next_power_of_2(count),
        num_warps=CHOOSE_WARPS,
    )  # fmt: skip
