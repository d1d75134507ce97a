"""What the cases share: reductions that stay in range, and what all ranks hold, in float64."""

from typing import Any

from perfsuite import Work
from perfsuite.gpu import Later, torch

dist = Later("torch.distributed")
BOOK = "AI Systems Performance Engineering, chapter"
NCCL_TESTS = "NVIDIA/nccl-tests, doc/PERFORMANCE.md: bus bandwidth"


def over_links(op: str, size: float, ranks: int, **more: Any) -> Work:
    """Return the bytes each rank's link must carry for ``size`` bytes of payload.

    ``size`` is the whole buffer: what is reduced, what is gathered, or what is scattered.
    Source: nccl-tests' factors, 2(n-1)/n for all-reduce, (n-1)/n for the other two.
    """
    share = (ranks - 1) / ranks
    return Work(size * (2 * share if op == "all_reduce" else share), link="nvlink", **more)


def mean(tensor: Any) -> Any:
    """Average a tensor over the ranks, in place; repeated, its values stay in range."""
    if dist.get_backend() == "nccl":
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        return tensor
    dist.all_reduce(tensor)  # gloo has no average
    return tensor.mul_(1 / dist.get_world_size())


def pass_on(sent: Any, landing: Any) -> None:
    """Send to the right neighbour, and take what the left one sends."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right = dist.P2POp(dist.isend, sent, (rank + 1) % ranks)
    left = dist.P2POp(dist.irecv, landing, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([right, left]):
        work.wait()


def of_all_ranks(tensor: Any) -> Any:
    """Return every rank's tensor, stacked by rank: each tells the others in turn."""
    held = tensor.new_empty((dist.get_world_size(), *tensor.shape))
    held[dist.get_rank()] = tensor
    for turn, part in enumerate(held):
        dist.broadcast(part, turn)
    return held


def true_mean(tensor: Any) -> Any:
    """Return the average over the ranks in float64, from what each of them holds."""
    total = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
    for held in of_all_ranks(tensor):
        total += held.double()
    return total / dist.get_world_size()


def own(tensor: Any) -> Any:
    """Return a tensor that differs from rank to rank, of the same numbers."""
    rank = dist.get_rank()
    return tensor.roll(rank + 1).mul_(1 + rank / 8)
