"""Cross-entropy and its gradient in place: logits become their own gradient."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

BLOCK, WARPS = 4096, 8  # 16 logits a thread


@triton.jit
def cross_entropy_kernel(  # type: ignore[no-untyped-def]
    logits, target, loss, factor, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):
    """Write one row's loss, and over its logits their gradient; both times ``factor``."""
    row = tl.program_id(0).to(tl.int64)
    start = row * VOCAB
    right = tl.load(target + row).to(tl.int32)
    columns = tl.arange(0, BLOCK)
    peak = tl.full((BLOCK,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    chosen = tl.zeros((BLOCK,), dtype=tl.float32)
    # Each lane keeps a maximum and a sum of its own: the row is reduced once, not at each block.
    for first in range(0, VOCAB, BLOCK):
        at = first + columns
        values = tl.load(logits + start + at, at < VOCAB, -float("inf")).to(tl.float32)
        higher = tl.maximum(peak, values)
        total = total * tl.exp(peak - higher) + tl.exp(values - higher)
        chosen += tl.where(at == right, values, 0.0)
        peak = higher
    highest = tl.max(peak, 0)
    normaliser = highest + tl.log(tl.sum(total * tl.exp(peak - highest), 0))
    tl.store(loss + row, (normaliser - tl.sum(chosen, 0)) * factor)
    for first in range(0, VOCAB, BLOCK):
        at = first + columns
        values = tl.load(logits + start + at, at < VOCAB, -float("inf")).to(tl.float32)
        share = tl.exp(values - normaliser) - tl.where(at == right, 1.0, 0.0)
        tl.store(logits + start + at, (share * factor).to(logits.dtype.element_ty), at < VOCAB)


def cross_entropy(logits: Any, target: Any, loss: Any, *, factor: float) -> None:
    """Write each row's loss, and over contiguous logits their gradient, both times ``factor``."""
    rows, vocab = logits.shape
    cross_entropy_kernel[(rows,)](
        logits, target, loss, factor, VOCAB=vocab, BLOCK=BLOCK, num_warps=WARPS
    )
