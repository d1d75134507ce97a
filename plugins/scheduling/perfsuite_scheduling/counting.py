"""Counts what a launch starts: kernels on a GPU, operators on a CPU, reads by the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import perfsuite
from perfsuite_scheduling import driver_graph

KERNELS = perfsuite.Metric("kernels", better="lower")
READS = perfsuite.Metric("host_reads", better="lower")
# The host waits and reads a scalar.
READ = "item"


def count_kernels(ctx: Any, launch: Callable[[], Any]) -> float:
    """Return the kernels, copies and fills one launch starts; the operators where ctx is a CPU."""
    if ctx.device == "cuda":
        return graph_kernels(capture(launch))
    return float(sum(operators(launch).values()))


def operators(launch: Callable[[], Any]) -> Counter[str]:
    """Return how often one launch calls each torch function, by its name.

    Not a dispatch mode, whose first use imports all of torch's compiler: 1.3 s a process.
    """
    from torch.overrides import TorchFunctionMode

    seen: Counter[str] = Counter()

    class Count(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[func.__name__] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        launch()
    return seen


def capture(launch: Callable[[], Any]) -> Any:
    """Return a CUDA graph of one launch, not yet instantiated; the launch runs once before."""
    import torch

    launch()  # what is compiled or loaded lazily must exist before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph


def graph_kernels(graph: Any) -> float:
    """Return the kernels, copies and fills of a graph of ``capture``; no profiler is needed."""
    from cuda.bindings import driver

    nodes = driver_graph.nodes_of(driver.CUgraph(graph.raw_cuda_graph()))
    kind = driver.CUgraphNodeType
    working = {
        kind.CU_GRAPH_NODE_TYPE_KERNEL,
        kind.CU_GRAPH_NODE_TYPE_MEMCPY,
        kind.CU_GRAPH_NODE_TYPE_MEMSET,
    }
    kinds = [driver_graph.asked(driver.cuGraphNodeGetType(node))[0] for node in nodes]
    return float(sum(each in working for each in kinds))
