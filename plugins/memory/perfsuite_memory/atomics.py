"""Counting with atomics: in global memory, in shared memory, and one of a warp for its equals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("atomics.cu")
BLOG = "GPU Pro Tip: Fast Histograms Using Shared Atomics on Maxwell, NVIDIA Technical Blog, 2015"
IMPLS = ("global", "elected", "shared", "shared_elected")
THREADS = 512
BLOCKS_PER_SM = 4
BINS = 256
# Counters of a block in shared memory for each bin: one a lane, each lane's in a bank of its own.
COPIES = 32
# Vectors of four keys that a thread has on their way at once.
UNROLL = 2
OPTIONS = tuple(
    f"-D{name}={value}"
    for name, value in {
        "THREADS": THREADS, "BINS": BINS, "COPIES": COPIES, "UNROLL": UNROLL,
    }.items()
)  # fmt: skip
ODD_N = 2**25 + 3
# Of skewed keys every fourth one is 0 before the others are drawn.
HOT = 4


def _work(*, n: int, keys: str, impl: str) -> perfsuite.Work:
    # Each key once; the counters are few. Counting is no floating-point operation.
    del keys, impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * BINS)


def _memory_bytes(*, n: int, keys: str, impl: str) -> int:
    # The reference sorts: a copy, and an index of 8 bytes for each key.
    del keys, impl
    return 5 * 4 * n


@perfsuite.case(
    axes={"n": [ODD_N], "keys": ["uniform", "skewed"], "impl": list(IMPLS)},
    smoke={"keys": ["skewed"], "impl": ["global", "shared"]},
    full={"n": [2**20, ODD_N]},
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    source=BLOG,
)
def atomics(ctx: Any, *, n: int, keys: str, impl: str) -> perfsuite.Workload:
    """Count how often each of 256 keys occurs: counters set to 0, then one kernel.

    global adds each key to the one counter there is; elected lets one lane add for all of its warp
    that have its key; shared gives each block its own counters, 32 a key so that no two lanes of a
    warp meet in a bank, and adds those up at its end; shared_elected has one a key. Of uniform keys
    few in a warp are equal, and electing costs more than it saves; of skewed ones a quarter are.
    Whole numbers, compared to the bit.
    """
    kernel = ctx.load_cuda(SOURCE, f"count_{impl}", options=OPTIONS)
    blocks = resident(ctx, BLOCKS_PER_SM)

    def run(drawn: Any, counts: Any) -> None:
        counts.zero_()
        kernel(blocks, THREADS, drawn, counts, n)

    def wrong(drawn: Any, counts: Any) -> None:
        # The keys behind the last whole vector are forgotten, or one vector if there are none.
        counts.copy_(_count(drawn[: (n - 1) // 4 * 4]))

    return perfsuite.Workload(
        fn=run,
        make_inputs=lambda rng: (_draw(rng, n, keys), rng.empty(BINS, dtype="int32")),
        reference=lambda drawn, counts: _count(drawn),
        wrong=wrong,
        tolerance=0.0,
    )


def _draw(rng: Any, n: int, keys: str) -> Any:
    drawn = rng.randint(0, BINS, n)
    return drawn.masked_fill_(rng.randint(0, HOT, n) == 0, 0) if keys == "skewed" else drawn


def _count(keys: Any) -> Any:
    """Sort, then look where each key's run ends: no counter, no atomic."""
    import torch

    ends = torch.searchsorted(
        keys.sort().values, torch.arange(BINS, dtype=keys.dtype, device=keys.device), right=True
    )
    return ends.diff(prepend=ends.new_zeros(1)).int()
