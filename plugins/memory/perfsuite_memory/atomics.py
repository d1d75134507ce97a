"""Counting with atomics: in global memory, in shared memory, and one of a warp for its equals."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch

THREADS = 1024
# Counters in shared memory are added up at the end: the fewer blocks, the less of that. Other ways
# gain by each warp there is.
BLOCKS_PER_SM = {"global": 2, "elected": 2, "shared": 1, "shared_elected": 2}
BINS = 256
# Vectors of four keys that a thread has on their way at once.
UNROLL = 4
# Of 2^25 keys a tenth of the time would be what the launches need to begin and end.
ODD_N = 2**26 + 3
# Of skewed keys every fourth one is 0 before the others are drawn.
HOT = 4


@perfsuite.operator(
    smoke={"n": ODD_N, "keys": "skewed", "impl": ["global", "shared"]},
    nightly=[
        {"n": ODD_N, "keys": "skewed"},
        {"n": ODD_N, "keys": "uniform", "impl": ["global", "shared"]},
    ],
    full={"n": [2**20, ODD_N], "keys": ["uniform", "skewed"]},
    needs=[perfsuite.cuda()],
    # The reference sorts, for which torch takes 33 bytes a key on a GPU.
    memory_bytes=lambda n, **_: (4 + 33) * n,
    source="GPU Pro Tip: Fast Histograms Using Shared Atomics on Maxwell, NVIDIA Technical Blog, "
    "2015",
)
def atomics(rng: Any, *, n: int, keys: str) -> Any:
    """Count how often each of 256 keys occurs: counters set to 0, then one kernel.

    global adds each key to the one counter there is; elected lets one lane add for all of its warp
    that have its key; shared gives each block its own counters, and adds those up at its end;
    shared_elected does both. Of uniform keys few in a warp are equal, of skewed ones a quarter, and
    electing costs more than it saves: in shared memory the hardware by itself makes one addition
    of all lanes that add 1 to one counter. Setting the counters to 0 is a launch of about 1.4 us on
    an H200. The kernel's last block could do that for the next launch, but had to wait for all
    others' additions first: two ways to L2, which take as long. Whole numbers, compared to the bit.
    """
    drawn = rng.randint(0, BINS, n)
    if keys == "skewed":
        drawn.masked_fill_(rng.randint(0, HOT, n) == 0, 0)
    return drawn, rng.empty(BINS, dtype="int32")


@atomics.reference
def _count(drawn: Any, counts: Any) -> Any:
    """Sort, then look where each key's run ends: no counter, no atomic."""
    bins = torch.arange(BINS, dtype=drawn.dtype, device=drawn.device)
    ends = torch.searchsorted(drawn.sort().values, bins, right=True)
    return ends.diff(prepend=ends.new_zeros(1)).int()


# Forget the keys behind the last whole vector, or one vector if there are none.
atomics.wrong(lambda drawn, counts: _count(drawn[: (len(drawn) - 1) // 4 * 4], counts))


def _counting(ctx: Any, *, n: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"count_{impl}", THREADS=THREADS, BINS=BINS, UNROLL=UNROLL)
    blocks = BLOCKS_PER_SM[impl] * sm_count()
    return lambda drawn, counts: kernel(blocks, THREADS, drawn, counts.zero_(), n)


_ELECTING = perfsuite.Beats(
    "shared_elected",
    2.0,
    "measured with skewed keys: 6.7 on an H200, 4.7 on an H100. The hardware adds up lanes itself",
    name="no_election",
)
for name in BLOCKS_PER_SM:
    atomics.impl(_counting, name=name, beats=_ELECTING if name == "shared" else ())
