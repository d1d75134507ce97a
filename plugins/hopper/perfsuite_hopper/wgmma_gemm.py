"""Matrix multiplication on Hopper: wgmma by hand, Gluon, and the library."""

from functools import partial
from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator, package
from perfsuite.gpu import Later
from perfsuite_hopper import gemm

_OURS = ["wgmma", "gluon"]
_NEAR_CUBLAS = Beats(
    "compute.gemm[dtype=bf16,m={m},n={n},k={k},impl=torch]",
    0.75,
    "P. Shankhdhar, fast.cu, README: on an H100, bf16, 763 TFLOP/s where cuBLAS has 716 (4096 "
    "cubed), 808 where it has 795 (8192 cubed); three quarters are asked for, since clusters and "
    "the overlapped store are left out here",
    at={"m": (4096, 8192)},
)


@operator(
    smoke={"m": 4096, "n": 4096, "k": 4096, "impl": _OURS},
    nightly=[
        {"m": 8192, "n": 8192, "k": 8192, "impl": _OURS},
        # No multiple of any tile: 33 rows, 232 columns and 8 of k are left over.
        {"m": 4001, "n": 4072, "k": 4040},
    ],
    needs=[cuda(), arch("sm_90")],
    work=lambda m, n, k, impl: Work(2 * (m + n) * k, 2 * m * n, 2 * m * n * k, "bf16"),
    tags=["tensor-cores", "hopper"],
    ceilings={"bf16": lambda m, impl, **_: m in {4096, 8192} and impl == "gluon"},
    source="tensor cores and warp specialization: chapter 6 of the book; PTX ISA, "
    "'Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions'",
)
def wgmma_gemm(rng: Any, *, m: int, n: int, k: int) -> Any:
    """Multiply a (m x k) by the transpose of b (n x k): bf16 in and out, sums in fp32.

    ``wgmma`` is persistent CUDA C++: a warpgroup copies with TMA, two multiply with wgmma
    m64n256k16 from shared memory. ``gluon`` does the same in Triton's low-level language, and
    stores c through TMA. An Ampere kernel is ``mma_sync`` of ``gemm_ladder`` in the compute pack.
    ``cublas`` is torch's library, at the odd sizes: of 4096 and 8192 cubed ``gemm`` of the compute
    pack has it. Against it, ``wgmma`` lacks clusters with multicast, a store of c
    that overlaps the next tile's multiplications, and tiles chosen for each shape; three quarters
    of its speed are asked for. k must be a multiple of 8 and, for ``gluon``, n too: TMA's rows
    start at multiples of 16 bytes. Relative L2 error 1e-2 against float64.
    """
    return gemm.make_inputs(rng, m, n, k)


wgmma_gemm.reference(gemm.reference)
wgmma_gemm.wrong(gemm.without_last_step)


wgmma_gemm.impl(
    partial(gemm.launch_wgmma, specialized=True, persistent=True), name="wgmma", beats=_NEAR_CUBLAS
)
wgmma_gemm.impl(
    lambda ctx: Later("perfsuite_hopper.gemm_gluon").gemm,
    name="gluon",
    needs=[package("triton")],
    beats=_NEAR_CUBLAS,
)
wgmma_gemm.impl(gemm.launch_cublas, name="cublas")
