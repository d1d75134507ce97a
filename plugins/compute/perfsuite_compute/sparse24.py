"""Weights of which two in four are zero: half the operations on tensor cores, half the bytes."""

from typing import Any

from perfsuite import Beats, Work, arch, cuda, operator
from perfsuite.gpu import matmul64, torch


@operator(
    smoke={"m": 128, "n": 512, "k": 512, "impl": "cusparselt"},
    # Llama-3.1-8B's MLP: gate or up projection, and down projection.
    nightly={"m": [512, 8192], "n": 14336, "k": 4096},
    full=[
        {"m": 128, "n": 512, "k": 512, "impl": "dense"},
        {"m": [512, 8192], "n": 4096, "k": 14336},
    ],
    # Two of four weights in bf16, and two bits each for where they stand.
    work=lambda m, n, k, impl: Work(
        n * k * 9 // 8 + 2 * m * k, 2 * m * n, m * n * k, rate_dtype="bf16"
    ),
    # Weights dense, packed, and while they are pruned: magnitudes and the indices of a sort.
    memory_bytes=lambda m, n, k, impl: 24 * n * k + 12 * m * n + (2 * m + 8 * min(m, 2048)) * k,
    tags=["sparsity", "tensor-cores"],
    source="structured sparsity: chapters 9 and 10 of the book; Mishra et al., Accelerating Sparse "
    "Deep Neural Networks (arXiv:2104.08378)",
)
def sparse24(rng: Any, *, m: int, n: int, k: int, impl: str) -> Any:
    """Multiply x [m, k] by the transpose of weights [n, k], two of each four of which are zero.

    ``dense`` is cuBLAS, zeros and all. ``cusparselt`` is what ``to_sparse_semi_structured`` calls:
    packed weights of half the size, whose tensor cores skip the zeros; its result comes transposed.
    Work counts what is not zero, so that the dense multiplication can reach half of its rate. No
    size is odd: the library takes multiples of 8 rows only. ``cusparselt`` reached 58 to 66 % on an
    H200; it is the library's own kernel, the first of its algorithms, which torch takes unasked.
    """
    x, w = rng.randn(m, k, dtype="bfloat16"), pruned(rng.randn(n, k, dtype="bfloat16"))
    if impl == "dense":
        return x, w, rng.empty(m, n, dtype="bfloat16")
    return x, w, torch._cslt_compress(w)  # noqa: SLF001


def pruned(w: Any) -> Any:
    """Return w with the smaller two of each four weights of a row set to zero."""
    fours = w.view(w.shape[0], -1, 4)
    smaller = fours.abs().float().argsort(dim=2)[..., :2]
    return fours.scatter(2, smaller, 0.0).view(w.shape)


# Take the weights of each four in the places of their neighbours.
sparse24.wrong(lambda x, w, _: x @ w.view(len(w), -1, 2).flip(2).reshape(w.shape).t())


sparse24.reference(lambda x, w, _: matmul64(x, w.t()))


@sparse24.impl
def _dense(x: Any, w: Any, y: Any) -> None:
    torch.mm(x, w.t(), out=y)


@sparse24.impl(
    needs=[cuda(), arch("sm_80+")],
    beats=Beats(
        "dense",
        1.1,
        "NVIDIA blog, 'Exploiting NVIDIA Ampere Structured Sparsity with cuSPARSELt': "
        "skipping zeros doubles the tensor cores' throughput; 1.1 is asked for, since power and "
        "memory limit both",
        at={"m": 8192},
    ),
)
def _cusparselt(x: Any, w: Any, packed: Any) -> Any:
    # The sparse operand comes first, so that the product is that of the transposes.
    return torch._cslt_sparse_mm(packed, x.t()).t()  # noqa: SLF001
