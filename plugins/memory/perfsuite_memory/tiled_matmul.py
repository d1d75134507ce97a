"""Matrix product without tensor cores: how often each float is fetched decides the rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite

SOURCE = Path(__file__).with_name("tiled_matmul.cu")
BOEHM = "Boehm, How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance, 2022"
VECTOR = 4
SIDE = 32
# Tile of the result (rows, columns) and threads of a block in tiled_matmul.cu.
GEOMETRY: dict[str, tuple[tuple[int, int], int | tuple[int, int]]] = {
    "naive": ((SIDE, SIDE), (SIDE, SIDE)),
    "shared": ((SIDE, SIDE), (SIDE, SIDE)),
    "registers": ((128, 128), 128),
}
ODD_N = 2047
ODD_IMPLS = ("shared", "registers")


def _is_listed(*, n: int, impl: str) -> bool:
    return n != ODD_N or impl in ODD_IMPLS


def _work(*, n: int, impl: str) -> perfsuite.Work:
    # n products and n sums for each of n^2 results; both inputs once, the result once.
    del impl
    matrix = 4 * n * n
    return perfsuite.Work(
        read_bytes=2 * matrix, write_bytes=matrix, flops=2 * n**3, rate_dtype="fp32"
    )


def _memory_bytes(*, n: int, impl: str) -> int:
    # Beside the three matrices, the reference's in float64.
    del impl
    return (3 * 4 + 3 * 8) * n * n


@perfsuite.case(
    axes={"n": [2048, ODD_N], "impl": ["torch", *GEOMETRY, "triton"]},
    smoke={"n": [512], "impl": ["torch"]},
    full={"n": [1024, 2048, ODD_N, 4096]},
    only=_is_listed,
    full_only=[{"n": [512], "impl": ["torch"]}, {"n": [ODD_N], "impl": ["shared"]}],
    needs=[
        perfsuite.cuda().when(impl=[*GEOMETRY, "triton"]),
        perfsuite.arch("sm_80+").when(impl=[*GEOMETRY]),
        perfsuite.package("triton").when(impl="triton"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    source=BOEHM,
)
def tiled_matmul(ctx: Any, *, n: int, impl: str) -> perfsuite.Workload:
    """Multiply two n x n matrices of floats on the ordinary cores.

    naive fetches each float n times, from L1 at best; shared n / 32 times, but still two words of
    shared memory for each product; registers keeps 8 x 16 results in a thread, so that every word
    from shared memory serves eight products or more. torch calls the vendor's library, no TF32.
    registers has the next steps' tiles on their way to shared memory meanwhile, and reaches 92 % of
    the library's rate on an H200 (373 us against 344 for 2048); of 2047, whose rows begin anywhere,
    86 %: it has to copy word by word.
    """

    def wrong(a: Any, b: Any, out: Any) -> None:
        # The last step along k is dropped: the number of tiles was rounded down.
        k = (n - 1) // SIDE * SIDE
        out.copy_(a[:, :k] @ b[:k])

    return perfsuite.Workload(
        fn=_launch(ctx, n, impl),
        make_inputs=lambda rng: (rng.randn(n, n), rng.randn(n, n), rng.empty(n, n)),
        reference=lambda a, b, out: a.double() @ b.double(),
        wrong=wrong,
        # A sum of n roundings that do not know each other: sqrt(n) * 2^-24 is 4e-6 for 4096.
        tolerance=1e-5,
    )


def options(n: int) -> tuple[str, ...]:
    """Return the options that tiled_matmul.cu is compiled with."""
    return (f"-DVECTORS={int(n % VECTOR == 0)}",)


def _launch(ctx: Any, n: int, impl: str) -> Callable[..., Any]:
    if impl == "torch":
        import torch

        return lambda a, b, out: torch.mm(a, b, out=out)
    if impl == "triton":
        from perfsuite_memory import tiled_matmul_triton

        return tiled_matmul_triton.launch(n)
    kernel = ctx.load_cuda(SOURCE, f"matmul_{impl}", options=options(n))
    (rows, columns), block = GEOMETRY[impl]
    grid = (-(-n // columns), -(-n // rows))
    return lambda a, b, out: kernel(grid, block, a, b, out, n)


CLAIMS = (
    perfsuite.Claim(
        name="registers_over_shared",
        case="tiled_matmul",
        faster={"impl": "registers"},
        than={"impl": "shared"},
        by=3.0,
        source=f"{BOEHM}, 4092 x 4092 on an A6000: 2980 to 15972 GFLOP/s",
        at={"n": (2048,)},
        needs=(perfsuite.cuda(), perfsuite.arch("sm_80+")),
    ),
    perfsuite.Claim(
        name="shared_over_naive",
        case="tiled_matmul",
        faster={"impl": "shared"},
        than={"impl": "naive"},
        by=1.2,
        source=f"{BOEHM}, 4092 x 4092 on an A6000: 1987 (coalesced) to 2980 GFLOP/s",
        at={"n": (2048,)},
        needs=(perfsuite.cuda(), perfsuite.arch("sm_80+")),
    ),
)
