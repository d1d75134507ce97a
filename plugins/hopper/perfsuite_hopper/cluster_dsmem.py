"""A histogram too wide for one block: counted in L2, or in the shared memory of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Work, Workload, arch, cuda, package
from perfsuite_hopper.chip import sm_count

BINS = 2**16
THREADS = 512
BLOCKS_PER_SM = 4  # of 512 threads and 32 KiB of counts
CLUSTER = 8


def _work(n: int, impl: str) -> Work:
    return Work(read_bytes=4 * n, write_bytes=4 * BINS)


def _memory_bytes(n: int, impl: str) -> int:
    return 4 * n + 8 * n + 16 * BINS


@perfsuite.case(
    axes={"n": [2**26, 2**24 + 4], "impl": ["global_atomics", "cluster"]},
    smoke={"n": [2**24 + 4]},
    needs=(package("torch"), cuda(), arch("sm_90")),
    work=_work,
    memory_bytes=_memory_bytes,
    tags=["atomics", "hopper", "clusters"],
    source="CUDA C++ Programming Guide, 'Distributed Shared Memory', the histogram example",
)
def cluster_dsmem(ctx: Any, n: int, impl: str) -> Workload:
    """Count how often each of 65,536 values occurs among ``n`` int32 values, exactly.

    The counts take 256 KiB, more than the 227 KiB of shared memory a block may have.
    ``global_atomics`` adds to counts in global memory, which live in L2. ``cluster`` has clusters
    of eight blocks, each of which keeps an eighth of its cluster's counts in shared memory; blocks
    add to each other's counts over the network between SMs, and to global memory at the end. Values
    are uniform: with few distinct ones both would queue at a few addresses. ``n`` must be a
    multiple of 4. Both launches set the counts to 0 first. Atomics are the limit, not memory, and
    the cluster does not pay on an H200: 280 against 317 GB/s read. Of uniform values seven in
    eight are another block's to count.
    """
    return Workload(
        fn=_launch_of(ctx, impl),
        make_inputs=lambda rng: (
            rng.randint(0, BINS, n, dtype="int32"),
            rng.empty(BINS, dtype="int32"),
        ),
        reference=reference,
        wrong=without_last_block,
        tolerance=0.0,
    )


def cuda_options() -> tuple[str, ...]:
    """Return the macros of histogram.cu."""
    return (f"-DBINS={BINS}", f"-DTHREADS={THREADS}")


def _launch_of(ctx: Any, impl: str) -> Callable[..., None]:
    name = {"global_atomics": "count_global", "cluster": "count_cluster"}[impl]
    path = Path(__file__).with_name("histogram.cu")
    run = ctx.load_cuda(path, name, options=cuda_options())
    blocks = sm_count() * BLOCKS_PER_SM // CLUSTER * CLUSTER

    def launch(values: Any, counts: Any) -> None:
        counts.zero_()
        run(blocks, THREADS, values, counts, values.numel())

    return launch


def reference(values: Any, counts: Any) -> Any:
    """Return the counts, each from torch.bincount."""
    return values.bincount(minlength=BINS).to(counts.dtype)


def without_last_block(values: Any, counts: Any) -> None:
    """Lose what the cluster's last block counted: it left before its counts were added."""
    counts.copy_(reference(values, counts))
    counts[-BINS // CLUSTER :] = 0


CASES: tuple[perfsuite.Case, ...] = (cluster_dsmem,)
