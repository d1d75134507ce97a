"""Shared memory's 32 banks: what strides cost, how padding and swizzling avoid it, its ceiling."""

from functools import partial
from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch

GUIDE = "NVIDIA, CUDA C++ Best Practices Guide, Shared Memory and Memory Banks"
LANES = 32
TILE = LANES * LANES
THREADS = 256
# 32 warps with up to 32 reads in flight each; more blocks would ask for most of shared memory.
BLOCKS_PER_SM = 4
# Odd, so that no number of blocks shares it out evenly.
PASSES = 2**17 + 1
_OVER_CONFLICTS = perfsuite.Beats(
    "plain",
    8.0,  # 32 by the guide, less what other instructions take
    f"{GUIDE}: conflicting accesses are split, which divides the bandwidth by the number of "
    "separate accesses; 32 accesses in one bank against none that meet",
    at={"stride": 32},
)


@perfsuite.operator(
    smoke=[{"stride": 1, "impl": "plain"}, {"stride": 32, "impl": ["plain", "padded"]}],
    nightly=[{"stride": 4, "impl": ["plain", "vectors"]}, {"stride": 32, "impl": "swizzled"}],
    full={"stride": [2, 8, 16], "impl": "plain"},
    needs=[perfsuite.cuda()],
    # A thread reads 32 words a pass.
    work=lambda **_: perfsuite.Work(read_bytes=4 * LANES * THREADS * PASSES, link="shared"),
    cold=False,
    # Without conflicts, 4 or 16 bytes a lane.
    ceilings={"shared": lambda stride, impl: (stride, impl) in ((1, "plain"), (4, "vectors"))},
    source=GUIDE,
)
def bank_conflicts(rng: Any, *, stride: int) -> Any:
    """Read 4 GiB out of shared memory, neighbouring lanes ``stride`` words apart.

    A stride of 32 reads columns of a 32 x 32 matrix: as it lies, all lanes meet in one bank; with
    rows of 33 words (padded) or permuted columns (swizzled) none do. vectors reads 16 bytes a lane,
    stride 1 four: the best of both is the ceiling of shared memory, at most 128 bytes a cycle and
    SM. Integers are added modulo 2**32, so results are compared to the bit.
    """
    words = rng.randint(-(2**31), 2**31 - 1, THREADS // LANES, TILE)
    return words, rng.empty(BLOCKS_PER_SM * sm_count(), THREADS, dtype="int32")


@bank_conflicts.reference
def _sums(words: Any, sums: Any, *, stride: int, padding: int = 0) -> Any:
    """Return each thread's sum: its words once, times the passes that its block is dealt.

    A lane reads groups of ``stride`` words, 32 groups apart.
    """
    place = torch.arange(TILE, device=words.device).reshape(-1, LANES, stride).transpose(0, 1)
    place = (place + place // LANES * padding) % TILE
    once = words.long()[:, place.reshape(LANES, LANES)].sum(dim=-1).reshape(-1)
    block = torch.arange(len(sums), device=words.device)
    passes = PASSES // len(sums) + (block < PASSES % len(sums)).long()
    return (passes[:, None] * once).to(torch.int32)


# Written with rows of 32 words, read as if they had 33.
bank_conflicts.wrong(partial(_sums, padding=1))


def _read(ctx: Any, *, stride: int, impl: str) -> Any:
    kernel = load(ctx, __file__, f"read_{impl}", THREADS=THREADS, STRIDE=stride)
    return lambda words, sums: kernel(len(sums), THREADS, words, sums, PASSES)


for name in ("plain", "vectors", "padded", "swizzled"):
    is_free = name in {"padded", "swizzled"}
    bank_conflicts.impl(_read, name=name, beats=_OVER_CONFLICTS if is_free else ())
