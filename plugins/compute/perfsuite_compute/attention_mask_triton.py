"""Attention over an interval of keys for each query, in Triton: blocks outside are not visited."""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# As attention_triton has them, which see.
BLOCK_M, BLOCK_N, STAGES, WARPS = 128, 64, 3, 8


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q, k_desc, v_desc, sums, total, peak, rows, starts, head, scale, cap, low, high,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Add the keys and values low..high to the running sums of one block of queries."""
    for start in range(low, high, BLOCK_N):
        k = k_desc.load([head + start, 0])
        scores = tl.dot(q, k.T)
        factor = scale
        if CAPPED:
            # tanh(x) = 1 - 2 / (1 + exp(2x)); cap and scale both carry the factor log2(e), which
            # turns the exponential into a power of two.
            scores = cap * (
                1 - 2 / (1 + tl.exp2(scores * (scale * (2 * 1.4426950408889634) / cap)))
            )
            factor = 1.0
        if MASKED:
            columns = start + tl.arange(0, BLOCK_N)
            seen = (columns[None, :] <= rows[:, None]) & (columns[None, :] >= starts[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
        powers = tl.exp2(scores * factor - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(powers, 1)
        sums = sums * shrink[:, None]
        v = v_desc.load([head + start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
        peak = new_peak
    return sums, total, peak


@triton.jit
def interval_attention_kernel(  # type: ignore[no-untyped-def]
    q_desc, k_desc, v_desc, first_keys, out, s, scale, cap,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Let BLOCK_M queries of one head see the keys from their first one up to their own.

    First keys never fall from one query to the next, so that those of a block's first and last
    query bound the blocks of keys that some or all of its queries see.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    start_row = block * BLOCK_M
    head = tl.program_id(1) * s
    rows = start_row + tl.arange(0, BLOCK_M)
    starts = tl.load(first_keys + rows, rows < s, 0)
    q = q_desc.load([head + start_row, 0])
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    # Some see low..whole_low, all whole_low..whole_high, some whole_high..end.
    end = tl.minimum(start_row + BLOCK_M, s)
    low = tl.load(first_keys + start_row) // BLOCK_N * BLOCK_N
    whole_low = tl.cdiv(tl.load(first_keys + end - 1), BLOCK_N) * BLOCK_N
    whole_high = start_row // BLOCK_N * BLOCK_N
    # A document may begin among these very queries: then nothing is seen by all.
    whole_low = tl.minimum(whole_low, whole_high)
    low = tl.minimum(low, whole_low)
    sums, total, peak = _attend(
        q, k_desc, v_desc, sums, total, peak, rows, starts, head, scale, cap, low, whole_low,
        BLOCK_N, True, CAPPED,
    )  # fmt: skip
    sums, total, peak = _attend(
        q, k_desc, v_desc, sums, total, peak, rows, starts, head, scale, cap, whole_low, whole_high,
        BLOCK_N, False, CAPPED,
    )  # fmt: skip
    sums, total, peak = _attend(
        q, k_desc, v_desc, sums, total, peak, rows, starts, head, scale, cap, whole_high, end,
        BLOCK_N, True, CAPPED,
    )  # fmt: skip
    at = (head + rows).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=rows[:, None] < s)


def attention(q: Any, k: Any, v: Any, first_keys: Any, out: Any, *, cap: float) -> None:
    """Write the attention of q over k and v to out; scores bend towards +-cap if it is not 0.

    All are contiguous and [batch, heads, s, d]; query i sees keys ``first_keys[i]`` to i.
    """
    b, h, s, d = q.shape
    rows = b * h * s
    interval_attention_kernel[(triton.cdiv(s, BLOCK_M), b * h)](
        TensorDescriptor(q, [rows, d], [d, 1], [BLOCK_M, d]),
        TensorDescriptor(k, [rows, d], [d, 1], [BLOCK_N, d]),
        TensorDescriptor(v, [rows, d], [d, 1], [BLOCK_N, d]),
        first_keys,
        out,
        s,
        math.log2(math.e) / math.sqrt(d),
        math.log2(math.e) * cap,
        D=d,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        CAPPED=cap > 0,
        num_stages=STAGES,
        num_warps=WARPS,
    )  # fmt: skip
