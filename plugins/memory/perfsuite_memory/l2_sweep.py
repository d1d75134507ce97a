"""How fast arrays of growing size can be read again and again: out of L2, then out of memory."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch
from perfsuite_memory.stream import whole_numbers

THREADS = 256
UNROLL = 4
BLOCKS_PER_SM = 6
WORDS_PER_TILE = 4 * THREADS * UNROLL
# A GPU reads this much in a launch whatever the footprint, a CPU a part of it.
READ_KIB = {"cuda": 2**20, "torch": 2**15}
# Less is served nearer than by the far half of L2, and faster than L2's ceiling says.
NEAR_KIB = 2**13
# No L2 is larger: from here on each byte comes from memory.
FAR_KIB = 2**19


def _work(*, kib: int, impl: str) -> perfsuite.Work:
    link = "hbm" if kib >= FAR_KIB else "l2" if kib >= NEAR_KIB else "near_l2"
    return perfsuite.Work(read_bytes=1024 * kib * passes_of(kib, impl), link=link)


def passes_of(kib: int, impl: str) -> int:
    """Return how often an array of ``kib`` KiB is read in a launch."""
    return max(1, READ_KIB[impl] // kib)


@perfsuite.operator(
    smoke={"kib": 256, "impl": "torch"},
    nightly={"kib": [1003, 4096, 16384, 32768, 49152, 2**20], "impl": "cuda"},
    full=[
        {"kib": [512, 2048, 8192, 24576, 40960, 65536, 98304, 131072, 262144], "impl": "cuda"},
        {"kib": 32768, "impl": "torch"},
    ],
    work=_work,
    cold=False,
    tolerance=0.0,
    # Footprints whose best rate stands for L2's.
    ceilings={"l2": lambda kib, impl: kib in (16384, 24576, 32768) and impl == "cuda"},
    source="te42kyfo/gpu-benches, gpu-l2-cache: bandwidth by footprint (H200: 10 to 11 TB/s at 3 "
    "to 9 MB, 7.5 at 48 MB, 3.9 from 145 MB)",
)
def l2_sweep(rng: Any, *, kib: int, impl: str) -> Any:
    """Read an array of ``kib`` KiB until 1 GiB is read (on a CPU 32 MiB), and add it up.

    The best rate of 16 to 32 MiB is the ceiling of L2; where it falls is what of L2 one array can
    have. Arrays below 8 MiB exceed it, on an H200 4 MiB by 7 % and 1003 KiB by 94 %: they can be
    served nearer than by the far half of L2. So they have a link of their own, without a ceiling.
    1003 KiB come at 68 bytes a cycle and SM, whose port to L2 is 64 wide: not all can be L2's. The
    loads ask that L1 be passed by (ld.global.cg), but of the 63 tiles of 1003 KiB a block there
    meets 7 alone, again and again; what answers it has not been measured. Small integers are added:
    float32 holds every sum exactly, in any order. There is no variant with a window of persisting
    accesses: its share of L2 is a limit of the whole context, which would outlast the launch.
    """
    sums = (BLOCKS_PER_SM * sm_count(), THREADS) if impl == "cuda" else (1, 1)
    return whole_numbers(rng, 256 * kib), rng.empty(*sums)


@l2_sweep.reference
def _sums(x: Any, sums: Any, *, kib: int, impl: str) -> Any:
    """Return what each thread adds up: its places in the tiles that its block takes."""
    passes, blocks = passes_of(kib, impl), len(sums)
    if impl == "torch":
        return (passes * x.long().sum()).float().reshape(1, 1)
    padded = torch.nn.functional.pad(x, (0, -x.numel() % WORDS_PER_TILE))
    tiles = padded.reshape(-1, UNROLL, THREADS, 4).sum(dim=(1, 3)).long()
    turn = torch.arange(passes * len(tiles), device=x.device)
    total = torch.zeros(blocks, THREADS, dtype=torch.long, device=x.device)
    return total.index_add_(0, turn % blocks, tiles[turn % len(tiles)]).float()


@l2_sweep.wrong
def _without_the_last_tile(x: Any, sums: Any, *, kib: int, impl: str) -> Any:
    """Round the number of tiles of a pass down."""
    shortened = x.clone()
    shortened[(x.numel() - 1) // WORDS_PER_TILE * WORDS_PER_TILE :] = 0
    return _sums(shortened, sums, kib=kib, impl=impl)


@l2_sweep.impl(needs=[perfsuite.Need("device", "cpu")])
def _torch(x: Any, sums: Any, *, kib: int) -> None:
    sums.zero_()
    for _ in range(passes_of(kib, "torch")):
        sums.add_(torch.sum(x))


@l2_sweep.impl(needs=[perfsuite.cuda()])
def _cuda(ctx: Any, *, kib: int) -> Any:
    passes = passes_of(kib, "cuda")
    kernel = load(ctx, __file__, "read_passes", THREADS=THREADS, UNROLL=UNROLL)
    return lambda x, sums: kernel(len(sums), THREADS, x, sums, x.numel() // 4, passes)
