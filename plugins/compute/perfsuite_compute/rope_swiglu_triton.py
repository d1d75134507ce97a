"""Rotary embedding of queries and keys, and SwiGLU's product, in one pass through memory each."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl

ROPE_WARPS = 4
SWIGLU_BLOCK, SWIGLU_WARPS = 2048, 8  # 8 values a thread


@triton.jit
def _rotate(x, out, start, cos, sin, HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr):
    """Rotate all heads of one token: the pairs are the halves of each head."""
    half = tl.arange(0, D // 2)
    head = tl.arange(0, PADDED)
    inside = head[:, None] < HEADS
    at = start * HEADS * D + head[:, None] * D + half[None, :]
    low = tl.load(x + at, inside, 0.0).to(tl.float32)
    high = tl.load(x + at + D // 2, inside, 0.0).to(tl.float32)
    tl.store(out + at, (low * cos - high * sin).to(out.dtype.element_ty), inside)
    tl.store(out + at + D // 2, (high * cos + low * sin).to(out.dtype.element_ty), inside)


@triton.jit
def rope_kernel(
    q, k, cos, sin, q_out, k_out, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    PADDED: tl.constexpr, KV_PADDED: tl.constexpr,
):  # fmt: skip
    """Rotate the queries and keys of one token; cos and sin are read once for all heads."""
    token = tl.program_id(0).to(tl.int64)
    at = token * D + tl.arange(0, D // 2)  # both halves of a row of cos are the same
    c = tl.load(cos + at).to(tl.float32)[None, :]
    s = tl.load(sin + at).to(tl.float32)[None, :]
    _rotate(q, q_out, token, c, s, HEADS, PADDED, D)
    _rotate(k, k_out, token, c, s, KV_HEADS, KV_PADDED, D)


@triton.jit
def swiglu_kernel(gate, up, out, n, BLOCK: tl.constexpr):
    """Write gate * sigmoid(gate) * up."""
    first = tl.program_id(0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    # A mask is as coarse as n is round: of an odd n all accesses would be of one value.
    if first <= n - BLOCK:
        x = tl.load(gate + at).to(tl.float32)
        y = tl.load(up + at).to(tl.float32)
        tl.store(out + at, (x * tl.sigmoid(x) * y).to(out.dtype.element_ty))
    else:
        inside = at < n
        x = tl.load(gate + at, inside, 0.0).to(tl.float32)
        y = tl.load(up + at, inside, 0.0).to(tl.float32)
        tl.store(out + at, (x * tl.sigmoid(x) * y).to(out.dtype.element_ty), inside)


def rope(q: Any, k: Any, cos: Any, sin: Any, q_out: Any, k_out: Any) -> None:
    """Rotate q and k, [tokens, heads, d], by the angles of [tokens, d]; d is a power of two."""
    tokens, heads, d = q.shape
    kv_heads = k.shape[1]
    rope_kernel[(tokens,)](
        q, k, cos, sin, q_out, k_out,
        HEADS=heads, KV_HEADS=kv_heads, D=d,
        PADDED=triton.next_power_of_2(heads), KV_PADDED=triton.next_power_of_2(kv_heads),
        num_warps=ROPE_WARPS,
    )  # fmt: skip


def swiglu(gate: Any, up: Any, out: Any) -> None:
    """Write silu(gate) * up to out; all are contiguous and shorter than 2^31."""
    n = gate.numel()
    swiglu_kernel[(triton.cdiv(n, SWIGLU_BLOCK),)](
        gate, up, out, n, BLOCK=SWIGLU_BLOCK, num_warps=SWIGLU_WARPS
    )
