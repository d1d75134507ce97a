"""A histogram too wide for one block: counted in L2, or in the shared memory of a cluster."""

from typing import Any

from perfsuite import arch, cuda, operator
from perfsuite.gpu import load, sm_count

BINS = 2**16
THREADS = 512
BLOCKS_PER_SM = 4  # of 512 threads and 32 KiB of counts
CLUSTER = 8


@operator(
    smoke={"n": 2**24 + 4},
    nightly={"n": 2**26},
    needs=[cuda(), arch("sm_90")],
    tags=["atomics", "hopper", "clusters"],
    source="CUDA C++ Programming Guide, 'Distributed Shared Memory', the histogram example",
)
def cluster_dsmem(rng: Any, *, n: int) -> Any:
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
    return rng.randint(0, BINS, n, dtype="int32"), rng.empty(BINS, dtype="int32")


@cluster_dsmem.reference
def _reference(values: Any, counts: Any) -> Any:
    return values.bincount(minlength=BINS).to(counts.dtype)


cluster_dsmem.impl(lambda ctx: _launch(ctx, "count_global"), name="global_atomics")


cluster_dsmem.impl(lambda ctx: _launch(ctx, "count_cluster"), name="cluster")


def _launch(ctx: Any, name: str) -> Any:
    run = load(ctx, __file__, name, BINS=BINS, THREADS=THREADS)
    blocks = sm_count() * BLOCKS_PER_SM // CLUSTER * CLUSTER

    def launch(values: Any, counts: Any) -> None:
        counts.zero_()
        run(blocks, THREADS, values, counts, values.numel())

    return launch
