"""More values than registers: what a spill costs, and three ways round it."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, torch

DEPTH = 128
LANES = 32
# Threads of a block and panels that it takes, as in spill.cu.
GEOMETRY = {"spilled": (1024, 32), "bounded": (128, 4), "twice": (256, 8), "split": (128, 1)}
PANELS = 2**14
# No multiple of the panels that any block takes.
ODD_PANELS = 2**14 - 5


@perfsuite.operator(
    smoke={"panels": PANELS, "impl": ["spilled", "bounded"]},
    nightly=[{"panels": PANELS}, {"panels": ODD_PANELS, "impl": "split"}],
    full={"panels": ODD_PANELS},
    needs=[perfsuite.cuda()],
    source="NVIDIA, CUDA C++ Best Practices Guide, Local Memory and Register Pressure",
)
def spill(rng: Any, *, panels: int) -> Any:
    """Take a column's sum from 128 times each of its 128 integers: deviations from the mean.

    A column must be at hand until its sum is known. spilled gives a thread 64 registers, and most
    of the column goes to local memory and back; bounded lets it have all it needs, with fewer
    threads an SM; split shares a column among four threads; twice keeps nothing and reads again.
    Panels of 32 columns lie behind each other. Whole numbers, compared to the bit.
    """
    x = rng.randint(-1000, 1001, panels, DEPTH, LANES)
    return x, rng.empty(panels, DEPTH, LANES, dtype="int32")


@spill.reference
def _reference(x: Any, out: Any) -> Any:
    """Return it as a product with a matrix of DEPTH - 1 and -1, exact in float64."""
    matrix = DEPTH * torch.eye(DEPTH, dtype=torch.float64, device=out.device) - 1
    return (matrix @ x.double()).int()


# Leave the last row out of the sum: one value was lost on its way to local memory.
spill.wrong(lambda x, out: (DEPTH * x - x[:, :-1].sum(dim=1, keepdim=True)).int())


def _center(ctx: Any, *, panels: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"center_{impl}", DEPTH=DEPTH)
    threads, at_once = GEOMETRY[impl]
    blocks = -(-panels // at_once)
    return lambda x, out: kernel(blocks, threads, x, out, panels)


for name in GEOMETRY:
    spill.impl(_center, name=name)
