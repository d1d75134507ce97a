"""The pack's cases: what they list and count, and that references refuse the mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perfsuite_scheduling import congruence, smoothing, streams, work_queue

import perfsuite
from perfsuite.packs.load import load_pack

LOADED = load_pack("scheduling", "module:perfsuite_scheduling@")
CASES, CLAIMS = LOADED.cases, LOADED.claims
Axes = dict[str, Any]


def _check(workload: Any) -> float | None:
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


def _built(name: str, **axes: Any) -> Any:
    from perfsuite.devices.protocol import open_device

    return CASES[name].build(open_device("cpu").context(3), **axes)


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


@dataclass
class PlayedContext:
    """A context whose CUDA C++ kernels are played by Python, to see how builders launch them."""

    device: str = "cpu"
    place: str = "cpu"
    arch: str = "sm_90a"
    seed: int = 3

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; it must be in the file, and be given its macros."""
        assert all(option.startswith("-D") for option in options)
        assert f"{name}(" in path.read_text(encoding="utf-8")
        return {
            "add_one": _play_add_one,
            "add_one_5": _play_add_one,
            "add_one_19": _play_add_one,
            "step": _play_step,
            "steps": _play_steps,
            "advance": _play_advance,
            "static_split": _play_items,
            "block_each": _play_items,
            "atomic_queue": _play_items,
            "sorted_queue": _play_items,
        }[name]


def _play_add_one(grid: int, block: int, source: Any, target: Any, *numbers: int) -> None:
    assert grid * block == source.numel()
    assert len(numbers) in {0, 3, 17}
    target.copy_(source + (sum(numbers) if numbers else 1))


def _play_step(grid: int, block: int, source: Any, target: Any) -> None:
    assert (grid * block, block) == (source.numel(), smoothing.THREADS)
    assert source is not target
    target.copy_(smoothing.smooth(source, 1))


def _play_steps(grid: int, block: int, *args: Any) -> None:
    x, y, scratch, arrivals, count = args
    assert (grid * block, block) == (x.numel(), smoothing.THREADS)
    assert arrivals.tolist() == [0]
    assert len({x.data_ptr(), y.data_ptr(), scratch.data_ptr()}) == 3
    y.copy_(smoothing.smooth(x, count))


def _play_advance(grid: int, block: int, source: Any, target: Any) -> None:
    assert (grid * block, block) == (source.numel(), streams.THREADS)
    target.copy_(congruence.advance(source, streams.ROUNDS))


def _play_items(grid: int, block: int, rounds: Any, x: Any, y: Any, *queue: Any) -> None:
    assert block == work_queue.THREADS
    assert [each.tolist() for each in queue[:1]] == [[0, 0]] * (len(queue) > 0)
    for order in queue[1:]:
        assert order.dtype.itemsize == 8
        assert order.unique().tolist() == list(range(work_queue.ITEMS))
        assert rounds[order].tolist() == sorted(rounds.tolist(), reverse=True)
    assert grid == (2 * 7 if queue else grid)
    y.copy_(congruence.advance(x, rounds[:, None]))


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the queue's items few: their reference takes a second at full size."""
    monkeypatch.setattr(work_queue, "ITEMS", 256)
    monkeypatch.setattr(work_queue, "THREADS", 8)
    monkeypatch.setattr(work_queue, "sm_count", lambda: 7)
    work_queue.rounds_of.cache_clear()
    yield
    work_queue.rounds_of.cache_clear()


@pytest.mark.usefixtures("small_queue")
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *(("launch_latency", {"burst": 3, "impl": i}) for i in ("cuda", "cuda_5", "cuda_19")),
        *(("cuda_graph", {"n": n, "impl": "stream"}) for n in (1, 2, 33)),
        ("persistent", {"steps": 16, "impl": "relaunch"}),
        ("persistent", {"steps": 16, "impl": "graph"}),
        ("persistent", {"steps": 16, "impl": "persistent"}),
        ("persistent", {"steps": 256, "impl": "persistent"}),
        ("streams", {"kernels": 4, "impl": "one"}),
        *(("work_queue", {"lengths": "pareto", "impl": i}) for i in work_queue.FUNCTIONS),
        ("work_queue", {"lengths": "equal", "impl": "queue"}),
    ],
)
def test_builder_launches_its_kernels_right_and_its_mistake_is_refused(
    name: str, axes: Axes
) -> None:
    pytest.importorskip("torch")
    assert _check(CASES[name].build(PlayedContext(), **axes)) is not None


@dataclass
class PlayedGraph:
    """A captured launch: replayed with the tensors it was captured with, once instantiated."""

    launch: Callable[[], Any]
    ready: bool = False

    def instantiate(self) -> None:
        """Let it be replayed."""
        self.ready = True

    def replay(self) -> None:
        """Launch again what was captured."""
        assert self.ready
        self.launch()


@pytest.mark.parametrize("n", [1, 2, 33])
def test_replayed_graph_gets_each_launch_s_data(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(perfsuite, "capture", PlayedGraph)
    workload = CASES["cuda_graph"].build(PlayedContext(), n=n, impl="graph")
    assert _check(workload) is not None


def test_listing_the_cases_imports_no_kernel_library() -> None:
    roots = [str(Path(perfsuite.__file__).parents[1]), str(Path(__file__).parents[1])]
    code = (
        f"import json, sys; sys.path[:0] = {roots!r}; import perfsuite_scheduling as pack;"
        "assert pack.perf_cases();"
        "print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'cuda') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
