"""Panels with real servers and workers on the fake device: turns, time limits, deaths."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from store_data import made

from perfsuite.boundary import OURS, DeviceError, print_failure
from perfsuite.model import (
    Block,
    Evidence,
    Gpu,
    Regime,
    Result,
    Scalar,
    Settings,
    Side,
    Stage,
    Status,
    Variant,
)
from perfsuite.workers.panel import UNSAID_BYTES, Panel, doubted
from perfsuite.workers.process import Code, Process, Setup, host_bytes, inventory, tail

PACKS = Path(__file__).parent / "packs"
SETUP = Setup(
    device="fake",
    settings=Settings(rounds=2, samples=4, settle_s=0.05),
    own=Code(origins={name: f"file:{PACKS / name}.py" for name in ("steady", "nasty")}),
)
LIMIT_S = 20


def make_variant(pack: str, case: str, *, memory_bytes: int = 0, **axes: Scalar) -> Variant:
    """Make a variant of a case; its ranks are on an axis of that name, if it has one."""
    ranks = "ranks" if "ranks" in axes else ""
    return structs.replace(
        made(pack, case, axes, version=3, ranks=ranks), memory_bytes=memory_bytes
    )


def changed(variant: Variant, **fields: Any) -> Variant:
    """Return the variant of a case with other fields."""
    return structs.replace(variant, case=structs.replace(variant.case, **fields))


def nasty(how: str) -> Variant:
    return make_variant("nasty", "fail", how=how)


FIRST, SECOND, THIRD = STEADY = [make_variant("steady", "double", n=n) for n in (100, 200, 400)]


def measure(
    panel: Panel, *variants: Variant, stage: Stage = Stage.SCREEN, processes: int = 3
) -> list[Result]:
    results: list[Result] = []
    panel.measure(variants, stage, processes=processes, on_result=results.append)
    return results


def limited(setup: Setup = SETUP, **limits_s: float) -> Setup:
    return replace(setup, settings=structs.replace(setup.settings, **limits_s))


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def servers(panel: Panel) -> list[int]:
    return [slot.server.pid for slot in panel.slots]


def is_idle(panel: Panel) -> bool:
    return not any(children(pid) for pid in servers(panel))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def panel(traces: Path) -> Iterator[Panel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFSUITE_TEST_TRACE", str(traces))
        with Panel(SETUP) as shared:
            yield shared


def test_what_dies_or_hangs_ends_as_itself_and_another_s_numbers_stay(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = (SECOND, nasty("segfault"), SECOND)
    (alone,), (dead,), (good,) = (measure(panel, each, processes=1) for each in queue)
    assert dead.reason == "killed by SIGSEGV during check"
    assert (dead.status, dead.evidence) == (Status.CRASHED, ())
    assert all(said in dead.output for said in ("about to read address zero", "Segmentation fault"))
    with monkeypatch.context() as patch:  # whoever does not hang may take its time
        patch.setattr(panel, "setup", limited(prepare_limit_s=3.0))
        (hung,) = measure(panel, nasty("hang"))
    assert hung.status is Status.TIMED_OUT
    assert hung.reason == "prepare took longer than its limit of 3 s (in check)"
    assert "in _hang" in hung.output
    one, other = (
        [(e.seed, e.exact, e.error, e.samples("time_us")) for e in each.evidence]
        for each in (alone, good)
    )
    assert one == other != []
    assert is_idle(panel)


def test_stopped_panel_hands_over_what_it_has_and_begins_anew(panel: Panel) -> None:
    results: list[Result] = []

    def stop(_variant: str, phase: str) -> None:
        if results and phase == "check":
            stopper = threading.Thread(target=panel.stop)
            stopper.start()
            stopper.join()

    queue = [FIRST, nasty("hang"), SECOND]
    panel.measure(queue, Stage.SCREEN, processes=2, on_result=results.append, on_phase=stop)
    assert [result.variant for result in results] == [FIRST.id]
    assert is_idle(panel)
    assert measure(panel, FIRST) == []
    panel.compared = {FIRST.id: FIRST}
    panel.compare({})
    (result,) = measure(panel, FIRST, processes=1)
    assert (result.status, len(result.evidence)) == (Status.OK, 1)


def test_the_inventory_takes_no_file_of_the_project_for_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("platform", "queue", "resource", "statistics", "zlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('a module of the project')")
    monkeypatch.chdir(tmp_path)
    assert inventory() is not None


def test_a_process_that_cannot_start_is_told_with_what_to_do() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(DeviceError, match="no process can be started: Too many open files"):
            Panel(SETUP)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_variant_that_ends_what_started_ahead_harms_no_other(panel: Panel) -> None:
    results = measure(panel, FIRST, nasty("end_siblings"), SECOND, THIRD)
    assert [(result.status, result.reason) for result in results] == [(Status.OK, "")] * 4


def test_result_carries_stage_version_unit_and_slots(panel: Panel) -> None:
    (screen,) = measure(panel, FIRST, processes=4)
    (confirm,) = measure(panel, FIRST, stage=Stage.CONFIRM, processes=5)
    assert (confirm.variant, confirm.stage, confirm.case_version) == (FIRST.id, Stage.CONFIRM, 3)
    assert confirm.wall_s > 0
    processes = [*screen.evidence, *confirm.evidence]
    assert [each.slot for each in processes] == [0, 1, 2, 0, 0, 1, 2, 0, 1]
    assert {each.unit for each in processes} == {panel.facts.unit}
    assert len({each.seed for each in processes}) == 9
    assert len({each.sampling for each in processes}) == 1
    for wave in (screen.evidence[:3], confirm.evidence[:3]):
        rounds = zip(*(each.blocks for each in wave), strict=True)
        starts = [block.start_s for blocks in rounds for block in blocks]
        assert all(earlier < later for earlier, later in pairwise(starts))


def test_what_confirms_is_the_host_s_or_of_two_sides_takes_all_blocks(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        (Stage.SCREEN, 0.0, Regime.PACED, False, 1),
        (Stage.SCREEN, 0.0, Regime.END_TO_END, False, 5),
        (Stage.CONFIRM, 0.0, Regime.PACED, False, 2),
        (Stage.SCREEN, 0.0, Regime.PACED, True, 2),
        # Of half of the device's memory no two processes fit beside each other.
        (Stage.SCREEN, 0.5, Regime.PACED, True, 2),
    ]
    monkeypatch.setattr(panel, "setup", limited(screen_rounds=1, host_rounds=5))
    for stage, share, regime, is_compared, count in rows:
        size = int(share * panel.facts.memory_bytes)
        variant = changed(structs.replace(FIRST, memory_bytes=size), regime=regime)
        panel.compared = {variant.id: variant} if is_compared else {}
        results = measure(panel, variant, stage=stage)
        assert [each.side for each in results] == [*Side][0 if is_compared else 1 :]
        assert {len(e.blocks) for each in results for e in each.evidence} == {count}
        assert {len(each.evidence) for each in results} == {3}
    panel.compared = {}


def test_a_process_whose_result_is_another_one_compares_it(panel: Panel, traces: Path) -> None:
    odd = traces / f"odd {servers(panel)[1]}"
    checks = structs.replace(panel.setup.settings, check_only=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panel, "setup", replace(panel.setup, settings=checks))
        for how, status in (("off", Status.OK), ("wrong", Status.WRONG)):
            variant = make_variant("nasty", "odd_one", how=how)
            for is_odd in (False, True):
                odd.touch() if is_odd else odd.unlink(missing_ok=True)
                (result,) = measure(panel, variant)
                assert result.status is (status if is_odd else Status.OK)
                who = {int(p.name.split()[2]) for p in traces.glob(f"reference {how} *")}
                assert who == set(servers(panel)[: 2 if is_odd else 1])
    for each in (odd, *traces.glob("reference *")):
        each.unlink()


def test_processes_that_do_not_fit_are_all_fresh_one_after_the_other(
    panel: Panel, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What says nothing of its memory counts, too.
    for count, size in ((4, panel.facts.memory_bytes // 2), (8, 0)):
        facts = structs.replace(panel.facts, memory_bytes=2 * size or UNSAID_BYTES)
        monkeypatch.setattr(panel, "facts", facts)
        large = make_variant("steady", "traced", n=100, memory_bytes=size)
        (result,) = measure(panel, large, processes=4)
        assert len(list(traces.iterdir())) == count
        starts = [block.start_s for process in result.evidence for block in process.blocks]
        assert all(earlier < later for earlier, later in pairwise(starts))


def test_a_pair_that_fails_is_ended(panel: Panel) -> None:
    panel.compared = {nasty("raise").id: nasty("wrong")}
    found = measure(panel, nasty("raise"), processes=2)
    panel.compared = {}
    assert (nasty("raise").id, Status.ERROR) in {(each.variant, each.status) for each in found}
    assert not any(each.status is Status.OK for each in found)
    assert is_idle(panel)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which what workers are told, and their ends, will be added, by axis."""
    said: list[str] = []
    names: dict[Process, object] = {}
    tell, close = Process.tell, Process.close

    def telling(worker: Process, step: str, given: Any = None, *handles: int) -> None:
        if step == "start":
            names[worker] = given.axes.get("n")
        said.append(f"{step} {names.get(worker)}")
        tell(worker, step, given, *handles)

    def closing(worker: Process, grace_s: float = 0.5) -> None:
        close(worker, grace_s)
        said.append(f"close {names.get(worker)}")

    monkeypatch.setattr(Process, "tell", telling)
    monkeypatch.setattr(Process, "close", closing)
    return said


@pytest.mark.parametrize(
    "row",
    [
        # The next one starts beside a check, and the last one leaves beside the next one's.
        ([FIRST, SECOND], 0.0, False, ["start 200", "measure 100", "check 200", "close 100"]),
        # Launches that choose a kernel are timed.
        (
            [FIRST, changed(SECOND, tunes=True)], 0.0, False,
            ["start 200", "measure 100", "close 100", "check 200"],
        ),
        # Where one has failed, the one before is gone when the next one checks.
        ([FIRST, nasty("raise"), THIRD], 0.0, False, ["close 100", "check 400"]),
        # Where the host is measured, nothing is hidden.
        ([FIRST, SECOND], 0.0, True, ["measure 100", "close 100", "start 200"]),
        # Two of these do not fit on the device.
        ([FIRST, SECOND], 0.2, False, ["start 200", "close 100", "check 200"]),
    ],
)  # fmt: skip
def test_what_starts_and_leaves_beside_a_check(
    panel: Panel,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    row: tuple[list[Variant], float, bool, list[str]],
) -> None:
    variants, share, is_host, order = row
    monkeypatch.setattr("perfsuite.model.DeviceFacts.is_host", is_host)
    size = int(share * panel.facts.memory_bytes)
    queue = [structs.replace(each, memory_bytes=size) for each in variants]
    results = measure(panel, *queue, processes=1)
    good = [each for each in results if each.status is Status.OK]
    assert len(good) == sum(each.pack == "steady" for each in variants)
    places = [said.index(each) for each in order]
    assert places == sorted(places)


def test_device_or_server_that_does_not_start_is_a_device_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Panel(replace(SETUP, device="abacus", slots=1)) as broken:
        maps = Path(f"/proc/{servers(broken)[0]}/maps").read_text(encoding="utf-8")
        assert "libtorch" not in maps
        with pytest.raises(DeviceError, match="unknown device 'abacus'"):
            measure(broken, FIRST)
    (tmp_path / "torch.py").write_text("raise ImportError('no accelerator')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    refusal = pytest.raises(DeviceError, match="no accelerator")
    with Panel(replace(SETUP, device="cpu", slots=1)) as broken, refusal:
        measure(broken, FIRST)


def test_a_lost_server_is_replaced_or_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)", encoding="utf-8")
    with Panel(SETUP) as broken:
        assert measure(broken, FIRST)
        before = servers(broken)
        monkeypatch.setattr("perfsuite.workers.process.REPLY_LIMIT_S", 3.0)
        os.kill(before[0], signal.SIGSTOP)
        os.kill(before[1], signal.SIGKILL)
        (result,) = measure(broken, FIRST)
        assert result.status is Status.OK
        assert [now == then for now, then in zip(servers(broken), before, strict=True)] == [
            False, False, True,
        ]  # fmt: skip
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        os.kill(servers(broken)[2], signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"slot 2 is gone \(exit code 3"):
            measure(broken, SECOND)
        assert not children(servers(broken)[0])


def test_tail_is_the_end_of_the_output_with_the_innermost_frames() -> None:
    def stack(thread: str, name: str) -> str:
        frames = (f'  File "/lib/{name}.py", line {n} in {name}{n}\n' for n in range(100))
        ours = f'  File "{OURS}/x.py", line 7 in ours\n'
        return f"{thread} (most recent call first):\n{ours}{''.join(frames)}\n"

    text = f"printed\n{'x' * 5000}\nFatal Python error: Aborted\n\n{stack('Thread 0x1', 'other')}"
    text += stack("Current thread 0x2", "main") + "Extension modules: " + 999 * "numpy.fft, "
    odd = b"start" + "\u00e9".encode() * 20_000 + b"\xff end"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as other:
        for file, data in ((output, text.encode()), (other, odd)):
            file.write(data)
            file.flush()
        kept, share, whole, end = tail(output), tail(output, 500), tail(output, 90_000), tail(other)
    assert "Fatal Python error: Aborted\nCurrent thread" in kept
    assert ("in main40\n" in kept, "in main5\n" in share, "in ours" in kept) == (True, True, False)
    assert (len(kept), len(share), "numpy" in whole, len(end)) == (4000, 500, False, 4000)
    assert end.endswith("\u00e9\ufffd end")


def test_of_a_library_s_many_frames_the_ends_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {"f": lambda: 1 / 0}
    for n in range(20):
        scope[f"f{n}"] = scope["f"]
        exec(compile("\n" * n + f"def f(): f{n}()", "deep.py", "exec"), scope)  # noqa: S102
    with pytest.raises(ZeroDivisionError) as caught:
        scope["f"]()
    print_failure(caught.value)
    said = capsys.readouterr().err
    assert [n for n in range(1, 21) if f"line {n}, in f" in said] == [1, 2, 3, 4, 17, 18, 19, 20]
    assert "  [12 frames left out]\n" in said


def test_workers_get_one_gpu_or_none_their_share_and_this_perfsuite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = tuple(Gpu(index=index, uuid=f"GPU-{index}", name="some product") for index in (1, 0))
    for given, seen in (((), ""), (gpus[:1], "GPU-1"), (gpus, "GPU-1,GPU-0")):
        assert replace(SETUP, gpus=given).environment()["CUDA_VISIBLE_DEVICES"] == seen
    share = Setup(device="fake", slots=4).worker_bytes
    assert 4 * share <= 0.8 * host_bytes() < 4 * (share + 1)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert SETUP.environment()["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"
    assert "PYTHONHASHSEED" not in SETUP.environment()


def test_inventory_is_empty_without_a_gpu_and_says_how_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert inventory() == ()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    failures = {
        "import os; os.write(2, b'out of order'); os._exit(3)": "listed: out of order",
        "import os; os.write(1, b'nonsense')": "listed: JSON is malformed",
        "import time; time.sleep(9)": "timed out after 0.2 s",
    }
    for sabotage, what in failures.items():
        (tmp_path / "sitecustomize.py").write_text(sabotage, encoding="utf-8")
        if "sleep" in sabotage:
            monkeypatch.setattr("perfsuite.workers.process.LIMIT_S", 0.2)
        with pytest.raises(DeviceError, match=what):
            inventory()


def test_a_variant_is_disturbed_when_more_than_a_fifth_was_voided() -> None:
    notes = ("a block was voided: hw_thermal",)
    calm = Evidence(slot=0, seed=0, blocks=(Block(time_us=(1.0,) * 8),))
    bad = Evidence(slot=1, seed=1, blocks=(Block(time_us=(1.0,) * 8, voided=4),), notes=notes)
    result = Result(variant="v", status=Status.OK, evidence=(bad,))
    assert doubted(result).status is Status.DISTURBED
    assert doubted(result).reason == "4 of 12 samples voided (a block was voided: hw_thermal)"
    both = structs.replace(result, evidence=(calm, bad))  # 4 of 20: just bearable
    assert doubted(both) is both


def test_a_variant_is_disturbed_when_its_processes_were_not_sampled_alike() -> None:
    one, two = (Evidence(slot=0, seed=0, backend="graph", sets=sets) for sets in (1, 2))
    result = Result(variant="v", status=Status.OK, evidence=(one, one))
    assert doubted(result) is result
    other = doubted(structs.replace(result, evidence=(one, two)))
    told = "1 launches over 1 input sets, 1 launches over 2 input sets"
    assert other.status is Status.DISTURBED
    assert other.reason == f"its processes were not sampled alike: {told}"
