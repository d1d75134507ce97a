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
BAND = gl.constexpr(16)  # rows of tiles that walk the columns together: their w stays in L2
# Of a thread of a warpgroup that multiplies, and of the warp that copies.
MULTIPLYING = gl.constexpr(240)
COPYING = gl.constexpr(24)


@gluon.jit
def _tile_at(index, tiles_m, tiles_n):
    """Return the row and column of one of a group's tiles, BAND rows at a time."""
    first = index // (BAND * tiles_n) * BAND
    rows = gl.minimum(tiles_m - first, BAND)
    inside = index % (BAND * tiles_n)
    return first + inside % rows, inside // rows


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
        tiles_n = gl.cdiv(n, BLOCK_N)
        after = before + tiles_m * tiles_n
        while tile < after:
            tile_m, tile_n = _tile_at(tile - before, tiles_m, tiles_n)
            place = (begin + tile_m * 2 * HALF, group * n + tile_n * BLOCK_N)
            at = _copy_tile(x_desc, w_desc, slots, barriers, k // BLOCK, place, at, PARTS)
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
        bar = full.index(slot)
        mbarrier.expect(bar, x_desc.block_type.nbytes + PARTS * w_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(x_desc, [row, step * BLOCK], bar, x_slots.index(slot))
        for part in gl.static_range(PARTS):
            w_slot = w_slots.index(slot * PARTS + part)
            w_place = [w_row + part * BLOCK, step * BLOCK]
            tma.async_copy_global_to_shared(w_desc, w_place, bar, w_slot)
        at += 1
    return at


@gluon.jit
def _multiply(
    slots, y_slots, barriers, y_desc, scales, given, WHICH: gl.constexpr, PARTS: gl.constexpr
):
    """Multiply half the rows of slot after slot, for all tiles of this program.

    The two warpgroups wait for slots alone: while one adds, the other's product is under way.
    """
    begin_ptr, count_ptr, groups, n, k = given
    BLOCK_N: gl.constexpr = PARTS * BLOCK
    y_slot = y_slots.index(WHICH)
    tile = gl.program_id(0)
    before = 0
    at = 0
    for group in range(groups):
        begin = gl.load(begin_ptr + group)
        count = gl.load(count_ptr + group)
        tiles_m = gl.cdiv(count, 2 * HALF)
        tiles_n = gl.cdiv(n, BLOCK_N)
        after = before + tiles_m * tiles_n
        while tile < after:
            tile_m, tile_n = _tile_at(tile - before, tiles_m, tiles_n)
            place = (group, begin + (2 * tile_m + WHICH) * HALF, begin + count, tile_n)
            at = _one_tile(slots, y_slot, barriers, y_desc, scales, n, k, place, at, WHICH, PARTS)
            tile += gl.num_programs(0)
        before = after
    tma.store_wait(0)


@gluon.jit
def _scales_of(x_scales, seen, w_scales, next_block):
    """Return the scales of a step: of the rows of x, and of the first and last block of w."""
    of_x = gl.load(x_scales, mask=seen, other=0.0)
    return of_x, gl.load(w_scales), gl.load(w_scales + next_block)


@gluon.jit
def _one_tile(
    slots, y_slot, barriers, y_desc, scales, n, k, place, at, WHICH: gl.constexpr,
    PARTS: gl.constexpr,
):  # fmt: skip
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
    seen = down < end
    now = _scales_of(x_scales, seen, w_scales, next_block)
    for step in range(steps):
        slot = at % SLOTS
        ahead = gl.minimum(step + 1, steps - 1)
        following = _scales_of(x_scales + ahead * rows, seen, w_scales + ahead, next_block)
        x = x_slots.index(slot).slice(WHICH * HALF, HALF)
        mbarrier.wait(full.index(slot), at // SLOTS & 1)
        for part in gl.static_range(PARTS):
            w = w_slots.index(slot * PARTS + part).permute((1, 0))
            product = warpgroup_mma(x, w, product, use_acc=False, is_async=True)
            product = warpgroup_mma_wait(0, deps=(product,))
            if part == PARTS - 1:
                mbarrier.arrive(empty.index(slot))
            added = sums[0] + product * (now[0] * now[1 + part])[:, None]
            # Else the compiler adds both products at the end: they take more registers than it has.
            added = warpgroup_mma_wait(0, deps=(added,))
            sums = sums[1:] + (added,)  # noqa: RUF005 - Triton knows no stars
        now = following
        at += 1
    for part in gl.static_range(PARTS):
        tma.store_wait(0)  # the part before has been read
        y_slot.store(sums[part].to(y_desc.dtype))
        fence_async_shared()
        across = (column * PARTS + part) * BLOCK
        tma.async_copy_shared_to_global(y_desc, [row, across], y_slot)
    return at


@gluon.jit
def block_gemm_kernel(
    x_desc, w_desc, y_desc, x_scale, w_scale, begin_ptr, count_ptr, groups, part, n, k,
    SLOTS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Write x [rows, k] times w [group, n, k], transposed, to y, as the Triton kernel does.

    Whole tiles are written, up to the end of y: what follows a group's rows must be free.
    """
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    x_slots = gl.allocate_shared_memory(x_desc.dtype, [SLOTS, BLOCK_M, BLOCK], x_desc.layout)
    w_slots = gl.allocate_shared_memory(w_desc.dtype, [SLOTS * PARTS, BLOCK, BLOCK], w_desc.layout)
    y_slots = gl.allocate_shared_memory(y_desc.dtype, [2, HALF, BLOCK], y_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    slots = (x_slots, w_slots)
    barriers = (full, empty)
    scales = (x_scale, w_scale, part)
    given = (begin_ptr, count_ptr, groups, n, k)
    gl.warp_specialize(
        [
            (_multiply, (slots, y_slots, barriers, y_desc, scales, given, 0, PARTS)),
            (_multiply, (slots, y_slots, barriers, y_desc, scales, given, 1, PARTS)),
            (_copy, (x_desc, w_desc, slots, barriers, given, PARTS)),
        ],
        [4, 1],
        [MULTIPLYING, COPYING],
    )


def settings(rows: int) -> tuple[int, int]:
    """Return 128 columns of a tile and steps under way, by the rows of one matrix."""
    return (1, 6) if rows <= 192 else (2, 4)  # noqa: PLR2004


def launch(begins: torch.Tensor, counts: torch.Tensor, *, rows: int) -> Any:
    """Return ``launch(x, x_scale, w, w_scale, y)``, as the Triton kernel's.

    A tile of y has 128 rows; one program runs on each multiprocessor.
    """
    parts, slots = settings(rows)
    layout = gl.NVMMASharedLayout.get_default_for([128, 128], gl.float8e4nv)
    of_y = gl.NVMMASharedLayout.get_default_for([64, 128], gl.bfloat16)
    programs = sm_count()

    def run(x: Any, x_scale: Any, w: Any, w_scale: Any, y: torch.Tensor) -> None:
        groups, n, k = w.shape
        block_gemm_kernel[(programs,)](
            TensorDescriptor.from_tensor(x, [128, 128], layout),
            TensorDescriptor.from_tensor(w.view(groups * n, k), [128, 128], layout),
            TensorDescriptor.from_tensor(y, [64, 128], of_y),
            x_scale, w_scale, begins, counts, groups, x_scale.shape[2], n, k,
            SLOTS=slots, PARTS=parts, num_warps=4,
        )  # fmt: skip

    return run
