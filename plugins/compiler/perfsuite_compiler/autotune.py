"""What Triton's autotuner chooses, beside each kernel that it could have chosen."""

from typing import Any

from perfsuite import Beats, operator
from perfsuite.gpu import TRITON, Later, torch

WARPS = (2, 4, 8, 16)
kernels = Later("perfsuite_compiler.autotune_triton")
BEST = (
    "triton.autotune evaluates all configurations, and takes the fastest; its clock may err by 5 %"
)


@operator(
    nightly=[{"rows": 16384, "cols": 1000}, {"rows": 4096, "cols": 8192}],
    needs=TRITON,
    tunes=True,
    tags=["compile", "autotune"],
    source="intel/intel-xpu-backend-for-triton#4240: the autotuner does not choose the fastest; "
    "triton-lang/triton-ascend#1582: it chooses another one each time",
)
def autotune(rng: Any, *, rows: int, cols: int) -> Any:
    """Take the softmax of rows of fp32 numbers, a block of so many warps a row.

    ``autotuned`` is the number of warps that Triton's autotuner finds fastest in the first launch
    of each process. The others are each number that it could choose, measured as everything is:
    what it is slower than the fastest of them is what its choice costs, and a claim for each.
    """
    return rng.randn(rows, cols), rng.empty(rows, cols)


autotune.reference(lambda x, y: torch.softmax(x.double(), 1))
# Every other column is left out of the sum.
autotune.wrong(lambda x, y: y.copy_(x.exp() / x[:, ::2].exp().sum(1, keepdim=True)))


def _launch(x: Any, y: Any, *, impl: str) -> None:
    rows, cols = x.shape
    block = kernels.triton.next_power_of_2(cols)
    fixed = {} if impl == "autotuned" else {"num_warps": int(impl.removeprefix("warps_"))}
    kernel = kernels.softmax_kernel if fixed else kernels.tuned_kernel
    kernel[(rows,)](x, y, cols, BLOCK=block, **fixed)


for each in WARPS:
    autotune.impl(_launch, name=f"warps_{each}")
regrets = [Beats(f"warps_{each}", 0.95, BEST, name=f"regret_{each}") for each in WARPS]
autotune.impl(_launch, name="autotuned", beats=regrets)
