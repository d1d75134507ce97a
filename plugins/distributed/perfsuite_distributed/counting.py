"""Runs one training step on a process group that communicates nothing, and counts its calls."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from perfsuite.gpu import torch

WORDS = ("all_reduces", "all_gathers", "reduce_scatters")
# Of the largest buffer of each call.
PAYLOAD = "payload_bytes"
# By the part of an operator's name that tells it; the functional ones have underscores.
OPERATORS = {
    "allreduce": "all_reduces",
    "all_reduce": "all_reduces",
    "allgather": "all_gathers",
    "all_gather": "all_gathers",
    "reduce_scatter": "reduce_scatters",
}
NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}
Note = Callable[[str, Iterable[Any]], None]


def counted_step(
    strategy: str, world: int, layers: int, hidden: int, batch: int
) -> dict[str, float]:
    """Return what a second step of ``layers`` MLPs communicates among ``world`` ranks.

    ``hidden`` and ``batch`` shape the activations, [batch, hidden] in fp32.
    """
    counted: Counter[str] = Counter()

    def note(word: str, tensors: Iterable[Any]) -> None:
        counted[word] += 1
        counted[PAYLOAD] += max(each.numel() * each.element_size() for each in tensors)

    with _pretended(world) as mesh:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(_mlp(hidden) for _ in range(layers)))
        wrapped = _STRATEGIES[strategy](model, mesh, note)
        # Its gradient is a collective of tensor parallelism, so it must be asked for.
        x = torch.randn(batch, hidden, requires_grad=True)
        wrapped(x).sum().backward()  # the first step lays out DDP's buckets
        counted.clear()
        with _mode(note):
            wrapped(x).sum().backward()
    return {name: float(counted[name]) for name in (*WORDS, PAYLOAD)}


def _mlp(hidden: int) -> Any:
    up = torch.nn.Linear(hidden, 4 * hidden, bias=False)
    down = torch.nn.Linear(4 * hidden, hidden, bias=False)
    return torch.nn.Sequential(up, torch.nn.ReLU(), down)


@contextmanager
def _pretended(world: int) -> Iterator[Any]:
    """Join a group of ``world`` ranks of which only this one exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist = torch.distributed
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield dist.init_device_mesh("cpu", (world,))
    finally:
        dist.destroy_process_group()


def _mode(note: Note) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            known = OPERATORS.items() if func.namespace in NAMESPACES else ()
            if word := next((word for part, word in known if part in func.name()), ""):
                note(word, _tensors(args))
            return func(*args, **(kwargs or {}))

    return Counting()


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _ddp(model: Any, mesh: Any, note: Note) -> Any:
    wrapped = torch.nn.parallel.DistributedDataParallel(model)

    def reduced(buffer: Any) -> Any:
        # The reducer's own calls are out of a dispatch mode's sight; a hook stands in their place.
        note("all_reduces", [buffer])
        done: Any = torch.futures.Future()
        done.set_result(buffer)
        return done

    wrapped.register_comm_hook(None, lambda _, bucket: reduced(bucket.buffer()))
    return wrapped


def _sharded(model: Any, mesh: Any, note: Note, *, reshard: bool) -> Any:
    from torch.distributed.fsdp import fully_shard

    for part in (*model, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    return model


def _tensor_parallel(model: Any, mesh: Any, note: Note) -> Any:
    from torch.distributed.tensor import parallel

    for layer in model:
        plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
        parallel.parallelize_module(layer, mesh, plan)
    return model


_STRATEGIES: dict[str, Callable[[Any, Any, Note], Any]] = {
    "ddp": _ddp,
    "fsdp": partial(_sharded, reshard=True),
    "fsdp_keep": partial(_sharded, reshard=False),
    "tensor": _tensor_parallel,
}
