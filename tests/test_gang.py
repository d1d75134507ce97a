"""Gangs with real servers and ranks: joining, agreeing, merging, and each way to lose a rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from perfsuite.boundary import CaseError, DeviceError, UsageError
from perfsuite.devices.protocol import Gang, join, open_device, see_own_first
from perfsuite.gang import main, refuse_misfit
from perfsuite.model import (
    Arm,
    Block,
    CaseInfo,
    Evidence,
    Gpu,
    Metric,
    Pack,
    Regime,
    Result,
    Scalar,
    Settings,
    Stage,
    Status,
    Tier,
    Variant,
    variant_id,
)
from perfsuite.packs.find import discover
from perfsuite.store.codec import decode
from perfsuite.workers.catalogue import load_catalogue
from perfsuite.workers.panel import Panel, gang_unit, merged, rank_words
from perfsuite.workers.process import Code, Site, Slot, child_environment, inventory
from perfsuite.workers.units import Desk, measure_on, open_desks, units_of

PACK = Path(__file__).parent / "packs" / "gang.py"
SITE = Site(
    device="cpu",
    slots=2,
    settings=Settings(
        rounds=2, samples=4, sample_us=50.0, settle_s=0.05, prepare_limit_s=20.0, processes=2
    ),
    origins={"gang": f"file:{PACK}"},
)
FAKE = replace(SITE, device="fake")
UNITS = ("machine", "machine", "machine")


def variant(case: str, *, metrics: tuple[Metric, ...] = (), **axes: Scalar) -> Variant:
    info = CaseInfo(
        pack="gang",
        name=case,
        doc="",
        file="",
        line=1,
        source="",
        version=1,
        regime=Regime.PACED,
        cold=True,
        needs=(),
        budgets=(),
        tags=(),
        axes=tuple(axes),
        metrics=metrics,
        ranks="ranks",
    )
    name = variant_id("gang", case, axes)
    return Variant(id=name, case=info, axes=axes, tier=Tier.SMOKE)


def fail(how: str, ranks: int = 2) -> Variant:
    return variant("fail", ranks=ranks, how=how)


SIZES = [variant("reduce", ranks=2, n=n) for n in (16, 64, 256)]


def measure(panel: Panel, *variants: Variant, processes: int = 1) -> list[Result]:
    results: list[Result] = []
    panel.measure(variants, Stage.SCREEN, processes=processes, on_result=results.append)
    return results


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


@pytest.fixture(scope="module")
def panel() -> Iterator[Panel]:
    with Panel(SITE, UNITS) as shared:
        yield shared


def test_two_ranks_measure_a_collective_and_hand_back_one_evidence_per_gang(
    panel: Panel,
) -> None:
    (result,) = measure(panel, SIZES[0], processes=2)
    assert (result.status, result.reason) == (Status.OK, "")
    assert [(e.slot, e.unit, len(e.blocks)) for e in result.evidence] == [
        (0, "machine", 2),
        (1, "machine", 2),
    ]
    assert len({e.seed for e in result.evidence}) == 2
    assert all(time_us > 0 for e in result.evidence for b in e.blocks for time_us in b.time_us)
    assert {"start", "build", "check", "settle", "measure"} <= set(result.evidence[0].phases_s)


def test_gang_is_kept_for_all_sizes_of_a_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSUITE_TEST_TRACE", str(tmp_path))
    with Panel(SITE, UNITS) as traced:
        results = measure(traced, *SIZES, processes=2)
        assert [children(pid) for pid in traced.ping()] == [[], []]
    assert [(r.variant, r.status) for r in results] == [(v.id, Status.OK) for v in SIZES]
    # Two gangs of two processes, each of which built all three.
    built = [path.read_text(encoding="ascii").count("\n") for path in tmp_path.iterdir()]
    assert built == [3, 3, 3, 3]


CAUSES = {
    "leave": (Status.CRASHED, "rank 1: exit code 3 during check"),
    "kill": (Status.CRASHED, "rank 1: killed by SIGKILL during check"),
    "raise": (Status.ERROR, "rank 1: ValueError: rank one is in a bad mood"),
    "wrong": (Status.WRONG, "rank 1: output differs from the reference"),
    "end_server": (Status.CRASHED, "rank 1: the server of slot 1 is gone (killed by SIGKILL)"),
}


@pytest.fixture(scope="module")
def suite(panel: Panel) -> list[Result]:
    """Every failure there is, each followed by a gang that is well."""
    queue = [each for how in CAUSES for each in (fail(how), fail("fine"))]
    results = [result for each in queue for result in measure(panel, each)]
    assert [children(pid) for pid in panel.ping()] == [[], []]
    return results


@pytest.mark.parametrize("how", CAUSES)
def test_failing_rank_is_named_and_the_next_variant_is_measured(
    suite: list[Result], how: str
) -> None:
    place = 2 * list(CAUSES).index(how)
    bad, good = suite[place : place + 2]
    status, reason = CAUSES[how]
    assert (bad.variant, bad.status, bad.evidence) == (fail(how).id, status, ())
    assert bad.reason.startswith(reason)
    assert (good.status, len(good.evidence)) == (Status.OK, 1)


def test_rank_that_takes_too_much_memory_is_killed(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "site", replace(SITE, memory_limit_bytes=1 << 30))
    (result,) = measure(panel, fail("leak"))
    assert result.status is Status.CRASHED
    assert result.reason.startswith("rank 1: held ")
    assert result.reason.endswith("MiB of host memory, limit 1024 MiB")


def limited(**limits_s: float) -> Site:
    return replace(SITE, settings=structs.replace(SITE.settings, **limits_s))


def test_collective_that_hangs_is_timed_out_with_all_stacks_and_no_orphan(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "site", limited(prepare_limit_s=3.0))
    bad, good = measure(panel, fail("skip"), fail("fine"), processes=2)
    assert [children(pid) for pid in panel.ping()] == [[], []]
    assert bad.status is Status.TIMED_OUT
    assert bad.reason == (
        "ranks 0 and 1 gave no answer within 3 s during prepare "
        "(rank 0 in check, rank 1 in calibrate): a collective hangs?"
    )
    assert "rank 0:" in bad.output
    assert "rank 1:" in bad.output
    assert "all_reduce" in bad.output
    assert (good.status, len(good.evidence)) == (Status.OK, 2)


def test_half_a_message_of_one_rank_hangs_no_run(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "site", limited(prepare_limit_s=3.0))
    bad, good = measure(panel, fail("half"), fail("fine"))
    assert [children(pid) for pid in panel.ping()] == [[], []]
    assert bad.status is Status.TIMED_OUT
    assert "gave no answer within 3 s during prepare" in bad.reason
    assert good.status is Status.OK


def test_variant_that_fails_in_a_kept_gang_is_tried_in_a_fresh_one(panel: Panel) -> None:
    seen: list[str] = []
    panel.measure(
        [fail("fine"), fail("raise")],
        Stage.SCREEN,
        processes=1,
        on_result=lambda result: seen.append(result.status),
        on_phase=lambda name, phase: seen.append(phase) if "raise" in name else None,
    )
    assert seen.count("join") == 1  # the second variant's own, after its failure
    assert seen[-1] == Status.ERROR


@pytest.mark.parametrize("stopped", [(1,), (0, 1)])
def test_rank_that_never_joins_is_named(
    panel: Panel, monkeypatch: pytest.MonkeyPatch, stopped: tuple[int, ...]
) -> None:
    fork = Slot.fork
    doomed = set(stopped)

    def stop_first(slot: Slot) -> object:
        worker = fork(slot)
        if slot.index in doomed:
            doomed.discard(slot.index)
            os.kill(worker.pid, signal.SIGSTOP)
        return worker

    panel.ping()
    monkeypatch.setattr(panel, "site", limited(start_limit_s=2.0))
    monkeypatch.setattr(Slot, "fork", stop_first)
    bad, good = measure(panel, SIZES[0], SIZES[1])
    assert [children(pid) for pid in panel.ping()] == [[], []]
    assert bad.status is Status.TIMED_OUT
    assert bad.reason == (
        "rank 1 did not join within 2 s during start"
        if stopped == (1,)
        else "ranks 0 and 1 gave no answer within 2 s during start"
    )
    assert good.status is Status.OK


def test_slowest_rank_s_samples_are_the_gang_s() -> None:
    with Panel(replace(FAKE, slots=3), UNITS) as panel:
        two, three = measure(
            panel, variant("lag", ranks=2, us=100), variant("lag", ranks=3, us=100)
        )
    for result, slowest_us in ((two, 200), (three, 300)):
        (evidence,) = result.evidence
        times = [time_us for block in evidence.samples("time_us") for time_us in block]
        assert times == pytest.approx([slowest_us] * len(times), rel=0.02)


def test_gangs_of_two_arms_measure_in_turns(tmp_path: Path) -> None:
    text = PACK.read_text(encoding="utf-8").replace("ctx.spend(us *", "ctx.spend(1.5 * us *")
    (tmp_path / "gang.py").write_text(text, encoding="utf-8")
    arms = {Arm.A: Code(origins={"gang": f"file:{tmp_path}/gang.py"}), Arm.B: SITE.code(Arm.B)}
    compared, other = variant("lag", ranks=2, us=100), variant("lag", ranks=2, us=80)
    with Panel(replace(FAKE, arms=arms), UNITS) as panel:
        panel.compared = frozenset({compared.id})
        found = {(r.variant, r.arm): r for r in measure(panel, compared, other, processes=3)}
    times = {
        key: [sample for e in r.evidence for block in e.samples("time_us") for sample in block]
        for key, r in found.items()
    }
    assert {len(result.evidence) for result in found.values()} == {3}
    assert set(times) == {(compared.id, Arm.A), (compared.id, Arm.B), (other.id, Arm.B)}
    assert times[compared.id, Arm.A] == pytest.approx([300] * 24, rel=0.02)
    assert times[compared.id, Arm.B] == pytest.approx([200] * 24, rel=0.02)


def test_ranks_that_launch_unequally_often_are_an_error() -> None:
    with Panel(FAKE, UNITS) as panel:
        (result,) = measure(panel, variant("lag", ranks=2, us=10))
    assert (result.status, result.evidence) == (Status.ERROR, ())
    assert "launched differently" in result.reason


def test_run_ends_when_a_rank_s_server_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)", encoding="utf-8")
    with Panel(FAKE, UNITS) as broken:
        pids = broken.ping()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"slot 1 is gone \(exit code 3\)"):
            measure(broken, variant("lag", ranks=2, us=100))
        assert children(pids[0]) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((1,), "rank 1"), ((0, 1), "ranks 0 and 1"), ((0, 1, 3), "ranks 0, 1 and 3")],
)
def test_ranks_in_words(ranks: tuple[int, ...], words: str) -> None:
    assert rank_words(ranks) == words


def test_stopped_panel_hands_over_what_it_has() -> None:
    results: list[Result] = []
    with Panel(FAKE, UNITS) as stopped:

        def stop(result: Result) -> None:
            results.append(result)
            stopper = threading.Thread(target=stopped.stop)
            stopper.start()
            stopper.join()

        queue = [variant("lag", ranks=2, us=us) for us in (100, 200)]
        stopped.measure(queue, Stage.SCREEN, processes=1, on_result=stop)
    assert [result.variant for result in results] == [queue[0].id]


def evidence(*times_us: float, **fields: object) -> Evidence:
    cycles = tuple(10 * time_us for time_us in times_us)
    metrics = {name: (value,) for name, value in fields.items() if isinstance(value, float)}
    block = Block(time_us=times_us, cycles=cycles, voided=len(metrics), metrics=metrics)
    return Evidence(slot=0, seed=1, blocks=(block,))


def test_merging_takes_time_and_cycles_from_the_same_rank() -> None:
    slow = structs.replace(evidence(1.0, 9.0), error=0.2, settled=False, notes=("both", "slow"))
    quick = structs.replace(evidence(2.0, 3.0), error=0.1, exact={"bytes": 4.0}, notes=("both",))
    gang = merged([slow, quick], ())
    assert gang.blocks[0].time_us == (2.0, 9.0)
    assert gang.blocks[0].cycles == (20.0, 90.0)
    assert (gang.error, gang.settled, dict(gang.exact)) == (0.2, False, {"bytes": 4.0})
    assert gang.notes == ("both", "rank 0: slow")


def test_what_ranks_note_with_other_figures_is_one_note() -> None:
    late = [
        structs.replace(evidence(1.0), notes=(f"late by {share} %",)) for share in ("3.5", "41")
    ]
    assert merged(late, ()).notes == ("late by 3.5 %",)


def test_merging_takes_a_metric_from_the_rank_that_is_worst_in_it() -> None:
    parts = [evidence(1.0, ttft_us=5.0, goodput=7.0), evidence(1.0, ttft_us=6.0, goodput=8.0)]
    gang = merged(parts, (Metric("goodput", better="higher"), Metric("ttft_us")))
    assert gang.samples("ttft_us") == [[6.0]]
    assert gang.samples("goodput") == [[7.0]]


def test_ranks_that_launched_differently_are_refused() -> None:
    with pytest.raises(CaseError, match="launched differently"):
        merged([evidence(1.0), structs.replace(evidence(1.0), launches=2)], ())


def test_unit_of_a_gang_knows_no_order() -> None:
    assert gang_unit(["b", "a"]) == gang_unit(["a", "b"]) != gang_unit(["a", "c"])
    assert gang_unit(["a", "a"]) == "a"


AGREE = """
import os, sys
from perfsuite.devices.protocol import join, open_device
rank, ranks, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
device = open_device("cpu", gang=join("cpu", rank=rank, ranks=ranks, rendezvous=place))
context = device.context(1)
print(context.rank, context.ranks, device.agree(10.0 * rank), device.agree(-rank), flush=True)
os._exit(0)  # as a worker does: gloo's threads are not joined
"""


def test_ranks_agree_on_the_largest_value() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = str(Path(folder, "rendezvous"))
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", AGREE, str(rank), "2", place],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        told = [process.communicate(timeout=60)[0].split() for process in ranks]
    assert told == [["0", "2", "10.0", "0.0"], ["1", "2", "10.0", "0.0"]]


def test_rank_alone_agrees_with_itself() -> None:
    assert Gang().agree(3.5) == 3.5
    assert Gang().gather("all") == ["all"]


def test_gang_of_one_joins_and_leaves(tmp_path: Path) -> None:
    gang = join("cpu", rank=0, ranks=1, rendezvous=str(tmp_path / "rendezvous"))
    assert (gang.rank, gang.ranks, gang.agree(2.5), gang.gather("all")) == (0, 1, 2.5, ["all"])
    gang.leave()


def test_gang_of_one_is_measured_as_a_gang(panel: Panel) -> None:
    (result,) = measure(panel, variant("reduce", ranks=1, n=16))
    assert (result.status, len(result.evidence)) == (Status.OK, 1)
    assert result.evidence[0].exact["places"] == 1.0


def test_exact_metrics_of_ranks_are_the_worst(panel: Panel) -> None:
    (result,) = measure(panel, SIZES[0])
    assert result.evidence[0].exact["places"] == 2.0


def test_own_gpu_comes_first_and_the_next_rank_s_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c,GPU-d")
    see_own_first(1, 3)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b,GPU-c,GPU-a"


def test_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    with pytest.raises(DeviceError, match="rank 1 of 2 has no GPU of its own: 1 are visible"):
        see_own_first(1, 2)


def test_servers_of_a_gang_see_all_its_gpus() -> None:
    gpus = tuple(Gpu(index=i, uuid=f"GPU-{i}", name="some product") for i in range(2))
    assert replace(SITE, gpus=gpus).environment()["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"


@contextmanager
def opened(device: str, **fields: int) -> Iterator[tuple[tuple[Desk, ...], tuple[Pack, ...]]]:
    packs = load_catalogue(discover(None, extra=[PACK], allow=["gang"]), tier=Tier.FULL)
    settings = structs.replace(SITE.settings, **fields)
    with ExitStack() as stack:
        yield open_desks(device, packs, settings, stack), packs


def test_gangs_are_measured_after_the_others_on_units_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[tuple[str, str]] = []

    def take(desk: Desk, share: Sequence[Variant]) -> None:
        desk.panel.measure(
            share,
            Stage.SCREEN,
            processes=1,
            on_result=lambda result: seen.append((result.variant, result.status)),
        )

    lagging = [variant("lag", ranks=ranks, us=100) for ranks in (3, 2)]
    plain = variant("lag", ranks=1, us=100)
    plain = structs.replace(plain, case=structs.replace(plain.case, ranks=""))
    with opened("fake", processes=1) as (desks, _):
        measure_on(desks, [*lagging, plain], take)
        assert units_of(desks, lagging) == {desks[0].facts.unit: "Fake Device"}
    assert seen == [(each.id, Status.OK) for each in (plain, lagging[1], lagging[0])]


def test_desks_know_how_many_gpus_the_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with opened("fake", processes=1) as (desks, packs):
        assert [desk.facts.gpus for desk in desks] == [0]
        assert packs[0].name in desks[0].panel.site.origins


def node(number: int, file: Path, port: int) -> subprocess.Popen[str]:
    where = f"--nnodes 2 --nproc-per-node 1 --node-rank {number} --master-addr 127.0.0.1"
    what = ["-m", "perfsuite.gang", SIZES[0].id, "--pack", str(PACK), "--json", str(file)]
    run = ["-m", "torch.distributed.run", *where.split(), "--master-port", str(port)]
    return subprocess.Popen(
        [sys.executable, *run, *what, "--device", "cpu"],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_nodes_measure_one_variant_and_the_first_rank_writes_the_result(
    tmp_path: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [node(number, tmp_path / f"{number}.json", port) for number in (0, 1)]
    told = [each.communicate(timeout=100) for each in nodes]
    assert [each.returncode for each in nodes] == [0, 0], told
    assert [words.startswith(f"{SIZES[0].id}: median") for words, _ in told] == [True, False]
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    result = decode((tmp_path / "0.json").read_bytes(), Result)
    assert (result.variant, result.status, len(result.evidence)) == (SIZES[0].id, Status.OK, 1)
    assert len(result.evidence[0].blocks) == Settings().rounds


def test_gang_without_torchrun_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([SIZES[0].id, "--pack", str(PACK)]) == 2
    assert "start it by torchrun" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gang.reduce[ranks=2,n=17]", "nowhere.case[ranks=2]"])
def test_unknown_variant_of_a_gang_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([name, "--pack", str(PACK), "--device", "cpu"]) == 2
    assert "no variant that ranks run together" in capsys.readouterr().err


def test_torchrun_must_start_as_many_ranks_as_the_variant_has() -> None:
    with pytest.raises(UsageError, match="run by 2 ranks, and torchrun started 3"):
        refuse_misfit(SIZES[0], Gang(0, 3), open_device("fake"))


@pytest.fixture(scope="module")
def gpus() -> Iterator[Panel]:
    """Two GPUs of this node, where there are two."""
    found = inventory()[:2]
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    with Panel(replace(SITE, device="cuda", gpus=found), ("one", "two")) as shared:
        yield shared


def test_gpus_measure_a_collective_by_both_clocks(
    gpus: Panel,
) -> None:
    results = measure(gpus, *SIZES, processes=2)
    assert [(r.status, r.reason) for r in results] == [(Status.OK, "")] * 3
    for each in (process for result in results for process in result.evidence):
        assert each.unit == gang_unit(["one", "two"])
        assert all(len(block.cycles) == len(block.time_us) for block in each.blocks)
        # Sums of 64 to 1,024 bytes over NVLink: start skew of the hosts would show here.
        assert all(1 < time_us < 100 for block in each.blocks for time_us in block.time_us)


@pytest.mark.parametrize("how", ["leave", "raise", "skip"])
def test_gpus_that_lose_a_rank_measure_the_next_variant(
    gpus: Panel, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    settings = structs.replace(SITE.settings, prepare_limit_s=15.0)
    monkeypatch.setattr(gpus, "site", replace(gpus.site, settings=settings))
    bad, good = measure(gpus, fail(how), fail("fine"))
    assert bad.status in {Status.CRASHED, Status.ERROR, Status.TIMED_OUT}
    assert "rank 1" in bad.reason or "ranks 0 and 1" in bad.reason
    assert good.status is Status.OK
    assert [children(pid) for pid in gpus.ping()] == [[], []]
