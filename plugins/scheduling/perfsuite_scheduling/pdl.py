"""A chain of small kernels, each started when the one before it ends, or before."""

from __future__ import annotations

from typing import Any

import perfsuite
from perfsuite import Claim, Work, Workload, arch, cuda, package
from perfsuite.gpu import torch
from perfsuite_scheduling import smoothing

_VALUE_BYTES = 4


def _work(steps: int, impl: str) -> Work:
    moved = steps * smoothing.N * _VALUE_BYTES
    # Paced launches come from a graph; the early ones do not follow one another.
    kernels = steps if impl == "plain" else 0
    return Work(read_bytes=moved, write_bytes=moved, kernels=kernels, start="graph_node")


@perfsuite.case(
    smoke={"steps": 64, "impl": ["plain", "early"]},
    full={"steps": [16, 128], "impl": ["plain", "early"]},
    needs=(package("triton"), cuda(), arch("sm_90+")),
    work=_work,
    metrics=[perfsuite.KERNELS],
    cold=False,
    tags=["launch", "pdl"],
    source="NVIDIA, CUDA C++ Programming Guide, Programmatic Dependent Launch and Synchronization",
)
def pdl(ctx: Any, steps: int, impl: str) -> Workload:
    """Take ``steps`` dependent smoothing steps over 8192 fp32 values, a Triton kernel each.

    ``early`` launches each with programmatic stream serialisation: its blocks are set up while the
    kernel before it still runs, and wait for that one's end before they read. ``plain`` is the same
    kernel without.
    """
    from perfsuite_scheduling.pdl_triton import chain

    scratch = torch.empty(smoothing.N, device=ctx.place)

    def launch(x: Any, y: Any) -> None:
        chain(x, y, scratch, steps=steps, early=impl == "early")

    return Workload(
        fn=launch,
        make_inputs=lambda rng: (rng.randn(smoothing.N), rng.empty(smoothing.N)),
        reference=lambda x, y: smoothing.reference(x, steps),
        # A kernel that does not wait reads what the step before last has left.
        wrong=lambda x, y: smoothing.smooth(x, steps - 1),
    )


CASES: tuple[perfsuite.Case | Claim, ...] = (pdl,)
