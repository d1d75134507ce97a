"""Collectives over sizes: the library's, and an all-reduce written as a ring by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_distributed.ranks import NCCL_TESTS, bus_bytes, mean, of_all_ranks, own, true_mean

CHAPTER = "AI Systems Performance Engineering, chapter 4, NCCL"
OPS = ["all_reduce", "all_gather", "reduce_scatter"]


def _work(*, op: str, ranks: int, kib: int, impl: str) -> perfsuite.Work:
    del impl
    # What goes over a rank's link; the rate is nccl-tests' busbw.
    return perfsuite.Work(read_bytes=bus_bytes(op, kib * 1024, ranks), link="nvlink")


@perfsuite.case(
    axes={
        "op": OPS,
        "ranks": [2, 4],
        "kib": [64, 1024, 16384, 262144],
        "impl": ["library", "ring"],
    },
    smoke={"ranks": [2], "kib": [1024]},
    full={"ranks": [2, 4, 8, 16], "kib": [1, 4, 64, 1024, 4096, 16384, 65536, 262144, 1048576]},
    only=lambda op, ranks, kib, impl: impl == "library" or op == "all_reduce",
    ranks="ranks",
    waits=lambda op, **_: op != "all_reduce",
    work=_work,
    memory_bytes=lambda op, ranks, kib, impl: 2 * kib * 1024,
    cold=False,
    source=f"{CHAPTER}; {NCCL_TESTS}",
)
def collective(ctx: Any, *, op: str, ranks: int, kib: int, impl: str) -> perfsuite.Workload:
    """Reduce, gather or scatter fp32 over all ranks; kib is the whole buffer, rates are busbw.

    ``all_reduce`` averages in place. ``ring`` is the textbook's: n-1 steps that reduce a share,
    n-1 that pass it on, each a send and a receive between neighbours.
    """
    n = kib * 256
    if op == "all_gather":
        return _all_gather(ctx.rank, ranks, n)
    if op == "reduce_scatter":
        return _reduce_scatter(ctx.rank, ranks, n)
    return _all_reduce(ctx.rank, n, mean if impl == "library" else ring_mean)


def _all_reduce(rank: int, n: int, average: Callable[[Any], None]) -> perfsuite.Workload:
    def fn(x: Any) -> Any:
        average(x)
        return x

    def wrong(x: Any) -> Any:
        # A rank's own numbers, as when a hook that should reduce them was never called.
        average(x)
        return own(x, rank)

    return perfsuite.Workload(
        fn=fn,
        make_inputs=lambda rng: (own(rng.randn(n), rank),),
        reference=true_mean,
        wrong=wrong,
        in_place=True,
    )


def _all_gather(rank: int, ranks: int, n: int) -> perfsuite.Workload:
    import torch
    import torch.distributed as dist

    def reference(x: Any, y: Any) -> Any:
        # By another way: each rank tells the others in turn.
        parts = [x.clone() if turn == rank else torch.empty_like(x) for turn in range(ranks)]
        for turn, part in enumerate(parts):
            dist.broadcast(part, turn)
        return torch.cat(parts)

    def wrong(x: Any, y: Any) -> None:
        dist.all_gather_into_tensor(y, x)
        y.copy_(y.roll(n // ranks))  # in the order of a ring that starts one rank later

    return perfsuite.Workload(
        fn=lambda x, y: dist.all_gather_into_tensor(y, x) and None,
        make_inputs=lambda rng: (own(rng.randn(n // ranks), rank), rng.empty(n)),
        reference=reference,
        wrong=wrong,
        tolerance=0.0,
    )


def _reduce_scatter(rank: int, ranks: int, n: int) -> perfsuite.Workload:
    import torch.distributed as dist

    share = n // ranks

    def reference(x: Any, y: Any) -> Any:
        return of_all_ranks(x).double().sum(dim=0).view(ranks, share)[rank]

    def wrong(x: Any, y: Any) -> None:
        # The next rank's share.
        dist.reduce_scatter_tensor(y, x.view(ranks, share).roll(-1, dims=0).reshape(-1))

    return perfsuite.Workload(
        fn=lambda x, y: dist.reduce_scatter_tensor(y, x) and None,
        make_inputs=lambda rng: (own(rng.randn(n), rank), rng.empty(share)),
        reference=reference,
        wrong=wrong,
    )


def ring_mean(tensor: Any) -> None:
    """Average over the ranks in place: reduce-scatter around a ring, then all-gather around it.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel and Distributed Computing 69, 2009.
    """
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    shares = tensor.view(ranks, -1)
    landing = torch.empty_like(shares[0])
    for step in range(ranks - 1):
        _pass_on(shares[(rank - step) % ranks], landing)
        shares[(rank - step - 1) % ranks].add_(landing)
    for step in range(ranks - 1):
        _pass_on(shares[(rank + 1 - step) % ranks], landing)
        shares[(rank - step) % ranks].copy_(landing)
    tensor.mul_(1 / ranks)


def _pass_on(sent: Any, landing: Any) -> None:
    """Send to the right neighbour what it needs, and take the left one's."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    right = dist.P2POp(dist.isend, sent, (rank + 1) % ranks)
    left = dist.P2POp(dist.irecv, landing, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([right, left]):
        work.wait()


CASES = (
    collective,
    perfsuite.Claim(
        name="library_beats_ring",
        case="collective",
        faster={"impl": "library"},
        than={"impl": "ring"},
        by=1.0,
        source=f"{CHAPTER}: use the library's collectives, not hand-written sends",
        at={"op": ("all_reduce",), "kib": (16384, 262144)},
        needs=(perfsuite.cuda(),),
    ),
)
