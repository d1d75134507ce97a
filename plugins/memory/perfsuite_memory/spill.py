"""More values than registers: what a spill costs, and three ways round it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite

SOURCE = Path(__file__).with_name("spill.cu")
DEPTH = 128
OPTIONS = (f"-DDEPTH={DEPTH}",)
LANES = 32
# Threads of a block and panels that it takes, as in spill.cu.
GEOMETRY = {"spilled": (1024, 32), "bounded": (128, 4), "twice": (256, 8), "split": (128, 1)}
PANELS = 2**14
# No multiple of the panels that any block takes.
ODD_PANELS = 2**14 - 5


def _work(*, panels: int, impl: str) -> perfsuite.Work:
    # Each integer in and out once, whatever is kept or read again; no floating-point operation.
    del impl
    size = 4 * LANES * DEPTH * panels
    return perfsuite.Work(read_bytes=size, write_bytes=size)


def _memory_bytes(*, panels: int, impl: str) -> int:
    # Input and output, and the reference in 8 bytes.
    del impl
    return (2 * 4 + 2 * 8) * LANES * DEPTH * panels


@perfsuite.case(
    axes={"panels": [PANELS, ODD_PANELS], "impl": list(GEOMETRY)},
    smoke={"panels": [PANELS], "impl": ["spilled", "bounded"]},
    full_only=[{"panels": [ODD_PANELS], "impl": ["spilled", "bounded", "twice"]}],
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    source="NVIDIA, CUDA C++ Best Practices Guide, Local Memory and Register Pressure",
)
def spill(ctx: Any, *, panels: int, impl: str) -> perfsuite.Workload:
    """Take a column's sum from 128 times each of its 128 integers: deviations from the mean.

    A column must be at hand until its sum is known. spilled gives a thread 64 registers, and most
    of the column goes to local memory and back; bounded lets it have all it needs, with fewer
    threads an SM; split shares a column among four threads; twice keeps nothing and reads again.
    Panels of 32 columns lie behind each other. Whole numbers, compared to the bit.
    """
    kernel = ctx.load_cuda(SOURCE, f"center_{impl}", options=OPTIONS)
    threads, at_once = GEOMETRY[impl]
    blocks = -(-panels // at_once)

    def wrong(x: Any, out: Any) -> None:
        # The sum leaves out the last row: one value was lost on its way to local memory.
        out.copy_(DEPTH * x - x[:, :-1].sum(dim=1, keepdim=True))

    return perfsuite.Workload(
        fn=lambda x, out: kernel(blocks, threads, x, out, panels),
        make_inputs=lambda rng: (
            rng.randint(-1000, 1001, panels, DEPTH, LANES),
            rng.empty(panels, DEPTH, LANES, dtype="int32"),
        ),
        reference=_reference,
        wrong=wrong,
        tolerance=0.0,
    )


def _reference(x: Any, out: Any) -> Any:
    """Return it as a product with a matrix of DEPTH - 1 and -1, exact in float64."""
    import torch

    matrix = DEPTH * torch.eye(DEPTH, dtype=torch.float64, device=out.device) - 1
    return (matrix @ x.double()).int()
