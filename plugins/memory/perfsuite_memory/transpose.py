"""Matrix transpose: a global access that cannot be coalesced on both sides without a tile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite

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


def _work(*, n: int, impl: str) -> perfsuite.Work:
    del impl
    return perfsuite.Work(read_bytes=4 * n * n, write_bytes=4 * n * n)


def _memory_bytes(*, n: int, impl: str) -> int:
    del impl
    return 8 * n * n


@perfsuite.case(
    axes={"n": [8191, 8192], "impl": ["torch", *KERNELS, "triton"]},
    smoke={"n": [2048]},
    full={"n": [1024, 4096, 16384]},
    full_only=[
        {"n": [8191], "impl": ["torch", "naive", "shared", "padded"]},
        {"n": [2048], "impl": list(KERNELS)},
    ],
    needs=[
        perfsuite.cuda().when(impl=[*KERNELS, "triton"]),
        perfsuite.package("triton").when(impl="triton"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    source=BLOG,
)
def transpose(ctx: Any, *, n: int, impl: str) -> perfsuite.Workload:
    """Transpose an n x n matrix of floats.

    naive writes a column per warp; shared goes through a tile in shared memory and conflicts on
    its banks; padded has a column more; swizzled permutes it and moves 16 bytes a thread. Rows of
    8191 floats begin anywhere: swizzled then reads words, and writes each row from its first whole
    sector on. On an H200 that reaches 82 % of the ceiling, where 8192 reaches 91 % (triton): a tile
    reads 7 rows more and takes four times as many loads, and part of a row that begins inside a
    sector lies in one sector more.
    """

    def wrong(x: Any, out: Any) -> None:
        # Index (row, column) where (column, row) was meant.
        out.copy_(x)

    return perfsuite.Workload(
        fn=_launch(ctx, n, impl),
        make_inputs=lambda rng: (rng.randn(n, n), rng.empty(n, n)),
        reference=_reference,
        wrong=wrong,
        tolerance=0.0,
    )


CLAIMS = (
    perfsuite.Claim(
        name="padded_over_naive",
        case="transpose",
        faster={"impl": "padded"},
        than={"impl": "naive"},
        by=2.6,
        source=f"{BLOG}, effective bandwidth on a K20c: 55.3 to 144.3 GB/s (M2050: 18.8 to 99.5)",
        at={"n": (4096, 8192)},
        needs=(perfsuite.cuda(),),
    ),
    perfsuite.Claim(
        name="padded_over_shared",
        case="transpose",
        faster={"impl": "padded"},
        than={"impl": "shared"},
        by=1.47,
        source=f"{BLOG}, effective bandwidth on a K20c: 97.6 to 144.3 GB/s (M2050: 51.3 to 99.5)",
        at={"n": (4096, 8192)},
        needs=(perfsuite.cuda(),),
    ),
)


def _reference(x: Any, out: Any) -> Any:
    """Gather by flat index, some rows of the result at a time: no transpose, no stride."""
    import torch

    rows, columns = x.shape
    expected = torch.empty_like(out)
    for part in torch.arange(columns, device=x.device).split(ROWS_AT_ONCE):
        index = part[:, None] + torch.arange(rows, device=x.device) * columns
        torch.take(x, index, out=expected[int(part[0]) : int(part[-1]) + 1])
    return expected


def _launch(ctx: Any, n: int, impl: str) -> Callable[..., Any]:
    if impl == "torch":
        return lambda x, out: out.copy_(x.t())
    if impl == "triton":
        from perfsuite_memory import transpose_triton

        return transpose_triton.launch(n, n)
    options = (f"-DVECTORS={int(n % VECTOR == 0)}",)
    source = Path(__file__).with_name("transpose.cu")
    kernel = ctx.load_cuda(source, f"transpose_{impl}", options=options)
    tile, block = (SWIZZLED_TILE, SWIZZLED_BLOCK) if impl == "swizzled" else (TILE, BLOCK)
    tiles = -(-n // tile)
    return lambda x, out: kernel((tiles, tiles), block, x, out, n, n)
