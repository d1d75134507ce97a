"""Runs one training step on a process group that communicates nothing, and counts its calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WORDS = ("all_reduces", "all_gathers", "reduce_scatters")
# By the part of an operator's name that tells it; the functional ones have underscores.
OPERATORS = {
    "allreduce": "all_reduces",
    "all_reduce": "all_reduces",
    "allgather": "all_gathers",
    "all_gather": "all_gathers",
    "reduce_scatter": "reduce_scatters",
}
NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}


@dataclass(slots=True)
class Counted:
    """Calls by word, and the bytes of the largest buffer of each."""

    calls: Counter[str] = field(default_factory=Counter)
    bytes: float = 0.0

    def note(self, word: str, size: float) -> None:
        """Add one call."""
        self.calls[word] += 1
        self.bytes += size


def counted_step(strategy: str, world: int, layers: int, hidden: int, batch: int) -> Counted:
    """Return what a second step of ``layers`` MLPs communicates among ``world`` ranks.

    ``hidden`` and ``batch`` shape the activations, [batch, hidden] in fp32.
    """
    import torch

    with _pretended(world) as mesh:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(_mlp(hidden) for _ in range(layers)))
        counted = Counted()
        wrapped = _STRATEGIES[strategy](model, mesh, counted)
        # Its gradient is a collective of tensor parallelism, so it must be asked for.
        x = torch.randn(batch, hidden, requires_grad=True)
        wrapped(x).sum().backward()  # the first step lays out DDP's buckets
        counted.calls.clear()
        counted.bytes = 0.0
        with _mode(counted):
            wrapped(x).sum().backward()
    return counted


def _mlp(hidden: int) -> Any:
    import torch

    return torch.nn.Sequential(
        torch.nn.Linear(hidden, 4 * hidden, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(4 * hidden, hidden, bias=False),
    )


@contextmanager
def _pretended(world: int) -> Iterator[Any]:
    """Join a group of ``world`` ranks of which only this one exists."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


def _mode(counted: Counted) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            word = _word(func)
            if word:
                sizes = [t.numel() * t.element_size() for t in _tensors(args, torch.Tensor)]
                counted.note(word, max(sizes))
            return func(*args, **(kwargs or {}))

    return Counting()


def _word(func: Any) -> str:
    if func.namespace not in NAMESPACES:
        return ""
    name = func.name()
    return next((word for part, word in OPERATORS.items() if part in name), "")


def _tensors(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each, kind)


def _ddp(model: Any, mesh: Any, counted: Counted) -> Any:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    del mesh
    wrapped = DistributedDataParallel(model)

    def reduced(bucket: Any) -> Any:
        # The reducer's own calls are out of a dispatch mode's sight; a hook stands in their place.
        buffer = bucket.buffer()
        counted.note("all_reduces", buffer.numel() * buffer.element_size())
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    wrapped.register_comm_hook(None, lambda _, bucket: reduced(bucket))
    return wrapped


def _sharded(*, reshard: bool) -> Callable[[Any, Any, Counted], Any]:
    def shard(model: Any, mesh: Any, counted: Counted) -> Any:
        from torch.distributed.fsdp import fully_shard

        del counted
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)

    return shard


def _tensor_parallel(model: Any, mesh: Any, counted: Counted) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    del counted
    for layer in model:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


_STRATEGIES: dict[str, Callable[[Any, Any, Counted], Any]] = {
    "ddp": _ddp,
    "fsdp": _sharded(reshard=True),
    "fsdp_keep": _sharded(reshard=False),
    "tensor": _tensor_parallel,
}
