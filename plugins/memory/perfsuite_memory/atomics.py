"""Counting with atomics: in global memory, in shared memory, and one of a warp for its equals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("atomics.cu")
BLOG = "GPU Pro Tip: Fast Histograms Using Shared Atomics on Maxwell, NVIDIA Technical Blog, 2015"
THREADS = 1024
# Counters in shared memory are added up at the end: the fewer blocks, the less of that. Other ways
# gain by each warp there is.
BLOCKS_PER_SM = {"global": 2, "elected": 2, "shared": 1, "shared_elected": 2}
IMPLS = tuple(BLOCKS_PER_SM)
BINS = 256
# Vectors of four keys that a thread has on their way at once.
UNROLL = 4
OPTIONS = tuple(
    f"-D{name}={value}"
    for name, value in {"THREADS": THREADS, "BINS": BINS, "UNROLL": UNROLL}.items()
)
# Of 2^25 keys a tenth of the time would be what the launches need to begin and end.
ODD_N = 2**26 + 3
# Of skewed keys every fourth one is 0 before the others are drawn.
HOT = 4


def _work(*, n: int, keys: str, impl: str) -> perfsuite.Work:
    # Each key once; the counters are few. Counting is no floating-point operation.
    del keys, impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * BINS)


def _memory_bytes(*, n: int, keys: str, impl: str) -> int:
    # The reference sorts, for which torch takes 33 bytes a key on a GPU.
    del keys, impl
    return (4 + 33) * n


@perfsuite.case(
    axes={"n": [ODD_N], "keys": ["uniform", "skewed"], "impl": list(IMPLS)},
    smoke={"keys": ["skewed"], "impl": ["global", "shared"]},
    full={"n": [2**20, ODD_N]},
    full_only=[{"keys": ["uniform"], "impl": ["elected", "shared_elected"]}],
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    source=BLOG,
)
def atomics(ctx: Any, *, n: int, keys: str, impl: str) -> perfsuite.Workload:
    """Count how often each of 256 keys occurs: counters set to 0, then one kernel.

    global adds each key to the one counter there is; elected lets one lane add for all of its warp
    that have its key; shared gives each block its own counters, and adds those up at its end;
    shared_elected does both. Of uniform keys few in a warp are equal, of skewed ones a quarter, and
    electing costs more than it saves: in shared memory the hardware by itself makes one addition
    of all lanes that add 1 to one counter. Setting the counters to 0 is a launch of about 1.4 us on
    an H200. The kernel's last block could do that for the next launch, but had to wait for all
    others' additions first: two ways to L2, which take as long. Whole numbers, compared to the bit.
    """
    kernel = ctx.load_cuda(SOURCE, f"count_{impl}", options=OPTIONS)
    blocks = resident(ctx, BLOCKS_PER_SM[impl])

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
