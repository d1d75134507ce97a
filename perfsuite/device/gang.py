"""The ranks that run one launch together: how a process joins them, agrees and starts with them."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from perfsuite.errors import DeviceError

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
# The panel ends ranks that wait too long, and knows whom to blame; this is for a lost panel.
TIMEOUT = timedelta(hours=1)
LOOPBACK = "lo"


class Gang:
    """One rank's view of its gang; without a control group it is alone, whatever its number."""

    def __init__(self, rank: int = 0, ranks: int = 1, control: Any = None) -> None:
        self.rank = rank
        self.ranks = ranks
        self._control = control
        self._token: Any = None

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks, on the host: no GPU takes part."""
        return self.most([value])[0]

    def most(self, values: Sequence[float]) -> list[float]:
        """Return, place by place, the largest value among the ranks once all have asked."""
        if self._control is None:
            return list(values)
        import torch
        import torch.distributed as dist

        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=self._control)
        return [float(value) for value in shared.tolist()]

    def meet(self) -> None:
        """Return when every rank is here."""
        self.most([0.0])

    def gather(self, text: str) -> list[str]:
        """Return what each rank gave, by rank."""
        if self._control is None:
            return [text]
        import torch
        import torch.distributed as dist

        # Bytes in tensors: dist.all_gather_object would pickle, and unpickle what peers send.
        own = text.encode()
        longest = int(self.agree(len(own)))
        padded = torch.frombuffer(bytearray(own.ljust(longest + 1, b"\0")), dtype=torch.uint8)
        found = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(found, padded, group=self._control)
        return [bytes(each.tolist()).rstrip(b"\0").decode() for each in found]

    def leave(self) -> None:
        """Part from the others in order, before this process ends."""
        if self._control is not None:
            import torch.distributed as dist

            self.meet()
            dist.destroy_process_group()
            self._control = None

    def line_up(self) -> None:
        """Let the current CUDA stream go on when every rank's stream has come here."""
        if self._control is None:
            return
        import torch
        import torch.distributed as dist

        if self._token is None:
            self._token = torch.zeros(1, device="cuda")
        dist.all_reduce(self._token)


def join(device: str, *, rank: int, ranks: int, rendezvous: str) -> Gang:
    """Join the default group of torch.distributed at a file that all ranks of a machine share.

    Must come before CUDA is initialised: it puts the rank's own GPU first and its peers' behind.
    """
    if device not in BACKENDS:
        return Gang(rank, ranks)
    import torch.distributed as dist

    if device == "cuda":
        see_own_first(rank, ranks)
    if LOOPBACK in {name for _, name in socket.if_nameindex()}:
        # All ranks are on this machine: neither its name nor a network need work.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    store = dist.FileStore(rendezvous, ranks)
    return _joined(device, store=store, rank=rank, world_size=ranks)


def join_elastic(device: str) -> Gang:
    """Join the group that torchrun's environment describes, on one node or several."""
    if device == "cuda":
        see_own_first(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    return _joined(device)


def see_own_first(rank: int, ranks: int) -> None:
    """Reorder CUDA_VISIBLE_DEVICES: GPU ``rank``, then the next ranks' in turn, and no other."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = listed.split(",") if listed else [str(index) for index in range(ranks)]
    if ranks > len(visible):
        raise DeviceError(
            f"rank {rank} of {ranks} has no GPU of its own: {len(visible)} are visible",
            where=f"CUDA_VISIBLE_DEVICES={listed}",
            remedy="choose a variant with fewer ranks",
        )
    own = visible[:ranks]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own[rank:] + own[:rank])


def _joined(device: str, **where: Any) -> Gang:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        where["device_id"] = torch.device("cuda", 0)
        torch.cuda.set_device(0)
    dist.init_process_group(BACKENDS[device], timeout=TIMEOUT, **where)
    # A group of its own: agreeing launches nothing on a GPU, and works while NCCL is stuck.
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return Gang(dist.get_rank(), dist.get_world_size(), control)
