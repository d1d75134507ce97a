"""Matrix multiplication for tcgen05 in Gluon: one block, or a pair of blocks, for each tile."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    get_tmem_reg_layout,
    mbarrier,
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from perfsuite_blackwell.tiles import GROUP, ONE_CTA, TWO_CTAS, Tiles


@gluon.jit
def _tile_at(index, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Return the row and column of tile ``index``, GROUP rows at a time."""
    first = index // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    return first + index % (GROUP * tiles_n) % rows, index % (GROUP * tiles_n) // rows


@gluon.jit
def _barriers(STAGES: gl.constexpr, PAIRED: gl.constexpr):
    """Return the barriers at which copies and multiplications of each slot arrive."""
    # The copies of both blocks arrive at the first one's barrier: it starts the multiplication for
    # the pair. When it is through, it arrives at the barriers of both.
    full = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=PAIRED)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    if PAIRED:
        mbarrier.sync_cluster_init()
    return full, free


@gluon.jit
def _copy_in(a_desc, b_desc, a_slots, b_slots, full, row, column, step, STAGES: gl.constexpr):
    """Start the copies of one step's tiles into their slot."""
    slot = step % STAGES
    arrived = full.index(slot)
    k = step * a_desc.block_shape[1]
    mbarrier.expect(arrived, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_copy_global_to_shared(a_desc, [row, k], arrived, a_slots.index(slot))
    tma.async_copy_global_to_shared(b_desc, [k, column], arrived, b_slots.index(slot))


@gluon.jit
def _copy_out(c_desc, sums, row, column, TILE_N: gl.constexpr):
    """Take the sums out of tensor memory, some columns at a time."""
    TILE_M: gl.constexpr = c_desc.block_shape[0]
    WIDTH: gl.constexpr = c_desc.block_shape[1]
    staged = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_shape, c_desc.layout)
    for part in gl.static_range(TILE_N // WIDTH):
        columns = sums.slice(part * WIDTH, WIDTH)
        values = columns.load(
            get_tmem_reg_layout(
                gl.float32,
                (TILE_M, WIDTH),
                columns.type.layout,
                gl.num_warps(),
                cga_layout=c_desc.layout.cga_layout,
            )
        ).to(c_desc.dtype)
        tma.store_wait(pendings=0)
        staged.store(values)
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [row, column + part * WIDTH], staged)
    tma.store_wait(pendings=0)


@gluon.jit
def _multiply(
    a_desc, b_desc, a_slots, b_slots, sums, full, free, row, column, steps, STAGES: gl.constexpr,
):  # fmt: skip
    """Sum the products of all steps of k, copying ahead; return when the last one has ended."""
    for early in gl.static_range(STAGES - 1):
        if early < steps:
            _copy_in(a_desc, b_desc, a_slots, b_slots, full, row, column, early, STAGES)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), (step // STAGES) & 1)
        tcgen05_mma(
            a_slots.index(slot),
            b_slots.index(slot),
            sums,
            use_acc=step > 0,
            mbarriers=[free.index(slot)],
        )
        # While this multiplication runs, refill the slot of the one before it.
        if step + STAGES - 1 < steps:
            before = step - 1
            mbarrier.wait(free.index(before % STAGES), (before // STAGES) & 1, pred=step > 0)
            later = step + STAGES - 1
            _copy_in(a_desc, b_desc, a_slots, b_slots, full, row, column, later, STAGES)
    # Multiplications end in the order in which they were started. Only then may the compiler put
    # something else where the slots are.
    last = steps - 1
    mbarrier.wait(free.index(last % STAGES), (last // STAGES) & 1, deps=[a_slots, b_slots])


@gluon.jit
def gemm_kernel(
    a_desc, b_desc, c_desc, tiles_m, tiles_n, steps, STAGES: gl.constexpr, GROUP: gl.constexpr,
    PAIRED: gl.constexpr,
):  # fmt: skip
    """Write one tile of a @ b: a block's, or with PAIRED that of a pair of blocks.

    Not split into warps that copy and warps that multiply: Triton 3.7 lets only the first of them
    take part in the barriers of a pair (triton-lang/triton#9456), which never end then.
    """
    TILE_M: gl.constexpr = a_desc.block_shape[0]
    TILE_N: gl.constexpr = b_desc.block_shape[1]
    tile_m, tile_n = _tile_at(gl.program_id(0), tiles_m, tiles_n, GROUP)
    row, column = tile_m * TILE_M, tile_n * TILE_N
    # Gluon knows no star in a list.
    a_shape: gl.constexpr = [STAGES] + a_desc.block_shape  # noqa: RUF005
    b_shape: gl.constexpr = [STAGES] + b_desc.block_shape  # noqa: RUF005
    a_slots = gl.allocate_shared_memory(a_desc.dtype, a_shape, a_desc.layout)
    b_slots = gl.allocate_shared_memory(b_desc.dtype, b_shape, b_desc.layout)
    full, free = _barriers(STAGES, PAIRED)
    layout: gl.constexpr = TensorMemoryLayout(
        [TILE_M // 2 if PAIRED else TILE_M, TILE_N],
        col_stride=1,
        cta_split_num=[2, 1] if PAIRED else None,
        two_ctas=PAIRED,
    )
    sums = allocate_tensor_memory(gl.float32, [TILE_M, TILE_N], layout)

    _multiply(a_desc, b_desc, a_slots, b_slots, sums, full, free, row, column, steps, STAGES)
    _copy_out(c_desc, sums, row, column, TILE_N)


def blocks_of(tiles: Tiles) -> dict[str, tuple[list[int], int]]:
    """Return each descriptor's block, and the axis along which a pair of blocks splits it."""
    return {
        "a_desc": ([tiles.m, tiles.k], 0),
        "b_desc": ([tiles.k, tiles.n], 1),
        "c_desc": ([tiles.m, tiles.width], 0),
    }


def layout_of(block: list[int], split: int, *, paired: bool) -> Any:
    """Return the shared-memory layout of a block of bf16, whole or split in two along an axis."""
    bases = [[1, 0] if split == 0 else [0, 1]] if paired else None
    return gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16, cga_layout=bases)


def gemm(a: Any, b: Any, c: Any, *, paired: bool) -> None:
    """Write a @ b to c; all row-major bf16, m, n and k multiples of the tile's."""
    (m, k), n = a.shape, b.shape[1]
    tiles = TWO_CTAS if paired else ONE_CTA
    blocks = blocks_of(tiles)
    descriptors = [
        TensorDescriptor.from_tensor(x, block, layout_of(block, split, paired=paired))
        for x, (block, split) in zip((a, b, c), blocks.values(), strict=True)
    ]
    gemm_kernel[(m // tiles.m * (n // tiles.n),)](
        *descriptors, m // tiles.m, n // tiles.n, k // tiles.k,
        STAGES=tiles.stages, GROUP=GROUP, PAIRED=paired, num_warps=tiles.warps,
        num_ctas=2 if paired else 1,
    )  # fmt: skip
