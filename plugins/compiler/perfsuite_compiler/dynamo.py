"""What TorchDynamo does at a call: guards, graph breaks and compilations anew, without Inductor."""

from collections.abc import Mapping
from typing import Any

from perfsuite import Metric, Regime, operator, package
from perfsuite.gpu import Later, torch

MODULES, WIDTH = 64, 8
SIZES = (128, 256, 384, 512)
utils = Later("torch._dynamo.utils")


@operator(
    nightly={"code": ["modules", "branch", "sizes"]},
    regime=Regime.END_TO_END,
    cold=False,
    metrics=[Metric(name) for name in ("graphs", "breaks", "recompiles", "guards")],
    needs=[package("torch")],
    work=None,
    tags=["compile", "dynamo"],
    source="pytorch/pytorch#185886: the guards of 82 layers take 4 ms a call in 2.12, more than in "
    "2.7; #136254: a model is slower since it is compiled anew",
)
def dynamo(rng: Any, *, code: str) -> Any:
    """Call a function with many guards, with a branch on its data, or with inputs of many sizes.

    ``compiled`` is TorchDynamo with the operations of eager mode behind it, so that what differs
    from ``eager`` is TorchDynamo's own. ``modules`` is a model of 64 modules and two operations.
    ``branch`` is called once for each of its ways, ``sizes`` for four sizes, of which the second
    compiles for all sizes. What is counted is of one launch that has compiled nothing yet.
    """
    return (rng.rand(MODULES * WIDTH),)


@dynamo.reference
def _reference(x: Any, *, code: str) -> Any:
    x = x.double()
    if code == "modules":
        return x * (1 + torch.arange(len(x), device=x.device) // WIDTH)
    if code == "branch":
        return torch.cat([2 * x + 1, -2 * x - 1])
    return torch.cat([x[:n] / n for n in SIZES])


@dynamo.wrong
def _wrong(x: Any, *, code: str) -> Any:
    """Take another module's weight, the first call's way, or the first call's size."""
    if code == "modules":
        return x * (1 + torch.arange(len(x), device=x.device) % MODULES)
    if code == "branch":
        return torch.cat([2 * x + 1, -2 * x + 1])
    return torch.cat([x[:n] / SIZES[0] for n in SIZES])


@dynamo.impl(name="eager")
@dynamo.impl(name="compiled")
def _launch(ctx: Any, *, code: str, impl: str) -> Any:
    call = {"modules": _model(ctx.device), "branch": _branch, "sizes": _divide}[code]
    if impl == "compiled":
        call = torch.compile(call, backend="eager")

    def launch(x: Any) -> Any:
        if code == "modules":
            return call(x)
        given = (x, -x) if code == "branch" else [x[:n] for n in SIZES]
        return torch.cat([call(each) for each in given])

    return launch


@dynamo.exact
def _counted(launch: Any, x: Any, *, impl: str) -> Mapping[str, float]:
    if impl == "eager":
        return {}
    torch.compiler.reset()
    utils.counters.clear()
    utils.clear_compilation_metrics()
    launch(x)
    told = utils.get_compilation_metrics()
    return {
        "graphs": utils.counters["stats"]["unique_graphs"],
        # What follows a break is a function of its own, once for each way that leads there.
        "breaks": len(utils.counters["resumes"]),
        "recompiles": sum(each.recompile_reason is not None for each in told),
        "guards": sum(each.guard_count or 0 for each in told),
    }


def _branch(x: Any) -> Any:
    x = 2 * x
    return x + 1 if x.sum() > 0 else x - 1


def _divide(x: Any) -> Any:
    return x / len(x)


def _model(device: str) -> Any:
    class Part(torch.nn.Module):
        def __init__(self, value: int) -> None:
            super().__init__()
            weight = torch.full((WIDTH,), float(value), device=device)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

        def forward(self) -> Any:
            return self.weight

    parts = torch.nn.ModuleList(Part(1 + index) for index in range(MODULES))
    return lambda x: x * torch.cat([part() for part in parts])
