"""CUDA graphs through the driver, for what torch's graphs have no name for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfsuite.gpu import asked, driver, stream, torch

# As many times as it is asked, a conditional begins with its default value.
_ASSIGN_DEFAULT = 1


@dataclass(slots=True)
class Body:
    """A graph to be filled, or the body of a conditional node.

    A kernel node knows addresses only: ``kept`` are the launches it was filled with, whose tensors
    must live as long as it does.
    """

    handle: Any
    nodes: list[Any] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)

    def add(self, launch: Callable[[], Any]) -> None:
        """Put the one kernel that ``launch`` starts behind all others."""
        side = torch.cuda.Stream()
        beside = driver.CUstream(side.cuda_stream)
        # What a first launch loads must not void the capture.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        after = self.nodes[-1:]
        asked(
            driver.cuStreamBeginCaptureToGraph(beside, self.handle, after, None, len(after), mode)
        )
        with torch.cuda.stream(side):
            launch()
        asked(driver.cuStreamEndCapture(beside))
        self.kept.append(launch)
        self._note()

    def add_while(self, fill: Callable[[Body, int], None]) -> None:
        """Put a loop behind all others; ``fill`` is given its body and the condition's handle.

        The body runs once, and again as long as a kernel in it leaves the condition at 1.
        """
        (context,) = asked(driver.cuCtxGetCurrent())
        handle = driver.cuGraphConditionalHandleCreate(self.handle, context, 1, _ASSIGN_DEFAULT)
        (condition,) = asked(handle)
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = condition
        params.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        params.conditional.size = 1
        params.conditional.ctx = context
        after = self.nodes[-1:]
        asked(driver.cuGraphAddNode(self.handle, after, None, len(after), params))
        body = Body(params.conditional.phGraph_out[0])
        fill(body, int(condition))
        self.kept.append(body)
        self._note()

    def _note(self) -> None:
        """Find the node that is new: the driver tells them in no order."""
        known = {int(node) for node in self.nodes}
        _, count = asked(driver.cuGraphGetNodes(self.handle))
        nodes, _ = asked(driver.cuGraphGetNodes(self.handle, count))
        self.nodes += [node for node in nodes[:count] if int(node) not in known]


class Graph(Body):
    """A graph of one's own, from its first node to its launches."""

    def __init__(self) -> None:
        super().__init__(*asked(driver.cuGraphCreate(0)))
        self._ready: Any = None

    def instantiate(self) -> None:
        """Make it ready to be launched; it must be filled."""
        (self._ready,) = asked(driver.cuGraphInstantiate(self.handle, 0))

    def replay(self) -> None:
        """Launch it on torch's current stream."""
        asked(driver.cuGraphLaunch(self._ready, stream()))

    def set_kernel(self, index: int, blocks: int, values: Sequence[int], types: Any) -> None:
        """Give a kernel node other arguments and another grid, from the next launch on."""
        node = self.nodes[index]
        (params,) = asked(driver.cuGraphKernelNodeGetParams(node))
        params.gridDimX = blocks
        params.kernelParams = (tuple(values), tuple(types))
        asked(driver.cuGraphExecKernelNodeSetParams(self._ready, node, params))
