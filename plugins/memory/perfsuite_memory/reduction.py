"""The sum of an array, rung by rung: atomics, a tree, shuffles, vectors in blocks that stay."""

from functools import partial
from typing import Any

from perfsuite import Beats, cuda, operator
from perfsuite.gpu import TRITON, load, torch
from perfsuite_memory.stream import expected, stream, whole_numbers

HARRIS = "Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007"
# Threads a block and most blocks, as in the texts that the kernels are taken from.
THREADS = {"atomic": 256, "tree": 256, "shuffle": 512}
MOST_BLOCKS = 1024
# No multiple of a block or vector; the large one is, as Triton vectorises nothing else.
SMALL_N, ODD_N, LARGE_N = 2**22 + 3, 2**26 + 3, 2**28
# At one addition to one address a clock, 2^28 of them would take a tenth of a second.
LADDER = ["tree", "shuffle", "vectorised", "torch", "triton"]
_OVER_TREE = Beats(
    "tree",
    2.0,
    f"{HARRIS}: 9.7 GB/s with sequential addressing, 62.7 with many elements a thread (G80, 2^22); "
    "masterskepticista.github.io, Embarrassingly Parallel Reduction in CUDA, 2025: 331 to 859 GB/s "
    "on an RTX 3090, 2^25",
    at={"n": LARGE_N},
)


@operator(
    smoke={"n": SMALL_N, "impl": ["atomic", "shuffle", "torch"]},
    nightly={"n": LARGE_N, "impl": LADDER},
    full={"n": [2**24, ODD_N], "impl": LADDER},
    flops=lambda *, n: n,
    rate_dtype="fp32",
    # Every partial sum is a whole number below 2**24, so there is one right answer.
    tolerance=0.0,
    source=f"{HARRIS}; Luitjens, Faster Parallel Reductions on Kepler, NVIDIA Blog, 2014",
)
def reduction(rng: Any, *, n: int) -> Any:
    """Add n floats.

    atomic adds each to one address; tree halves blocks of 256 in shared memory, launch after
    launch; shuffle strides and adds within warps; vectorised reads 16 bytes a thread in blocks that
    stay, and the last block to finish adds up: one launch.
    """
    return whole_numbers(rng, n), rng.empty()


reduction.reference(partial(expected, op="read"))


# Round the grid down: what is no whole block, or else the last one, is never read.
reduction.wrong(lambda x, out: x[: (len(x) - 1) // THREADS["tree"] * THREADS["tree"]].sum())


def tree_sizes(n: int) -> tuple[int, ...]:
    """Return how many sums each launch of the tree leaves, the last one 1."""
    sizes = [-(-n // THREADS["tree"])]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // THREADS["tree"]))
    return tuple(sizes)


def _rung(ctx: Any, *, n: int, impl: str) -> Any:
    threads = THREADS[impl]
    kernel = load(ctx, __file__, f"reduction_{impl}", THREADS=threads)
    if impl == "atomic":
        return lambda x, out: kernel(-(-n // threads), threads, x, out.zero_(), n)
    sizes = tree_sizes(n) if impl == "tree" else (min(-(-n // threads), MOST_BLOCKS), 1)
    between = [torch.empty(size, device=ctx.place) for size in sizes[:-1]]

    def launch(x: Any, out: Any) -> None:
        for size, there in zip(sizes, (*between, out), strict=True):
            kernel(size, threads, x, there, x.numel())
            x = there

    return launch


def _of_stream(ctx: Any, *, n: int, impl: str) -> Any:
    return stream.launch(ctx, op="read", n=n, impl={"vectorised": "cuda"}.get(impl, impl))


for name in THREADS:
    reduction.impl(_rung, name=name, needs=[cuda()])
reduction.impl(_of_stream, name="vectorised", needs=[cuda()], beats=_OVER_TREE)
reduction.impl(_of_stream, name="torch")
reduction.impl(_of_stream, name="triton", needs=TRITON)
