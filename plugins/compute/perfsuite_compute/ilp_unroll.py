"""Instruction-level parallelism: one chain of dependent steps a thread, or several side by side."""

from typing import Any

from perfsuite import Claim, Work, Workload, case, cuda
from perfsuite.gpu import load, sm_count

# Four warps an SM, one for each of its schedulers.
THREADS = 128
STEPS = 16384
# Powers of two, exact in fp32: x -> x - (x - 1) / 8192 pulls towards 1, by e**-2 in 16384 steps.
SHIFT = 2.0**-13
SCALE = 1 - SHIFT
# A step rounds by at most 2**-24 of a value near 1, and each later step shrinks that by SCALE:
# 2**-24 / SHIFT in all.
TOLERANCE = 2.0**-11
# Eight chains for each of 132 x 128 threads: every number of chains comes out even on an H200.
N = 132 * THREADS * 8


@case(
    smoke={"n": N - 37, "chains": 4, "unroll": 8},
    nightly=[{"n": N, "chains": [1, 4, 8], "unroll": 8}, {"n": N, "chains": 1, "unroll": 1}],
    full=[{"n": N, "chains": 2, "unroll": 8}, {"n": N, "chains": 8, "unroll": 1}],
    needs=[cuda()],
    # The numbers are read and written once; each of their steps is two operations.
    work=lambda n, **_: Work(4 * n, 4 * n, 2 * STEPS * n, "fp32"),
    cold=False,
    tags=["cuda-cores", "ilp"],
    source="V. Volkov, 'Understanding Latency Hiding on GPUs' (2016); loop unrolling and ILP: "
    "AI Systems Performance Engineering, chapters 6 and 8",
)
def ilp_unroll(ctx: Any, *, n: int, chains: int, unroll: int) -> Workload:
    """Take n numbers through 16,384 steps x -> x - (x - 1) / 8192 each, with few threads.

    An SM has four warps, one a scheduler. With one of the ``chains`` a thread waits out the latency
    of each FMA, four cycles, before it can issue the next; with four or more a scheduler has one to
    issue in each cycle. ``unroll`` steps share the counting and branching of the loop: that takes
    issue slots from eight chains, and adds to the wait of one. All variants do the same
    arithmetic, and with 2048 threads an SM all would be alike: then other warps fill the gaps.
    """
    numbers = {"STEPS": STEPS, "SCALE": f"{SCALE}f", "SHIFT": f"{SHIFT}f"}
    macros = {"THREADS": THREADS, "CHAINS": chains, "UNROLL": unroll, **numbers}
    kernel = load(ctx, __file__, "fma_chains", **macros)
    blocks = sm_count()

    def wrong(x: Any, y: Any) -> None:
        # The loop over chains ends one early: a group's last numbers are stored as they came.
        y.copy_(reference(x))
        y[-n // 8 :] = x[-n // 8 :]

    return Workload(
        fn=lambda x, y: kernel(blocks, THREADS, x, y, n),
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, y: reference(x),
        wrong=wrong,
        tolerance=TOLERANCE,
    )


def reference(x: Any) -> Any:
    """Return the chain in closed form: 1 is the point that stays where it is."""
    return 1 + (x.double() - 1) * SCALE**STEPS


FOUR_CHAINS = Claim(
    name="four_chains",
    case="ilp_unroll",
    faster={"chains": 4},
    than={"chains": 1},
    by=3.0,
    at={"n": (N,), "unroll": (8,)},
    source="CUDA C++ Programming Guide, 'Multiprocessor Level': arithmetic takes 4 cycles "
    "where its operands are registers, which 16 warps hide, or fewer with more independent "
    "instructions each: a ratio of 4 for 4 warps; three is asked for",
)
