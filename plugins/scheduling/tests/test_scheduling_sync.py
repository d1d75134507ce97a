"""Barriers, graphs and priorities: compiled for Hopper, and played on the CPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_codes import codes_of
from perfsuite_scheduling import graph_conditional, stream_priority

from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check


def test_a_cluster_alone_needs_no_counter() -> None:
    codes = {
        name: made for name, made in codes_of("scheduling").items() if "grid_sync.step" in name
    }
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


@pytest.mark.parametrize(
    ("impl", "reads"), [("host_each", 43), ("host_eighth", 6), ("while_node", 0)]
)
def test_loop_ends_where_the_data_say_and_not_a_step_early(
    ctx: Any, impl: str, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_conditional, "N", 1000)
    workload: Any = graph_conditional.graph_conditional.build(ctx, impl=impl)
    assert check(open_device("cpu"), workload, seed=3).known_error is not None
    assert workload.exact() == {"host_reads": reads}


def test_planted_pair_takes_the_longest() -> None:
    left, right = graph_conditional.LONGEST
    steps = 0
    while right:
        left, right, steps = right, left % right, steps + 1
    assert steps == graph_conditional.STEPS
    assert left + right == 1


def test_requests_beside_a_busy_kernel_are_served_right(
    ctx: Any, monkeypatch: pytest.MonkeyPatch
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
