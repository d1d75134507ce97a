"""Panels with real servers and workers on the fake device: turns, time limits, deaths."""

from __future__ import annotations

import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.model import (
    Block,
    CaseInfo,
    Evidence,
    Gpu,
    Regime,
    Result,
    Sampling,
    Scalar,
    Settings,
    Stage,
    Status,
    Tier,
    Variant,
    variant_id,
)
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import (
    Site,
    UnitLock,
    child_environment,
    doubted,
    exit_words,
    host_bytes,
    inventory,
    resident_bytes,
    tail,
)

PACKS = Path(__file__).parent / "packs"
SITE = Site(
    device="fake",
    settings=Settings(rounds=2, samples=4, settle_s=0.05),
    origins={name: f"file:{PACKS / name}.py" for name in ("steady", "nasty")},
    memory_limit_bytes=120 << 20,
)
LIMIT_S = 20
STAGES = (Stage.SCREEN, Stage.CONFIRM)


def make_variant(pack: str, case: str, *, memory_bytes: int = 0, **axes: Scalar) -> Variant:
    info = CaseInfo(
        pack=pack,
        name=case,
        doc="",
        file="",
        line=1,
        source="",
        version=3,
        regime=Regime.PACED,
        cold=True,
        needs=(),
        budgets=(),
        tags=(),
        axes=tuple(axes),
    )
    name = variant_id(pack, case, axes)
    return Variant(id=name, case=info, axes=axes, tier=Tier.SMOKE, memory_bytes=memory_bytes)


def nasty(how: str) -> Variant:
    return make_variant("nasty", "fail", how=how)


STEADY = [make_variant("steady", "double", n=n) for n in (100, 200, 400)]
CAUSES = {
    "segfault": (Status.CRASHED, "killed by SIGSEGV during check"),
    "raise": (Status.ERROR, "ValueError: the kernel is"),
    "exit": (Status.ERROR, "SystemExit: enough"),
    "leak": (Status.CRASHED, "MiB of host memory, limit 120 MiB"),
    "flood": (Status.CRASHED, "printed more than 64 MiB"),
    "leave": (Status.CRASHED, "exit code 3 during check"),
    "fork_and_die": (Status.CRASHED, "exit code 4 during check"),
    "end_server": (Status.CRASHED, "the server of slot 0 is gone (killed by SIGKILL)"),
    "garble": (Status.ERROR, "its worker sent a damaged message"),
    "half_then_end": (Status.CRASHED, "exit code 5 during check"),
    "announce_too_much": (Status.ERROR, "sent a message of 4080 MiB; the limit is 256 MiB"),
    "speechless": (Status.ERROR, "_SpeechlessError (asked for its text it raises ValueError)"),
    "without_output": (Status.ERROR, "ValueError: nobody hears me"),
    "with_full_output": (Status.ERROR, "ValueError: no file takes a word"),
    "without_descriptors": (Status.CRASHED, "closed its socket during check"),
    "wrong": (Status.WRONG, "relative error 0.5"),
    "nan": (Status.WRONG, "NaN"),
    "nothing": (Status.WRONG, "nothing"),
}


def measure(
    panel: Panel, *variants: Variant, stage: Stage = Stage.SCREEN, processes: int = 3
) -> list[Result]:
    results: list[Result] = []
    panel.measure(variants, stage, processes=processes, on_result=results.append)
    return results


@pytest.fixture(scope="module")
def panel() -> Iterator[Panel]:
    with Panel(SITE) as shared:
        yield shared


@pytest.fixture(scope="module")
def alone() -> Result:
    """One well-behaved variant, measured by a panel that has done nothing else."""
    with Panel(SITE) as fresh:
        return measure(fresh, STEADY[1])[0]


def exact(result: Result) -> list[object]:
    return [(e.seed, e.exact, e.error, e.samples("time_us")) for e in result.evidence]


@pytest.fixture(scope="module")
def suite(panel: Panel) -> list[Result]:
    """Every failure there is, each followed by a well-behaved variant."""
    return measure(panel, *(each for how in CAUSES for each in (nasty(how), STEADY[1])))


@pytest.mark.parametrize("how", CAUSES)
def test_failure_ends_as_itself_with_its_cause(suite: list[Result], how: str) -> None:
    (bad,) = (result for result in suite if result.variant == nasty(how).id)
    status, reason = CAUSES[how]
    assert (bad.status, bad.evidence) == (status, ())
    assert reason in bad.reason


def test_variant_alone_is_exactly_what_it_is_among_failures(
    suite: list[Result], alone: Result
) -> None:
    others = [result for result in suite if result.variant == alone.variant]
    assert len(others) == len(CAUSES)
    assert all(exact(result) == exact(alone) for result in [alone, *others])
    assert {result.status for result in others} == {Status.OK}


def test_hang_in_c_is_timed_out_with_its_stack() -> None:
    site = replace(SITE, settings=structs.replace(SITE.settings, prepare_limit_s=1.5))
    with Panel(site) as limited:
        bad, good = measure(limited, nasty("hang"), STEADY[0])
    assert bad.status is Status.TIMED_OUT
    assert bad.reason == "prepare took longer than its limit of 1.5 s (in check)"
    assert "in _hang" in bad.output
    assert good.status is Status.OK


def test_of_stacks_the_innermost_frames_are_kept_wherever_they_lie() -> None:
    def stack(thread: str, name: str) -> str:
        frames = (f'  File "{home}/torch/{name}.py", line {n} in {name}{n}\n' for n in range(100))
        return f"{thread} (most recent call first):\n{''.join(frames)}\n"

    home = "/home/" + 9 * "a long folder/" + "lib/python3.11/site-packages"
    text = f"printed\n{'x' * 5000}\nFatal Python error: Aborted\n\n{stack('Thread 0x1', 'other')}"
    text += stack("Current thread 0x2", "main") + "Extension modules: " + 999 * "numpy.fft, "
    with tempfile.TemporaryFile() as output:
        output.write(text.encode())
        output.flush()
        kept, share = tail(output), tail(output, 500)
    assert "Fatal Python error: Aborted\nCurrent thread" in kept
    assert '  File "torch/main.py", line 0 in main0\n' in kept
    assert "in main40\n" in kept
    assert "in main5\n" in share
    assert (len(kept), len(share)) == (4000, 500)


@pytest.mark.parametrize("how", ["half", "half_head", "stop_midway", "trickle"])
def test_half_a_message_hangs_no_run(how: str) -> None:
    site = replace(SITE, settings=structs.replace(SITE.settings, prepare_limit_s=1.0))
    with Panel(site) as limited:
        bad, good = measure(limited, nasty(how), STEADY[0], processes=1)
        assert [children(pid) for pid in limited.ping()] == [[], [], []]
    assert bad.status is Status.TIMED_OUT
    assert bad.reason == "prepare took longer than its limit of 1 s (in check)"
    assert good.status is Status.OK


def test_a_panel_that_waits_for_the_rest_of_a_message_can_be_stopped() -> None:
    with Panel(SITE) as panel:
        begun = threading.Event()
        queue, results = [nasty("half")], list[Result]()
        measuring = threading.Thread(
            target=lambda: panel.measure(
                queue,
                Stage.SCREEN,
                processes=1,
                on_result=results.append,
                on_phase=lambda _, phase: begun.set() if phase == "check" else None,
            )
        )
        measuring.start()
        assert begun.wait(LIMIT_S)
        panel.stop()
        measuring.join(LIMIT_S)
        assert not measuring.is_alive()
    assert results == []


def test_no_file_of_the_project_is_taken_for_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("platform", "queue", "resource", "statistics", "torch", "zlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemError('a module of the project')")
    (tmp_path / "helper_of_project.py").write_text("FACTOR = 2")
    text = (PACKS / "steady.py").read_text("utf-8")
    (tmp_path / "steady.py").write_text(text + "\nimport helper_of_project\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert inventory() is not None
    with Panel(replace(SITE, origins={"steady": f"file:{tmp_path / 'steady.py'}"})) as panel:
        (result,) = measure(panel, STEADY[0], processes=1)
    assert (result.status, result.reason) == (Status.OK, "")


def test_too_few_open_files_are_refused_before_anything_starts() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 9, hard)
    )
    try:
        with pytest.raises(UsageError, match="more files, and needs 27"):
            Panel(SITE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_output_of_a_failing_variant_is_kept(panel: Panel) -> None:
    (crashed,) = measure(panel, nasty("segfault"))
    assert "about to read address zero" in crashed.output
    assert "Segmentation fault" in crashed.output


def test_variant_that_ends_what_started_ahead_harms_no_other() -> None:
    first, *others = STEADY
    with Panel(SITE) as panel:
        results = measure(panel, first, nasty("end_siblings"), *others)
    assert [(result.status, result.reason) for result in results] == [(Status.OK, "")] * 4


def test_result_carries_stage_version_unit_and_slots(panel: Panel) -> None:
    (result,) = measure(panel, STEADY[0], stage=Stage.CONFIRM, processes=5)
    assert (result.variant, result.stage, result.case_version) == (
        STEADY[0].id,
        Stage.CONFIRM,
        3,
    )
    assert [evidence.slot for evidence in result.evidence] == [0, 1, 2, 0, 1]
    assert {evidence.unit for evidence in result.evidence} == {panel.facts().unit}
    assert result.wall_s > 0


def test_slots_take_turns(panel: Panel) -> None:
    (result,) = measure(panel, STEADY[0])
    rounds = zip(*(evidence.blocks for evidence in result.evidence), strict=True)
    starts = [block.start_s for blocks in rounds for block in blocks]
    assert len(starts) == 2 * 3
    assert all(earlier < later for earlier, later in pairwise(starts))


@pytest.mark.parametrize(
    ("stage", "is_paced", "check_only", "count"),
    [
        (Stage.SCREEN, True, False, 2),
        (Stage.SCREEN, False, False, 3),
        (Stage.CONFIRM, True, False, 3),
        (Stage.CANARY_START, True, False, 3),
        (Stage.CONFIRM, False, True, 0),
    ],
)
def test_a_screen_of_what_is_paced_takes_fewer_blocks(
    *, stage: Stage, is_paced: bool, check_only: bool, count: int
) -> None:
    settings = Settings(check_only=check_only)
    assert settings.rounds_of(stage, is_paced=is_paced) == count
    assert structs.replace(settings, rounds=1).rounds_of(stage, is_paced=is_paced) == min(count, 1)


@pytest.mark.parametrize(
    ("stage", "share", "is_compared", "regime", "count"),
    [
        (Stage.SCREEN, 0.0, False, Regime.PACED, 1),
        (Stage.SCREEN, 0.0, False, Regime.END_TO_END, 2),
        (Stage.CONFIRM, 0.0, False, Regime.PACED, 2),
        (Stage.SCREEN, 0.0, True, Regime.PACED, 2),
        (Stage.SCREEN, 0.5, True, Regime.PACED, 2),
    ],
)
def test_what_confirms_is_the_host_s_or_of_two_arms_takes_all_blocks(
    *, stage: Stage, share: float, is_compared: bool, regime: Regime, count: int
) -> None:
    settings = structs.replace(SITE.settings, screen_rounds=1)
    with Panel(replace(SITE, settings=settings)) as panel:
        # Of half of the device's memory no two processes fit beside each other.
        memory_bytes = int(share * panel.facts().memory_bytes)
        variant = make_variant("steady", "double", n=100, memory_bytes=memory_bytes)
        variant = structs.replace(variant, case=structs.replace(variant.case, regime=regime))
        panel.compared = frozenset({variant.id} if is_compared else ())
        results = measure(panel, variant, stage=stage)
    assert len(results) == (2 if is_compared else 1)
    assert {len(one.blocks) for result in results for one in result.evidence} == {count}


def test_all_processes_sample_as_the_first_did(panel: Panel) -> None:
    first, again = (measure(panel, STEADY[0], stage=stage)[0] for stage in STAGES)
    assert len({process.sampling for process in (*first.evidence, *again.evidence)}) == 1


def test_panel_samples_as_it_is_told(panel: Panel) -> None:
    (usual,) = {process.sampling for process in measure(panel, STEADY[1])[0].evidence}
    assert usual is not None
    told = Sampling(3 * usual.launches, usual.sets)
    panel.samplings[STEADY[1].id] = told
    try:
        result = measure(panel, STEADY[1])[0]
    finally:
        panel.samplings[STEADY[1].id] = usual
    assert {process.sampling for process in result.evidence} == {told}


def test_each_process_and_stage_has_its_own_seed(panel: Panel) -> None:
    (screen,) = measure(panel, STEADY[0], processes=4)
    (confirm,) = measure(panel, STEADY[0], processes=4, stage=Stage.CONFIRM)
    seeds = [evidence.seed for result in (screen, confirm) for evidence in result.evidence]
    assert len(set(seeds)) == 8


def test_more_processes_than_slots_are_all_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSUITE_TEST_TRACE", str(tmp_path))
    with Panel(SITE) as traced:
        (result,) = measure(traced, make_variant("steady", "traced", n=100), processes=7)
    assert result.status is Status.OK
    assert len(list(tmp_path.iterdir())) == 7


def test_variant_too_large_for_all_slots_is_measured_one_process_at_a_time(panel: Panel) -> None:
    large = make_variant("steady", "double", n=100, memory_bytes=panel.facts().memory_bytes // 2)
    (result,) = measure(panel, large)
    ends = [evidence.blocks[-1].start_s for evidence in result.evidence]
    starts = [evidence.blocks[0].start_s for evidence in result.evidence]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


def test_each_result_is_handed_over_before_the_next_variant_s_turn(panel: Panel) -> None:
    events: list[str] = []
    panel.measure(
        STEADY[:2],
        Stage.SCREEN,
        processes=1,
        on_result=lambda result: events.append(f"{result.variant} done"),
        on_phase=lambda variant, phase: events.append(f"{variant} {phase}"),
    )
    first = events[: events.index(f"{STEADY[0].id} done") + 1]
    assert first[0] == f"{STEADY[0].id} build"
    assert f"{STEADY[0].id} measure" in first
    assert all(event.startswith(STEADY[0].id) for event in first)


def test_check_only_takes_no_samples() -> None:
    site = replace(SITE, slots=1, settings=structs.replace(SITE.settings, check_only=True))
    with Panel(site) as checking:
        right, wrong = measure(checking, STEADY[0], nasty("wrong"), processes=1)
    assert (right.status, right.evidence[0].blocks) == (Status.OK, ())
    assert wrong.status is Status.WRONG


def test_what_a_variant_leaves_running_is_ended(panel: Panel) -> None:
    (result,) = measure(panel, make_variant("nasty", "orphan", n=1))
    assert result.status is Status.OK
    assert [children(pid) for pid in panel.ping()] == [[], [], []]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def test_stopped_panel_hands_over_what_it_has() -> None:
    results: list[Result] = []
    with Panel(SITE) as stopped:

        def stop_after_first(result: Result) -> None:
            results.append(result)
            stopper = threading.Thread(target=stopped.stop)
            stopper.start()
            stopper.join()

        stopped.measure(STEADY, Stage.SCREEN, processes=2, on_result=stop_after_first)
    assert [result.variant for result in results] == [STEADY[0].id]


def test_a_stopped_panel_begins_anew_for_another_run() -> None:
    with Panel(SITE) as reused:
        reused.stop()
        assert measure(reused, STEADY[0], processes=1) == []
        reused.compared = frozenset({STEADY[0].id})
        reused.compare({})
        (result,) = measure(reused, STEADY[0], processes=1)
        assert (result.status, len(result.evidence)) == (Status.OK, 1)


def test_closed_panel_leaves_no_process() -> None:
    with Panel(SITE) as short:
        pidfds = [os.pidfd_open(pid) for pid in short.ping()]
    assert all(select.select([pidfd], [], [], 0)[0] for pidfd in pidfds)
    for pidfd in pidfds:
        os.close(pidfd)


CONTROLLER = """
import sys; sys.path.insert(0, {tests!r})
from test_panel import *
with Panel(SITE) as panel:
    panel.measure([STEADY[0], nasty("hang"), STEADY[1]], Stage.SCREEN, processes=3,
        on_result=print, on_phase=lambda variant, phase: print(variant, phase, flush=True))
"""


def marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.append(int(folder.name))
    return found


def test_nothing_is_left_when_the_controller_is_killed() -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER.format(tests=str(Path(__file__).parent))],
        env={**SITE.environment(), "PERFSUITE_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout
        assert any("how=hang" in line and "check" in line for line in controller.stdout)
        pids = marked(mark)
        pidfds = [os.pidfd_open(pid) for pid in pids]
        controller.send_signal(signal.SIGKILL)
    assert len(pids) >= 1 + 3 + 3  # controller, servers, workers of the hanging variant
    assert all(select.select([pidfd], [], [], LIMIT_S)[0] for pidfd in pidfds)
    assert marked(mark) == []
    for pidfd in pidfds:
        os.close(pidfd)


def test_device_that_does_not_open_is_a_device_error() -> None:
    site = replace(SITE, device="abacus", slots=1)
    with Panel(site) as broken, pytest.raises(DeviceError, match="unknown device 'abacus'"):
        broken.facts()


def test_server_that_does_not_start_is_a_device_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no accelerator')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Panel(replace(SITE, device="cpu", slots=1)) as broken:
        with pytest.raises(DeviceError, match="no accelerator"):
            broken.ping()
        with pytest.raises(DeviceError, match="no accelerator"):
            broken.facts()


def test_server_killed_between_variants_is_replaced(panel: Panel) -> None:
    before = panel.ping()
    os.kill(before[1], signal.SIGKILL)
    (result,) = measure(panel, STEADY[0])
    assert result.status is Status.OK
    assert panel.ping()[1] != before[1]


def test_run_ends_when_a_server_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os._exit(3)", encoding="utf-8")
    with Panel(SITE) as broken:
        (first,) = measure(broken, STEADY[0])
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        os.kill(broken.ping()[2], signal.SIGKILL)
        with pytest.raises(DeviceError, match=r"slot 2 is gone \(exit code 3\)"):
            measure(broken, STEADY[1])
    assert first.status is Status.OK


def test_server_that_stops_answering_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with Panel(replace(SITE, slots=1)) as stuck:
        (pid,) = stuck.ping()
        monkeypatch.setattr("perfsuite.workers.process.REPLY_LIMIT_S", 0.5)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeviceError, match=r"gave no answer within 0\.5 s"):
            stuck.ping()
        monkeypatch.undo()
        (result,) = measure(stuck, STEADY[0], processes=1)
        assert result.status is Status.OK


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "does not die"),
        (0, "exit code 0"),
        (-11, "killed by SIGSEGV"),
        (-63, "killed by signal 63"),
    ],
)
def test_exit_code_in_words(code: int | None, words: str) -> None:
    assert exit_words(code) == words


def test_tail_is_the_end_of_the_output(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"start" + "\u00e9".encode() * 20_000 + b"\xff end")
    with path.open("rb") as output:
        text = tail(output)
    assert len(text) == 4000
    assert text.endswith("\u00e9\ufffd end")


def test_dead_process_holds_no_memory() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0


def test_worker_gets_its_share_of_the_machine() -> None:
    share = Site(device="fake", slots=4).worker_bytes
    assert 4 * share <= 0.8 * host_bytes() < 4 * (share + 1)


def test_child_finds_this_perfsuite_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    paths = child_environment()["PYTHONPATH"].split(os.pathsep)
    assert paths[-1] == "/elsewhere"


def test_workers_of_one_panel_get_one_gpu_or_none() -> None:
    gpu = Gpu(index=1, uuid="GPU-1", name="some product")
    assert SITE.environment()["CUDA_VISIBLE_DEVICES"] == ""
    assert replace(SITE, gpus=(gpu,)).environment()["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_unit_is_locked_once_and_names_its_holder() -> None:
    refusal = pytest.raises(UsageError, match=f"'fa4e00000000' .* process {os.getpid()}")
    with UnitLock("fa4e00000000"), UnitLock("fa4e00000001"), refusal:
        UnitLock("fa4e00000000")
    with UnitLock("fa4e00000000"):
        pass


TAKES = "from perfsuite.workers.panel import UnitLock; UnitLock('fa4e00000000')"


@pytest.mark.parametrize(
    "user", [(), ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")]
)
def test_a_unit_is_locked_for_other_users_and_temporary_folders(
    tmp_path: Path, user: tuple[str, ...]
) -> None:
    if user and (os.getuid() != 0 or not shutil.which("setpriv")):
        pytest.skip("only root becomes somebody else")
    ask = [*user, sys.executable, "-c", TAKES]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    with UnitLock("fa4e00000000"):
        refused = subprocess.run(ask, env=env, capture_output=True, text=True, check=False)
    assert f"'fa4e00000000' is being measured by process {os.getpid()}" in refused.stderr
    subprocess.run(ask, env=env, check=True)


def test_nothing_that_lies_in_the_temporary_folder_is_in_the_lock_s_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with UnitLock("u" * 5000):
        pass


def test_where_sockets_are_forbidden_the_lock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("socket.socket.bind", refuse)
    with pytest.raises(UsageError, match="cannot be locked: Permission denied"):
        UnitLock("fa4e00000000")


def test_inventory_is_empty_where_no_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert inventory() == ()


@pytest.mark.parametrize(
    ("sabotage", "what"),
    [
        ("import os; os.write(2, b'out of order'); os._exit(3)", "failed: 'out of order'"),
        ("import os; os.write(1, b'nonsense')", "damaged: b'nonsense"),
    ],
)
def test_inventory_that_fails_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sabotage: str, what: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(sabotage, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DeviceError, match=what):
        inventory()


def test_inventory_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["perfsuite.workers.process"], "LIMIT_S", 0.001)
    with pytest.raises(DeviceError, match=r"longer than 0\.001 s"):
        inventory()


def test_a_variant_is_disturbed_when_more_than_a_fifth_was_voided() -> None:
    notes = ("a block was voided: hw_thermal",)
    calm = Evidence(slot=0, seed=0, blocks=(Block(time_us=(1.0,) * 8),))
    bad = Evidence(slot=1, seed=1, blocks=(Block(time_us=(1.0,) * 8, voided=4),), notes=notes)
    untold = structs.replace(bad, notes=())
    result = Result(variant="v", status=Status.OK, evidence=(bad,))
    assert doubted(result).status is Status.DISTURBED
    assert doubted(result).reason == "4 of 12 samples voided (a block was voided: hw_thermal)"
    assert "(they have no time)" in doubted(structs.replace(result, evidence=(untold,))).reason
    both = structs.replace(result, evidence=(calm, bad))  # 4 of 20: just bearable
    assert doubted(both) is both
