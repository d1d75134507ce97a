"""How long one access takes that nothing hides: a random chain in L1, in L2 and in memory."""

from typing import Any

import perfsuite
from perfsuite.gpu import load, sm_count, torch

HOPS = 5000
LINE_BYTES = 128
WORDS = LINE_BYTES // 4
# As many as the lines of the chain that is to be found in L1.
THREADS = 128
TOUCH_THREADS = 256
TOUCH_BLOCKS_PER_SM = 8
# Larger footprints have no room in any L2.
WARMED_KIB = 2**16


@perfsuite.case(
    smoke={"kib": 4095},
    nightly={"kib": [16, 24576, 2**20]},
    full={"kib": [512, 12288, 40960, 131072, 2**22]},
    needs=[perfsuite.cuda()],
    # An index a hop: time is all latency, and far from any rate's bound.
    work=lambda kib: perfsuite.Work(read_bytes=4 * HOPS),
    # The chain; building and checking it takes a few indices of 8 bytes for each line of 128.
    memory_bytes=lambda kib: 2 * 1024 * kib,
    source="te42kyfo/gpu-benches, gpu-latency: L1 34, L2 265, HBM 650 cycles (H100 PCIe)",
)
def pointer_chase(ctx: Any, *, kib: int) -> perfsuite.Workload:
    """Follow 5000 links of a random cycle over all lines of a footprint; a hop is time / 5000.

    16 KiB lie in L1, what is smaller than L2 there; from 1 GiB each hop goes to memory, with ever
    more misses of the TLB. Caches are flushed before each launch; a launch then reads every line
    of up to 64 MiB once, all SMs at a time, which takes about a hundredth of its time.
    """
    lines = 1024 * kib // LINE_BYTES
    chase, touch = (load(ctx, __file__, n, HOPS=HOPS, LINE=WORDS) for n in ("chase", "touch"))
    blocks = TOUCH_BLOCKS_PER_SM * sm_count()

    def run(chain: Any, start: Any, out: Any) -> None:
        if kib <= WARMED_KIB:
            touch(blocks, TOUCH_THREADS, chain, lines, out)
        chase(1, THREADS, chain, start, lines, out)

    return perfsuite.Workload(
        fn=run,
        make_inputs=lambda rng: _inputs(rng, lines),
        reference=lambda chain, start, out: _follow(chain, start, HOPS),
        # One hop too few: the loop's bound is off by one.
        wrong=lambda chain, start, out: out.copy_(_follow(chain, start, HOPS - 1)),
        rotates=False,
    )


def _inputs(rng: Any, lines: int) -> tuple[Any, ...]:
    """Return a cycle over all lines as indices of words, where to start, and the output."""
    start, order = rng.randint(0, lines, 1), torch.argsort(rng.rand(lines))
    chain = torch.zeros(lines, WORDS, dtype=torch.int32, device=order.device)
    chain[order, 0] = order.roll(-1).int() * WORDS
    return chain, start * WORDS, rng.empty(1, dtype="int32")


def _follow(chain: Any, start: Any, hops: int) -> Any:
    """Go ``hops`` links by doubling: after k steps ``jump`` goes 2**k links at once."""
    at = start.long() // WORDS
    jump = chain[:, 0].long() // WORDS
    while hops:
        if hops % 2:
            at = jump[at]
        jump = jump[jump]
        hops //= 2
    return (at * WORDS).int()
