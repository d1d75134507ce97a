"""Attention over an interval of keys for each query, in Triton: blocks outside are not visited."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from perfsuite_compute.attention_triton import BLOCK_M, BLOCK_N, STAGES, WARPS, store, weigh


@triton.jit
def _bend(scores, scale, cap, ON_GPU: tl.constexpr):
    """Return cap tanh(scores scale / cap); cap and scale both carry the factor log2(e)."""
    if ON_GPU:
        # One instruction of the special function unit, right to 2^-11, which is less than bf16 has.
        return cap * tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=r,r", [scores * (scale / cap)],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    # tanh(x) = 1 - 2 / (1 + exp(2x)), the exponential as a power of two.
    return cap - 2 * cap / (1 + tl.exp2(scores * (scale * (2 * 1.4426950408889634) / cap)))


@triton.jit
def _hide(scores, columns, rows, starts):
    """Return the scores without those of keys that a query does not see."""
    seen = (columns[None, :] <= rows[:, None]) & (columns[None, :] >= starts[:, None])
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def interval_attention_kernel(
    q_desc, k_desc, v_desc, first_keys, out, s, scale, cap, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAPPED: tl.constexpr, ON_GPU: tl.constexpr,
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
    # All queries see the keys from whole_low to whole_high; only other blocks need a mask.
    end = tl.minimum(start_row + BLOCK_M, s)
    low = tl.load(first_keys + start_row) // BLOCK_N * BLOCK_N
    whole_low = tl.load(first_keys + end - 1)
    for start in range(low, end, BLOCK_N):
        k = k_desc.load([head + start, 0])
        scores = tl.dot(q, k.T)
        factor = scale
        if CAPPED:
            scores = _bend(scores, scale, cap, ON_GPU)
            factor = 1.0
        if (start < whole_low) | (start + BLOCK_N > start_row + 1):
            scores = _hide(scores, start + tl.arange(0, BLOCK_N), rows, starts)
        powers, sums, total, peak = weigh(scores, factor, sums, total, peak)
        v = v_desc.load([head + start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
    store(out, sums, total, head, rows, s, D)


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
        ON_GPU=q.is_cuda,
        num_stages=STAGES,
        num_warps=WARPS,
    )  # fmt: skip
