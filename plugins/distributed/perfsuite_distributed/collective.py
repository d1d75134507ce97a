"""Collectives over sizes: the library's, and an all-reduce written as a ring by hand."""

from typing import Any

import perfsuite
from perfsuite.gpu import torch
from perfsuite_distributed import ranks as gang

_NIGHT = {"ranks": [2, 4], "kib": [64, 1024, 16384, 262144]}
_ALL = {"ranks": [2, 4, 8, 16], "kib": [1, 4, 64, 1024, 4096, 16384, 65536, 262144, 1048576]}
_ONE_WAY = {"op": ["all_gather", "reduce_scatter"], "impl": "library"}


@perfsuite.operator(
    smoke={"op": "all_reduce", "ranks": 2, "kib": 1024},
    nightly=[{"op": "all_reduce", **_NIGHT}, {**_ONE_WAY, **_NIGHT}],
    full=[{"op": "all_reduce", **_ALL}, {**_ONE_WAY, **_ALL}],
    ranks="ranks",
    # What goes over a rank's link; the rate is nccl-tests' busbw.
    work=lambda op, ranks, kib, impl: gang.over_links(op, kib * 1024, ranks),
    tolerance=lambda *, op: 0.0 if op == "all_gather" else None,
    in_place=lambda *, op: op == "all_reduce",
    cold=False,
    source=f"{gang.BOOK} 4, NCCL; {gang.NCCL_TESTS}",
)
def collective(rng: Any, *, op: str, ranks: int, kib: int) -> Any:
    """Reduce, gather or scatter fp32 over all ranks; kib is the whole buffer, rates are busbw.

    ``all_reduce`` averages in place. ``ring`` is the textbook's: n-1 steps that reduce a share,
    n-1 that pass it on, each a send and a receive between neighbours.
    """
    whole, share = kib * 256, kib * 256 // ranks
    x = gang.own(rng.randn(share if op == "all_gather" else whole))
    if op == "all_reduce":
        return (x,)
    return x, rng.empty(whole if op == "all_gather" else share)


@collective.reference
def _reference(x: Any, *y: Any, op: str, turn: int = 0) -> Any:
    if op == "all_reduce":
        return gang.true_mean(x)
    held, rank = gang.of_all_ranks(x), torch.distributed.get_rank()
    if op == "all_gather":
        return held.roll(turn, dims=0).flatten()
    return held.double().sum(dim=0).chunk(len(held))[(rank + turn) % len(held)]


@collective.wrong
def _of_another_rank(x: Any, *y: Any, op: str) -> Any:
    """Gather or scatter for the next rank; keep one's own numbers, which no hook reduced."""
    return gang.own(x) if op == "all_reduce" else _reference(x, op=op, turn=1).float()


@collective.impl(
    beats=perfsuite.Beats(
        "ring",
        1.0,
        f"{gang.BOOK} 4, NCCL: use the library's collectives, not hand-written sends",
        at={"op": "all_reduce", "kib": (16384, 262144)},
        needs=(perfsuite.cuda(),),
    )
)
def _library(x: Any, *y: Any, op: str) -> Any:
    if op == "all_reduce":
        return gang.mean(x)
    dist = torch.distributed
    call = dist.all_gather_into_tensor if op == "all_gather" else dist.reduce_scatter_tensor
    return call(*y, x)  # nothing: it has been awaited


@collective.impl(name="ring")
def ring_mean(tensor: Any) -> Any:
    """Average over the ranks in place: reduce-scatter around a ring, then all-gather around it.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
    workstations, J. Parallel and Distributed Computing 69, 2009.
    """
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    shares = tensor.view(ranks, -1)
    landing = torch.empty_like(shares[0])
    for step in range(ranks - 1):
        gang.pass_on(shares[(rank - step) % ranks], landing)
        shares[(rank - step - 1) % ranks].add_(landing)
    for step in range(ranks - 1):
        gang.pass_on(shares[(rank + 1 - step) % ranks], landing)
        shares[(rank - step) % ranks].copy_(landing)
    return tensor.mul_(1 / ranks)
