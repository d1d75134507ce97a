"""FlashAttention-2's forward pass in Triton: scores live in registers and never reach memory."""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# PyTorch's own choice of (block_m, block_n, stages, warps) for this kernel on Hopper, bf16 and a
# head of 128: h100_default_flex_config in torch/_inductor/template_heuristics/triton.py.
BLOCK_M, BLOCK_N, STAGES, WARPS = 128, 64, 3, 8


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    q, k_desc, v_desc, sums, total, peak, start_row, s, head, scale, low, high,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Add the keys and values low..high to the running sums of one block of queries."""
    rows = start_row + tl.arange(0, BLOCK_M)
    for start in range(low, high, BLOCK_N):
        k = k_desc.load([head + start, 0])
        scores = tl.dot(q, k.T)
        if MASKED:
            columns = start + tl.arange(0, BLOCK_N)
            seen = columns[None, :] < s
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        # The scale is folded into the exponent: one multiply-add for each score.
        new_peak = tl.maximum(peak, tl.max(scores, 1) * scale)
        powers = tl.exp2(scores * scale - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(powers, 1)
        sums = sums * shrink[:, None]
        v = v_desc.load([head + start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
        peak = new_peak
    return sums, total, peak


@triton.jit
def attention_kernel(  # type: ignore[no-untyped-def]
    q_desc, k_desc, v_desc, out, s, scale,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Write the attention of BLOCK_M queries of one head; all heads lie below each other."""
    # The last queries see the most keys: they start first, so that no long block ends alone.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    start_row = block * BLOCK_M
    head = tl.program_id(1) * s
    q = q_desc.load([head + start_row, 0])
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    # Blocks of keys that every query sees whole need no mask: all but the last ones.
    whole = s // BLOCK_N * BLOCK_N
    end = s
    if CAUSAL:
        whole = tl.minimum(start_row // BLOCK_N * BLOCK_N, whole)
        end = tl.minimum(start_row + BLOCK_M, s)
    sums, total, peak = _attend(
        q, k_desc, v_desc, sums, total, peak, start_row, s, head, scale, 0, whole,
        BLOCK_M, BLOCK_N, False, CAUSAL,
    )  # fmt: skip
    sums, total, peak = _attend(
        q, k_desc, v_desc, sums, total, peak, start_row, s, head, scale, whole, end,
        BLOCK_M, BLOCK_N, True, CAUSAL,
    )  # fmt: skip
    rows = start_row + tl.arange(0, BLOCK_M)
    at = (head + rows).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty), mask=rows[:, None] < s)


def attention(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> None:
    """Write softmax(q k' / sqrt(d)) v to out; all are contiguous and [batch, heads, s, d]."""
    b, h, s, d = q.shape
    rows = b * h * s
    attention_kernel[(triton.cdiv(s, BLOCK_M), b * h)](
        TensorDescriptor(q, [rows, d], [d, 1], [BLOCK_M, d]),
        TensorDescriptor(k, [rows, d], [d, 1], [BLOCK_N, d]),
        TensorDescriptor(v, [rows, d], [d, 1], [BLOCK_N, d]),
        out,
        s,
        math.log2(math.e) / math.sqrt(d),
        D=d,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        CAUSAL=causal,
        num_stages=STAGES,
        num_warps=WARPS,
    )
