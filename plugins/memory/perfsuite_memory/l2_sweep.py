"""How fast arrays of growing size can be read again and again: out of L2, then out of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("l2_sweep.cu")
THREADS = 256
UNROLL = 4
BLOCKS_PER_SM = 6
OPTIONS = (f"-DTHREADS={THREADS}", f"-DUNROLL={UNROLL}")
WORDS_PER_TILE = 4 * THREADS * UNROLL
# A GPU reads this much in a launch whatever the footprint, a CPU a part of it.
READ_KIB = {"cuda": 2**20, "torch": 2**15}
# No L2 is larger: from here on each byte comes from memory.
FAR_KIB = 2**19
# Footprints whose best rate stands for L2's.
CEILING_KIB = (16384, 24576, 32768)


def _work(*, kib: int, impl: str) -> perfsuite.Work:
    link = "hbm" if kib >= FAR_KIB else "l2"
    return perfsuite.Work(read_bytes=1024 * kib * passes_of(kib, impl), link=link)


def passes_of(kib: int, impl: str) -> int:
    """Return how often an array of ``kib`` KiB is read in a launch."""
    return max(1, READ_KIB[impl] // kib)


def _memory_bytes(*, kib: int, impl: str) -> int:
    del impl
    return 1024 * kib


@perfsuite.case(
    axes={"kib": [1003, 4096, 16384, 24576, 32768, 49152, 2**20], "impl": ["cuda"]},
    smoke={"kib": [256, 32768], "impl": ["torch"]},
    full={"kib": [512, 1003, 2048, 8192, 40960, 65536, 98304, 131072, 262144]},
    full_only=[{"kib": [24576]}, {"kib": [32768], "impl": ["torch"]}],
    needs=[
        perfsuite.cuda().when(impl="cuda"),
        perfsuite.Need("device", "cpu").when(impl="torch"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    cold=False,
    ceilings={"l2": lambda kib, impl: kib in CEILING_KIB and impl == "cuda"},
    source="te42kyfo/gpu-benches, gpu-l2-cache: bandwidth by footprint (H200: 10 to 11 TB/s at 3 "
    "to 9 MB, 7.5 at 48 MB, 3.9 from 145 MB)",
)
def l2_sweep(ctx: Any, *, kib: int, impl: str) -> perfsuite.Workload:
    """Read an array of ``kib`` KiB until 1 GiB is read (on a CPU 32 MiB), and add it up.

    The best rate of 16 to 32 MiB is the ceiling of L2; where it falls is what of L2 one array can
    have. Smaller arrays exceed it, on an H200 4 MiB by 7 % and 1003 KiB by 94 %: they can be served
    nearer than by the far half of L2. The loads ask that L1 be passed by (ld.global.cg), but of the
    63 tiles of 1003 KiB a block there meets 7 alone, again and again; what answers it has not been
    measured. Small integers are added: float32 holds every sum exactly, in any order. There is no
    variant with a window of persisting accesses: its share of L2 is a limit of the whole context,
    which would outlast the launch.
    """
    passes = passes_of(kib, impl)
    blocks = resident(ctx, BLOCKS_PER_SM) if impl == "cuda" else 0
    run = _cuda(ctx, blocks, passes) if impl == "cuda" else _torch(passes)

    def wrong(x: Any, sums: Any) -> None:
        # The last tile of each pass is dropped: the number of tiles was rounded down.
        shortened = x.clone()
        shortened[(x.numel() - 1) // WORDS_PER_TILE * WORDS_PER_TILE :] = 0
        sums.copy_(_sums(shortened, passes, blocks))

    return perfsuite.Workload(
        fn=run,
        make_inputs=lambda rng: (_ending(rng, 256 * kib), rng.empty(blocks or 1, _lanes(blocks))),
        reference=lambda x, sums: _sums(x, passes, blocks),
        wrong=wrong,
        tolerance=0.0,
    )


def _lanes(blocks: int) -> int:
    return THREADS if blocks else 1


def _ending(rng: Any, n: int) -> Any:
    """Return small integers whose last one is not 0, so that it is missed."""
    x = rng.randint(-8, 9, n, dtype="float32")
    x[-1] = 8.0
    return x


def _cuda(ctx: Any, blocks: int, passes: int) -> Callable[..., Any]:
    kernel = ctx.load_cuda(SOURCE, "read_passes", options=OPTIONS)
    return lambda x, sums: kernel(blocks, THREADS, x, sums, x.numel() // 4, passes)


def _torch(passes: int) -> Callable[..., Any]:
    import torch

    def run(x: Any, sums: Any) -> None:
        sums.zero_()
        for _ in range(passes):
            sums.add_(torch.sum(x))

    return run


def _sums(x: Any, passes: int, blocks: int) -> Any:
    """Return what each thread adds up: its places in the tiles that its block takes."""
    import torch

    if not blocks:
        return (passes * x.long().sum()).float().reshape(1, 1)
    padded = torch.nn.functional.pad(x, (0, -x.numel() % WORDS_PER_TILE))
    tiles = padded.reshape(-1, UNROLL, THREADS, 4).sum(dim=(1, 3)).long()
    turn = torch.arange(passes * len(tiles), device=x.device)
    sums = torch.zeros(blocks, THREADS, dtype=torch.long, device=x.device)
    return sums.index_add_(0, turn % blocks, tiles[turn % len(tiles)]).float()
