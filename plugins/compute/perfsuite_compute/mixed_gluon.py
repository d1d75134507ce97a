"""Rows of bf16 times weights of 8 and 4 bits in Gluon: taken apart in registers, under products."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
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

_sync = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # before Triton 3.7
# Weights are the tall operand, from registers, and the rows of x the narrow one. A step takes 64
# bytes of each output's weights: 16 words in the order that ``mixed_gemm.quantise`` tells.
WORDS, WARPS = 16, 8
OUTS = 16 * WARPS


def _pairs(shift: int, mask: int, convert: str) -> gl.constexpr:
    """Return PTX for two pairs of a word, ``shift`` bits apart; convert makes v of v and of w.

    A code in the low bits of a bf16 of 128 is 128 + code: one instruction makes two of them.
    """
    masked = f"lop3.b32 v, w, {mask:#x}, 0x43004300, 0xea;"
    first, second = (
        f"shr.b32 w, $4, {shift * at}; {masked} {convert} mov.b32 {{${2 * at}, ${2 * at + 1}}}, v;"
        for at in range(2)
    )
    return gl.constexpr(f"{{.reg .b32 u, v, w; {first} {second}}}")


# Codes of 4 bits are 8 too large, and $5 is their scale. Of 8 bits the sign makes 128 into 256.
FOUR = _pairs(
    4, 0x000F000F, "mov.b32 u, 0x43084308; sub.rn.bf16x2 v, v, u; mul.rn.bf16x2 v, v, $5;"
)
EIGHT = _pairs(8, 0x007F007F, "lop3.b32 u, w, 0x00800080, 0x43004300, 0xea; sub.rn.bf16x2 v, v, u;")
_BASES = [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]]  # registers, lanes
# In registers the words lie as the weights will.
OF_WORDS = gl.constexpr(
    gl.DistributedLinearLayout(*_BASES, [[16, 0], [32, 0], [64, 0]], [], [OUTS, WORDS])
)


@gluon.jit
def _two_pairs(words, scale, ptx: gl.constexpr):
    """Return four weights of each word: [..., e, p]."""
    a, b, c, d = gl.inline_asm_elementwise(
        ptx, "=h,=h,=h,=h,r,r", [words, scale], dtype=(gl.bfloat16,) * 4, is_pure=True, pack=1
    )
    return gl.join(gl.join(a, b), gl.join(c, d))


@gluon.jit
def _weights(slots, full, step, steps, scales, of_a: gl.constexpr, INT4: gl.constexpr):
    """Return a step's weights in bf16, with INT4 times their scales, as soon as they are there."""
    SLOTS: gl.constexpr = slots.shape[0]
    outs: gl.constexpr = slots.shape[1]
    mbarrier.wait(full.index(step % SLOTS), step // SLOTS & 1, pred=step < steps)
    words = slots.index(step % SLOTS).load(OF_WORDS)
    if INT4:
        scale_at, inside, groups = scales
        scale = gl.load(scale_at + step, mask=inside & (step < groups), other=0.0)
        bits = scale.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
        twice, words = gl.broadcast(gl.expand_dims(bits | (bits << 16), 1), words)
        low, high = _two_pairs(words, twice, FOUR), _two_pairs(words >> 8, twice, FOUR)
        every = gl.join(low, high).reshape(outs, 4, 4, 2, 2, 2).permute(0, 2, 5, 4, 1, 3)
    else:
        every = _two_pairs(words, words, EIGHT).reshape(outs, 4, 4, 2, 2).permute(0, 2, 4, 1, 3)
    return gl.convert_layout(every.reshape(outs, 128 if INT4 else 64), of_a)


@gluon.jit
def _fetch(descriptors, at, step, slots, full, pred):
    """Begin to copy a step of x and of the weights into its slot; beyond k there are zeros."""
    slot = step % slots[0].shape[0]
    bar = full.index(slot)
    sizes: gl.constexpr = descriptors[0].block_type.nbytes + descriptors[1].block_type.nbytes
    mbarrier.expect(bar, sizes, pred=pred)
    for i in gl.static_range(2):
        place = [at[i], step * descriptors[i].block_type.shape[1]]
        tma.async_copy_global_to_shared(descriptors[i], place, bar, slots[i].index(slot), pred=pred)


@gluon.jit
def mixed_kernel(
    x_desc, w_desc, scale_ptr, y_ptr, m, n, k, SLOTS: gl.constexpr, INT4: gl.constexpr
):
    """Write x [m, k] times the transpose of w [n, k] to y [m, n], one tile of y a program."""
    ROWS: gl.constexpr = x_desc.block_type.shape[0]
    STEP: gl.constexpr = x_desc.block_type.shape[1]
    OUTS: gl.constexpr = w_desc.block_type.shape[0]
    WORDS: gl.constexpr = w_desc.block_type.shape[1]
    of_sums: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, ROWS, 16]
    )
    of_a: gl.constexpr = gl.DotOperandLayout(0, of_sums, 2)
    at = (gl.program_id(0) * ROWS, gl.program_id(1) * OUTS)
    slots = (
        gl.allocate_shared_memory(x_desc.dtype, [SLOTS, ROWS, STEP], x_desc.layout),
        gl.allocate_shared_memory(w_desc.dtype, [SLOTS, OUTS, WORDS], w_desc.layout),
    )
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    _sync()
    groups = k // STEP
    steps = (groups + 1) // 2 * 2
    for i in gl.static_range(SLOTS):
        _fetch((x_desc, w_desc), at, i, slots, full, i < steps)
    out = at[1] + gl.arange(0, OUTS, gl.SliceLayout(1, OF_WORDS))
    scales = (scale_ptr + out * groups, out < n, groups)
    sums = gl.zeros((OUTS, ROWS), gl.float32, of_sums)
    now = _weights(slots[1], full, 0, steps, scales, of_a, INT4)
    other = now
    for first in range(0, steps, 2):
        for i in gl.static_range(2):
            # One product stays under way while the next step's weights are taken apart.
            x = slots[0].index((first + i) % SLOTS).permute((1, 0))
            sums = warpgroup_mma(now, x, sums, is_async=True)
            sums, other = warpgroup_mma_wait(1, deps=(sums, other))
            _sync()  # all warps are done with the step before, whose slot is free
            ahead = first + i + SLOTS - 1
            is_free = (first + i > 0) & (ahead < steps)
            _fetch((x_desc, w_desc), at, ahead, slots, full, is_free)
            other = _weights(slots[1], full, first + i + 1, steps, scales, of_a, INT4)
            now, other = other, now
    sums, now, other = warpgroup_mma_wait(0, deps=(sums, now, other))
    outs = at[1] + gl.arange(0, OUTS, gl.SliceLayout(1, of_sums))
    rows = at[0] + gl.arange(0, ROWS, gl.SliceLayout(0, of_sums))
    if not INT4:
        sums *= gl.expand_dims(gl.load(scale_ptr + outs, mask=outs < n, other=0.0), 1)
    seen = (rows[None, :] < m) & (outs[:, None] < n)
    gl.store(y_ptr + rows[None, :] * n + outs[:, None], sums.to(gl.bfloat16), seen)


def launch(m: int, n: int, k: int, *, kind: str) -> Any:
    """Return ``launch(x, w, scale, y)`` for int8 or int4; k is a multiple of 64, or of 128."""
    is_int4 = kind == "int4"
    rows, step = min(256, max(16, triton.next_power_of_2(m))), 128 if is_int4 else 64
    # Of 16 rows to 256: 4 to 3 slots of int4, and 8 to 4 of int8.
    slots = min(4, 768 // rows) if is_int4 else 13 - rows.bit_length()
    default = gl.NVMMASharedLayout.get_default_for
    of_x, of_w = default([rows, step], gl.bfloat16), default([OUTS, WORDS], gl.int32)

    def run(x: Any, w: Any, scale: Any, y: Any) -> None:
        mixed_kernel[(triton.cdiv(m, rows), triton.cdiv(n, OUTS))](
            TensorDescriptor.from_tensor(x, [rows, step], of_x),
            TensorDescriptor.from_tensor(w.view(torch.int32), [OUTS, WORDS], of_w),
            scale, y, m, n, k, SLOTS=slots, INT4=is_int4, num_warps=WARPS,
        )  # fmt: skip

    return run
