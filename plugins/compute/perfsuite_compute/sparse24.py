"""Weights of which two in four are zero: half the operations on tensor cores, half the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package

# (n, k) of Llama-3.1-8B's MLP: gate or up projection, and down projection; and one for a CPU.
_SHAPES = ((14336, 4096), (4096, 14336), (512, 512))


def _is_asked(m: int, n: int, k: int, impl: str) -> bool:
    return (n, k) in _SHAPES


def _work(m: int, n: int, k: int, impl: str) -> Work:
    # Two of four weights in bf16, and two bits each for where they stand.
    weights = n * k // 2 * 2 + n * k // 2 // 4
    return Work(
        read_bytes=weights + 2 * m * k,
        write_bytes=2 * m * n,
        flops=m * n * k,
        rate_dtype="bf16",
    )


def _memory_bytes(m: int, n: int, k: int, impl: str) -> int:
    from perfsuite_compute.reference import matmul_bytes

    # Weights dense, packed, and while they are pruned: magnitudes and the indices of a sort.
    return 2 * (m * k + 2 * m * n) + (2 + 2 + 12) * n * k + matmul_bytes(m, n, k)


@perfsuite.case(
    axes={
        "m": [512, 8192],
        "n": [14336, 4096],
        "k": [4096, 14336],
        "impl": ["dense", "cusparselt"],
    },
    smoke={"m": [128], "n": [512], "k": [512]},
    only=_is_asked,
    full_only=[{"n": [4096]}, {"m": [128], "impl": ["dense"]}],
    needs=(
        package("torch"),
        cuda().when(impl="cusparselt"),
        arch("sm_80+").when(impl="cusparselt"),
    ),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["sparsity", "tensor-cores"],
    source="structured sparsity: chapters 9 and 10 of the book; Mishra et al., Accelerating Sparse "
    "Deep Neural Networks (arXiv:2104.08378)",
)
def sparse24(ctx: Any, m: int, n: int, k: int, impl: str) -> Workload:
    """Multiply x [m, k] by the transpose of weights [n, k], two of each four of which are zero.

    ``dense`` is cuBLAS, zeros and all. ``cusparselt`` is what ``to_sparse_semi_structured`` calls:
    packed weights of half the size, whose tensor cores skip the zeros; its result comes transposed.
    Work counts what is not zero, so that the dense multiplication can reach half of its rate. No
    size is odd: the library takes multiples of 8 rows only. ``cusparselt`` reached 58 to 66 % on an
    H200; it is the library's own kernel, the first of its algorithms, which torch takes unasked.
    """
    import torch

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        x = rng.randn(m, k, dtype="bfloat16")
        w = pruned(rng.randn(n, k, dtype="bfloat16"))
        if impl == "dense":
            return x, w, w, rng.empty(m, n, dtype="bfloat16")
        return x, w, torch._cslt_compress(w)  # noqa: SLF001

    return Workload(
        fn=_launch_of(impl),
        make_inputs=make_inputs,
        reference=lambda x, w, *rest: _reference(x, w),
        wrong=lambda x, w, *rest: _reference(x, misplaced(w)).to(x.dtype),
    )


def pruned(w: Any) -> Any:
    """Return w with the smaller two of each four weights of a row set to zero."""
    fours = w.view(w.shape[0], -1, 4)
    smaller = fours.abs().float().argsort(dim=2)[..., :2]
    return fours.scatter(2, smaller, 0.0).view(w.shape)


def misplaced(w: Any) -> Any:
    """Return w with the weights of each four in the places of their neighbours."""
    return w.view(w.shape[0], -1, 2).flip(2).reshape(w.shape)


def _launch_of(impl: str) -> Callable[..., Any]:
    import torch

    if impl == "dense":
        return lambda x, w, _, y: torch.mm(x, w.t(), out=y)
    # The sparse operand comes first, so that the product is that of the transposes.
    return lambda x, w, packed: torch._cslt_sparse_mm(packed, x.t()).t()  # noqa: SLF001


def _reference(x: Any, w: Any) -> Any:
    from perfsuite_compute.reference import matmul

    return matmul(x, w.t())


CASES: tuple[perfsuite.Case | Claim, ...] = (
    sparse24,
    Claim(
        name="sparse24_large",
        case="sparse24",
        faster={"impl": "cusparselt"},
        than={"impl": "dense"},
        by=1.1,
        at={"m": (8192,)},
        needs=(cuda(), arch("sm_80+")),
        source="NVIDIA blog, 'Exploiting NVIDIA Ampere Structured Sparsity with cuSPARSELt': "
        "skipping zeros doubles the tensor cores' throughput; 1.1 is asked for, since power and "
        "memory limit both",
    ),
)
