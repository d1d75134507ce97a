"""What the cases share: reductions that stay in range, and what all ranks hold, in float64."""

from __future__ import annotations

from typing import Any

NCCL_TESTS = "NVIDIA/nccl-tests, doc/PERFORMANCE.md: bus bandwidth"


def bus_bytes(op: str, size: float, ranks: int) -> float:
    """Return the bytes each rank's link must carry for ``size`` bytes of payload.

    ``size`` is the whole buffer: what is reduced, what is gathered, or what is scattered.
    Source: nccl-tests' factors, 2(n-1)/n for all-reduce, (n-1)/n for the other two.
    """
    share = (ranks - 1) / ranks
    return size * (2 * share if op == "all_reduce" else share)


def mean(tensor: Any) -> None:
    """Average a tensor over the ranks, in place; repeated, its values stay in range."""
    import torch.distributed as dist

    if dist.get_backend() == "nccl":
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        return
    dist.all_reduce(tensor)  # gloo has no average
    tensor.mul_(1 / dist.get_world_size())


def of_all_ranks(tensor: Any) -> Any:
    """Return every rank's tensor, stacked by rank."""
    import torch
    import torch.distributed as dist

    held = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(held, tensor)
    return torch.stack(held)


def true_mean(tensor: Any) -> Any:
    """Return the average over the ranks in float64, from what each of them holds."""
    import torch
    import torch.distributed as dist

    total = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
    for held in of_all_ranks(tensor):
        total += held.double()
    return total / dist.get_world_size()


def own(tensor: Any, rank: int) -> Any:
    """Return a tensor that differs from rank to rank, of the same numbers."""
    return tensor.roll(rank + 1).mul_(1 + rank / 8)
