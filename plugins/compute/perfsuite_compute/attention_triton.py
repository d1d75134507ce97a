"""FlashAttention-2's forward pass in Triton: scores live in registers and never reach memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Rescaling the sums serves 128 keys. Blocks of one warpgroup and one stage, of which several are on
# an SM, fill each other's waits: an H200 takes an eighth less than with 128 x 128, eight warps and
# three stages.
BLOCK_M, BLOCK_N, STAGES, WARPS = 64, 128, 1, 4


@triton.jit
def weigh(scores, factor, sums, total, peak):
    """Return the powers of a block of scores, and the running sums, total and peak."""
    # The scale is folded into the exponent: one multiply-add for each score.
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    powers = tl.exp2(scores * factor - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    return powers, sums * shrink[:, None], total * shrink + tl.sum(powers, 1), new_peak


@triton.jit
def store(out, sums, total, head, rows, s, D: tl.constexpr):
    """Write the sums' rows below s, divided by their totals: one division a query."""
    at = (head + rows).to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    shares = sums * (1 / total)[:, None]
    tl.store(out + at, shares.to(out.dtype.element_ty), mask=rows[:, None] < s)


@triton.jit
def attention_kernel(
    q_desc, k_desc, v_desc, out, s, scale, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Write the attention of BLOCK_M queries of one head; all heads lie below each other."""
    # The last queries see the most keys: they start first, so that no long block ends alone.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    start_row = block * BLOCK_M
    head = tl.program_id(1) * s
    rows = start_row + tl.arange(0, BLOCK_M)
    q = q_desc.load([head + start_row, 0])
    sums = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    # Blocks of keys up to `whole` are seen by every query and need no mask: all but the last ones.
    whole, end = s, s
    if CAUSAL:
        whole = tl.minimum(start_row + 1, s)
        end = tl.minimum(start_row + BLOCK_M, s)
    for start in range(0, end, BLOCK_N):
        k = k_desc.load([head + start, 0])
        scores = tl.dot(q, k.T)
        if start + BLOCK_N > whole:
            columns = start + tl.arange(0, BLOCK_N)
            seen = columns[None, :] < s
            if CAUSAL:
                seen = seen & (columns[None, :] <= rows[:, None])
            scores = tl.where(seen, scores, -float("inf"))
        powers, sums, total, peak = weigh(scores, scale, sums, total, peak)
        v = v_desc.load([head + start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
    store(out, sums, total, head, rows, s, D)


def attention(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> None:
    """Write softmax(q k' / sqrt(d)) v to out; all are contiguous and [batch, heads, s, d]."""
    b, h, s, d = q.shape
    rows = b * h * s
    attention_kernel[(triton.cdiv(s, BLOCK_M), b * h)](
        TensorDescriptor(q, [rows, d], [d, 1], [BLOCK_M, d]),
        TensorDescriptor(k, [rows, d], [d, 1], [BLOCK_N, d]),
        TensorDescriptor(v, [rows, d], [d, 1], [BLOCK_N, d]), out, s,
        math.log2(math.e) / math.sqrt(d),
        D=d, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, CAUSAL=causal, num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
