"""One step of Adam over many parameters: a kernel for each, for groups, or fused."""

from typing import Any

from perfsuite import KERNELS, Regime, cuda, operator, package
from perfsuite.gpu import torch

RATE, BETA_1, BETA_2, EPSILON, STEP = 1e-3, 0.9, 0.999, 1e-8, 10


@operator(
    smoke={"tensors": 16, "n": 1024},
    nightly={"tensors": 256, "n": 16384},
    regime=Regime.END_TO_END,
    cold=False,
    metrics=[KERNELS],
    needs=[package("torch")],
    # Of the first step's moments nothing is left: these are of a tenth one.
    tolerance=1e-5,
    work=None,
    tags=["optimizer", "launch"],
    source="NVIDIA-NeMo/Automodel#3089: foreach Adam on DTensor takes twice as long in torch 2.12",
)
def optimizer(rng: Any, *, tensors: int, n: int) -> Any:
    """Take one step of Adam for ``tensors`` parameters of n fp32 elements each.

    Each launch begins from the same state, which one grouped copy writes. The time is the host's.
    ``dtensor`` is ``foreach`` for parameters that are DTensors of a mesh of one device: what
    dispatch through DTensor costs.
    """
    return rng.randn(4, tensors, n), rng.empty(3, tensors, n)


@optimizer.reference
def _reference(states: Any, out: Any) -> Any:
    p, g, m, v = states.double()
    m = BETA_1 * m + (1 - BETA_1) * g
    v = BETA_2 * v.abs() + (1 - BETA_2) * g**2
    root = (v / (1 - BETA_2**STEP)) ** 0.5 + EPSILON
    return torch.stack([p - RATE * m / (1 - BETA_1**STEP) / root, m, v])


optimizer.wrong(lambda states, out: torch.stack([*states[:1], *_reference(states, out)[1:]]))


@optimizer.impl(name="for_loop")
@optimizer.impl(name="foreach")
@optimizer.impl(name="fused", needs=[cuda()])
@optimizer.impl(name="dtensor")
def _step(ctx: Any, *, tensors: int, impl: str) -> Any:
    from torch.optim.adam import adam

    how = {"foreach": impl in {"foreach", "dtensor"}, "fused": impl == "fused"}
    made = distributed(ctx.device) if impl == "dtensor" else lambda each: each
    steps = [torch.zeros((), device=ctx.place if how["fused"] else "cpu") for _ in range(tensors)]

    def launch(states: Any, out: Any) -> None:
        g = [made(each) for each in states[1]]
        p, m, v = ([made(each) for each in row] for row in out)
        torch._foreach_copy_([*out[0], *out[1]], [*states[0], *states[2]])
        torch.abs(states[3], out=out[2])
        torch._foreach_zero_(steps)
        torch._foreach_add_(steps, STEP - 1)
        adam(
            p, g, m, v, [], steps, **how, amsgrad=False, beta1=BETA_1, beta2=BETA_2, lr=RATE,
            weight_decay=0.0, eps=EPSILON, maximize=False,
        )  # fmt: skip

    return launch


def distributed(device: str) -> Any:
    """Return what makes a DTensor of a tensor, on a mesh of this process alone."""
    from torch.distributed import HashStore, init_device_mesh, init_process_group
    from torch.distributed.tensor import DTensor, Replicate

    backend = "nccl" if device == "cuda" else "gloo"
    init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(device, (1,))
    return lambda each: DTensor.from_local(each, mesh, [Replicate()], run_check=False)
