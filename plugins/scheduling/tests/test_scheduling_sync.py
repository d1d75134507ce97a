"""Barriers, graphs and priorities: compiled for Hopper, and played on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_codes import codes_of
from perfsuite_scheduling import (
    driver_graph,
    graph_conditional,
    graph_params,
    grid_sync,
    stream_priority,
)
from sync_played import PlayedContext, PlayedGraph

import perfsuite


def test_a_cluster_alone_needs_no_counter() -> None:
    codes = {name: made for name, made in codes_of("scheduling").items() if "grid_sync" in name}
    assert {name: made.count("ATOMG") for name, made in codes.items()} == {
        "grid_sync.step_128": 0,  # its end is the barrier
        "grid_sync.steps_8": 1,
        "grid_sync.steps_128": 1,
        "grid_sync.steps_cluster_8": 0,
        "grid_sync.steps_cluster_128": 1,
    }
    for blocks in (8, 128):
        found = codes[f"grid_sync.steps_cluster_{blocks}"]
        assert found.count("UCGABAR_ARV") == found.count("UCGABAR_WAIT") >= 1
        assert found.count("CCTL") >= found.count("UCGABAR_WAIT")  # what was cached is read again


def test_condition_is_set_by_a_call() -> None:
    codes = codes_of("scheduling")
    assert codes["graph_conditional.decide"].count("CALL") == 1
    assert codes["graph_conditional.euclid_step"].count("STG") == 3


def _is_right(workload: Any) -> bool:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error is not None


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch) -> PlayedContext:
    """Return a played context; the graphs of its driver are played, too."""
    pytest.importorskip("torch")
    found = PlayedContext()
    found.graph = PlayedGraph()
    monkeypatch.setattr(driver_graph, "Graph", lambda: found.graph)

    def capture(launch: Callable[[], Any]) -> PlayedGraph:
        return PlayedGraph([launch])

    monkeypatch.setattr(perfsuite, "capture", capture)
    return found


@pytest.mark.parametrize("blocks", [8, 128])
@pytest.mark.parametrize("impl", ["relaunch", "atomic", "cluster"])
def test_barriers_are_launched_right_and_a_missing_one_is_refused(
    ctx: PlayedContext, blocks: int, impl: str
) -> None:
    assert _is_right(grid_sync.grid_sync.build(ctx, steps=16, blocks=blocks, impl=impl))


@pytest.mark.parametrize(
    ("impl", "reads"), [("host_each", 43), ("host_eighth", 6), ("while_node", 0)]
)
def test_loop_ends_where_the_data_say_and_not_a_step_early(
    ctx: PlayedContext, impl: str, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_conditional, "N", 1000)
    workload: Any = graph_conditional.graph_conditional.build(ctx, impl=impl)
    assert _is_right(workload)
    assert workload.exact() == {"host_reads": reads}


def test_planted_pair_takes_the_longest() -> None:
    left, right = graph_conditional.LONGEST
    steps = 0
    while right:
        left, right, steps = right, left % right, steps + 1
    assert steps == graph_conditional.STEPS
    assert left + right == 1


@pytest.mark.parametrize("impl", ["stream", "update", "bucketed"])
def test_requests_of_all_sizes_are_served_right(ctx: PlayedContext, impl: str) -> None:
    assert _is_right(graph_params.graph_params.build(ctx, nodes=4, impl=impl))


def test_requests_beside_a_busy_kernel_are_served_right(
    ctx: PlayedContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 0.25)
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: priority)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    scenario: Any = stream_priority.stream_priority.build(ctx, impl="high")
    output, found = scenario.play(5)
    assert torch.equal(output, scenario.reference(5))
    assert not torch.equal(scenario.wrong(5), scenario.reference(5))
    assert not torch.equal(scenario.reference(6), scenario.reference(5))
    assert found == {"p50_us": 250.0, "p99_us": 250.0}
    assert {metric.name for metric in stream_priority.stream_priority.metrics} == set(found)


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(each) for each in range(1, 101)]
    assert [stream_priority.rank(values, p) for p in (50, 99, 100)] == [50.0, 99.0, 100.0]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the driver's binding, whose functions note what they are asked in `asked`."""
    real = pytest.importorskip("cuda.bindings.driver")
    good = real.CUresult.CUDA_SUCCESS
    asked: dict[str, Any] = {"nodes": []}

    def add_node(graph: Any, after: Any, data: Any, count: int, params: Any) -> tuple[Any, Any]:
        asked["conditional"] = (params.type, params.conditional, len(after), count)
        asked["nodes"].append(real.CUgraphNode(9))
        return good, asked["nodes"][-1]

    def set_params(ready: Any, node: Any, params: Any) -> tuple[Any]:
        asked["params"] = (node, params)
        return (good,)

    def get_nodes(graph: Any, count: int = 0) -> tuple[Any, ...]:
        return good, asked["nodes"][:count], len(asked["nodes"])

    monkeypatch.setattr(real, "cuGraphCreate", lambda flags: (good, real.CUgraph(3)))
    monkeypatch.setattr(real, "cuCtxGetCurrent", lambda: (good, real.CUcontext(4)))
    handle = (good, real.CUgraphConditionalHandle(77))
    monkeypatch.setattr(real, "cuGraphConditionalHandleCreate", lambda *_: handle)
    monkeypatch.setattr(real, "cuGraphAddNode", add_node)
    monkeypatch.setattr(real, "cuGraphGetNodes", get_nodes)
    params = (good, real.CUDA_KERNEL_NODE_PARAMS())
    monkeypatch.setattr(real, "cuGraphKernelNodeGetParams", lambda node: params)
    monkeypatch.setattr(real, "cuGraphExecKernelNodeSetParams", set_params)
    return SimpleNamespace(real=real, asked=asked)


def test_loop_is_asked_for_as_the_driver_wants_it(driver: Any) -> None:
    graph = driver_graph.Graph()
    given: list[tuple[int, int]] = []
    graph.add_while(lambda body, condition: given.append((len(body.nodes), condition)))
    kind, conditional, before, count = driver.asked["conditional"]
    assert kind == driver.real.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    assert conditional.type == driver.real.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
    assert (int(conditional.handle), conditional.size, int(conditional.ctx)) == (77, 1, 4)
    assert (before, count) == (0, 0)
    assert given == [(0, 77)]
    assert [int(node) for node in graph.nodes] == [9]


def test_node_gets_the_arguments_of_a_request(driver: Any) -> None:
    import ctypes

    graph = driver_graph.Graph()
    graph.nodes.append(driver.real.CUgraphNode(5))
    graph.set_kernel(0, 4, (1000, 2000, 777), graph_params.TYPES)
    node, params = driver.asked["params"]
    assert (int(node), params.gridDimX) == (5, 4)
    table = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
    values = [ctypes.c_int64.from_address(table[index] or 0).value for index in range(3)]
    assert values == [1000, 2000, 777]
