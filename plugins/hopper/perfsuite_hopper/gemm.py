"""What the matrix multiplications on wgmma share: sizes, descriptors, launches, the reference."""

from pathlib import Path
from typing import Any

from perfsuite.gpu import matmul64, sm_count, torch

# wgmma.cu: the tile of c that a block makes, the columns of a slot, the ring.
TILE_M, TILE_N, STEP, SLOTS = 128, 256, 64, 4
MAPPED = (TILE_M, TILE_N)  # rows of a and b that a copy takes
SLOT_BYTES = 2 * STEP * (TILE_M + TILE_N)
SHARED_BYTES = SLOTS * SLOT_BYTES + 1024  # slots start at a multiple of 1024 bytes
# mma_sync.cu.
MMA_TILE, MMA_THREADS = 128, 128
MMA_SHARED_BYTES = 3 * 2 * MMA_TILE * STEP * 2 + 128
SWIZZLE_128B = 1


def make_inputs(rng: Any, m: int, n: int, k: int) -> tuple[Any, ...]:
    """Return a (m x k), b (n x k) and c (m x n), all bf16 and row-major."""
    a, b = (rng.randn(rows, k, dtype="bfloat16") for rows in (m, n))
    return a, b, rng.empty(m, n, dtype="bfloat16")


def reference(a: Any, b: Any, c: Any) -> Any:
    """Return a b^T in float64."""
    return matmul64(a, b.T)


def without_last_step(a: Any, b: Any, c: Any) -> None:
    """Leave out the last 64 of k, as a ring that is drained one slot too early does."""
    launch_cublas(a[:, :-STEP], b[:, :-STEP], c)


def launch_cublas(a: Any, b: Any, c: Any) -> None:
    """Write a b^T to c through torch, that is, cuBLAS."""
    torch.mm(a, b.T, out=c)


def matrix_descriptor(*, row_bytes: int = 2 * STEP, swizzle: int = SWIZZLE_128B) -> int:
    """Return the constant fields of a wgmma matrix descriptor of a tile whose rows run along k.

    PTX ISA, "Matrix Descriptor Format": bits 0-13 the start address, 16-29 the leading and 32-45
    the stride dimension's byte offset, each divided by 16; bits 62-63 the swizzle, 1 for 128 bytes.
    The stride leads from 8 rows to the next 8; with a swizzled row as wide as the tile there is
    nothing to lead to along k, and the leading offset is unused (1 by convention).
    """
    stride = 8 * row_bytes
    return 1 << 16 | (stride >> 4) << 32 | swizzle << 62


def wgmma_options(*, specialized: bool) -> tuple[str, ...]:
    """Return the macros of wgmma.cu."""
    return (f"-DDESCRIPTOR={matrix_descriptor():#x}ull", f"-DSPECIALIZED={int(specialized)}")


def launch_wgmma(ctx: Any, *, specialized: bool, persistent: bool) -> Any:
    """Return the launch of wgmma.cu; ``persistent`` starts one block an SM, not one a tile."""
    path = Path(__file__).with_name("wgmma.cu")
    run = ctx.load_cuda(path, "gemm_wgmma", options=wgmma_options(specialized=specialized))
    threads = 384 if specialized else 256
    sms = sm_count()

    def launch(a: Any, b: Any, c: Any) -> None:
        m, n = c.shape
        tiles = -(-m // TILE_M) * -(-n // TILE_N)
        grid, maps = min(tiles, sms) if persistent else tiles, map(tensor_map, (a, b), MAPPED)
        run(grid, threads, *maps, c, m, n, a.shape[1], shared_bytes=SHARED_BYTES)

    return launch


def launch_mma_sync(ctx: Any) -> Any:
    """Return the launch of mma_sync.cu."""
    run = ctx.load_cuda(Path(__file__).with_name("mma_sync.cu"), "gemm_mma_sync")

    def launch(a: Any, b: Any, c: Any) -> None:
        m, n = c.shape
        tiles = -(-m // MMA_TILE) * -(-n // MMA_TILE)
        run(tiles, MMA_THREADS, a, b, c, m, n, a.shape[1], shared_bytes=MMA_SHARED_BYTES)

    return launch


def tensor_map(matrix: Any, rows: int) -> Any:
    """Return TMA's map of a row-major bf16 matrix in boxes of ``rows`` x 64, swizzled 128 bytes.

    The launch takes it by value, so a captured graph keeps its own copy.
    """
    # The enumerations of the public as_tensor_map have no public name yet.
    from cuda.core._tensor_map import TensorMapL2Promotion, TensorMapSwizzle
    from cuda.core.utils import StridedMemoryView

    # As 16-bit integers: numpy, whose names of dtypes the view speaks, has no bf16.
    view = StridedMemoryView.from_any_interface(matrix.view(torch.uint16), stream_ptr=-1)
    return view.as_tensor_map(
        (rows, STEP),
        swizzle=TensorMapSwizzle.SWIZZLE_128B,
        l2_promotion=TensorMapL2Promotion.L2_256B,
    )
