"""A chain of pointwise operations: a kernel for each, against one for all."""

from typing import Any

from perfsuite import KERNELS, Beats, operator
from perfsuite.gpu import TRITON, Later, compiled, torch

_N = 2**26
SCALE, SHIFT, LIMIT = 1.25, 0.5, 2.0
STEPS = (
    lambda x: x * SCALE,
    lambda x: x - SHIFT,
    lambda x: x.clamp(-LIMIT, LIMIT),
    lambda x: x.abs(),
)
kernels = Later("perfsuite_compute.pointwise_triton")
_FUSED = [
    Beats(
        "eager",
        k / 2,
        "H. He, Making Deep Learning Go Brrrr From First Principles: fused, two pointwise "
        "operations cost the memory traffic of one, so k of them cost 1/k",
        at={"k": k, "n": _N},
        name=f"pointwise_{k}",
    )
    for k in (4, 16)
]


@operator(
    nightly=[{"k": [4, 16], "n": _N}, {"k": 4, "n": _N - 1, "impl": "triton"}],
    full=[
        {"k": [2, 8], "n": _N},
        {"k": 4, "n": 2**20, "impl": "eager"},
        {"k": 4, "n": _N - 1, "impl": "compile"},
    ],
    # Input, output and two temporaries of the eager one; float64 twice in the reference.
    memory_bytes=lambda k, n, impl: 40 * n,
    # The chain's additions and multiplications are far below what CUDA cores do meanwhile, so
    # that its work is one value read and one written.
    metrics=[KERNELS],
    tags=["fusion"],
    source="operator fusion: chapter 7 of the book; H. He, Making Deep Learning Go Brrrr",
)
def pointwise_fusion(rng: Any, *, k: int, n: int) -> Any:
    """Take n floats through k operations: in turn a factor, a shift, a clamp and a modulus.

    ``eager`` is a kernel and a trip through memory for each of them. ``compile`` is the same
    function through torch.compile, ``triton`` one kernel by hand; both read once and write once,
    so that k costs next to nothing.
    """
    return rng.randn(n), rng.empty(n)


@pointwise_fusion.reference
def _reference(x: Any, y: Any, *, k: int) -> Any:
    """Take the chain in float64, each of its steps written in another way."""
    values = x.double()
    for step in range(k):
        values = (
            values * SCALE,
            values - SHIFT,
            torch.where(values.abs() > LIMIT, values.sign() * LIMIT, values),
            torch.where(values < 0, -values, values),
        )[step % 4]
    return values


@pointwise_fusion.impl
def _eager(x: Any, y: Any, *, k: int) -> Any:
    for step in range(k):
        x = STEPS[step % 4](x)
    return x


pointwise_fusion.wrong(lambda x, y, *, k: _eager(x, y, k=k - 1))


@pointwise_fusion.impl(needs=TRITON, beats=_FUSED)
def _compile(ctx: Any, *, k: int) -> Any:
    return compiled(lambda x, y: _eager(x, y, k=k))


@pointwise_fusion.impl(needs=TRITON, beats=_FUSED)
def _triton(x: Any, y: Any, *, k: int) -> None:
    kernels.chain(x, y, steps=k, constants=(SCALE, SHIFT, LIMIT))
