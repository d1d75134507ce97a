"""Matrix multiplication on Hopper: Ampere's instruction, wgmma by hand, Gluon, and the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package
from perfsuite_hopper import gemm

# The last is no multiple of any tile: 33 rows, 232 columns and 8 of k are left over.
_SHAPES = {(4096, 4096, 4096), (8192, 8192, 8192), (4001, 4072, 4040)}


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    return (m, n, k) in _SHAPES


def _is_ceiling(m: int, impl: str, **_: object) -> bool:
    return m in {4096, 8192} and impl in {"cublas", "gluon"}


def _work(m: int, n: int, k: int, impl: str) -> Work:
    return gemm.work(m, n, k)


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    return gemm.memory_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [4096, 8192, 4001],
        "n": [4096, 8192, 4072],
        "k": [4096, 8192, 4040],
        "impl": ["mma_sync", "wgmma", "gluon", "cublas"],
    },
    smoke={"m": [4096], "n": [4096], "k": [4096]},
    only=_is_asked,
    needs=(
        package("torch"),
        package("triton").when(impl="gluon"),
        cuda(),
        arch("sm_90"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["tensor-cores", "hopper"],
    ceilings={"bf16": _is_ceiling},
    source="tensor cores and warp specialization: chapter 6 of the book; PTX ISA, "
    "'Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions'",
)
def wgmma_gemm(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply a (m x k) by the transpose of b (n x k): bf16 in and out, sums in fp32.

    ``mma_sync`` is an Ampere kernel: cp.async, ldmatrix, mma.sync, two blocks an SM. ``wgmma`` is
    persistent CUDA C++: a warpgroup copies with TMA, two multiply with wgmma m64n256k16 from shared
    memory. ``gluon`` does the same in Triton's low-level language, and stores c through TMA.
    ``cublas`` is torch's library. Against it, ``wgmma`` lacks clusters with multicast, a store of c
    that overlaps the next tile's multiplications, and tiles chosen for each shape; three quarters
    of its speed are asked for. k must be a multiple of 8 and, for ``gluon``, n too: TMA's rows
    start at multiples of 16 bytes. Relative L2 error 1e-2 against float64.
    """
    return Workload(
        fn=_launch_of(ctx, impl),
        make_inputs=gemm.make_inputs(m, n, k),
        reference=gemm.reference,
        wrong=gemm.without_last_step,
    )


def _launch_of(ctx: Any, impl: str) -> Callable[..., Any]:
    if impl == "mma_sync":
        return gemm.launch_mma_sync(ctx)
    if impl == "wgmma":
        return gemm.launch_wgmma(ctx, specialized=True, persistent=True)
    if impl == "gluon":
        from perfsuite_hopper.gemm_gluon import gemm as launch

        return launch
    return gemm.launch_cublas


CASES: tuple[perfsuite.Case | Claim, ...] = (
    wgmma_gemm,
    *(
        Claim(
            name=f"wgmma_gemm_{impl}_near_cublas",
            case="wgmma_gemm",
            faster={"impl": impl},
            than={"impl": "cublas"},
            by=0.75,
            at={"m": (4096, 8192)},
            needs=(cuda(), arch("sm_90")),
            source="P. Shankhdhar, fast.cu, README: on an H100, bf16, 763 TFLOP/s where cuBLAS has "
            "716 (4096 cubed), 808 where it has 795 (8192 cubed); three quarters are asked for, "
            "since clusters and the overlapped store are left out here",
        )
        for impl in ("wgmma", "gluon")
    ),
)
