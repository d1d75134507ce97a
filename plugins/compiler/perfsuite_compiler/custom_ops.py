"""Custom operators: what torch's dispatcher takes for each, and what Inductor does around them."""

from collections.abc import Callable
from functools import cache
from typing import Any

from perfsuite import Beats, Regime, operator, package
from perfsuite.gpu import compiled, torch
from perfsuite_compiler.blocks import EMITTED, emitted

OPS, N, RATE = 32, 1024, 1.1
SOURCE = "pytorch/pytorch#177109: a call takes 10.7 us by custom_op, 3.4 by a faster path of it, "
SOURCE += "6.3 by torch.library.define, and 1.4 without either"


@operator(
    smoke={},
    regime=Regime.END_TO_END,
    cold=False,
    metrics=EMITTED,
    needs=[package("torch")],
    work=None,
    tags=["compile", "dispatch"],
    source=SOURCE,
)
def custom_ops(rng: Any) -> Any:
    """Scale 1024 fp32 numbers and take their sine, 32 times in a row; the sine is an operator.

    ``function`` is torch's own sine. ``defined`` is the same behind an operator of
    ``torch.library.define``, ``custom_op`` behind one of ``torch.library.custom_op``, and
    ``mutating`` behind one that writes to a tensor that it is given. Those of ``compiled`` are the
    same loops by Inductor, which cannot look into an operator. Counted are kernels that it writes,
    and bytes that all kernels read and write: a copy around a mutating operator shows there.
    """
    return (rng.randn(N),)


custom_ops.reference(lambda x: _chain(torch.sin, x.double()))
# The last one is left out.
custom_ops.wrong(lambda x: _chain(torch.sin, x, OPS - 1))


# Both have a kernel and a product beside the operator: less is asked for than the source says.
@custom_ops.impl(name="function", beats=Beats("custom_op", 1.2, SOURCE))
@custom_ops.impl(name="defined")
@custom_ops.impl(name="custom_op")
@custom_ops.impl(name="mutating")
def _launch(ctx: Any, *, impl: str) -> Any:
    step = _registered(impl.removeprefix("compiled_"))
    if impl.startswith("compiled_"):
        return compiled(lambda x: _chain(step, x))
    return lambda x: _chain(step, x)


for _name in ("mutating", "custom_op", "function"):
    custom_ops.impl(_launch, name=f"compiled_{_name}", needs=[package("triton")], tier="nightly")
custom_ops.exact(lambda launch, x, *, impl: emitted(launch, x) if "compiled" in impl else {})


def _chain(step: Callable[[Any], Any], x: Any, times: int = OPS) -> Any:
    for _ in range(times):
        x = step(RATE * x)
    return x


@cache
def _registered(kind: str) -> Any:
    """Return what takes the sine; an operator is registered once in a process."""
    name, takes = f"perfsuite::{kind}", "(Tensor x) -> Tensor"

    def write(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.sin(x, out=out)

    def mutating(x: Any) -> Any:
        out = torch.empty_like(x)
        writing(x, out)
        return out

    if kind == "mutating":
        writing = torch.library.custom_op(name, write, mutates_args=("out",))
        return mutating
    if kind == "custom_op":
        made = torch.library.custom_op(name, torch.sin, mutates_args=(), schema=takes)
        made.register_fake(torch.empty_like)
        return made
    if kind == "defined":
        torch.library.define(name, takes)
        torch.library.impl(name, "CompositeExplicitAutograd", torch.sin)
        return torch.ops.perfsuite.defined.default
    return torch.sin
