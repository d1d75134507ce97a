"""What it takes to start a kernel: through a torch operator, Triton's launcher and cuda.core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Claim, Regime, Workload, cuda, package
from perfsuite.gpu import torch

SOURCE = Path(__file__).with_name("launch_latency.cu")
# The kernel of each implementation in CUDA C++, and the numbers it is given beside two pointers:
# they add up to one.
FUNCTIONS = {"cuda": "add_one", "cuda_5": "add_one_5", "cuda_19": "add_one_19"}
_NUMBERS = {"cuda": (), "cuda_5": (1, -1, 1), "cuda_19": (1, *(-1, 1) * 8)}
Add = Callable[[Any, Any], Any]


@perfsuite.case(
    smoke={"burst": 64, "impl": ["torch", "triton", "cuda"]},
    nightly={"burst": 1, "impl": ["torch", "triton", "cuda"]},
    full={"burst": [1, 64], "impl": ["cuda_5", "cuda_19", "numba", "cupy"]},
    needs=(
        package("triton").when(impl="triton"),
        package("numba_cuda").when(impl="numba"),
        package("cupy").when(impl="cupy"),
        cuda().when(impl=("triton", *FUNCTIONS, "numba", "cupy")),
    ),
    metrics=[perfsuite.KERNELS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch"],
    canary={device: {"burst": 1, "impl": "torch"} for device in ("cuda", "cpu")},
    source="launch overhead: AI Systems Performance Engineering, chapter 7; microsoft/"
    "superbenchmark, kernel-launch; meta-pytorch/tritonbench, launch_latency",
)
def launch_latency(ctx: Any, burst: int, impl: str) -> Workload:
    """Start a kernel that adds one to one int32, ``burst`` times in a row, and wait for the last.

    A burst of 1 is the time from the call to the result; one of 64 shows what each further launch
    costs the host, since the GPU is done with a kernel before the next one is issued. Every kernel
    reads what the one before it wrote, so a launch that gets lost is seen. On a CPU the ``torch``
    variant is what an operator costs without a GPU behind it. ``cuda_5`` and ``cuda_19`` are
    ``cuda`` with 5 and 19 arguments instead of 2: what an argument costs. ``numba`` and ``cupy``
    (its RawKernel) are told torch's stream at each launch; numba makes arrays of the tensors too.
    """
    add = _adder(ctx, impl)

    def launch(x: Any, y: Any) -> None:
        add(x, y)
        for _ in range(burst - 1):
            add(y, y)

    return Workload(
        fn=launch,
        make_inputs=lambda rng: (rng.randint(0, 2**20, 1), rng.empty(1, dtype="int32")),
        reference=lambda x, y: _sum_on_host(x, burst),
        wrong=lambda x, y: _sum_on_host(x, burst - 1),  # one launch is lost
        tolerance=0.0,
        captures=False,
    )


def _sum_on_host(x: Any, count: int) -> Any:
    return torch.tensor([int(x.item()) + count], dtype=torch.int32)


def _adder(ctx: Any, impl: str) -> Add:
    if impl == "torch":
        return lambda source, target: torch.add(source, 1, out=target)
    if impl == "triton":
        from perfsuite_scheduling.launch_latency_triton import add_one

        return add_one
    if impl in {"numba", "cupy"}:
        from perfsuite_scheduling import launch_latency_python

        made: Add = getattr(launch_latency_python, f"{impl}_add")()
        return made
    kernel, numbers = ctx.load_cuda(SOURCE, FUNCTIONS[impl]), _NUMBERS[impl]
    return lambda source, target: kernel(1, 1, source, target, *numbers)


CASES: tuple[perfsuite.Case | Claim, ...] = (launch_latency,)
