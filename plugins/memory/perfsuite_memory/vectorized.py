"""Copying in words of 4, 8 and 16 bytes, and from an address that is no multiple of 16."""

from typing import Any

from perfsuite import Beats, cuda, operator
from perfsuite.gpu import load, sm_count

WIDTHS = {"words": 1, "pairs": 2, "vectors": 4, "realigned": 4}
THREADS = 256
# A quarter of an SM's threads: what is left of a GPU that a kernel with many registers fills.
FEW_BLOCKS_PER_SM = 2
ODD_N = 2**26 + 3
_OVER_WORDS = Beats(
    "words",
    # Four times as much in flight; the companion's kernels have more threads.
    1.5,
    "AI Systems Performance Engineering, companion code, folder ch07: float4 is 2.27 times as fast "
    "as scalar accesses on a B200 (float4_vector), 2.65 times in a copy (copy_scalar)",
    at={"grid": "few"},
)


@operator(
    smoke={"n": ODD_N, "shift": 0, "grid": "full", "impl": ["words", "vectors"]},
    nightly=[
        {"n": ODD_N, "shift": 0, "grid": "full", "impl": "pairs"},
        {"n": ODD_N, "shift": 0, "grid": "few", "impl": ["words", "vectors"]},
        {"n": ODD_N, "shift": 1, "grid": "full", "impl": ["words", "realigned"]},
    ],
    full=[
        {"n": [2**26, ODD_N], "shift": 0, "grid": "few", "impl": ["words", "pairs", "vectors"]},
        {"n": 2**26, "shift": 0, "grid": "full", "impl": ["words", "pairs", "vectors"]},
        {"n": 2**26, "shift": 1, "grid": "full", "impl": ["words", "realigned"]},
    ],
    needs=[cuda()],
    tolerance=0.0,
    source="Luitjens, CUDA Pro Tip: Increase Performance with Vectorized Memory Access, NVIDIA "
    "Technical Blog, 2013",
)
def vectorized(rng: Any, *, n: int, shift: int, grid: str) -> Any:
    """Copy n floats, each thread with one access of 4, 8 or 16 bytes in flight.

    ``full`` starts a thread for each access; ``few`` has a quarter of the threads an SM holds
    stride over the array, so that what is in flight, and with it the time, follows the width. From
    an input ``shift`` floats past a 16-byte boundary only words can be read as they lie; realigned
    reads the aligned vectors around them and shuffles.
    """
    return rng.randn(n + shift)[shift:], rng.empty(n)


vectorized.reference(lambda x, out: x)


def _copy(ctx: Any, *, n: int, shift: int, grid: str, impl: str) -> Any:
    kernel = load(ctx, __file__, f"copy_{impl}", THREADS=THREADS, SHIFT=shift)
    threads = -(-n // WIDTHS[impl])
    blocks = FEW_BLOCKS_PER_SM * sm_count() if grid == "few" else -(-threads // THREADS)
    return lambda x, out: kernel(blocks, THREADS, x, out, n)


for name in WIDTHS:
    vectorized.impl(_copy, name=name, beats=_OVER_WORDS if name == "vectors" else ())
