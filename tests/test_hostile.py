"""Packs that fail or mean ill: each is contained and named, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_catalogue import COPY, FAST, HEAD, HOOK, source

from perfsuite.boundary import UsageError
from perfsuite.model import Tier
from perfsuite.packs.find import discover
from perfsuite.packs.load import chosen_accelerator
from perfsuite.workers.catalogue import load_catalogue

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
GOOD = HEAD + COPY + HOOK
DEVICE = """
import perfsuite

@perfsuite.hookimpl
def perf_device():
    return {returned}

{opens}
"""
OWN = "perfsuite.Accelerator(name='odd', opens='bad:opened', units=('one',))"
# Each pack and what its error says.
BAD = (
    ("while True: print('x' * (1 << 20))", "File too large"),
    ("held = bytearray(1 << 40)", "MemoryError"),
    (GOOD.replace("[10, 20]", "['a\\nb', 20]"), "do: use str"),
    (
        GOOD.replace("@case(", "@case(budgets=[perfsuite.Budget('time_us', 1e300, 'x')], "),
        "'1e+300' cannot be stored",
    ),
    (HEAD + COPY + FAST.replace('"fast"', '"fa/st\\n"') + HOOK, "claim name"),
    (GOOD.replace('["quick"]', "[7]"), "of a wrong type"),
    *(
        (DEVICE.format(returned=returned, opens=""), said)
        for returned, said in (
            ("'odd'", "perf_device() returned 'odd'"),
            ("1 / 0", "ZeroDivisionError"),
            (OWN.replace("'odd'", "'cuda'"), "must match"),
            (OWN.replace("'odd'", "'../odd'"), "'../odd'"),
            (OWN.replace("bad:opened", "bad"), "no module:callable"),
            (OWN.replace("('one',)", "(7,)"), "of a wrong type"),
        )
    ),
)


def test_hostile_packs_are_named_and_the_good_one_is_listed(tmp_path: Path) -> None:
    bad = [source(tmp_path, f"bad{n}", text) for n, (text, _) in enumerate(BAD)]
    found = load_catalogue([*bad, source(tmp_path, "good", GOOD)], tier=Tier.SMOKE, time_limit_s=20)
    assert len(found[-1].variants) == 2
    for pack, (_, said) in zip(found, BAD, strict=False):
        assert said in pack.error
        assert repr(pack.name) in pack.error
        assert pack.variants == ()
        assert all(c.isprintable() or c == "\n" for c in pack.error)


def test_a_pack_that_is_not_allowed_is_never_imported(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    bad = Path(source(tmp_path, "bad", f"open({str(mark)!r}, 'w')\n{GOOD}").origin[5:])
    good = Path(source(tmp_path, "good", GOOD).origin[5:])
    sources = discover(None, extra=[bad, good], allow=["good"])
    assert [pack.name for pack in load_catalogue(sources, tier=Tier.SMOKE)] == ["good"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("opens", "said"),
    [
        ("def opened(unit, seed): raise OSError('no driver')", "OSError: no driver"),
        ("def opened(unit, seed): return 5", "it is no perfsuite.Device"),
        ("def opened(unit, seed):\n    import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_device_that_cannot_be_opened_ends_the_run_and_names_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, opens: str, said: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(bad=DEVICE.format(returned=OWN, opens=opens) + GOOD)
    options = ("-p", "perfsuite.plugin", "--perf", "--perf-pack=bad.py", "--perf-packs=bad")
    done = pytester.runpytest_subprocess(*options, "--perf-device=odd")
    assert done.ret != 0
    told = done.stdout.str() + done.stderr.str()
    assert said in told
    assert "odd" in told


def test_two_devices_of_one_name_are_both_named(tmp_path: Path) -> None:
    text = DEVICE.format(returned=OWN, opens="")
    sources = [source(tmp_path, name, text) for name in ("bad", "worse")]
    packs = load_catalogue(sources, tier=Tier.SMOKE)
    with pytest.raises(UsageError, match="two packs bring a device 'odd': bad and worse"):
        chosen_accelerator("odd", packs)
    with pytest.raises(UsageError, match="unknown device 'even'"):
        chosen_accelerator("even", packs)
    found = chosen_accelerator("auto", packs)
    assert found
    assert found.name == "odd"
    assert chosen_accelerator("cpu", packs) is None
