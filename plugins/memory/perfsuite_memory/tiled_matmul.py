"""Matrix product without tensor cores: how often each float is fetched decides the rate."""

from typing import Any

from perfsuite import Beats, arch, cuda, operator
from perfsuite.gpu import TRITON, Later, load, mm

kernels = Later("perfsuite_memory.tiled_matmul_triton")
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
NEEDS = (cuda(), arch("sm_80+"))


@operator(
    nightly=[{"n": 2048}, {"n": ODD_N, "impl": "registers"}],
    full=[{"n": [1024, 4096]}, {"n": 512, "impl": "torch"}, {"n": ODD_N, "impl": "shared"}],
    rate_dtype="fp32",
    # A sum of n roundings that do not know each other: sqrt(n) * 2^-24 is 4e-6 for 4096.
    tolerance=1e-5,
    source=BOEHM,
)
def tiled_matmul(rng: Any, *, n: int) -> Any:
    """Multiply two n x n matrices of floats on the ordinary cores.

    naive fetches each float n times, from L1 at best; shared n / 32 times, but still two words of
    shared memory for each product; registers keeps 8 x 16 results in a thread, so that every word
    from shared memory serves eight products or more. torch calls the vendor's library, no TF32.
    registers has the next steps' tiles on their way to shared memory meanwhile, and reaches 92 % of
    the library's rate on an H200 (373 us against 344 for 2048); of 2047, whose rows begin anywhere,
    86 %: it has to copy word by word.
    """
    return rng.randn(n, n), rng.randn(n, n), rng.empty(n, n)


tiled_matmul.reference(lambda a, b, out: a.double() @ b.double())


@tiled_matmul.wrong
def _without_the_last_step(a: Any, b: Any, out: Any, *, n: int) -> Any:
    """Round the number of tiles along k down."""
    k = (n - 1) // SIDE * SIDE
    return a[:, :k] @ b[:k]


tiled_matmul.impl(mm, name="torch")


def _tiled(ctx: Any, *, n: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"matmul_{impl}", VECTORS=int(n % VECTOR == 0))
    (rows, columns), block = GEOMETRY[impl]
    grid = (-(-n // columns), -(-n // rows))
    return lambda a, b, out: kernel(grid, block, a, b, out, n)


def _over(impl: str, by: float, rates: str) -> Beats:
    source = f"{BOEHM}, 4092 x 4092 on an A6000: {rates} GFLOP/s"
    return Beats(impl, by, source, at={"n": 2048})


tiled_matmul.impl(_tiled, name="naive", needs=NEEDS)
_OVER_NAIVE = _over("naive", 1.2, "1987 (coalesced) to 2980")
tiled_matmul.impl(_tiled, name="shared", needs=NEEDS, beats=_OVER_NAIVE)
_OVER_SHARED = _over("shared", 3.0, "2980 to 15972")
tiled_matmul.impl(_tiled, name="registers", needs=NEEDS, beats=_OVER_SHARED)
tiled_matmul.impl(lambda ctx, *, n: kernels.launch(n), name="triton", needs=TRITON)
