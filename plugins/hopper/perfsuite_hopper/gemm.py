"""What the matrix multiplications on wgmma share: sizes, descriptors, launches, the reference."""

from pathlib import Path
from typing import Any

from perfsuite.gpu import matmul64, sm_count, tensor_map, torch

# wgmma.cu: the tile of c that a block makes, the columns of a slot, the ring.
TILE_M, TILE_N, STEP, SLOTS = 128, 256, 64, 4
MAPPED = (TILE_M, TILE_N)  # rows of a and b that a copy takes
SLOT_BYTES = 2 * STEP * (TILE_M + TILE_N)
SHARED_BYTES = SLOTS * SLOT_BYTES + 1024  # slots start at a multiple of 1024 bytes
# The constant fields of a wgmma matrix descriptor of a tile whose rows run along k (PTX ISA,
# "Matrix Descriptor Format"), in units of 16 bytes. From bit 62 on, 1: the swizzle of 128 bytes.
# From bit 32 on, the stride from 8 rows of 128 bytes to the next 8. From bit 16 on, the leading
# offset: a row is as wide as the swizzle, so that it is unused (1 by convention).
DESCRIPTOR = 1 << 62 | 64 << 32 | 1 << 16


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


def launch_wgmma(ctx: Any, *, specialized: bool, persistent: bool) -> Any:
    """Return the launch of wgmma.cu; ``persistent`` starts one block an SM, not one a tile."""
    options = (f"-DDESCRIPTOR={DESCRIPTOR:#x}ull", f"-DSPECIALIZED={int(specialized)}")
    run = ctx.load_cuda(Path(__file__).with_name("wgmma.cu"), "gemm_wgmma", options=options)
    threads = 384 if specialized else 256
    sms = sm_count()

    def launch(a: Any, b: Any, c: Any) -> None:
        m, n = c.shape
        tiles = -(-m // TILE_M) * -(-n // TILE_N)
        grid, maps = min(tiles, sms) if persistent else tiles, map(tensor_map, (a, b), MAPPED)
        run(grid, threads, *maps, c, m, n, a.shape[1], shared_bytes=SHARED_BYTES)

    return launch
