"""A chain of small kernels, each started when the one before it ends, or before."""

from typing import Any

from perfsuite import KERNELS, arch, cuda, operator, package
from perfsuite.gpu import Later, torch
from perfsuite_scheduling import smoothing


@operator(
    smoke={"steps": 64},
    full={"steps": [16, 128]},
    needs=[package("triton"), cuda(), arch("sm_90+")],
    # Paced launches come from a graph; the early ones do not follow one another.
    work=lambda steps, impl: smoothing.work(steps, kernels=steps * (impl == "plain"), graph=True),
    metrics=[KERNELS],
    cold=False,
    tags=["launch", "pdl"],
    source="NVIDIA, CUDA C++ Programming Guide, Programmatic Dependent Launch and Synchronization",
)
def pdl(rng: Any, *, steps: int) -> Any:
    """Take ``steps`` dependent smoothing steps over 8192 fp32 values, a Triton kernel each.

    ``early`` launches each with programmatic stream serialisation: its blocks are set up while the
    kernel before it still runs, and wait for that one's end before they read. ``plain`` is the same
    kernel without.
    """
    return smoothing.inputs(rng)


pdl.reference(smoothing.reference)


# Read what the step before last has left: a kernel did not wait.
pdl.wrong(lambda x, y, *, steps: smoothing.smooth(x, steps - 1))


@pdl.impl
def _plain(ctx: Any, *, steps: int, impl: str) -> Any:
    chain = Later("perfsuite_scheduling.pdl_triton").chain
    scratch = torch.empty(smoothing.N, device=ctx.place)
    return lambda x, y: chain(x, y, scratch, steps=steps, early=impl == "early")


pdl.impl(_plain, name="early")
