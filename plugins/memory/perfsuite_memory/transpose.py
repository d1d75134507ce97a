"""Matrix transpose: a global access that cannot be coalesced on both sides without a tile."""

from typing import Any

from perfsuite import Beats, cuda, operator
from perfsuite.gpu import TRITON, Later, load, torch

kernels = Later("perfsuite_memory.transpose_triton")
BLOG = "Harris, An Efficient Matrix Transpose in CUDA C/C++, NVIDIA Technical Blog, 2013"
KERNELS = ("naive", "shared", "padded", "swizzled")
# Geometry of transpose.cu: 32 x 8 threads on 32 x 32 tiles; swizzled takes 64 x 64 with 16 x 16.
BLOCK = (32, 8)
TILE = 32
SWIZZLED_TILE = 64
SWIZZLED_BLOCK = (16, 16)
VECTOR = 4
# Rows of the result that the reference gathers at once: an index is twice as large as a float.
ROWS_AT_ONCE = 256
_PADDED = tuple(
    Beats(
        impl,
        by,
        f"{BLOG}, effective bandwidth on a K20c: {rates}",
        at={"n": (4096, 8192)},
        name=f"transpose_over_{impl}",
    )
    for impl, by, rates in (
        ("naive", 2.6, "55.3 to 144.3 GB/s (M2050: 18.8 to 99.5)"),
        ("shared", 1.47, "97.6 to 144.3 GB/s (M2050: 51.3 to 99.5)"),
    )
)


@operator(
    smoke={"n": 2048, "impl": ["torch", "triton"]},
    nightly=[{"n": 8192}, {"n": 8191, "impl": ["swizzled", "triton"]}],
    full={"n": [1024, 2048, 4096, 8191, 16384]},
    tolerance=0.0,
    source=BLOG,
)
def transpose(rng: Any, *, n: int) -> Any:
    """Transpose an n x n matrix of floats.

    naive writes a column per warp; shared goes through a tile in shared memory and conflicts on
    its banks; padded has a column more; swizzled permutes it and moves 16 bytes a thread. Rows of
    8191 floats begin anywhere: swizzled then reads words, and writes each row from its first whole
    sector on. On an H200 that reaches 82 % of the ceiling, where 8192 reaches 91 % (triton): a tile
    reads 7 rows more and takes four times as many loads, and part of a row that begins inside a
    sector lies in one sector more.
    """
    return rng.randn(n, n), rng.empty(n, n)


@transpose.reference
def _reference(x: Any, out: Any) -> Any:
    """Gather by flat index, some rows of the result at a time: no transpose, no stride."""
    rows, columns = x.shape
    expected = torch.empty_like(out)
    for part in torch.arange(columns, device=x.device).split(ROWS_AT_ONCE):
        index = part[:, None] + torch.arange(rows, device=x.device) * columns
        torch.take(x, index, out=expected[int(part[0]) : int(part[-1]) + 1])
    return expected


# Index (row, column) where (column, row) was meant.
transpose.wrong(lambda x, out: x)


@transpose.impl
def _torch(x: Any, out: Any) -> None:
    out.copy_(x.t())


def _cuda(ctx: Any, *, n: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"transpose_{impl}", VECTORS=int(n % VECTOR == 0))
    tile, block = (SWIZZLED_TILE, SWIZZLED_BLOCK) if impl == "swizzled" else (TILE, BLOCK)
    tiles = -(-n // tile)
    return lambda x, out: kernel((tiles, tiles), block, x, out, n, n)


for name in KERNELS:
    transpose.impl(_cuda, name=name, needs=[cuda()], beats=_PADDED if name == "padded" else ())


transpose.impl(lambda ctx, *, n: kernels.launch(n, n), name="triton", needs=TRITON)
