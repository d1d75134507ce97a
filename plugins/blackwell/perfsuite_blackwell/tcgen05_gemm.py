"""Matrix multiplication in tensor memory: the library, the compiler, and tcgen05 by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package

# Since Triton 3.7: barriers that a pair of blocks shares.
_GLUON = "triton.experimental.gluon.language.nvidia.hopper.cluster"


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    return m == n == k


def _work(m: int, n: int, k: int, impl: str) -> Work:
    return Work(
        read_bytes=2 * (m * k + k * n),
        write_bytes=2 * m * n,
        flops=2 * m * n * k,
        rate_dtype="bf16",
    )


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_blackwell.reference import matmul_bytes

    return 2 * (m * k + k * n + 2 * m * n) + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [4096, 8192],
        "n": [4096, 8192],
        "k": [4096, 8192],
        "impl": ["cublas", "triton", "gluon_1cta", "gluon_2cta"],
    },
    smoke={"m": [2048], "n": [2048], "k": [2048]},
    only=_is_asked,
    needs=(
        package("torch"),
        cuda(),
        package("triton").when(impl="triton"),
        arch("sm_90+").when(impl="triton"),
        package(_GLUON).when(impl=("gluon_1cta", "gluon_2cta")),
        arch("sm_100").when(impl=("gluon_1cta", "gluon_2cta")),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["tensor-cores", "tcgen05"],
    source="tensor memory and tcgen05 against cuBLAS: chapter 6 of the book; PTX ISA, "
    "tcgen05 instructions",
)
def tcgen05_gemm(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply two bf16 matrices: c = a b, all row-major, sums in fp32.

    ``triton`` is `tl.dot` on bulk copies, which the compiler pipelines: one source, wgmma on Hopper
    and tcgen05 on Blackwell. ``gluon_1cta`` says by hand what that is: tiles copied into four slots
    in turn, each multiplied into tensor memory while the slot before it is filled again. In
    ``gluon_2cta`` a pair of blocks multiplies a tile twice as tall (cta_group 2): each copies half
    of both operands, so that its shared memory holds six slots, and b is read half as often. Their
    blocks end with their tile, and no SM has room for two: against cuBLAS they lack persistent
    blocks, whose next tile is copied and multiplied while this one is stored.
    """
    return Workload(
        fn=_launch_of(impl),
        make_inputs=lambda rng: (
            rng.randn(m, k, dtype="bfloat16"),
            rng.randn(k, n, dtype="bfloat16"),
            rng.empty(m, n, dtype="bfloat16"),
        ),
        reference=_reference,
        wrong=_without_last_step,
    )


def _launch_of(impl: str) -> Callable[..., None]:
    if impl == "cublas":
        return _launch_torch
    if impl == "triton":
        from perfsuite_blackwell.gemm_triton import gemm as launch

        return launch
    from perfsuite_blackwell.gemm_gluon import gemm

    return partial(gemm, paired=impl == "gluon_2cta")


def _launch_torch(a: Any, b: Any, c: Any) -> None:
    import torch

    torch.mm(a, b, out=c)


def _reference(a: Any, b: Any, c: Any) -> Any:
    from perfsuite_blackwell.reference import matmul

    return matmul(a, b)


def _without_last_step(a: Any, b: Any, c: Any) -> None:
    """Leave out the last 64 of k, as a loop that waits for one slot too few does."""
    _launch_torch(a[:, :-64], b[:-64], c)


CASES = (tcgen05_gemm,)
