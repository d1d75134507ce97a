"""Prefetching into shared memory with cp.async: what is in flight while a block computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("async_prefetch.cu")
COMPANION = "AI Systems Performance Engineering, companion code, folder ch07"
# Geometry of async_prefetch.cu.
THREADS = 256
ROW = 4 * THREADS
TAPS = 13
# Few, as with kernels that need many registers: more blocks would hide latency by themselves.
BLOCKS_PER_SM = 2
ROWS = 2**16
# No multiple of any number of blocks or stages.
ODD_ROWS = 2**16 - 15
ODD = {("sync", 1), ("async", 4)}


def _is_listed(*, rows: int, impl: str, stages: int) -> bool:
    if rows == ODD_ROWS:
        return (impl, stages) in ODD
    return impl == "async" or stages == 1


def _work(*, rows: int, impl: str, stages: int) -> perfsuite.Work:
    # Each float once in, once out; a product and a sum for each tap.
    del impl, stages
    n = rows * ROW
    return perfsuite.Work(
        read_bytes=4 * n, write_bytes=4 * n, flops=2 * TAPS * n, rate_dtype="fp32"
    )


def _memory_bytes(*, rows: int, impl: str, stages: int) -> int:
    # Input, output, and three arrays in float64 of the reference.
    del impl, stages
    return (2 * 4 + 3 * 8) * rows * ROW


@perfsuite.case(
    axes={"rows": [ROWS, ODD_ROWS], "impl": ["sync", "async"], "stages": [1, 2, 3, 4]},
    smoke={"rows": [ROWS], "stages": [1, 4]},
    only=_is_listed,
    full_only=[{"stages": [3]}, {"rows": [ODD_ROWS], "impl": ["sync"]}],
    needs=[perfsuite.cuda(), perfsuite.arch("sm_80+")],
    work=_work,
    memory_bytes=_memory_bytes,
    source="NVIDIA, CUDA C++ Programming Guide, Asynchronous Data Copies; " + COMPANION,
)
def async_prefetch(ctx: Any, *, rows: int, impl: str, stages: int) -> perfsuite.Workload:
    """Filter rows of 1024 floats with 13 taps, around the end, by way of shared memory.

    sync loads a row, waits for it, computes, and loads the next: memory rests while it computes.
    async asks for the row that comes ``stages`` - 1 later before it computes one; with one stage
    it waits as sync does. Two blocks an SM, for with eight the blocks would hide each other's
    waiting. Small integers, exact in float32 in any order of sums.
    """
    kernel = ctx.load_cuda(SOURCE, f"filter_{impl}", options=options(stages))
    blocks = resident(ctx, BLOCKS_PER_SM)

    def wrong(x: Any, out: Any) -> None:
        # The last row is computed from the stage before it: a wait for one group too few.
        stale = x.clone()
        stale[-1] = x[-2]
        out.copy_(_filter(stale))

    return perfsuite.Workload(
        fn=lambda x, out: kernel(blocks, THREADS, x, out, rows),
        make_inputs=lambda rng: (
            rng.randint(-8, 9, rows, ROW, dtype="float32"),
            rng.empty(rows, ROW),
        ),
        reference=lambda x, out: _filter(x),
        wrong=wrong,
        tolerance=0.0,
    )


def options(stages: int) -> tuple[str, ...]:
    """Return the options that async_prefetch.cu is compiled with."""
    return (f"-DSTAGES={stages}",)


def _filter(x: Any) -> Any:
    """Return the filtered rows: whole rows turned, tap by tap, in float64."""
    import torch

    total = torch.zeros_like(x, dtype=torch.float64)
    for k in range(TAPS):
        total.add_(torch.roll(x, -k, dims=1), alpha=k + 1)
    return total.float()


CLAIMS = (
    perfsuite.Claim(
        name="prefetch_over_sync",
        case="async_prefetch",
        faster={"impl": "async", "stages": 4},
        than={"impl": "sync", "stages": 1},
        by=1.3,
        source=f"{COMPANION}: a double-buffered prefetch is 2.21 times as fast on a B200 "
        "(async_prefetch)",
        at={"rows": (ROWS,)},
        needs=(perfsuite.cuda(), perfsuite.arch("sm_80+")),
    ),
)
