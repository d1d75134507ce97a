"""Counts what one launch starts, without a profiler: kernels on a GPU, operators on a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perfsuite.errors import DeviceError
from perfsuite.model import Metric

KERNELS = Metric("kernels", better="lower")


def count_kernels(ctx: Any, launch: Callable[[], Any]) -> float:
    """Return the kernels, copies and fills one launch starts; torch's operators on a CPU.

    A CUDA graph that the launch replays is one node of another kind, and counts for nothing: ask
    ``graph_kernels`` about it.
    It is a number for ``Workload.exact`` of a case that declares the metric ``KERNELS``.
    """
    if ctx.device == "cuda":
        return graph_kernels(capture(launch))
    return float(count_operators(launch).total())


def count_operators(launch: Callable[[], Any]) -> Counter[str]:
    """Return how often one launch calls each torch function, by its name.

    Not a dispatch mode, whose first use imports all of torch's compiler: 1.3 s a process.
    """
    from torch.overrides import TorchFunctionMode

    seen: Counter[str] = Counter()

    class Count(TorchFunctionMode):  # type: ignore[misc] # torch has no types here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[func.__name__] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        launch()
    return seen


def capture(launch: Callable[[], Any]) -> Any:
    """Return torch's CUDA graph of one launch, to be instantiated; the launch runs once before."""
    import torch

    launch()  # what is compiled or loaded lazily must exist before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph


def graph_kernels(graph: Any) -> float:
    """Return the kernels, copies and fills of a graph of ``capture``."""
    from cuda.bindings import driver

    handle = driver.CUgraph(graph.raw_cuda_graph())
    _, count = _asked(driver.cuGraphGetNodes(handle))
    nodes, _ = _asked(driver.cuGraphGetNodes(handle, count))
    kind = driver.CUgraphNodeType
    working = {
        kind.CU_GRAPH_NODE_TYPE_KERNEL,
        kind.CU_GRAPH_NODE_TYPE_MEMCPY,
        kind.CU_GRAPH_NODE_TYPE_MEMSET,
    }
    kinds = [_asked(driver.cuGraphNodeGetType(node))[0] for node in nodes[:count]]
    return float(sum(each in working for each in kinds))


def _asked(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *values = answer
    if int(error) != 0:
        raise DeviceError(f"the CUDA driver does not tell a graph's nodes ({error.name})")
    return tuple(values)
