"""One query's attention over a long cache in Triton: keys are split among programs, then joined."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_N, STAGES, WARPS = 64, 3, 4
LEAST_ROWS = 16  # of a matrix product on tensor cores
# DeepSeek's latent: 512 shared by keys and values, and 64 that carry the position.
LATENT, ROPE = 512, 64
MLA_HEADS, MLA_BLOCK_N, MLA_STAGES, MLA_WARPS = 64, 64, 2, 8
AHEAD = True  # the L2 cache is asked for a block before shared memory has room for it


@triton.jit
def _weigh(scores, columns, high, peak, total, sums):
    """Return the powers of a block of scores, and peak, total and sums to go on with."""
    scores = tl.where(columns[None, :] < high, scores, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    powers = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    return powers, new_peak, total * shrink + tl.sum(powers, 1), sums * shrink[:, None]


@triton.jit
def _leave(sums_out, total_out, peak_out, heads, inside, sums, total, peak, DV: tl.constexpr):
    """Write what this program's share of the keys came to, for all of its heads."""
    at = heads * tl.num_programs(1) + tl.program_id(1)
    tl.store(total_out + at, total, inside)
    tl.store(peak_out + at, peak, inside)
    to = at[:, None] * DV + tl.arange(0, DV)[None, :]
    tl.store(sums_out + to, sums, inside[:, None])


@triton.jit
def decode_kernel(
    q, k_desc, v_desc, sums_out, total_out, peak_out, s, share, scale, GROUP: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Let the GROUP query heads of one head of keys see ``share`` keys of it."""
    kv_head = tl.program_id(0)
    member = tl.arange(0, ROWS)
    heads = kv_head * GROUP + member
    inside = member < GROUP
    wide = tl.arange(0, D)
    queries = tl.load(q + heads[:, None] * D + wide[None, :], inside[:, None], 0.0)
    low = tl.program_id(1) * share
    high = tl.minimum(low + share, s)
    sums = tl.zeros((ROWS, D), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    peak = tl.full((ROWS,), -1.0e30, dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        k = k_desc.load([kv_head * s + start, 0])
        scores = tl.dot(queries, k.T) * scale
        columns = start + tl.arange(0, BLOCK_N)
        powers, peak, total, sums = _weigh(scores, columns, high, peak, total, sums)
        v = v_desc.load([kv_head * s + start, 0])
        sums = tl.dot(powers.to(v.dtype), v, sums)
    _leave(sums_out, total_out, peak_out, heads, inside, sums, total, peak, D)


@triton.jit
def _call_for(array, row, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Let one thread ask the L2 cache to fetch ROWS rows of bf16; nobody waits for them."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred first;
            .reg .b32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r",
        [(array + row.to(tl.int64) * WIDTH).to(tl.int64), 2 * ROWS * WIDTH],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def mla_decode_kernel(
    q, cache, latent_desc, rope_desc, sums_out, total_out, peak_out, s, share, scale,
    HEADS: tl.constexpr, ROWS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    BLOCK_N: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Let ROWS heads of one sequence see ``share`` tokens: the latent is key and value at once."""
    tiles: tl.constexpr = (HEADS + ROWS - 1) // ROWS
    sequence = tl.program_id(0) // tiles
    head = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    inside = head < HEADS
    heads = sequence * HEADS + head
    at = q + heads[:, None] * (LATENT + ROPE)
    queries = tl.load(at + tl.arange(0, LATENT)[None, :], inside[:, None], 0.0)
    turned = tl.load(at + LATENT + tl.arange(0, ROPE)[None, :], inside[:, None], 0.0)
    low = tl.program_id(1) * share
    high = tl.minimum(low + share, s)
    sums = tl.zeros((ROWS, LATENT), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    peak = tl.full((ROWS,), -1.0e30, dtype=tl.float32)
    for start in range(low, high, BLOCK_N):
        # Shared memory has no room for the copies of a third block, but the cache has.
        if AHEAD and start + 2 * BLOCK_N <= high:
            _call_for(cache, sequence * s + start + BLOCK_N, BLOCK_N, LATENT + ROPE)
        latent = latent_desc.load([sequence * s + start, 0])
        rope = rope_desc.load([sequence * s + start, LATENT])
        scores = tl.dot(turned, rope.T)
        scores = tl.dot(queries, latent.T, scores) * scale
        columns = start + tl.arange(0, BLOCK_N)
        powers, peak, total, sums = _weigh(scores, columns, high, peak, total, sums)
        sums = tl.dot(powers.to(latent.dtype), latent, sums)
    _leave(sums_out, total_out, peak_out, heads, inside, sums, total, peak, LATENT)


@triton.jit
def join_kernel(sums, totals, peaks, out, SPLITS: tl.constexpr, DV: tl.constexpr):
    """Write one head's result: its parts, each scaled to the highest peak of all."""
    head = tl.program_id(0)
    wide = tl.arange(0, DV)
    highest = tl.load(peaks + head * SPLITS)
    for part in range(1, SPLITS):
        highest = tl.maximum(highest, tl.load(peaks + head * SPLITS + part))
    result = tl.zeros((DV,), dtype=tl.float32)
    total = 0.0
    for part in range(SPLITS):
        at = head * SPLITS + part
        factor = tl.exp2(tl.load(peaks + at) - highest)
        total += tl.load(totals + at) * factor
        result += tl.load(sums + at * DV + wide) * factor
    tl.store(out + head * DV + wide, (result / total).to(out.dtype.element_ty))


def decode(q: Any, k: Any, v: Any, out: Any, *, splits: int) -> None:
    """Write the attention of q, [b, heads, d], over k and v, [b, kv heads, s, d], to out."""
    b, heads, d = q.shape
    kv_heads, s = k.shape[1:3]
    group, rows = heads // kv_heads, b * kv_heads * s
    parts = parts_for(b * heads, splits, d, q.device)
    decode_kernel[(b * kv_heads, splits)](
        q, TensorDescriptor(k, [rows, d], [d, 1], [BLOCK_N, d]),
        TensorDescriptor(v, [rows, d], [d, 1], [BLOCK_N, d]), *parts, s,
        share_of(s, splits, BLOCK_N), math.log2(math.e) / math.sqrt(d),
        GROUP=group, ROWS=max(LEAST_ROWS, triton.next_power_of_2(group)), D=d, BLOCK_N=BLOCK_N,
        num_stages=STAGES, num_warps=WARPS,
    )  # fmt: skip
    join_kernel[(b * heads,)](*parts, out, SPLITS=splits, DV=d)


def mla_decode(q: Any, cache: Any, out: Any, *, scale: float, splits: int) -> None:
    """Write the attention of q, [b, heads, 576], over cache, [b, s, 576], to out (512 wide)."""
    b, heads, width = q.shape
    s = cache.shape[1]
    parts = parts_for(b * heads, splits, LATENT, q.device)
    shape, strides = [b * s, width], [width, 1]
    mla_decode_kernel[(b * triton.cdiv(heads, MLA_HEADS), splits)](
        q, cache, TensorDescriptor(cache, shape, strides, [MLA_BLOCK_N, LATENT]),
        TensorDescriptor(cache, shape, strides, [MLA_BLOCK_N, ROPE]), *parts, s,
        share_of(s, splits, MLA_BLOCK_N), math.log2(math.e) * scale,
        HEADS=heads, ROWS=MLA_HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=MLA_BLOCK_N,
        AHEAD=AHEAD and cache.is_cuda, num_stages=MLA_STAGES, num_warps=MLA_WARPS,
    )  # fmt: skip
    join_kernel[(b * heads,)](*parts, out, SPLITS=splits, DV=LATENT)


def parts_for(heads: int, splits: int, width: int, place: Any) -> tuple[Any, Any, Any]:
    """Return room for each split's sums (``width`` of each head), total and peak, in fp32."""
    import torch

    def empty(*shape: int) -> Any:
        return torch.empty(heads, splits, *shape, dtype=torch.float32, device=place)

    return empty(width), empty(), empty()


def share_of(s: int, splits: int, block: int) -> int:
    """Return the keys of one split, whole blocks of them."""
    return int(triton.cdiv(triton.cdiv(s, splits), block)) * block
