"""Copying in words of 4, 8 and 16 bytes, and from an address that is no multiple of 16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory.grid import resident

SOURCE = Path(__file__).with_name("vectorized.cu")
COMPANION = "AI Systems Performance Engineering, companion code, folder ch07"
WIDTHS = {"words": 1, "pairs": 2, "vectors": 4, "realigned": 4}
THREADS = 256
# A quarter of an SM's threads: what is left of a GPU that a kernel with many registers fills.
FEW_BLOCKS_PER_SM = 2
ODD_N = 2**26 + 3
# Every listed combination teaches something the others do not.
LISTED = {
    "words": {(0, "full"), (0, "few"), (1, "full")},
    "pairs": {(0, "full"), (0, "few")},
    "vectors": {(0, "full"), (0, "few")},
    "realigned": {(1, "full")},
}


def _is_listed(*, n: int, shift: int, grid: str, impl: str) -> bool:
    del n
    return (shift, grid) in LISTED[impl]


def _work(*, n: int, shift: int, grid: str, impl: str) -> perfsuite.Work:
    del shift, grid, impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4 * n)


def _memory_bytes(*, n: int, shift: int, grid: str, impl: str) -> int:
    del shift, grid, impl
    return 8 * n


@perfsuite.case(
    axes={"n": [ODD_N], "shift": [0, 1], "grid": ["full", "few"], "impl": list(WIDTHS)},
    smoke={"shift": [0], "grid": ["full"], "impl": ["words", "vectors"]},
    full={"n": [2**26, ODD_N]},
    full_only=[{"grid": ["few"], "impl": ["pairs"]}],
    only=_is_listed,
    needs=[perfsuite.cuda()],
    work=_work,
    memory_bytes=_memory_bytes,
    source="Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access, NVIDIA "
    "Technical Blog, 2013",
)
def vectorized(ctx: Any, *, n: int, shift: int, grid: str, impl: str) -> perfsuite.Workload:
    """Copy n floats, each thread with one access of 4, 8 or 16 bytes in flight.

    ``full`` starts a thread for each access; ``few`` has a quarter of the threads an SM holds
    stride over the array, so that what is in flight, and with it the time, follows the width. From
    an input ``shift`` floats past a 16-byte boundary only words can be read as they lie; realigned
    reads the aligned vectors around them and shuffles.
    """
    kernel = ctx.load_cuda(SOURCE, f"copy_{impl}", options=options(shift))
    threads = -(-n // WIDTHS[impl])
    blocks = resident(ctx, FEW_BLOCKS_PER_SM) if grid == "few" else -(-threads // THREADS)

    def wrong(x: Any, out: Any) -> None:
        # The words behind the last whole vector are forgotten.
        whole = n // 4 * 4 if n % 4 else n - 4
        out[:whole].copy_(x[:whole])

    return perfsuite.Workload(
        fn=lambda x, out: kernel(blocks, THREADS, x, out, n),
        make_inputs=lambda rng: (rng.randn(n + shift)[shift:], rng.empty(n)),
        reference=lambda x, out: x,
        wrong=wrong,
        tolerance=0.0,
    )


def options(shift: int) -> tuple[str, ...]:
    """Return the options that vectorized.cu is compiled with."""
    return f"-DTHREADS={THREADS}", f"-DSHIFT={shift}"


CLAIMS = (
    perfsuite.Claim(
        name="vectors_over_words",
        case="vectorized",
        faster={"impl": "vectors"},
        than={"impl": "words"},
        # Four times as much in flight; the companion's kernels have more threads.
        by=1.5,
        source=f"{COMPANION}: float4 is 2.27 times as fast as scalar accesses on a B200 "
        "(float4_vector), 2.65 times in a copy (copy_scalar)",
        at={"grid": ("few",)},
        needs=(perfsuite.cuda(),),
    ),
)
