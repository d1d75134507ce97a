"""What hosts, drivers and clusters schedule: simulated, played and compiled without a GPU."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_codes import codes_of
from perfsuite_scheduling import cluster_scheduler, dynamic_parallelism, lazy_loading, mps_mig
from perfsuite_scheduling.cluster_jobs import draw_jobs
from perfsuite_scheduling.cluster_ticks import tick_through

import perfsuite


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


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_device_launch_is_linked_with_the_device_s_runtime() -> None:
    pytest.importorskip("torch")
    from perfsuite.devices.cuda import linked

    made = linked(str(dynamic_parallelism.SOURCE), "sm_90a", dynamic_parallelism.LINKED)
    assert all(name in made for name in (b"\0parent\0", b"\0child\0", b"cnprt"))


def test_decode_layer_meets_four_times_and_streams_weights_past_the_first_cache() -> None:
    made = codes_of("scheduling")["megakernel.decode_layer"]
    assert made.count("ATOMG") == 4
    counts = made.code.opcodes.counts.items()
    streamed = {name: n for name, n in counts if ".NA." in name and ".128" in name}
    # Four products: what is begun ahead of the barrier and what the loop goes on with.
    assert sum(streamed.values()) == 4 * 2 * 2 * 4
    assert sum(n for name, n in counts if name.startswith("UBLKPF.L2")) >= 4


def test_child_that_cannot_load_its_library_is_quoted() -> None:
    with pytest.raises(perfsuite.CaseError, match="the child failed"):
        lazy_loading.child_times("/no/such/library.so", "lazy")


def test_cublas_is_the_one_that_torch_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    line = "7f00 r-xp 00000000 00:00 1 "
    maps = f"{line}\n{line}/my libs/libcublasLt.so.13\n{line}/my libs/libcublas.so.13\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: maps)
    assert lazy_loading.library_of_torch() == "/my libs/libcublas.so.13"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: line)
    with pytest.raises(perfsuite.CaseError, match="has not loaded libcublas"):
        lazy_loading.library_of_torch()


def test_clients_do_without_the_daemon_unless_they_are_to_use_it() -> None:
    assert mps_mig.environments_of("mps") == [{}, {}]
    assert len(mps_mig.environments_of("one_process")) == 1
    sliced = mps_mig.environments_of("time_sliced")
    assert len(sliced) == 2
    assert not any(Path(each["CUDA_MPS_PIPE_DIRECTORY"], "control").exists() for each in sliced)


def test_client_answers_what_it_is_asked_until_it_ends() -> None:
    code = "print([]); print([int(input())])"
    with subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert mps_mig.answer_of(client) == []
        mps_mig.ask(client, 7)
        assert mps_mig.answer_of(client) == [7]
        with pytest.raises(perfsuite.CaseError, match="ended with 0"):
            mps_mig.answer_of(client)
