"""Gangs with real servers and ranks: joining, agreeing, merging, and each way to lose a rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from test_panel import is_idle, limited, make_variant, measure

from perfsuite.boundary import CaseError, DeviceError, UsageError
from perfsuite.cli import refuse_misfit
from perfsuite.devices.protocol import open_device, see_own_first
from perfsuite.model import Block, Evidence, Metric, Result, Settings, Side, Stage, Status, Variant
from perfsuite.workers.messages import read
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, Process, Setup, Slot, gang_unit, inventory, merged

PACK = Path(__file__).parent / "packs" / "gang.py"
SETTINGS = Settings(
    rounds=2, samples=4, sample_us=50.0, settle_s=0.05, prepare_limit_s=20.0, processes=2
)
SETUP = Setup(device="cpu", slots=2, settings=SETTINGS, own=Code(origins={"gang": f"file:{PACK}"}))
FAKE = replace(limited(SETUP, prepare_limit_s=10.0), device="fake", slots=3)
UNITS = ("machine", "machine", "machine")


def fail(how: str) -> Variant:
    return make_variant("gang", "fail", ranks=2, how=how)


def lag(ranks: int, us: int) -> Variant:
    return make_variant("gang", "lag", ranks=ranks, us=us)


def times(result: Result) -> list[float]:
    return [us for e in result.evidence for block in e.samples("time_us") for us in block]


SIZES = [make_variant("gang", "reduce", ranks=2, n=n) for n in (16, 64, 256)]


@pytest.fixture(scope="module")
def fake() -> Iterator[Panel]:
    with pytest.MonkeyPatch.context() as patch, Panel(FAKE, UNITS) as shared:
        patch.setattr("perfsuite.workers.process.host_bytes", lambda: 450 << 20)
        yield shared


def test_a_gang_is_kept_joins_and_ends_with_its_rank_that_died_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSUITE_TEST_TRACE", str(tmp_path))
    with Panel(SETUP, UNITS) as panel:
        results = measure(panel, *SIZES, processes=2)
        # Where one died, the others fail first, for they wait for it.
        (left,) = measure(panel, fail("leave"), processes=1)
        panel.setup = limited(SETUP, prepare_limit_s=5.0)
        (hung,) = measure(panel, fail("skip"), processes=1)
        assert is_idle(panel)
    assert [(r.variant, r.status) for r in results] == [(v.id, Status.OK) for v in SIZES]
    # Two gangs of two processes, each of which built all three.
    built = [path.read_text(encoding="ascii").count("\n") for path in tmp_path.iterdir()]
    assert built == [3, 3, 3, 3]
    found = results[0].evidence
    assert [(e.slot, len(e.blocks)) for e in found] == [(0, 2), (1, 2)]
    assert {e.unit for e in found} == {"machine"}
    assert len({e.seed for e in found}) == 2
    assert all(time_us > 0 for time_us in times(results[0]))
    assert {"start", "build", "check", "settle", "measure"} <= set(found[0].phases_s)
    assert found[0].exact["places"] == 2.0
    assert (left.status, left.reason) == (Status.CRASHED, "rank 1: exit code 3 during check")
    assert hung.status is Status.TIMED_OUT
    assert hung.reason.startswith("prepare took longer than its limit of 5 s")
    assert hung.reason.endswith("(rank 0 in check, rank 1 in calibrate)")
    assert all(said in hung.output for said in ("rank 0:", "rank 1:", "all_reduce"))


CAUSES = {
    "leave": (Status.CRASHED, "rank 1: exit code 3 during check"),
    "raise": (Status.ERROR, "rank 1: ValueError: rank one is in a bad mood"),
    "wrong": (Status.WRONG, "rank 1: output differs from the reference"),
    "end_server": (Status.CRASHED, "rank 1: the server of slot 1 is gone (killed by SIGKILL"),
    "leak": (Status.CRASHED, "rank 1: held "),
}


@pytest.mark.parametrize("how", CAUSES)
def test_failing_rank_is_named_and_the_next_variant_is_measured(fake: Panel, how: str) -> None:
    (bad,), (good,) = (measure(fake, fail(each), processes=1) for each in (how, "fine"))
    status, reason = CAUSES[how]
    assert (bad.variant, bad.status, bad.evidence) == (fail(how).id, status, ())
    assert bad.reason.startswith(reason)
    assert (good.status, len(good.evidence)) == (Status.OK, 1)
    assert is_idle(fake)


def test_variant_that_fails_in_a_kept_gang_is_tried_in_a_fresh_one(fake: Panel) -> None:
    seen: list[str] = []
    fake.measure(
        [fail("fine"), fail("raise")],
        Stage.SCREEN,
        processes=1,
        on_result=lambda result: seen.append(result.status),
        on_phase=lambda name, phase: seen.append(phase) if "raise" in name else None,
    )
    assert seen.count("join") == 1  # the second variant's own, after its failure
    assert seen[-1] == Status.ERROR


def test_rank_that_never_starts_is_named(fake: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    fork, forked = Slot.fork, list[Process]()

    def stop_second(slot: Slot) -> Process:
        forked.append(fork(slot))
        if len(forked) == 2:
            os.kill(forked[1].pid, signal.SIGSTOP)
        return forked[-1]

    with monkeypatch.context() as patch:
        patch.setattr(fake, "setup", limited(FAKE, start_limit_s=2.0))
        patch.setattr(Slot, "fork", stop_second)
        (bad,) = measure(fake, lag(2, 100), processes=1)
    (good,) = measure(fake, lag(3, 100), processes=1)
    assert is_idle(fake)
    assert bad.status is Status.TIMED_OUT
    assert bad.reason.endswith("its limit of 2 s (rank 1 in start)")
    assert good.status is Status.OK


def test_slowest_rank_s_samples_are_the_gang_s(fake: Panel) -> None:
    (odd,) = measure(fake, lag(2, 10), processes=1)
    found = measure(fake, *(lag(ranks, 100) for ranks in (1, 2, 3)), processes=1)
    for ranks, result in enumerate(found, 1):
        assert times(result) == pytest.approx([100 * ranks] * len(times(result)), rel=0.02)
    assert (odd.status, odd.evidence) == (Status.ERROR, ())
    assert "launched differently" in odd.reason


def test_gangs_of_two_sides_measure_in_turns(fake: Panel, tmp_path: Path) -> None:
    text = PACK.read_text(encoding="utf-8").replace("ctx.spend(us *", "ctx.spend(1.5 * us *")
    (tmp_path / "gang.py").write_text(text, encoding="utf-8")
    compared, other = lag(2, 100), lag(2, 80)
    fake.compare({Side.A: Code(origins={"gang": f"file:{tmp_path}/gang.py"})})
    fake.compared = {compared.id: compared}
    found = {(r.variant, r.side): r for r in measure(fake, compared, other, processes=3)}
    fake.compare({})
    assert {len(result.evidence) for result in found.values()} == {3}
    assert set(found) == {(compared.id, Side.A), (compared.id, Side.B), (other.id, Side.B)}
    assert times(found[compared.id, Side.A]) == pytest.approx([300] * 24, rel=0.02)
    assert times(found[compared.id, Side.B]) == pytest.approx([200] * 24, rel=0.02)


def evidence(*times_us: float, **metrics: float) -> Evidence:
    cycles = tuple(10 * time_us for time_us in times_us)
    rows = {name: (value,) for name, value in metrics.items()}
    return Evidence(slot=0, seed=1, blocks=(Block(time_us=times_us, cycles=cycles, metrics=rows),))


def test_merging_takes_time_and_cycles_from_the_same_rank() -> None:
    slow = structs.replace(evidence(1.0, 9.0), error=0.2, settled=False, notes=("both", "slow"))
    quick = structs.replace(evidence(2.0, 3.0), error=0.1, exact={"bytes": 4.0}, notes=("both",))
    gang = merged([slow, quick], ())
    assert gang.blocks[0].time_us == (2.0, 9.0)
    assert gang.blocks[0].cycles == (20.0, 90.0)
    assert (gang.error, gang.settled, dict(gang.exact)) == (0.2, False, {"bytes": 4.0})
    assert gang.notes == ("both", "rank 0: slow")
    with pytest.raises(CaseError, match="launched differently"):
        merged([slow, structs.replace(slow, launches=2)], ())


def test_merging_takes_a_metric_from_the_rank_that_is_worst_in_it() -> None:
    parts = [evidence(1.0, ttft_us=5.0, goodput=7.0), evidence(1.0, ttft_us=6.0, goodput=8.0)]
    gang = merged(parts, (Metric("goodput", better="higher"), Metric("ttft_us")))
    assert gang.samples("ttft_us") == [[6.0]]
    assert gang.samples("goodput") == [[7.0]]


def test_unit_of_a_gang_knows_no_order() -> None:
    assert gang_unit(["b", "a"]) == gang_unit(["a", "b"]) != gang_unit(["a", "c"])
    assert gang_unit(["a", "a"]) == "a"


def test_own_gpu_comes_first_and_the_next_rank_s_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    see_own_first("cuda", 1, 3)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c,GPU-a"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    with pytest.raises(DeviceError, match="rank 1 of 2 has no GPU of its own: 1 are visible"):
        see_own_first("cuda", 1, 2)


def test_two_nodes_measure_one_variant_and_the_first_rank_writes_the_result(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    nodes = []
    for number in ("0", "1"):  # as torchrun starts them
        what = ["perfsuite.cli", "run", SIZES[0].id, "--packs", str(PACK), "--device", "cpu"]
        command = [sys.executable, "-m", *what, "--json", str(tmp_path / f"{number}.json")]
        env = {**SETUP.environment(), **world, "RANK": number}
        pipe = subprocess.PIPE
        nodes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True))
    told = [each.communicate(timeout=100) for each in nodes]
    assert [each.returncode for each in nodes] == [0, 0], told
    assert [words.startswith(f"{SIZES[0].id}: median") for words, _ in told] == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    result = read((tmp_path / "0.json").read_bytes(), Result)
    assert (result.variant, result.status, len(result.evidence)) == (SIZES[0].id, Status.OK, 1)
    assert len(result.evidence[0].blocks) == Settings().rounds


def test_ranks_are_those_of_the_variant() -> None:
    facts = open_device("fake").facts()
    for ranks, told in ((3, "started 3"), (0, r"started none(.|\n)*torchrun .* run 'ID'")):
        with pytest.raises(UsageError, match=f"run by 2 ranks, and torchrun {told}"):
            refuse_misfit(SIZES[0], ranks, facts)


@pytest.mark.skipif(len(inventory()) < 2, reason="needs two GPUs")
def test_gpus_measure_a_collective_by_both_clocks_also_after_losing_a_rank() -> None:
    setup = limited(replace(SETUP, device="cuda", gpus=inventory()[:2]), prepare_limit_s=15.0)
    with Panel(setup, ("one", "two")) as panel:
        results = measure(panel, *SIZES, processes=2)
        for how in ("leave", "raise", "skip"):
            bad, good = measure(panel, fail(how), fail("fine"))
            assert "rank 1" in bad.reason
            assert good.status is Status.OK
        assert is_idle(panel)
    assert [(r.status, r.reason) for r in results] == [(Status.OK, "")] * 3
    for each in (process for result in results for process in result.evidence):
        assert each.unit == gang_unit(["one", "two"])
        assert all(len(block.cycles) == len(block.time_us) for block in each.blocks)
        # Sums of 64 to 1,024 bytes over NVLink: start skew of the hosts would show here.
        assert all(1 < time_us < 100 for block in each.blocks for time_us in block.time_us)
