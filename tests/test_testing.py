"""What check_pack refuses, on the scripted device."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from perfsuite.boundary import DeviceError, PackError, UsageError
from perfsuite.devices.protocol import Device, Sample
from perfsuite.model import DeviceFacts
from perfsuite.testing import check_device, check_pack
from perfsuite.testing.fake import FakeDevice, FakeRng

SEEDS = itertools.count()
EXAMPLE = Path(__file__).parents[1] / "examples" / "acme-perf"

GOOD = """
    import perfsuite
    from perfsuite import Claim, Work, Workload, case, cuda

    @case(smoke={"n": 4, "impl": ["plain", "gpu"]},
          nightly={"n": [4, 8], "impl": ["plain", "gpu"]}, source="a book",
          work=lambda n, **_: Work(flops=n), needs=[cuda().when(impl="gpu")])
    def double(ctx, n, impl):
        '''Double n numbers.'''
        def fn(x, y):
            y[:] = [2 * each for each in x]

        def wrong(x, y):
            y[:] = [3 * each for each in x]

        return Workload(fn=fn, wrong=wrong, reference=lambda x, y: [each + each for each in x],
                        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)))

    fast = Claim(name="fast", case="double", faster={"impl": "gpu"}, than={"impl": "plain"}, by=2,
                 source="a paper")

    @perfsuite.hookimpl
    def perf_cases():
        return [double, fast]
"""
SOURCE = 'source="a book",'
POINTS = GOOD[GOOD.index("smoke=") : GOOD.index("source=")]
CONTROLLER = """@perfsuite.hookimpl
    def perf_controller():
        return "no_such_module"

    @perfsuite.hookimpl"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "acme.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    return importlib.util.module_from_spec(spec)


def test_a_good_pack_passes_with_the_variants_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    assert check_pack(path, device="fake") == ("acme.double[n=4,impl=plain]",)
    assert check_pack(module_at(path), device="fake")[0].startswith("acme.")
    assert check_pack(str(path), device="") == ()
    # A module is known by its pyproject.
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = '[project]\nname = "x"\n[project.entry-points.perfsuite]\nvendor = "acme"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    ran = check_pack(module_at(path), device="fake")
    del sys.modules["acme"]
    assert ran == ("vendor.double[n=4,impl=plain]",)


def test_what_is_no_pack_is_refused() -> None:
    with pytest.raises(UsageError, match="'no_such_pack'"):
        check_pack("no_such_pack")
    with pytest.raises(UsageError, match="'by_hand' has no file"):
        check_pack(ModuleType("by_hand"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("flops=n", "flops=0", "work of acme.double[n=4,impl=plain] is zero"),
        (POINTS, "", "the case has no point"),
        ("by=2", 'by=2, at={"n": ()}', "'fast' binds no two variants"),
        ('than={"impl": "plain"}', 'than="acme.double[n={n}]"', "'fast' binds no two variants"),
        ('than={"impl": "plain"}', 'than="acme.double[n={m}]"', "claim fast(n='4', impl='plain')"),
        ('than={"impl": "plain"}', 'than="compute.gemm[n={n}]"', "'fast' binds no two variants"),
        ('than={"impl": "plain"}', 'than="double[n={n}]"', "compares with 'double[n=4]'"),
        ('than={"impl": "plain"}', 'than={"impl": "gpu"}', "compares with 'acme.double[n=4,impl="),
        (SOURCE, f"{SOURCE} ceilings={{'fp32': lambda **_: False}},", "ceiling 'fp32', or"),
        (SOURCE, f"{SOURCE} ceilings={{'hbm': lambda **_: True}},", "ceiling 'hbm', or"),
        ("import perfsuite\n", "import perfsuite, numpy\n", "imports numpy"),
        ("2 * each", "2.5 * each", "[n=4,impl=plain]: output differs from the reference"),
        ("3 * each", "2 * each", "accepts the negative control"),
        ("def fn(x, y):", "def fn(x, y):\n            1 / 0", "ZeroDivisionError"),
        ("@perfsuite.hookimpl", CONTROLLER, "No module named 'no_such_module'"),
    ],
)
def test_a_bad_pack_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(PackError) as caught:
        check_pack(write(tmp_path, GOOD.replace(old, new)), device="fake")
    assert said in str(caught.value)


def shipping(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write the good pack as a folder that ships these files for one product."""
    text = '[project]\nname = "x"\n[project.entry-points.perfsuite]\nacme = "acme_kit"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    place = tmp_path / "acme_kit" / "baselines" / "acme-a1"
    place.mkdir(parents=True)
    (tmp_path / "acme_kit" / "__init__.py").write_text(textwrap.dedent(GOOD), encoding="utf-8")
    for name, content in files.items():
        (place / name).write_text(content, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sku.json": "{"}, "a baseline that it ships is not usable"),
        ({"acme.json": "[]"}, "a baseline that it ships is not usable"),
        ({}, "acme-a1 has a baseline of acme.program[name=softscale_fused], which the pack does"),
    ],
)
def test_shipped_baselines_are_read_and_not_stale(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    files = {each.name: each.read_text("utf-8") for each in EXAMPLE.rglob("acme-a1/*.json")}
    with pytest.raises(PackError) as caught:
        check_pack(shipping(tmp_path, files | changes), device="")
    assert said in str(caught.value)


def broken(**changes: object) -> Device:
    """Return the fake device with some of its parts replaced."""
    made: Device = type("Broken", (FakeDevice,), changes)()
    return made


def facts_with(**changes: Any) -> Callable[[FakeDevice], DeviceFacts]:
    return lambda self: replace(FakeDevice.facts(FakeDevice()), **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rng": lambda self: None}, "data: it raised TypeError"),
        ({"facts": lambda self: {"device": "fake"}}, "no sound DeviceFacts"),
        ({"facts": facts_with(device="other")}, "facts().device is 'other', its name 'fake'"),
        ({"facts": facts_with(identity={})}, "lacks name, unit or identity"),
        ({"facts": facts_with(state={"cap": 300})}, "Expected `str`, got `int` - at `$.state"),
        ({"facts": facts_with(clocks=("time_us",))}, "has_cycles True"),
        ({"facts": lambda self: 1 / 0}, "facts: it raised ZeroDivisionError"),
        ({"rng": lambda self, seed: FakeRng(1)}, "takes different values for equal"),
        ({"rng": lambda self, seed: FakeRng(next(SEEDS))},
         "one seed makes two different inputs"),
        ({"poison": lambda self, outputs: [each.__setitem__(slice(None), [0.0] * len(each))
          for each in outputs]}, "what was overwritten is accepted"),
        ({"bytes_of": lambda self, values: 0}, "inputs have no bytes"),
        ({"sample": lambda self, group, count, *, regime, spin_us, flush: []}, "asked for 2"),
        ({"sample": lambda self, group, count, **conditions:
          FakeDevice.sample(self, group, count, **conditions)[:8]},
         "returned 8 samples and was asked for 16"),
        ({"sample": lambda self, group, count, **conditions: [Sample(1.0)] * count},
         "cycles are nan"),
        ({"sample": lambda self, group, count, **conditions: [Sample(1.0, 1.0)] * count},
         "0 launches were issued"),
        ({"health": lambda self: None}, "no Health"),
    ],
)  # fmt: skip
def test_a_device_that_does_otherwise_is_told_how(changes: dict[str, Any], said: str) -> None:
    check_device(FakeDevice())
    with pytest.raises(DeviceError) as caught:
        check_device(broken(**changes))
    assert said in str(caught.value)
