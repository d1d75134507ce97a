"""What hosts, drivers and clusters schedule: simulated, played and compiled without a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kernel_codes import codes_of
from perfsuite_scheduling import (
    cluster_scheduler,
    congruence,
    cpu_submission,
    dynamic_parallelism,
    green_context,
    lazy_loading,
    megakernel,
    mps_mig,
    mps_mig_child,
)
from perfsuite_scheduling.cluster_jobs import draw_jobs
from perfsuite_scheduling.cluster_ticks import tick_through

import perfsuite


def _check(workload: Any) -> float | None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device
    from perfsuite.engine.check import check

    return check(open_device("cpu"), workload, seed=3).known_error


@pytest.mark.parametrize("count", [20, 60])
@pytest.mark.parametrize("load", [50, 120])
@pytest.mark.parametrize("impl", ["fifo", "packed", "preemptive"])
def test_both_simulations_of_a_cluster_agree_to_the_number(
    impl: str, load: int, count: int
) -> None:
    jobs = draw_jobs(count, load)
    assert cluster_scheduler.simulate(jobs, impl) == tick_through(jobs, impl)


def test_packing_helps_goodput_and_preemption_helps_urgent_jobs() -> None:
    jobs = draw_jobs(300, 95)
    told = {name: cluster_scheduler.simulate(jobs, name) for name in ("fifo", "packed")}
    urgent = cluster_scheduler.simulate(jobs, "preemptive")
    assert told["packed"]["goodput_percent"] > told["fifo"]["goodput_percent"]
    assert urgent["urgent_wait_min_mean"] < told["packed"]["urgent_wait_min_mean"]
    assert urgent["redone_gpu_min"] > told["packed"]["redone_gpu_min"] == 0


@dataclass
class PlayedGraph:
    """A captured launch."""

    replay: Callable[[], Any]

    def instantiate(self) -> None:
        """Do nothing: it can be replayed as it is."""


def test_graph_of_requests_is_replayed_on_each_launch_s_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    monkeypatch.setattr(perfsuite, "capture", PlayedGraph)
    context = open_device("cpu").context(3)
    assert _check(cpu_submission.cpu_submission.build(context, n=100, impl="graph")) is not None


@dataclass
class PlayedContext:
    """A context in which Python plays the kernels of ``dynamic_parallelism``."""

    device: str = "cpu"
    place: str = "cpu"

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays the kernel; only the parent needs the device's own runtime."""
        assert f"{name}(" in path.read_text(encoding="utf-8")
        assert ("-rdc=true" in options) == (name == "parent")
        played: dict[str, Callable[..., None]] = {
            "measure": _measure,
            "child": _child,
            "parent": _parent,
        }
        return played[name]


def _measure(grid: int, block: int, x: Any, y: Any, counts: Any, first: int) -> None:
    for item in range(first, first + grid):
        counts[item] = count = (
            1 + ((int(x.numpy()[item, 0]) % 2**32) >> 8) % dynamic_parallelism.MOST
        )
        y[item, count:] = x[item, count:]


def _child(grid: int, block: int, x: Any, y: Any, item: int, count: int) -> None:
    assert (grid - 1) * block < count <= grid * block
    y[item, :count] = congruence.advance(x[item, :count], dynamic_parallelism.ROUNDS)


def _parent(grid: int, block: int, x: Any, y: Any) -> None:
    counts = [0] * grid
    _measure(grid, block, x, y, counts, 0)
    for item, count in enumerate(counts):
        _child(-(-count // block), block, x, y, item, count)


@pytest.mark.parametrize(("impl", "reads"), [("host_each", 5), ("host_once", 1), ("device", 0)])
def test_every_item_is_launched_with_its_size(impl: str, reads: int) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    built: Any = dynamic_parallelism.dynamic_parallelism.build(PlayedContext(), items=5, impl=impl)
    assert _check(built) == 0.0
    assert built.exact(*built.make_inputs(open_device("cpu").rng(3))) == {"host_reads": reads}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("target", ["sm_90a"])
def test_device_launch_is_linked_with_the_device_s_runtime(target: str) -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.cuda import linked

    made = linked(str(dynamic_parallelism.SOURCE), target, dynamic_parallelism.LINKED)
    assert all(name in made for name in (b"\0parent\0", b"\0child\0", b"cnprt"))


def test_decode_layer_streams_weights_in_vectors_past_the_first_cache() -> None:
    made = codes_of("scheduling")["megakernel.decode_layer"]
    counts = made.code.opcodes.counts.items()
    streamed = {name: n for name, n in counts if ".NA." in name and ".128" in name}
    # Four products: what is begun ahead of the barrier and what the loop goes on with.
    assert sum(streamed.values()) == 4 * 2 * 2 * 4
    assert sum(n for name, n in counts if name.startswith("UBLKPF.L2")) >= 4


def test_decode_layer_meets_four_times() -> None:
    assert codes_of("scheduling")["megakernel.decode_layer"].count("ATOMG") == 4


def test_decode_layer_in_operators_is_right_and_a_wrong_position_is_refused() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.protocol import open_device

    context = open_device("cpu").context(3)
    error = _check(megakernel.megakernel.build(context, context=129, impl="eager"))
    assert error is not None
    assert error < 0.006


def test_requests_beside_long_kernels_are_told_from_lost_ones() -> None:
    torch = pytest.importorskip("torch")
    mix = green_context.Mix(green_context.Lanes(None, None), print, print, 32, "cpu")
    expected, wrong = mix.reference(1), mix.wrong(1)
    assert [part.shape for part in expected] == [part.shape for part in wrong]
    assert torch.equal(expected[0], wrong[0])
    lost = (expected[1] != wrong[1]).nonzero()
    assert (len(lost), int(lost.min())) == (1024, 31 * 1024)


def test_child_that_cannot_load_its_library_is_quoted() -> None:
    with pytest.raises(perfsuite.CaseError, match="the child failed"):
        lazy_loading.child_times("/no/such/library.so", "lazy")


def test_cublas_is_the_one_that_torch_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    line = "7f00 r-xp 00000000 00:00 1 "
    maps = f"{line}\n{line}/my libs/libcublasLt.so.13\n{line}/my libs/libcublas.so.13\n"
    asked: list[str] = []

    def child_times(library: str, impl: str) -> dict[str, float]:
        asked.append(library)
        return dict.fromkeys(("sum", "mode", "context_ms", "map_ms", "load_ms", "first_gemm_ms"), 1)

    monkeypatch.setattr(lazy_loading, "child_times", child_times)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: maps)
    built = lazy_loading.lazy_loading.build(None, impl="lazy")
    assert isinstance(built, perfsuite.Scenario)
    built.play(0)
    assert asked == ["/my libs/libcublas.so.13"]
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: line)
    with pytest.raises(perfsuite.CaseError, match="has not loaded libcublas"):
        lazy_loading.lazy_loading.build(None, impl="lazy")


def test_clients_do_without_the_daemon_unless_they_are_to_use_it() -> None:
    assert mps_mig.environments_of("mps") == [{}, {}]
    assert len(mps_mig.environments_of("one_process")) == 1
    sliced = mps_mig.environments_of("time_sliced")
    assert len(sliced) == 2
    assert not any(Path(each["CUDA_MPS_PIPE_DIRECTORY"], "control").exists() for each in sliced)


def test_client_answers_what_it_is_asked_until_it_ends() -> None:
    code = "print([]); print([int(input())])"
    client = mps_mig.Client(
        subprocess.Popen(
            [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    with client.process:
        assert client.answer() == []
        client.ask(7)
        assert client.answer() == [7]
        with pytest.raises(perfsuite.CaseError, match="ended with 0"):
            client.answer()


def test_what_a_client_leaves_is_what_its_rounds_give(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(mps_mig, "VALUES", 3)
    monkeypatch.setattr(mps_mig, "ROUNDS", 2)
    values = list(range(3))
    for _ in range(2 * 4):
        values = [(congruence.MULTIPLIER * v + congruence.INCREMENT) % 2**32 for v in values]
    assert mps_mig.left_after(4) == sum(values)
    assert mps_mig_child.VALUES == 4096
