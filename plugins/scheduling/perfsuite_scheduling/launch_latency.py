"""What it takes to start a kernel: through a torch operator, Triton's launcher and cuda.core."""

from typing import Any

from perfsuite import KERNELS, Regime, cuda, operator, package
from perfsuite.gpu import TRITON, Later, load, torch

# The kernel of each implementation in CUDA C++, and the numbers it is given beside two pointers:
# they add up to one.
FUNCTIONS = {"cuda": "add_one", "cuda_5": "add_one_5", "cuda_19": "add_one_19"}
_NUMBERS = {"cuda": (), "cuda_5": (1, -1, 1), "cuda_19": (1, *(-1, 1) * 8)}
python = Later("perfsuite_scheduling.launch_latency_python")


@operator(
    smoke={"burst": 64},
    nightly={"burst": 1},
    metrics=[KERNELS],
    regime=Regime.END_TO_END,
    cold=False,
    tags=["launch"],
    canary={device: {"burst": 1, "impl": "torch"} for device in ("cuda", "cpu")},
    source="launch overhead: AI Systems Performance Engineering, chapter 7; microsoft/"
    "superbenchmark, kernel-launch; meta-pytorch/tritonbench, launch_latency",
    work=None,
)
def launch_latency(rng: Any, *, burst: int) -> Any:
    """Start a kernel that adds one to one int32, ``burst`` times in a row, and wait for the last.

    A burst of 1 is the time from the call to the result; one of 64 shows what each further launch
    costs the host, since the GPU is done with a kernel before the next one is issued. Every kernel
    reads what the one before it wrote, so a launch that gets lost is seen. On a CPU the ``torch``
    variant is what an operator costs without a GPU behind it. ``cuda_5`` and ``cuda_19`` are
    ``cuda`` with 5 and 19 arguments instead of 2: what an argument costs. ``numba`` and ``cupy``
    (its RawKernel) are told torch's stream at each launch; numba makes arrays of the tensors too.
    """
    return rng.randint(0, 2**20, 1), rng.empty(1, dtype="int32")


@launch_latency.reference
def _sum_on_host(x: Any, y: Any, *, burst: int) -> Any:
    return torch.tensor([int(x.item()) + burst], dtype=torch.int32)


launch_latency.wrong(lambda x, y, *, burst: _sum_on_host(x, y, burst=burst - 1))


def _in_a_row(add: Any, burst: int) -> Any:
    def launch(x: Any, y: Any) -> None:
        add(x, y)
        for _ in range(burst - 1):
            add(y, y)

    return launch


@launch_latency.impl
def _torch(ctx: Any, *, burst: int) -> Any:
    return _in_a_row(lambda source, target: torch.add(source, 1, out=target), burst)


@launch_latency.impl(needs=TRITON)
def _triton(ctx: Any, *, burst: int) -> Any:
    return _in_a_row(Later("perfsuite_scheduling.launch_latency_triton").add_one, burst)


def _cuda(ctx: Any, *, burst: int, impl: str) -> Any:
    kernel, numbers = load(ctx, __file__, FUNCTIONS[impl]), _NUMBERS[impl]
    return _in_a_row(lambda source, target: kernel(1, 1, source, target, *numbers), burst)


for _name in FUNCTIONS:
    launch_latency.impl(
        _cuda, name=_name, needs=[cuda()], tier="smoke" if _name == "cuda" else "full"
    )


@launch_latency.impl(needs=[cuda(), package("numba_cuda")], tier="full")
def _numba(ctx: Any, *, burst: int) -> Any:
    return _in_a_row(python.numba_add(), burst)


@launch_latency.impl(needs=[cuda(), package("cupy")], tier="full")
def _cupy(ctx: Any, *, burst: int) -> Any:
    return _in_a_row(python.cupy_add(), burst)
