"""Shared memory's 32 banks: what strides cost, how padding and swizzling avoid it, its ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("bank_conflicts.cu")
GUIDE = (
    "NVIDIA, CUDA C++ Best Practices Guide, Shared Memory and Memory Banks: conflicting accesses "
    "are split, which divides the bandwidth by the number of separate accesses"
)
LANES = 32
TILE = LANES * LANES
THREADS = 256
# 32 warps with up to 32 reads in flight each; more blocks would ask for most of shared memory.
BLOCKS_PER_SM = 4
# Odd, so that no number of blocks shares it out evenly.
PASSES = 2**17 + 1
LISTED = {"plain": (1, 2, 4, 8, 16, 32), "padded": (32,), "swizzled": (32,), "vectors": (4,)}
# Without conflicts, 4 or 16 bytes a lane.
CEILINGS = ((1, "plain"), (4, "vectors"))


def _is_listed(*, stride: int, impl: str) -> bool:
    return stride in LISTED[impl]


def _work(*, stride: int, impl: str) -> perfsuite.Work:
    # A thread reads 32 words a pass.
    del stride, impl
    return perfsuite.Work(read_bytes=4 * LANES * THREADS * PASSES, link="shared")


@perfsuite.case(
    axes={"stride": [1, 2, 4, 8, 32], "impl": list(LISTED)},
    smoke={"stride": [1, 32], "impl": ["plain", "padded"]},
    full={"stride": [1, 2, 4, 8, 16, 32]},
    only=_is_listed,
    full_only=[{"stride": [2, 8]}],
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=lambda **_: 2**22,
    cold=False,
    ceilings={"shared": lambda **axes: tuple(axes.values()) in CEILINGS},
    source=GUIDE,
)
def bank_conflicts(ctx: Any, *, stride: int, impl: str) -> perfsuite.Workload:
    """Read 4 GiB out of shared memory, neighbouring lanes ``stride`` words apart.

    A stride of 32 reads columns of a 32 x 32 matrix: as it lies, all lanes meet in one bank; with
    rows of 33 words (padded) or permuted columns (swizzled) none do. vectors reads 16 bytes a lane,
    stride 1 four: the best of both is the ceiling of shared memory, at most 128 bytes a cycle and
    SM. Integers are added modulo 2**32, so results are compared to the bit.
    """
    kernel = ctx.load_cuda(SOURCE, f"read_{impl}", options=options(stride))
    blocks = resident(ctx, BLOCKS_PER_SM)

    def wrong(words: Any, sums: Any) -> None:
        # Written with rows of 32 words, read as if they had 33.
        place = words_of(words.device, stride)
        sums.copy_(_sums(words, (place + place // LANES) % TILE, blocks))

    return perfsuite.Workload(
        fn=lambda words, sums: kernel(blocks, THREADS, words, sums, PASSES),
        make_inputs=lambda rng: (
            rng.randint(-(2**31), 2**31 - 1, THREADS // LANES, TILE),
            rng.empty(blocks, THREADS, dtype="int32"),
        ),
        reference=lambda words, sums: _sums(words, words_of(sums.device, stride), blocks),
        wrong=wrong,
        tolerance=0.0,
    )


def options(stride: int) -> tuple[str, ...]:
    """Return the options that bank_conflicts.cu is compiled with."""
    return f"-DTHREADS={THREADS}", f"-DSTRIDE={stride}"


def words_of(place: Any, stride: int) -> Any:
    """Return the words that each lane reads: groups of ``stride``, 32 groups apart."""
    import torch

    words = torch.arange(TILE, device=place).reshape(-1, LANES, stride)
    return words.transpose(0, 1).reshape(LANES, LANES)


def _sums(words: Any, place: Any, blocks: int) -> Any:
    """Return each thread's sum: its words once, times the passes that its block is dealt."""
    import torch

    once = words.long()[:, place].sum(dim=-1).reshape(-1)
    block = torch.arange(blocks, device=words.device)
    passes = PASSES // blocks + (block < PASSES % blocks).long()
    return (passes[:, None] * once).to(torch.int32)


CLAIMS = tuple(
    perfsuite.Claim(
        name=f"{impl}_over_conflicts",
        case="bank_conflicts",
        faster={"impl": impl},
        than={"impl": "plain"},
        # 32 by the guide, less what other instructions take.
        by=8.0,
        source=f"{GUIDE}: 32 accesses in one bank against none that meet",
        at={"stride": (32,)},
        needs=(perfsuite.cuda(),),
    )
    for impl in ("padded", "swizzled")
)
