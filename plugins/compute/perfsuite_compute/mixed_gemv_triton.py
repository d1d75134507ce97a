"""One row times 8- and 4-bit weights in Triton: no tensor cores, four codes or eight a word."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# Rows of a program, and words of a row that it takes at a time: 512 bytes, so that a warp reads
# rows one by one and a thread has the same part of eight, for which it makes x ready once.
BLOCK_N, WORDS, STAGES, WARPS = 32, 128, 4, 4
GROUP_WORDS = 16  # of 4-bit weights that share a scale
# 1.0 as an integer. It is handed over: were both constants in the code, masking and raising a code
# would be an instruction each.
ONE = 0x3F800000


@triton.jit
def _piece(  # type: ignore[no-untyped-def]
    words, one, at, inside, PLACE: tl.constexpr, BITS: tl.constexpr, SHIFT: tl.constexpr
):
    """Return what codes at PLACE of words, shifted to the left, make of x; and what is too much.

    Put into the upper mantissa bits of 1.0, from bit PLACE on, a code c is 1 + c / 2^(23 - PLACE):
    no conversion, and one multiply-add with x 2^(23 - PLACE). What is too much is that x, and x
    times half the codes' range, since codes are stored with that added; neither depends on w.
    """
    MASK: tl.constexpr = ((1 << BITS) - 1) << PLACE
    moved = words << SHIFT if SHIFT >= 0 else words >> (0 - SHIFT)
    raised = ((moved & MASK) | one).to(tl.float32, bitcast=True)
    x = tl.load(at, inside, 0.0).to(tl.float32)
    return raised, x * (1 << (23 - PLACE)), x * ((1 << (23 - PLACE)) + (1 << (BITS - 1)))


@triton.jit
def _products(words, one, x_ptr, word, inside, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sum over each word's codes of code times x; words are [rows, words]."""
    sums, over = tl.zeros(words.shape, tl.float32), tl.zeros(word.shape, tl.float32)
    if KIND == "int4":
        # Byte j of a group holds its weights j (low) and j + 64 (high).
        first = word // 16 * 128 + word % 16 * 4
        for byte in tl.static_range(4):
            at = x_ptr + first + byte
            low, x, more = _piece(words, one, at, inside, 12, 4, 12 - 8 * byte)
            sums += low * x
            high, x, beside = _piece(words, one, at + 64, inside, 16, 4, 12 - 8 * byte)
            sums += high * x
            over += more + beside
    else:
        flipped = words ^ -0x7F7F7F80  # codes are signed: 128 more, modulo 256
        for byte in tl.static_range(4):
            at = x_ptr + 4 * word + byte
            code, x, more = _piece(flipped, one, at, inside, 8, 8, 8 - 8 * byte)
            sums += code * x
            over += more
    return sums - over


@triton.jit
def gemv_kernel(  # type: ignore[no-untyped-def]
    x_ptr, w_ptr, scale_ptr, y_ptr, n, wide, one,
    KIND: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write x [k] times the transpose of w [n, wide words] to y [n]."""
    GROUPS: tl.constexpr = WORDS // GROUP
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = (rows < n)[:, None]
    from_row = w_ptr + rows.to(tl.int64)[:, None] * wide
    sums = tl.zeros((BLOCK_N, GROUPS if KIND == "int4" else WORDS), dtype=tl.float32)
    for start in tl.range(0, wide, WORDS, num_stages=STAGES):
        word = start + tl.arange(0, WORDS)
        words = tl.load(from_row + word[None, :], known & (word < wide)[None, :], 0)
        products = _products(words, one, x_ptr, word, word < wide, KIND)
        if KIND == "int4":
            group = start // GROUP + tl.arange(0, GROUPS)
            scales = scale_ptr + rows[:, None] * (wide // GROUP) + group[None, :]
            scale = tl.load(scales, known & (group < wide // GROUP)[None, :], 0.0)
            products = tl.sum(tl.reshape(products, (BLOCK_N, GROUPS, GROUP)), 2) * scale
        sums += products
    result = tl.sum(sums, 1)
    if KIND == "int8":
        result *= tl.load(scale_ptr + rows, rows < n, 0.0)
    tl.store(y_ptr + rows, result.to(y_ptr.dtype.element_ty), rows < n)


def launch(k: int, *, kind: str) -> Any:
    """Return ``launch(x, w, scale, y)`` for one row of k and weights of ``kind``: int8 or int4.

    k is a multiple of 16, of 128 for int4.
    """
    import torch

    wide = k // (4 if kind == "int8" else 8)

    def run(x: Any, w: Any, scale: Any, y: Any) -> None:
        n = w.shape[0]
        gemv_kernel[(triton.cdiv(n, BLOCK_N),)](
            x, w.view(torch.int32), scale, y, n, wide, ONE,
            KIND=kind, BLOCK_N=BLOCK_N, WORDS=WORDS, GROUP=GROUP_WORDS, STAGES=STAGES,
            num_warps=WARPS,
        )  # fmt: skip

    return run
