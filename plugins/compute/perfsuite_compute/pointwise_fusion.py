"""A chain of pointwise operations: a kernel for each, against one for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, cuda, package
from perfsuite_compute.counting import kernels_of

_N = 2**26
ODD_N = _N - 1
_SMALL_N = 2**20
SCALE, SHIFT, LIMIT = 1.25, 0.5, 2.0


def _is_asked(k: int, n: int, impl: str) -> bool:
    return n != ODD_N or (k, impl) in {(4, "compile"), (4, "triton")}


@perfsuite.case(
    axes={"k": [4, 16], "n": [_N, ODD_N], "impl": ["eager", "compile", "triton"]},
    smoke={"k": [4], "n": [_SMALL_N], "impl": ["eager"]},
    full={"k": [2, 4, 8, 16]},
    only=_is_asked,
    full_only=[{"n": [_SMALL_N]}, {"n": [ODD_N], "impl": ["compile"]}],
    needs=(
        package("torch"),
        package("triton").when(impl=("compile", "triton")),
        cuda().when(impl=("compile", "triton")),
    ),
    # One value read and one written, whatever is done to it on the way; the chain's additions and
    # multiplications are far below what the CUDA cores do meanwhile.
    work=lambda k, n, impl: Work(read_bytes=4 * n, write_bytes=4 * n),
    # Input, output and two temporaries of the eager one; float64 twice in the reference.
    memory_bytes=lambda k, n, impl: (4 * 4 + 3 * 8) * n,
    metrics=[perfsuite.KERNELS],
    tags=["fusion"],
    source="operator fusion: chapter 7 of the book; H. He, Making Deep Learning Go Brrrr",
)
def pointwise_fusion(ctx: Any, k: int, n: int, impl: str) -> Workload:
    """Take n floats through k operations: in turn a factor, a shift, a clamp and a modulus.

    ``eager`` is a kernel and a trip through memory for each of them. ``compile`` is the same
    function through torch.compile, ``triton`` one kernel by hand; both read once and write once,
    so that k costs next to nothing.
    """

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        return rng.randn(n), rng.empty(n)

    launch = _launch_of(impl, k)
    return Workload(
        fn=launch,
        make_inputs=make_inputs,
        reference=_reference(k),
        wrong=lambda x, y: _chain(x, k - 1),
        exact=kernels_of(ctx, launch, make_inputs),
    )


def _chain(x: Any, k: int) -> Any:
    for step in range(k):
        if step % 4 == 0:
            x = x * SCALE
        elif step % 4 == 1:
            x = x - SHIFT
        elif step % 4 == 2:  # noqa: PLR2004 - the third of four
            x = x.clamp(-LIMIT, LIMIT)
        else:
            x = x.abs()
    return x


def _launch_of(impl: str, k: int) -> Callable[..., Any]:
    if impl == "triton":
        from perfsuite_compute.pointwise_triton import chain

        return lambda x, y: chain(x, y, steps=k, constants=(SCALE, SHIFT, LIMIT))
    run: Callable[..., Any] = lambda x: _chain(x, k)  # noqa: E731 - what is compiled, or not
    if impl == "compile":
        from perfsuite_compute.compiling import compiled

        run = compiled(run)
    return lambda x, y: run(x)


def _reference(k: int) -> Callable[..., Any]:
    """Return the chain in float64 as numpy-like steps in place, each written out once more."""
    import torch

    steps: tuple[Callable[[Any], Any], ...] = (
        lambda x: x.mul_(SCALE),
        lambda x: x.sub_(SHIFT),
        lambda x: torch.where(x.abs() > LIMIT, x.sign() * LIMIT, x),
        lambda x: torch.where(x < 0, -x, x),
    )

    def reference(x: Any, y: Any) -> Any:
        values = x.double()
        for step in range(k):
            values = steps[step % len(steps)](values)
        return values

    return reference


CASES: tuple[perfsuite.Case | Claim, ...] = (
    pointwise_fusion,
    *(
        Claim(
            name=f"pointwise_{impl}_{k}",
            case="pointwise_fusion",
            faster={"impl": impl},
            than={"impl": "eager"},
            by=k / 2,
            at={"k": (k,), "n": (_N,)},
            needs=(cuda(),),
            source=(
                "H. He, Making Deep Learning Go Brrrr From First Principles: fused, two pointwise "
                "operations cost the memory traffic of one, so k of them cost 1/k; half of k is "
                "asked for"
            ),
        )
        for impl in ("compile", "triton")
        for k in (4, 16)
    ),
)
