"""Counting without a GPU: operators as torch dispatches them, nodes as a driver would list them."""

from __future__ import annotations

from typing import Any

import pytest

from perfsuite import DeviceError, count_operators
from perfsuite.devices.protocol import graph_kernels


class Captured:
    """A graph whose handle names nothing: the driver that is asked is played, too."""

    def raw_cuda_graph(self) -> int:
        """Return a handle."""
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the driver's binding, which lists a graph of a node of each kind, and two kernels."""
    real = pytest.importorskip("cuda.bindings.driver")
    kinds = [*real.CUgraphNodeType, real.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL]
    good = real.CUresult.CUDA_SUCCESS

    def get_nodes(graph: Any, count: int = 0) -> tuple[Any, ...]:
        assert isinstance(graph, real.CUgraph)
        return good, kinds[:count], count or len(kinds)

    monkeypatch.setattr(real, "cuGraphGetNodes", get_nodes)
    monkeypatch.setattr(real, "cuGraphNodeGetType", lambda node: (good, node))
    return real


@pytest.mark.usefixtures("driver")
def test_kernels_copies_and_fills_are_counted_and_nothing_else() -> None:
    assert graph_kernels(Captured()) == 4.0


def test_driver_that_lists_no_nodes_is_quoted(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    monkeypatch.setattr(driver, "cuGraphGetNodes", lambda *_: (bad, [], 0))
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        graph_kernels(Captured())


def test_operators_are_counted_by_name_with_overloads_together() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3)
    seen = count_operators(lambda: (x + 1) * x + x.sum().item())
    assert seen == {"add": 2, "mul": 1, "sum": 1, "item": 1}
