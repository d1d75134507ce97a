"""A mask of bits over logits in Triton: a byte and its eight logits a thread."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl

from perfsuite.gpu import torch

# Bytes of bits of a program.
BYTES, WARPS = 512, 4

_ALL = tl.constexpr(255)


@triton.jit
def mask_kernel(logits, bits, forbidden, COUNT: tl.constexpr, BYTES: tl.constexpr):
    """Write ``forbidden`` over logits whose bit is zero; read those alone that have both beside."""
    row = tl.program_id(0).to(tl.int64)
    numbers, eight = tl.program_id(1) * BYTES + tl.arange(0, BYTES), tl.arange(0, 8)
    # Where a row has ended all are allowed: nothing is written.
    byte = tl.load(bits + row * COUNT + numbers, numbers < COUNT, _ALL).to(tl.int32)
    at = logits + row * COUNT * 8 + numbers[:, None] * 8 + eight[None, :]
    # A mask of elements would make each access one element wide.
    some, is_mixed = (byte != _ALL)[:, None], ((byte != 0) & (byte != _ALL))[:, None]
    values = tl.load(at, is_mixed, 0.0).to(tl.float32)
    is_allowed = (byte[:, None] >> eight[None, :]) & 1
    found = tl.where(is_allowed == 1, values, forbidden)
    tl.store(at, found.to(logits.dtype.element_ty), some)


def mask(logits: Any, words: Any) -> Any:
    """Mask logits [rows, vocabulary] in place by int32 [rows, vocabulary / 32]; return them.

    Both are contiguous, and the vocabulary is a multiple of 32.
    """
    rows, vocab = logits.shape
    mask_kernel[(rows, triton.cdiv(vocab // 8, BYTES))](
        logits, words.view(torch.uint8), -math.inf, COUNT=vocab // 8, BYTES=BYTES,
        num_warps=WARPS,
    )  # fmt: skip
    return logits
