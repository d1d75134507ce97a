"""The pack's cases: what they list and count, and that references refuse the mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from perfsuite_scheduling import work_queue

from perfsuite.devices.protocol import open_device
from perfsuite.engine.check import check
from perfsuite.packs.load import load_pack
from perfsuite.testing import check_pack

CASES = load_pack("scheduling", "module:perfsuite_scheduling@").cases
Axes = dict[str, Any]


def _built(name: str, **axes: Any) -> Any:
    return CASES[name].build(open_device("cpu").context(3), **axes)


def test_smoke_variants_are_right_on_the_cpu_and_their_mistakes_refused() -> None:
    assert len(check_pack(Path(__file__).parents[1])) == 8


@pytest.mark.parametrize(
    ("name", "axes", "counted"),
    [
        ("host_sync", {"samples": 512, "steps": 5, "impl": "each_step"}, {"host_reads": 5}),
        ("host_sync", {"samples": 512, "steps": 5, "impl": "at_end"}, {"host_reads": 1}),
    ],
)
def test_what_a_launch_starts_is_counted(name: str, axes: Axes, counted: dict[str, float]) -> None:
    from perfsuite.devices.protocol import open_device

    built = _built(name, **axes)
    assert built.exact(*built.make_inputs(open_device("cpu").rng(3))) == counted


@pytest.fixture
def _small_queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the queue's items few: their reference takes a second at full size."""
    monkeypatch.setattr(work_queue, "ITEMS", 256)
    monkeypatch.setattr(work_queue, "THREADS", 8)
    monkeypatch.setattr(work_queue, "sm_count", lambda: 7)
    work_queue.rounds_of.cache_clear()
    yield
    work_queue.rounds_of.cache_clear()


@pytest.mark.usefixtures("_small_queue")
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *(("launch_latency", {"burst": 3, "impl": i}) for i in ("cuda", "cuda_5", "cuda_19")),
        *(("cuda_graph", {"n": n, "impl": i}) for n in (1, 2, 33) for i in ("stream", "graph")),
        ("persistent", {"steps": 16, "impl": "relaunch"}),
        ("persistent", {"steps": 16, "impl": "graph"}),
        ("persistent", {"steps": 16, "impl": "persistent"}),
        ("persistent", {"steps": 256, "impl": "persistent"}),
        ("streams", {"kernels": 4, "impl": "one"}),
        *(("work_queue", {"lengths": "pareto", "impl": i}) for i in work_queue.FUNCTIONS),
        ("work_queue", {"lengths": "equal", "impl": "queue"}),
        ("async_alloc", {"kib": 64, "impl": "kept"}),
        ("cpu_submission", {"n": 100, "impl": "graph"}),
        *(
            ("grid_sync", {"steps": 16, "blocks": blocks, "impl": impl})
            for blocks in (8, 128)
            for impl in ("relaunch", "atomic", "cluster")
        ),
        *(("graph_params", {"nodes": 4, "impl": i}) for i in ("stream", "update", "bucketed")),
    ],
)
def test_builder_launches_its_kernels_right_and_its_mistake_is_refused(
    name: str, axes: Axes, ctx: Any
) -> None:
    workload: Any = CASES[name].build(ctx, **axes)
    assert check(open_device("cpu"), workload, seed=3).known_error is not None
