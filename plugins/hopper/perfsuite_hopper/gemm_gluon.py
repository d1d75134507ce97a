"""A persistent, warp-specialised bf16 matrix multiplication in Gluon: TMA into wgmma."""

# mypy: allow-untyped-defs, allow-incomplete-defs
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

from perfsuite.gpu import sm_count

# Three slots of 48 KiB and the 64 KiB that c is stored from fill the 227 KiB a block may have.
BLOCK_M, BLOCK_N, BLOCK_K, SLOTS, WARPS = 128, 256, 64, 3, 8
GROUP = 16  # rows of tiles that walk the columns together, so that their b tiles stay in L2


@gluon.jit
def _tile_at(index, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Return the row and column of tile ``index``, GROUP rows at a time."""
    group_tiles = GROUP * tiles_n
    first = index // group_tiles * GROUP
    rows = gl.minimum(tiles_m - first, GROUP)
    return first + index % group_tiles % rows, index % group_tiles // rows


@gluon.jit
def _copy_tiles(a_desc, b_desc, slots, barriers, counts, GROUP: gl.constexpr):
    """Fill slot after slot, as soon as it is empty, for all tiles of this program."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    a_slots, b_slots = slots
    full, empty = barriers
    tiles_m, tiles_n, steps = counts
    SLOTS: gl.constexpr = a_slots.shape[0]
    at = 0
    for index in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _tile_at(index, tiles_m, tiles_n, GROUP)
        for step in range(steps):
            slot = at % SLOTS
            bar = full.index(slot)
            # The phase before a fresh barrier's first counts as ended.
            mbarrier.wait(empty.index(slot), (at // SLOTS & 1) ^ 1)
            mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(
                a_desc, [tile_m * BLOCK_M, step * BLOCK_K], bar, a_slots.index(slot)
            )
            tma.async_copy_global_to_shared(
                b_desc, [tile_n * BLOCK_N, step * BLOCK_K], bar, b_slots.index(slot)
            )
            at += 1


@gluon.jit
def _multiply_tiles(c_desc, slots, c_slot, barriers, counts, GROUP: gl.constexpr):
    """Multiply slot after slot, and store each tile of c through shared memory."""
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = c_desc.block_type.shape[1]
    a_slots, b_slots = slots
    full, empty = barriers
    tiles_m, tiles_n, steps = counts
    SLOTS: gl.constexpr = a_slots.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16]
    )
    at = 0
    for index in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _tile_at(index, tiles_m, tiles_n, GROUP)
        sums = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
        for step in range(steps):
            slot = at % SLOTS
            mbarrier.wait(full.index(slot), at // SLOTS & 1)
            b = b_slots.index(slot).permute((1, 0))
            sums = warpgroup_mma(a_slots.index(slot), b, sums, is_async=True)
            # One multiplication stays under way; the one before has ended, its slot is free.
            sums = warpgroup_mma_wait(1, deps=(sums,))
            mbarrier.arrive(empty.index((at + SLOTS - 1) % SLOTS), pred=step > 0)
            at += 1
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index((at + SLOTS - 1) % SLOTS))
        tma.store_wait(0)  # the tile before has been read
        c_slot.store(sums.to(c_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [tile_m * BLOCK_M, tile_n * BLOCK_N], c_slot)
    tma.store_wait(0)


@gluon.jit
def gemm_kernel(a_desc, b_desc, c_desc, m, n, k, SLOTS: gl.constexpr, GROUP: gl.constexpr) -> None:
    """Write a @ b^T to c: each program takes every ``num_programs``-th tile of c."""
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    a_slots = gl.allocate_shared_memory(a_desc.dtype, [SLOTS, BLOCK_M, BLOCK_K], a_desc.layout)
    b_slots = gl.allocate_shared_memory(b_desc.dtype, [SLOTS, BLOCK_N, BLOCK_K], b_desc.layout)
    c_slot = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    tiles_m = gl.cdiv(m, BLOCK_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    steps = gl.cdiv(k, BLOCK_K)
    slots = (a_slots, b_slots)
    barriers = (full, empty)
    counts = (tiles_m, tiles_n, steps)
    gl.warp_specialize(
        [
            (_multiply_tiles, (c_desc, slots, c_slot, barriers, counts, GROUP)),
            (_copy_tiles, (a_desc, b_desc, slots, barriers, counts, GROUP)),
        ],
        [1],
        [24],
    )


def layouts() -> tuple[Any, Any, Any]:
    """Return the layouts in shared memory of a tile of a, of b and of c."""
    shapes = ([BLOCK_M, BLOCK_K], [BLOCK_N, BLOCK_K], [BLOCK_M, BLOCK_N])
    a, b, c = (gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16) for shape in shapes)
    return a, b, c


def gemm(a: Any, b: Any, c: Any) -> None:
    """Write a @ b^T to c; rows of all three must be multiples of 16 bytes."""
    (m, k), n = a.shape, b.shape[0]
    tiles = triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N)
    of_a, of_b, of_c = layouts()
    gemm_kernel[(min(tiles, sm_count()),)](
        TensorDescriptor.from_tensor(a, [BLOCK_M, BLOCK_K], of_a),
        TensorDescriptor.from_tensor(b, [BLOCK_N, BLOCK_K], of_b),
        TensorDescriptor.from_tensor(c, [BLOCK_M, BLOCK_N], of_c), m, n, k,
        SLOTS=SLOTS, GROUP=GROUP, num_warps=WARPS,
    )  # fmt: skip
