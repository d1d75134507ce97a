"""The units of a run: nodes with several GPUs, on fake ones, what gangs take, and locks."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from test_gang import PACK, SETTINGS, lag
from test_panel import changed
from test_runner import QUICK, WATCHED, Log, request

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.cli import say_software
from perfsuite.model import BUILT_IN_DEVICES, Side, Stage, Status, Tier, Variant, built_in
from perfsuite.packs.find import discover
from perfsuite.packs.select import missing_need
from perfsuite.run.run import execute
from perfsuite.testing.fake import FakeDevice
from perfsuite.workers.panel import Panel
from perfsuite.workers.process import Code, Setup, Slot, gang_unit, load_catalogue, resident_bytes
from perfsuite.workers.units import (
    Panels,
    boards_of,
    lock,
    measure_on,
    open_panels,
    resolved,
    started,
    units_of,
)


def test_gpus_of_one_product_share_the_work_and_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSUITE_FAKE_GPUS", "H,H,B,B,H")
    text = WATCHED.replace("[100, 200, 400, 50]", "[100, 200, 400, 500, 600, 700, 50]")
    settings = structs.replace(QUICK, processes=1, confirm_processes=1)
    asked = request(tmp_path, text, settings=settings)
    log = Log()
    run = execute(replace(asked, variants=asked.variants[:6]), log).run
    units = {f"fa4e0000000{index}" for index in (0, 1, 4)}
    assert ({*run.units}, run.facts.gpus) == (units, 3)
    # Cards of several boards are one product.
    assert [*run.boards.values()] == ["fake-0", "fake-1", "fake-0"]
    assert run.boards.keys() == units
    where: dict[str, set[str]] = {}
    for result in run.results:
        kind = "canary" if result.stage is Stage.CANARY_START else result.variant
        where.setdefault(kind, set()).update(process.unit for process in result.evidence)
    assert where.pop("canary") == units
    of_variants = [unit for variant in run.variants for unit in where[variant.id]]
    assert sorted(of_variants) == sorted([*units, *units])
    (told,) = [note for note in run.notes if "not used" in note]
    assert told in log.notes
    assert told.startswith("2 x Fake B")
    assert told.endswith("run with CUDA_VISIBLE_DEVICES=FAKE-2,FAKE-3")


def test_a_device_of_the_core_is_known_by_its_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = structs.replace(built_in("fake"), unit="card", visible="CARDS", ranks_take_units=True)
    monkeypatch.setitem(BUILT_IN_DEVICES, "rocm", row)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(DeviceError, match="there is no card on this machine"):
        resolved("rocm", ())
    monkeypatch.setenv("PERFSUITE_FAKE_GPUS", "A,B")
    name, cards, _ = resolved("auto", ())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    for device, gpus, seen in ((name, cards, ("FAKE-0,FAKE-1", "")), ("cpu", (), ("", ""))):
        env = Setup(device=device, gpus=gpus).environment()
        assert (env["CARDS"], env["CUDA_VISIBLE_DEVICES"]) == seen
    facts = structs.replace(FakeDevice().facts(), device="rocm", gpus=2)
    assert missing_need(lag(3, 100), facts) == "needs 3 GPUs, this run has 2"
    say_software()
    assert "these with CARDS=FAKE-1\n" in capsys.readouterr().out


def test_servers_begin_before_packs_are_listed_and_end_where_nobody_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, made = request(tmp_path).packs, list[Slot]()
    few = structs.replace(QUICK, processes=1)

    def slot(index: int, setup: Setup) -> Slot:
        made.append(Slot(index, setup))
        return made[-1]

    monkeypatch.setattr("perfsuite.workers.panel.Slot", slot)
    with Panels() as panels:
        panels.begin("fake", QUICK)
        (panel,) = panels.of("fake", packs, QUICK, {})
        assert [*panel.slots] == made
        # A run of the same settings finds it open.
        assert panels.of("fake", packs, QUICK, {})[0] is panel
        assert panel.setup.own.origins
    assert not any(resident_bytes(each.server.pid) for each in made)
    monkeypatch.setenv("PERFSUITE_FAKE_GPUS", "A,A,B")
    with Panels() as panels:
        panels.begin("fake", few)
        both = panels.of("fake", packs, few, {})
        assert [panel.slots for panel in both] == [made[-2:-1], made[-1:]]
        assert {panel.setup.gpus[0].uuid for panel in both} == {"FAKE-0", "FAKE-1"}
    # Of other settings than a run that is resumed has, of a run that does not come to measuring.
    for settings in (QUICK, None):
        del made[:]
        with Panels() as panels:
            panels.begin("fake", few)
            if settings:
                (panel, _) = panels.of("fake", packs, settings, {})
                assert len(panel.slots) == QUICK.processes
        assert len(made) == 2 + (2 * QUICK.processes if settings else 0)
        assert not any(resident_bytes(each.server.pid) for each in made)
    # Where one cannot start, the others end.
    del made[:]

    def second_fails(index: int, setup: Setup) -> Slot:
        if made:
            raise OSError("no process is left")
        return slot(index, setup)

    monkeypatch.setattr("perfsuite.workers.panel.Slot", second_fails)
    with pytest.raises(OSError, match="no process is left"), ExitStack() as stack:
        started("fake", QUICK, stack)
    assert [resident_bytes(each.server.pid) for each in made] == [0]


def test_gangs_are_measured_after_the_others_on_units_of_their_own() -> None:
    seen: list[tuple[str, str]] = []

    def take(panel: Panel, share: Sequence[Variant]) -> None:
        assert panel.slots_of(Side.A) is not panel.slots_of(Side.B)
        panel.measure(
            share,
            Stage.SCREEN,
            processes=1,
            on_result=lambda result: seen.append((result.variant, result.status)),
        )

    gangs, plain = [lag(3, 100), lag(2, 100)], changed(lag(1, 100), ranks="")
    packs = load_catalogue(discover(None, allow=[str(PACK)]), tier=Tier.FULL)
    with ExitStack() as stack:
        panels = open_panels("fake", packs, structs.replace(SETTINGS, processes=1), stack)
        assert [panel.facts.gpus for panel in panels] == [0]
        assert packs[0].name in panels[0].setup.own.origins
        # Side A's environment is another.
        panels[0].compare({Side.A: Code(origins={}, python=sys.executable)})
        measure_on(panels, [*gangs, plain], take)
        assert units_of(panels, gangs) == {panels[0].facts.unit: "Fake Device"}
    assert seen == [(each.id, Status.OK) for each in (plain, gangs[1], gangs[0])]


def test_a_gang_is_of_the_boards_of_its_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFSUITE_FAKE_GPUS", "H,H,H")
    with ExitStack() as stack:
        panels = open_panels("fake", (), structs.replace(SETTINGS, processes=1), stack)
        one, two, three = (panel.facts.unit for panel in panels)
        boards = boards_of(panels, [lag(2, 100), lag(1, 100)])
        assert boards_of(panels[::2], [lag(2, 100)])[gang_unit([one, three])] == "fake-0"
    own = {one: "fake-0", two: "fake-1", three: "fake-0"}
    assert boards == own | {gang_unit([one, two]): "fake-0 + fake-1"}


TAKES = "from perfsuite.workers.units import lock; held = lock('fa4e00000000')"


def test_unit_is_locked_once_and_names_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"(?s)'fa4e00000000' .* process {os.getpid()}.*do: wait longer for that run"
    with lock("fa4e00000000"), lock("fa4e00000001"), pytest.raises(UsageError, match=named):
        lock("fa4e00000000", 0.01)
    told: list[str] = []

    def end(text: str) -> None:
        told.append(text)
        holder.close()

    holder = lock("fa4e00000000")
    with lock("fa4e00000000", 600.0, end):
        # No folder of the interpreter takes the room of what tells one run from another.
        began = re.fullmatch(r".* \([^/ ]+ .+, since [\d:]{8}\); this run waits .*", told[0])
    assert began
    assert len(told) == 1
    user = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    ask = [sys.executable, "-c", TAKES]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    for command in (ask, [*user, *ask]):
        if command is ask or (os.getuid() == 0 and shutil.which("setpriv")):
            with lock("fa4e00000000"):
                run = subprocess.run(command, env=env, capture_output=True, check=False)
            assert f"taken by process {os.getpid()}".encode() in run.stderr
            subprocess.run(command, env=env, check=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with lock("u" * 5000):
        pass


def test_where_sockets_are_forbidden_the_lock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("socket.socket.bind", refuse)
    with pytest.raises(UsageError, match="cannot be locked: Permission denied"):
        lock("fa4e00000000")
