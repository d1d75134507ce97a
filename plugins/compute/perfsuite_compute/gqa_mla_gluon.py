"""Decoding with a latent cache in Gluon: the next block is copied under all of this one's work."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from perfsuite_compute import gqa_mla_triton

# 64 heads' queries and two blocks of the latent are 216 of the 227 KiB that a block may have.
ROWS, BLOCK_N, WARPS = 64, 64, 8
LATENT, ROPE = gqa_mla_triton.LATENT, gqa_mla_triton.ROPE
# Its name was another one before Triton 3.7.
_sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def _two_slots(descriptor):
    rows: gl.constexpr = descriptor.block_type.shape[0]
    columns: gl.constexpr = descriptor.block_type.shape[1]
    return gl.allocate_shared_memory(descriptor.dtype, [2, rows, columns], descriptor.layout)


@gluon.jit
def _fetch(descriptors, row, slot, bar, pred):
    """Begin to copy rows of the latent and of what carries the position into a slot."""
    wide, narrow = descriptors
    mbarrier.expect(bar, wide.block_type.nbytes + narrow.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(wide, [row, 0], bar, slot[0], pred=pred)
    column: gl.constexpr = wide.block_type.shape[1]
    tma.async_copy_global_to_shared(narrow, [row, column], bar, slot[1], pred=pred)


@gluon.jit
def _score(queries, slot, of_scores: gl.constexpr):
    """Return the products of all queries and all keys of a slot."""
    rows: gl.constexpr = queries[0].shape[0]
    keys: gl.constexpr = slot[0].shape[0]
    scores = gl.zeros((rows, keys), gl.float32, of_scores)
    scores = warpgroup_mma(queries[1], slot[1].permute((1, 0)), scores, is_async=True)
    scores = warpgroup_mma(queries[0], slot[0].permute((1, 0)), scores, is_async=True)
    return warpgroup_mma_wait(0, deps=(scores,))


@gluon.jit
def _weigh(scores, seen, total, peak):
    """Return the powers of a block of scores, total and peak to go on with, and the shrinkage."""
    scores = gl.where(seen[None, :], scores, -float("inf"))
    new_peak = gl.maximum(peak, gl.max(scores, 1))
    powers = gl.exp2(scores - new_peak[:, None])
    shrink = gl.exp2(peak - new_peak)
    return powers, total * shrink + gl.sum(powers, 1), new_peak, shrink


@gluon.jit
def _leave(results, sums, total, peak, head):
    """Write what this program's share of the keys came to, for all of its heads."""
    sums_out, total_out, peak_out = results
    rows: gl.constexpr = sums.shape[0]
    columns: gl.constexpr = sums.shape[1]
    splits = gl.num_programs(1)
    at = (head + gl.arange(0, rows, total.type.layout)) * splits + gl.program_id(1)
    gl.store(total_out + at, total)
    gl.store(peak_out + at, peak)
    down = head + gl.arange(0, rows, gl.SliceLayout(1, sums.type.layout))
    across = gl.arange(0, columns, gl.SliceLayout(0, sums.type.layout))
    to = (down * splits + gl.program_id(1))[:, None] * columns + across[None, :]
    gl.store(sums_out + to, sums)


@gluon.jit
def _attend(descriptors, row, steps, queries, slots, full, seen_keys, scale, SPLIT: gl.constexpr):
    """Return sums, total and peak of the first ``seen_keys`` keys from ``row`` on.

    SPLIT warps beside each other share a row's keys, and then the columns of the latent.
    """
    rows: gl.constexpr = queries[0].shape[0]
    wide: gl.constexpr = queries[0].shape[1]
    keys: gl.constexpr = slots[0].shape[1]
    of_scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, SPLIT], instr_shape=[16, keys // SPLIT, 16]
    )
    of_sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, SPLIT], instr_shape=[16, wide // SPLIT, 16]
    )
    sums = gl.zeros((rows, wide), gl.float32, of_sums)
    total = gl.zeros((rows,), gl.float32, gl.SliceLayout(1, of_scores))
    peak = gl.full((rows,), -1.0e30, gl.float32, gl.SliceLayout(1, of_scores))
    columns = gl.arange(0, keys, gl.SliceLayout(0, of_scores))
    for i in range(steps):
        slot = (slots[0].index(i % 2), slots[1].index(i % 2))
        other = (slots[0].index((i + 1) % 2), slots[1].index((i + 1) % 2))
        # The block before is done with: its last product has ended, in both groups of warps.
        _sync()
        bar = full.index((i + 1) % 2)
        _fetch(descriptors, row + (i + 1) * keys, other, bar, i + 1 < steps)
        mbarrier.wait(full.index(i % 2), i // 2 & 1)
        scores = _score(queries, slot, of_scores) * scale
        powers, total, peak, shrink = _weigh(scores, columns + i * keys < seen_keys, total, peak)
        powers = gl.convert_layout(powers.to(slot[0].dtype), gl.DotOperandLayout(0, of_sums, 2))
        sums *= gl.convert_layout(shrink, gl.SliceLayout(1, of_sums))[:, None]
        sums = warpgroup_mma(powers, slot[0], sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=(sums, powers))[0]
    return sums, total, peak


@gluon.jit
def mla_decode_kernel(
    q_desc, q_rope_desc, latent_desc, rope_desc, sums_out, total_out, peak_out, s, share, scale,
    HEADS: gl.constexpr,
):  # fmt: skip
    """Let a tile of heads of one sequence see ``share`` tokens: the latent is key and value."""
    ROWS: gl.constexpr = q_desc.block_type.shape[0]
    tiles: gl.constexpr = HEADS // ROWS
    sequence = gl.program_id(0) // tiles
    head = sequence * HEADS + gl.program_id(0) % tiles * ROWS
    low = gl.program_id(1) * share
    seen_keys = gl.minimum(share, s - low)
    steps = gl.cdiv(seen_keys, latent_desc.block_type.shape[0])
    row = sequence * s + low
    queries = (
        gl.allocate_shared_memory(q_desc.dtype, q_desc.block_type.shape, q_desc.layout),
        gl.allocate_shared_memory(q_desc.dtype, q_rope_desc.block_type.shape, q_rope_desc.layout),
    )
    slots = (_two_slots(latent_desc), _two_slots(rope_desc))
    full = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(3):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    _sync()
    descriptors = (latent_desc, rope_desc)
    _fetch((q_desc, q_rope_desc), head, queries, full.index(2), True)
    first = (slots[0].index(0), slots[1].index(0))
    _fetch(descriptors, row, first, full.index(0), steps > 0)
    mbarrier.wait(full.index(2), 0)
    sums, total, peak = _attend(descriptors, row, steps, queries, slots, full, seen_keys, scale, 2)
    _leave((sums_out, total_out, peak_out), sums, total, peak, head)


def layouts() -> tuple[Any, Any]:
    """Return the layouts in shared memory of a block of the latent and of what lies beside it."""
    wide, narrow = (
        gl.NVMMASharedLayout.get_default_for([BLOCK_N, width], gl.bfloat16)
        for width in (LATENT, ROPE)
    )
    return wide, narrow


def mla_decode(q: Any, cache: Any, out: Any, *, scale: float, splits: int) -> None:
    """Write the attention of q, [b, heads, 576], over cache, [b, s, 576], to out (512 wide).

    Heads are a multiple of 64, and all is bf16.
    """
    b, heads, width = q.shape
    s = cache.shape[1]
    parts = gqa_mla_triton.parts_for(b * heads, splits, LATENT, q.device)
    flat_q, flat = q.view(b * heads, width), cache.view(b * s, width)
    descriptors = (
        TensorDescriptor.from_tensor(array, [rows, columns], layout)
        for array, rows in ((flat_q, ROWS), (flat, BLOCK_N))
        for columns, layout in zip((LATENT, ROPE), layouts(), strict=True)
    )
    mla_decode_kernel[(b * triton.cdiv(heads, ROWS), splits)](
        *descriptors, *parts, s, gqa_mla_triton.share_of(s, splits, BLOCK_N),
        math.log2(math.e) * scale,
        HEADS=heads, num_warps=WARPS,
    )  # fmt: skip
    gqa_mla_triton.join_kernel[(b * heads,)](*parts, out, SPLITS=splits, DV=LATENT)
