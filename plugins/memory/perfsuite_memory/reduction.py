"""The sum of an array, rung by rung: atomics, a tree, shuffles, vectors in blocks that stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite_memory import stream

Launch = Callable[..., Any]

SOURCE = Path(__file__).with_name("reduction.cu")
HARRIS = "Harris, Optimizing Parallel Reduction in CUDA, NVIDIA, 2007"
KERNELS = ("atomic", "tree", "shuffle")
# Threads a block and most blocks, as in the texts that the kernels are taken from.
THREADS = {"atomic": 256, "tree": 256, "shuffle": 512}
MOST_BLOCKS = 1024
# No multiple of a block or vector; the large one is, as Triton vectorises nothing else.
SMALL_N, ODD_N, LARGE_N = 2**22 + 3, 2**26 + 3, 2**28
# At one addition to one address a clock, 2^28 of them would take a tenth of a second.
SMALL_IMPLEMENTATIONS = ("atomic", "shuffle", "torch")


def _is_listed(*, n: int, impl: str) -> bool:
    return impl in SMALL_IMPLEMENTATIONS if n == SMALL_N else impl != "atomic"


def _work(*, n: int, impl: str) -> perfsuite.Work:
    del impl
    return perfsuite.Work(read_bytes=4 * n, write_bytes=4, flops=n, rate_dtype="fp32")


def _memory_bytes(*, n: int, impl: str) -> int:
    # The tree keeps a sum for each block, and a sum for each block of those.
    return 4 * n + (4 * sum(tree_sizes(n)) if impl == "tree" else 0)


@perfsuite.case(
    axes={
        "n": [SMALL_N, LARGE_N],
        "impl": [*KERNELS, "vectorised", "torch", "triton"],
    },
    smoke={"n": [SMALL_N]},
    full={"n": [2**24, ODD_N]},
    only=_is_listed,
    needs=[
        perfsuite.cuda().when(impl=[*KERNELS, "vectorised", "triton"]),
        perfsuite.package("triton").when(impl="triton"),
    ],
    work=_work,
    memory_bytes=_memory_bytes,
    source=f"{HARRIS}; Luitjens, Faster Parallel Reductions on Kepler, NVIDIA Blog, 2014",
)
def reduction(ctx: Any, *, n: int, impl: str) -> perfsuite.Workload:
    """Add n floats.

    atomic adds each to one address; tree halves blocks of 256 in shared memory, launch after
    launch; shuffle strides and adds within warps; vectorised reads 16 bytes a thread in blocks that
    stay, and the last block to finish adds up: one launch.
    """
    return perfsuite.Workload(
        fn=_launch(ctx, n, impl),
        make_inputs=lambda rng: _inputs(rng, n),
        reference=_reference,
        wrong=_without_last_block,
        # Every partial sum is a whole number below 2**24, so there is one right answer.
        tolerance=0.0,
    )


CLAIMS = (
    perfsuite.Claim(
        name="vectorised_over_tree",
        case="reduction",
        faster={"impl": "vectorised"},
        than={"impl": "tree"},
        by=2.0,
        source=f"{HARRIS}: 9.7 GB/s with sequential addressing, 62.7 with many elements a thread "
        "(G80, 2^22); masterskepticista.github.io, Embarrassingly Parallel Reduction in "
        "CUDA, 2025: 331 to 859 GB/s on an RTX 3090, 2^25",
        at={"n": (LARGE_N,)},
        needs=(perfsuite.cuda(),),
    ),
)


def _inputs(rng: Any, n: int) -> tuple[Any, Any]:
    # Whole numbers of both signs; the last one is never 0, so that its absence shows.
    x = rng.randint(-8, 9, n, dtype="float32")
    x[-1] = 8.0
    return x, rng.empty()


def _reference(x: Any, out: Any) -> Any:
    import torch

    return torch.stack([part.double().sum() for part in x.split(stream.CHUNK)]).sum()


def _without_last_block(x: Any, out: Any) -> None:
    """Round the grid down: what is no whole block, or else the last one, is never read."""
    import torch

    torch.sum(x[: (len(x) - 1) // THREADS["tree"] * THREADS["tree"]], dim=0, out=out)


def tree_sizes(n: int) -> tuple[int, ...]:
    """Return how many sums each launch of the tree leaves, the last one 1."""
    sizes = [-(-n // THREADS["tree"])]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // THREADS["tree"]))
    return tuple(sizes)


def _launch(ctx: Any, n: int, impl: str) -> Launch:
    if impl not in KERNELS:
        same = {"vectorised": "cuda"}.get(impl, impl)
        return stream.stream.launch(ctx, op="read", n=n, impl=same)
    threads = THREADS[impl]
    kernel = ctx.load_cuda(SOURCE, f"reduction_{impl}", options=(f"-DTHREADS={threads}",))
    if impl == "atomic":
        return lambda x, out: kernel(-(-n // threads), threads, x, out.zero_(), n)
    sizes = tree_sizes(n) if impl == "tree" else (min(-(-n // threads), MOST_BLOCKS), 1)
    return _passes(kernel, threads, sizes, ctx.place)


def _passes(kernel: Launch, threads: int, sizes: tuple[int, ...], place: str) -> Launch:
    """Return launches that leave ever fewer sums, the last one in the output."""
    import torch

    between = [torch.empty(size, device=place) for size in sizes[:-1]]

    def launch(x: Any, out: Any) -> None:
        here = x
        for size, there in zip(sizes, (*between, out), strict=True):
            kernel(size, threads, here, there, here.numel())
            here = there

    return launch
