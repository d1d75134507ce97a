"""Decoding with a latent cache in Gluon: scores and sums are the work of different warps."""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from perfsuite_compute import gqa_mla_triton

# 64 heads' queries, four blocks of the latent and two of powers are 225 of the 227 KiB that a block
# may have; 168 registers of 12 warps are all that there are.
ROWS, KEYS, SLOTS, REGISTERS = map(gl.constexpr, (64, 32, 4, 168))
WARPS = 8
LATENT, ROPE = gqa_mla_triton.LATENT, gqa_mla_triton.ROPE
# Its name was another one before Triton 3.7.
_sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def _room(descriptor, COUNT: gl.constexpr):
    rows: gl.constexpr = descriptor.block_type.shape[0]
    columns: gl.constexpr = descriptor.block_type.shape[1]
    return gl.allocate_shared_memory(descriptor.dtype, [COUNT, rows, columns], descriptor.layout)


@gluon.jit
def _barriers(COUNT: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=1)
    return bars


@gluon.jit
def _fetch(descriptors, row, slots, i, full, pred):
    """Begin to copy rows of the latent and of what carries the position into a slot."""
    wide, narrow = descriptors
    column: gl.constexpr = wide.block_type.shape[1]
    bar = full.index(i)
    mbarrier.expect(bar, wide.block_type.nbytes + narrow.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(wide, [row, 0], bar, slots[0].index(i), pred=pred)
    tma.async_copy_global_to_shared(narrow, [row, column], bar, slots[1].index(i), pred=pred)


@gluon.jit
def _begin_scores(queries, slots, full, i, pred, of_scores: gl.constexpr):
    """Begin the products of all queries and the keys of block i."""
    mbarrier.wait(full.index(i % SLOTS), i // SLOTS & 1, pred=pred)
    scores = gl.zeros((ROWS, KEYS), gl.float32, of_scores)
    turned = slots[1].index(i % SLOTS).permute((1, 0))
    latent = slots[0].index(i % SLOTS).permute((1, 0))
    scores = hopper.warpgroup_mma(queries[1].index(0), turned, scores, use_acc=False, is_async=True)
    return hopper.warpgroup_mma(queries[0].index(0), latent, scores, is_async=True)


@gluon.jit
def _weigh(queries, asked, kept, total_out, peak_out, at, steps, seen_keys, scale):
    """Turn block after block of scores into powers; the next block's scores are found meanwhile."""
    slots, powers, shrinks, full, ready, taken = kept
    head, splits, part = at
    of_scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16]
    )
    total = gl.zeros((ROWS,), gl.float32, gl.SliceLayout(1, of_scores))
    peak = gl.full((ROWS,), -1.0e30, gl.float32, gl.SliceLayout(1, of_scores))
    columns = gl.arange(0, KEYS, gl.SliceLayout(0, of_scores))
    mbarrier.wait(asked.index(0), 0)
    scores = _begin_scores(queries, slots, full, 0, steps > 0, of_scores)
    scores = hopper.warpgroup_mma_wait(0, deps=(scores,))
    for i in range(steps):
        following = _begin_scores(queries, slots, full, i + 1, i + 1 < steps, of_scores)
        seen = columns + i * KEYS < seen_keys
        scores = gl.where(seen[None, :], scores * scale, -float("inf"))
        new_peak = gl.maximum(peak, gl.max(scores, 1))
        weights = gl.exp2(scores - new_peak[:, None])
        shrink = gl.exp2(peak - new_peak)
        total = total * shrink + gl.sum(weights, 1)
        peak = new_peak
        mbarrier.wait(taken.index(i % 2), (i // 2 & 1) ^ 1)
        powers.index(i % 2).store(weights.to(powers.dtype))
        shrinks.index(i % 2).store(shrink)
        hopper.fence_async_shared()
        mbarrier.arrive(ready.index(i % 2))
        scores = hopper.warpgroup_mma_wait(0, deps=(following,))
    to = (head + gl.arange(0, ROWS, gl.SliceLayout(1, of_scores))) * splits + part
    gl.store(total_out + to, total)
    gl.store(peak_out + to, peak)


@gluon.jit
def _sum(descriptors, row, kept, sums_out, at, steps):
    """Add the latents of block after block, each times its power; write what they came to.

    What a block leaves empty is filled again at once.
    """
    slots, powers, shrinks, full, ready, taken = kept
    head, splits, part = at
    wide: gl.constexpr = slots[0].shape[2]
    of_sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, wide // 2, 16]
    )
    sums = gl.zeros((ROWS, wide), gl.float32, of_sums)
    for i in range(steps):
        mbarrier.wait(full.index(i % SLOTS), i // SLOTS & 1)
        mbarrier.wait(ready.index(i % 2), i // 2 & 1)
        shrink = shrinks.index(i % 2).load(gl.SliceLayout(1, of_sums))
        sums *= shrink[:, None]
        latent = slots[0].index(i % SLOTS)
        sums = hopper.warpgroup_mma(powers.index(i % 2), latent, sums, is_async=True)
        sums = hopper.warpgroup_mma_wait(0, deps=(sums,))
        _sync()  # the other half of the warps has ended, too
        mbarrier.arrive(taken.index(i % 2))
        ahead = i + SLOTS
        _fetch(descriptors, row + ahead * KEYS, slots, i % SLOTS, full, ahead < steps)
    down = head + gl.arange(0, ROWS, gl.SliceLayout(1, of_sums))
    across = gl.arange(0, wide, gl.SliceLayout(0, of_sums))
    gl.store(sums_out + (down * splits + part)[:, None] * wide + across[None, :], sums)


@gluon.jit
def mla_decode_kernel(
    q_desc, q_rope_desc, latent_desc, rope_desc, sums_out, total_out, peak_out, s, share, scale,
    HEADS: gl.constexpr,
):  # fmt: skip
    """Let a tile of heads of one sequence see ``share`` tokens: the latent is key and value."""
    head = gl.program_id(0) * ROWS
    low = gl.program_id(1) * share
    seen_keys = gl.minimum(share, s - low)
    steps = gl.cdiv(seen_keys, KEYS)
    row = head // HEADS * s + low
    of_flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    of_powers: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, KEYS], gl.bfloat16)
    queries = (_room(q_desc, 1), _room(q_rope_desc, 1))
    slots = (_room(latent_desc, SLOTS), _room(rope_desc, SLOTS))
    powers = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, KEYS], of_powers)
    shrinks = gl.allocate_shared_memory(gl.float32, [2, ROWS], of_flat)
    full, ready, taken, asked = _barriers(SLOTS), _barriers(2), _barriers(2), _barriers(1)
    hopper.fence_async_shared()
    _fetch((q_desc, q_rope_desc), head, queries, 0, asked, True)
    descriptors = (latent_desc, rope_desc)
    for i in gl.static_range(SLOTS):
        _fetch(descriptors, row + i * KEYS, slots, i, full, i < steps)
    at = (head, gl.num_programs(1), gl.program_id(1))
    kept = (slots, powers, shrinks, full, ready, taken)
    gl.warp_specialize(
        [
            (_sum, (descriptors, row, kept, sums_out, at, steps)),
            (_weigh, (queries, asked, kept, total_out, peak_out, at, steps, seen_keys, scale)),
        ],
        [4],
        [REGISTERS],
    )


def mla_decode(q: Any, cache: Any, out: Any, *, scale: float, splits: int) -> None:
    """Write the attention of q, [b, heads, 576], over cache, [b, s, 576], to out (512 wide).

    Heads are a multiple of 64, and all is bf16.
    """
    b, heads, width = q.shape
    s = cache.shape[1]
    parts = gqa_mla_triton.parts_for(b * heads, splits, LATENT, q.device)
    flat_q, flat = q.view(b * heads, width), cache.view(b * s, width)
    layout_for = gl.NVMMASharedLayout.get_default_for
    descriptors = (
        TensorDescriptor.from_tensor(array, shape, layout_for(shape, gl.bfloat16))
        for array, rows in ((flat_q, ROWS.value), (flat, KEYS.value))
        for shape in ([rows, LATENT], [rows, ROPE])
    )
    mla_decode_kernel[(b * heads // ROWS.value, splits)](
        *descriptors, *parts, s, gqa_mla_triton.share_of(s, splits, KEYS.value),
        math.log2(math.e) * scale, HEADS=heads, num_warps=WARPS,
    )  # fmt: skip
    gqa_mla_triton.join_kernel[(b * heads,)](*parts, out, SPLITS=splits, DV=LATENT)
