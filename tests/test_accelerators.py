"""Which device is meant, on which units it is measured, and what runs on a pack's."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from report_data import run_of
from test_catalogue import DEVICE, GOOD, OWN, source

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.model import Accelerator, Need, Pack, Settings, Tier
from perfsuite.packs.find import packs_at
from perfsuite.packs.load import chosen_accelerator
from perfsuite.packs.select import missing_need
from perfsuite.store.sku import sku_of
from perfsuite.workers.process import load_catalogue
from perfsuite.workers.units import open_panels, resolved

EXAMPLE = Path(__file__).parents[1] / "examples" / "acme-perf"
HERE = Accelerator(name="here", opens="a:b", units=("one",))
ALSO = replace(HERE, name="also")


def pack(name: str, own: Accelerator | None) -> Pack:
    return Pack(name=name, origin="module:none@", accelerator=own)


@pytest.mark.parametrize(
    ("asked", "packs", "meant", "own"),
    [
        ("auto", [pack("acme", replace(HERE, units=()))], "cpu", None),
        ("auto", [pack("acme", replace(HERE, is_automatic=False))], "cpu", None),
        ("auto", [pack("acme", None)], "cpu", None),
        # The first by name.
        ("auto", [pack("z", HERE), pack("a", ALSO)], "also", ALSO),
        ("here", [pack("z", HERE), pack("a", ALSO)], "here", HERE),
        ("cpu", [pack("z", HERE)], "cpu", None),
    ],
)
def test_auto_takes_a_pack_s_device_where_it_has_units_and_no_gpu_is_here(
    asked: str, packs: list[Pack], meant: str, own: Accelerator | None
) -> None:
    assert resolved(asked, packs) == (meant, (), own)


def test_a_device_that_is_not_here_is_refused() -> None:
    with pytest.raises(DeviceError, match="this machine has no here"):
        resolved("here", [pack("a", replace(HERE, units=()))])
    two = [pack("bad", HERE), pack("worse", HERE)]
    with pytest.raises(UsageError, match="two packs bring a device 'here': bad and worse"):
        chosen_accelerator("here", two)
    with pytest.raises(UsageError, match="unknown device 'even'"):
        chosen_accelerator("even", two)


def test_each_unit_has_a_panel_of_its_own_and_the_sku_is_the_pack_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_A1_UNITS", "2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    packs = load_catalogue(packs_at(EXAMPLE), tier=Tier.SMOKE)
    with ExitStack() as stack:
        panels = open_panels("acme", packs, Settings(processes=1), stack)
        assert [panel.facts.unit for panel in panels] == ["a1-0", "a1-1"]
        assert [panel.facts.gpus for panel in panels] == [2, 2]
        sku = sku_of(panels[0].facts)
    assert (sku.slug, sku.facts["vendor"]) == ("acme-a1", "acme")


OPENED = {
    "def opened(unit, seed): raise OSError('no driver')": "OSError: no driver",
    "def opened(unit, seed): return 5": "it is no perfsuite.Device",
    "def opened(unit, seed):\n    import os; os._exit(3)": "exit code 3",
}


def test_a_device_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    bad = []
    for number, opens in enumerate(OPENED):
        own = OWN.replace("bad:", f"bad{number}:")
        text = DEVICE.format(returned=own, opens=opens) + GOOD
        bad.append(source(tmp_path, f"bad{number}", text))
    found = [*load_catalogue([*bad, *packs_at(EXAMPLE)], tier=Tier.SMOKE)]
    example = found.pop()
    assert example.accelerator
    cases = [
        ("odd", each, re.escape(said)) for each, said in zip(found, OPENED.values(), strict=True)
    ]
    for unit in ("../../x", "u" * 400):
        odd = replace(example, accelerator=replace(example.accelerator, units=(unit,)))
        cases.append(("acme", odd, r"'acme'.*facts\(\)\.unit is"))
    for device, listed, said in cases:
        with ExitStack() as stack, pytest.raises(DeviceError, match=said) as caught:
            open_panels(device, [listed], Settings(processes=1), stack)
        assert device in str(caught.value)


def test_on_a_pack_s_device_runs_what_names_it_or_takes_torch() -> None:
    run = run_of()
    facts = replace(run.facts, device="acme", features=(), memory_bytes=0)
    plain = run.variants[0].variant
    plain = replace(plain, case=replace(plain.case, needs=(), ranks=""))
    named = replace(plain, case=replace(plain.case, needs=(Need("device", "acme"),)))
    assert "needs torch tensors" in missing_need(plain, facts)
    assert missing_need(named, facts) == ""
    assert missing_need(plain, replace(facts, features=("torch",))) == ""
    assert "this run uses cpu" in missing_need(named, replace(facts, device="cpu"))
    axis = "n"
    gang = replace(named, case=replace(named.case, ranks=axis), axes={**named.axes, axis: 2})
    assert "is run by ranks" in missing_need(gang, facts)
