"""One step as a CUDA graph, and how many kernels a step launches."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UPS = 3
_ERRORS = "thread_local"  # other threads of the process may go on
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class GraphedStep:
    """A step captured once and replayed; what it reads and returns stays at the same addresses.

    ``step`` takes tokens [b] and positions [b], of which all rows have ``position``. The returned
    logits are overwritten by the next call.
    """

    def __init__(self, step: Step, batch: int, position: int, device: torch.device) -> None:
        self._tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        # What is warmed up writes into the cache: only where the step itself will write.
        self._positions = torch.full_like(self._tokens, position)
        warm_up(lambda: step(self._tokens, self._positions))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode=_ERRORS):
            self._logits = step(self._tokens, self._positions)

    def __call__(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Copy the inputs to where the graph reads them, and replay it."""
        self._tokens.copy_(tokens)
        self._positions.copy_(positions)
        self._graph.replay()
        return self._logits


def warm_up(step: Callable[[], object]) -> None:
    """Run a step on another stream until all that is made at first use has been made."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(side)


def count_kernels(step: Callable[[], object]) -> int:
    """Return how many kernels a step launches: the kernel nodes of its capture, which never runs.

    Copies and fills that are no kernels are left out.
    """
    from cuda.bindings import runtime

    warm_up(step)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode=_ERRORS):
        step()
    handle = runtime.cudaGraph_t(graph.raw_cuda_graph())
    status, _, count = runtime.cudaGraphGetNodes(handle)
    _require(status)
    status, nodes, _ = runtime.cudaGraphGetNodes(handle, count)
    _require(status)
    kinds = []
    for node in nodes:
        status, kind = runtime.cudaGraphNodeGetType(node)
        _require(status)
        kinds.append(kind)
    return kinds.count(runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel)


def _require(status: int) -> None:
    if int(status):
        raise RuntimeError(
            f"the CUDA runtime refused to list a graph's nodes ({status!r}): "
            "check that cuda-bindings is not newer than the driver"
        )
