"""Prefetching into shared memory with cp.async: what is in flight while a block computes."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch

COMPANION = "AI Systems Performance Engineering, companion code, folder ch07"
# Geometry of async_prefetch.cu.
THREADS = 256
ROW = 4 * THREADS
TAPS = 13
# Few, as with kernels that need many registers: more blocks would hide latency by themselves.
BLOCKS_PER_SM = 2
ROWS = 2**16
# No multiple of any number of blocks or stages.
ODD = 2**16 - 15
NEEDS = (perfsuite.cuda(), perfsuite.arch("sm_80+"))


@perfsuite.operator(
    smoke=[
        {"rows": ROWS, "impl": "sync", "stages": 1},
        {"rows": ROWS, "impl": "async", "stages": [1, 4]},
    ],
    nightly=[
        {"rows": ROWS, "impl": "async", "stages": 2},
        {"rows": ODD, "impl": "async", "stages": 4},
    ],
    full=[{"rows": ROWS, "impl": "async", "stages": 3}, {"rows": ODD, "impl": "sync", "stages": 1}],
    needs=NEEDS,
    # A product and a sum for each tap.
    flops=lambda *, rows: 2 * TAPS * rows * ROW,
    rate_dtype="fp32",
    tolerance=0.0,
    source="NVIDIA, CUDA C++ Programming Guide, Asynchronous Data Copies; " + COMPANION,
)
def async_prefetch(rng: Any, *, rows: int, impl: str, stages: int) -> Any:
    """Filter rows of 1024 floats with 13 taps, around the end, by way of shared memory.

    sync loads a row, waits for it, computes, and loads the next: memory rests while it computes.
    async asks for the row that comes ``stages`` - 1 later before it computes one; with one stage
    it waits as sync does. Two blocks an SM, for with eight the blocks would hide each other's
    waiting. Small integers, exact in float32 in any order of sums.
    """
    return rng.randint(-8, 9, rows, ROW, dtype="float32"), rng.empty(rows, ROW)


@async_prefetch.reference
def _filter(x: Any, out: Any) -> Any:
    """Return the filtered rows: whole rows turned, tap by tap, in float64."""
    total = torch.zeros_like(x, dtype=torch.float64)
    for k in range(TAPS):
        total.add_(torch.roll(x, -k, dims=1), alpha=k + 1)
    return total.float()


# Compute the last row from the stage before it: a wait for one group too few.
async_prefetch.wrong(lambda x, out: _filter(torch.cat((x[:-1], x[-2:-1])), out))


def _filtering(ctx: Any, *, rows: int, impl: str, stages: int) -> Any:
    kernel = load(ctx, __file__, f"filter_{impl}", STAGES=stages)
    blocks = BLOCKS_PER_SM * sm_count()
    return lambda x, out: kernel(blocks, THREADS, x, out, rows)


for name in ("sync", "async"):
    async_prefetch.impl(_filtering, name=name)


OVER_SYNC = perfsuite.Claim(
    name="prefetch_over_sync",
    case="async_prefetch",
    faster={"impl": "async", "stages": 4},
    than={"impl": "sync", "stages": 1},
    by=1.3,
    source=f"{COMPANION}: a double-buffered prefetch is 2.21 times as fast on a B200 "
    "(async_prefetch)",
    at={"rows": (ROWS,)},
)
