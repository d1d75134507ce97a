"""Products of fp8 with a scale for each block, in Gluon: a warp copies, two warpgroups multiply."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import torch
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

from perfsuite.gpu import sm_count

BLOCK = gl.constexpr(128)  # values of k that have a scale, and columns of w
HALF = gl.constexpr(64)  # rows of a tile that one warpgroup multiplies
# Of a thread of a warpgroup that multiplies, and of the warp that copies.
MULTIPLYING = gl.constexpr(240)
COPYING = gl.constexpr(24)


@gluon.jit
def _copy(x_desc, w_desc, slots, barriers, given, PARTS: gl.constexpr):
    """Fill slot after slot, as soon as it is empty, for all tiles of this program."""
    begin_ptr, count_ptr, groups, n, k = given
    BLOCK_N: gl.constexpr = PARTS * BLOCK
    tile = gl.program_id(0)
    before = 0  # tiles of the groups before
    at = 0
    for group in range(groups):
        begin = gl.load(begin_ptr + group)
        tiles_m = gl.cdiv(gl.load(count_ptr + group), 2 * HALF)
        after = before + tiles_m * gl.cdiv(n, BLOCK_N)
        while tile < after:
            row = begin + (tile - before) % tiles_m * 2 * HALF
            w_row = group * n + (tile - before) // tiles_m * BLOCK_N
            at = _copy_tile(x_desc, w_desc, slots, barriers, k // BLOCK, (row, w_row), at, PARTS)
            tile += gl.num_programs(0)
        before = after


@gluon.jit
def _copy_tile(x_desc, w_desc, slots, barriers, steps, place, at, PARTS: gl.constexpr):
    """Fill as many slots as a tile has steps of k; return the next step's number."""
    x_slots, w_slots = slots
    full, empty = barriers
    SLOTS: gl.constexpr = x_slots.shape[0]
    row, w_row = place
    for step in range(steps):
        slot = at % SLOTS
        # The phase before a fresh barrier's first counts as ended.
        mbarrier.wait(empty.index(slot), (at // SLOTS & 1) ^ 1)
        for part in gl.static_range(PARTS):
            bar = full.index(slot * PARTS + part)
            if part == 0:
                mbarrier.expect(bar, x_desc.block_type.nbytes + w_desc.block_type.nbytes)
                across = [row, step * BLOCK]
                tma.async_copy_global_to_shared(x_desc, across, bar, x_slots.index(slot))
            else:
                mbarrier.expect(bar, w_desc.block_type.nbytes)
            w_slot = w_slots.index(slot * PARTS + part)
            across = [w_row + part * BLOCK, step * BLOCK]
            tma.async_copy_global_to_shared(w_desc, across, bar, w_slot)
        at += 1
    return at


@gluon.jit
def _multiply(slots, barriers, y_ptr, scales, given, WHICH: gl.constexpr, PARTS: gl.constexpr):
    """Multiply half the rows of slot after slot, for all tiles of this program.

    The two warpgroups wait for slots alone: while one adds, the other's product is under way.
    """
    begin_ptr, count_ptr, groups, n, k = given
    BLOCK_N: gl.constexpr = PARTS * BLOCK
    tile = gl.program_id(0)
    before = 0
    at = 0
    for group in range(groups):
        begin = gl.load(begin_ptr + group)
        count = gl.load(count_ptr + group)
        tiles_m = gl.cdiv(count, 2 * HALF)
        after = before + tiles_m * gl.cdiv(n, BLOCK_N)
        while tile < after:
            row = begin + (tile - before) % tiles_m * 2 * HALF + WHICH * HALF
            place = (group, row, begin + count, (tile - before) // tiles_m)
            at = _one_tile(slots, barriers, y_ptr, scales, n, k, place, at, WHICH, PARTS)
            tile += gl.num_programs(0)
        before = after


@gluon.jit
def _one_tile(
    slots, barriers, y_ptr, scales, n, k, place, at, WHICH: gl.constexpr, PARTS: gl.constexpr
):
    """Write half the rows of one tile; return the next step's number."""
    group, row, end, column = place
    x_scale, w_scale, rows = scales
    x_slots, w_slots = slots
    full, empty = barriers
    SLOTS: gl.constexpr = x_slots.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK, 32]
    )
    steps = k // BLOCK
    blocks_n = gl.cdiv(n, BLOCK)
    down = row + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    x_scales = x_scale + row // rows * steps * rows + (down - row // rows * rows)
    w_scales = w_scale + (group * blocks_n + column * PARTS) * steps
    # The second block of a group's last tile may lie beyond n.
    next_block = gl.minimum(blocks_n - 1 - column * PARTS, PARTS - 1) * steps
    product = gl.zeros((HALF, BLOCK), gl.float32, layout)
    sums = (product,) * PARTS
    for step in range(steps):
        slot = at % SLOTS
        factor = gl.load(x_scales + step * rows, mask=down < end, other=0.0)
        factors = (
            factor * gl.load(w_scales + step),
            factor * gl.load(w_scales + step + next_block),
        )
        x = x_slots.index(slot).slice(WHICH * HALF, HALF)
        for part in gl.static_range(PARTS):
            mbarrier.wait(full.index(slot * PARTS + part), at // SLOTS & 1)
            w = w_slots.index(slot * PARTS + part).permute((1, 0))
            product = warpgroup_mma(x, w, product, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(0, deps=(product,))
            if part == PARTS - 1:
                mbarrier.arrive(empty.index(slot))
            added = sums[0] + product * factors[part][:, None]
            # Else the compiler adds both products at the end: they take more registers than it has.
            added = warpgroup_mma_wait(0, deps=(added,))
            sums = sums[1:] + (added,)  # noqa: RUF005 - Triton knows no stars
        at += 1
    for part in gl.static_range(PARTS):
        across = (column * PARTS + part) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
        seen = (down[:, None] < end) & (across[None, :] < n)
        places = y_ptr + down[:, None].to(gl.int64) * n + across[None, :]
        gl.store(places, sums[part].to(y_ptr.dtype.element_ty), seen)
    return at


@gluon.jit
def block_gemm_kernel(
    x_desc, w_desc, y_ptr, x_scale, w_scale, begin_ptr, count_ptr, groups, part, n, k,
    SLOTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Write x [rows, k] times w [group, n, k], transposed, to y, as the Triton kernel does."""
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    x_slots = gl.allocate_shared_memory(x_desc.dtype, [SLOTS, BLOCK_M, BLOCK], x_desc.layout)
    w_slots = gl.allocate_shared_memory(w_desc.dtype, [SLOTS * PARTS, BLOCK, BLOCK], w_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS * PARTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS * PARTS):
        mbarrier.init(full.index(i), count=1)
    for i in gl.static_range(SLOTS):
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    slots = (x_slots, w_slots)
    barriers = (full, empty)
    scales = (x_scale, w_scale, part)
    given = (begin_ptr, count_ptr, groups, n, k)
    gl.warp_specialize(
        [
            (_multiply, (slots, barriers, y_ptr, scales, given, 0, PARTS)),
            (_multiply, (slots, barriers, y_ptr, scales, given, 1, PARTS)),
            (_copy, (x_desc, w_desc, slots, barriers, given, PARTS)),
        ],
        [4, 1],
        [MULTIPLYING, COPYING],
    )


def settings(rows: int) -> tuple[int, int]:
    """Return 128 columns of a tile and steps under way, by the rows of one matrix."""
    return (1, 6) if rows <= 128 else (2, 4)  # noqa: PLR2004


def launch(begins: torch.Tensor, counts: torch.Tensor, *, rows: int) -> Any:
    """Return ``launch(x, x_scale, w, w_scale, y)``, as the Triton kernel's.

    A tile of y has 128 rows; one program runs on each multiprocessor.
    """
    parts, slots = settings(rows)
    layout = gl.NVMMASharedLayout.get_default_for([128, 128], gl.float8e4nv)
    programs = sm_count()

    def run(x: Any, x_scale: Any, w: Any, w_scale: Any, y: torch.Tensor) -> None:
        groups, n, k = w.shape
        block_gemm_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [128, 128], layout),
            TensorDescriptor.from_tensor(w.view(groups * n, k), [128, 128], layout),
            y, x_scale, w_scale, begins, counts, groups, x_scale.shape[2], n, k,
            SLOTS=slots, PARTS=parts, num_warps=4,
        )  # fmt: skip

    return run
