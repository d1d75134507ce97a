"""Cross-entropy and its gradient in place: logits become their own gradient."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

BLOCK, WARPS = 4096, 8  # 16 logits a thread
VECTOR = 8  # logits in 16 bytes
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _columns(first, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """Return the numbers of BLOCK columns, those that a thread reads at once in a row."""
    vector = tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR
    return first + vector + tl.arange(0, VECTOR)[None, :]


@triton.jit
def cross_entropy_kernel(
    logits, target, loss, factor, VOCAB: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write one row's loss, and over its logits their gradient; both times ``factor``.

    Rows are WIDE logits apart. What lies behind VOCAB is read and overwritten, but not taken into
    account: so all is read by whole vectors.
    """
    row = logits + tl.program_id(0).to(tl.int64) * WIDE
    right = tl.load(target + tl.program_id(0)).to(tl.int32)
    peak = tl.full((BLOCK // VECTOR,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK // VECTOR,), dtype=tl.float32)
    # Each vector keeps a maximum and a sum of its own: the row is reduced once, not at each block.
    # Exponentials are powers of two, which take one instruction and a multiply-add.
    for first in range(0, WIDE, BLOCK):
        at = _columns(first, BLOCK, VECTOR)
        values = tl.load(row + at, at < WIDE, -float("inf")).to(tl.float32)
        values = tl.where(at < VOCAB, values, -float("inf"))
        higher = tl.maximum(peak, tl.max(values, 1) * LOG2_E)
        powers = tl.exp2(values * LOG2_E - higher[:, None])
        total = total * tl.exp2(peak - higher) + tl.sum(powers, 1)
        peak = higher
    highest = tl.max(peak, 0)
    normaliser = highest + tl.log2(tl.sum(total * tl.exp2(peak - highest), 0))
    chosen = tl.load(row + right).to(tl.float32) * LOG2_E
    tl.store(loss + tl.program_id(0), (normaliser - chosen) / LOG2_E * factor)
    tl.debug_barrier()  # all have read the chosen one, before it is overwritten
    for first in range(0, WIDE, BLOCK):
        at = _columns(first, BLOCK, VECTOR)
        values = tl.load(row + at, at < WIDE, 0.0).to(tl.float32)
        share = tl.exp2(values * LOG2_E - normaliser) * factor
        tl.store(row + at, share.to(logits.dtype.element_ty), at < WIDE)
    tl.debug_barrier()  # its share has been written, before it is overwritten by what is right
    share = (tl.exp2(chosen - normaliser) - 1) * factor
    tl.store(row + right, share.to(logits.dtype.element_ty))


def cross_entropy(logits: Any, target: Any, loss: Any, *, factor: float) -> None:
    """Write each row's loss, and over the logits their gradient, both times ``factor``.

    Rows may be further apart than they are long; what is between them is overwritten.
    """
    rows, vocab = logits.shape
    cross_entropy_kernel[(rows,)](
        logits, target, loss, factor,
        VOCAB=vocab, WIDE=logits.stride(0), BLOCK=BLOCK, VECTOR=VECTOR, num_warps=WARPS,
    )  # fmt: skip
