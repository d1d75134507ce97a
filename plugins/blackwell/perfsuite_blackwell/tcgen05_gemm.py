"""Matrix multiplication in tensor memory: by the compiler, and by tcgen05 by hand."""

from functools import partial
from typing import Any

from perfsuite import arch, cuda, operator, package
from perfsuite.gpu import Later, matmul64, mm

# Since Triton 3.7: barriers that a pair of blocks shares.
_GLUON = (package("triton.experimental.gluon.language.nvidia.hopper.cluster"), arch("sm_100"))


@operator(
    smoke={"m": 2048, "n": 2048, "k": 2048},
    nightly=[{"m": size, "n": size, "k": size} for size in (4096, 8192)],
    needs=[cuda()],
    rate_dtype="bf16",
    tags=["tensor-cores", "tcgen05"],
    source="tensor memory and tcgen05 against cuBLAS: chapter 6 of the book; PTX ISA, "
    "tcgen05 instructions",
)
def tcgen05_gemm(rng: Any, *, m: int, n: int, k: int) -> Any:
    """Multiply two bf16 matrices: c = a b, all row-major, sums in fp32.

    ``triton`` is `tl.dot` on bulk copies, which the compiler pipelines: one source, wgmma on Hopper
    and tcgen05 on Blackwell. ``gluon_1cta`` says by hand what that is: tiles copied into four slots
    in turn, each multiplied into tensor memory while the slot before it is filled again. In
    ``gluon_2cta`` a pair of blocks multiplies a tile twice as tall (cta_group 2): each copies half
    of both operands, so that its shared memory holds six slots, and b is read half as often. Their
    blocks end with their tile, and no SM has room for two: against cuBLAS, which ``gemm`` of the
    compute pack measures, they lack persistent blocks, whose next tile is copied and multiplied
    while this one is stored.
    """
    shapes = (m, k), (k, n)
    a, b = (rng.randn(*shape, dtype="bfloat16") for shape in shapes)
    return a, b, rng.empty(m, n, dtype="bfloat16")


tcgen05_gemm.reference(lambda a, b, c: matmul64(a, b))


# Leave out the last 64 of k, as a loop that waits for one slot too few does.
tcgen05_gemm.wrong(lambda a, b, c: mm(a[:, :-64], b[:-64], c))


tcgen05_gemm.impl(
    lambda ctx: Later("perfsuite_blackwell.gemm_triton").gemm,
    name="triton",
    needs=[package("triton"), arch("sm_90+")],
)


@tcgen05_gemm.impl(name="gluon_2cta", needs=_GLUON)
@tcgen05_gemm.impl(needs=_GLUON)
def _gluon_1cta(ctx: Any, *, impl: str) -> Any:
    return partial(Later("perfsuite_blackwell.gemm_gluon").gemm, paired=impl == "gluon_2cta")
