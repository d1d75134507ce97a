"""Packs that fail or mean ill: each is contained and named, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_catalogue import COPY, FAST, HEAD, HOOK, source

from perfsuite.model import Pack, Tier
from perfsuite.packs.find import discover
from perfsuite.packs.listing import load_catalogue

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
GOOD = HEAD + COPY + HOOK


def listed(folder: Path, text: str) -> tuple[Pack, Pack]:
    """List a hostile pack beside a good one."""
    found = load_catalogue(
        [source(folder, "bad", text), source(folder, "good", GOOD)], tier=Tier.SMOKE, time_limit_s=8
    )
    return found[0], found[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("while True: print('x' * (1 << 20))", "File too large"),
        ("held = bytearray(1 << 40)", "MemoryError"),
        (GOOD.replace("[10, 20]", "['a\\nb', 20]"), "do: use str"),
        (HEAD + COPY + FAST.replace('"fast"', '"fa/st\\n"') + HOOK, "claim name"),
        (GOOD.replace('["quick"]', "[7]"), "7 is a int"),
    ],
)
def test_a_hostile_pack_is_named_and_the_good_one_listed(
    tmp_path: Path, text: str, said: str
) -> None:
    bad, good = listed(tmp_path, text)
    assert said in bad.error
    assert "'bad'" in bad.error
    assert bad.variants == ()
    assert len(good.variants) == 2
    assert all(c.isprintable() or c == "\n" for c in bad.error)


def test_a_pack_that_is_not_allowed_is_never_imported(tmp_path: Path) -> None:
    mark = tmp_path / "imported"
    bad = tmp_path / "bad.py"
    bad.write_text(f"open({str(mark)!r}, 'w')\n{GOOD}", encoding="utf-8")
    good = tmp_path / "good.py"
    good.write_text(GOOD, encoding="utf-8")
    sources = discover(None, extra=[bad, good], allow=["good"])
    assert [pack.name for pack in load_catalogue(sources, tier=Tier.SMOKE)] == ["good"]
    assert not mark.exists()


DEVICE = """
import perfsuite

@perfsuite.hookimpl
def perf_device():
    return {returned}

{opens}
"""
OWN = "perfsuite.Accelerator(name='odd', opens='bad:opened', units=('one',))"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("'odd'", "perf_device() returned 'odd'"),
        ("1 / 0", "ZeroDivisionError"),
        (OWN.replace("'odd'", "'cuda'"), "must match"),
        (OWN.replace("'odd'", "'../odd'"), "'../odd'"),
        (OWN.replace("bad:opened", "bad"), "no module:callable"),
        (OWN.replace("('one',)", "(7,)"), "of a wrong type"),
    ],
)
def test_a_bad_offer_of_a_device_is_refused_by_name(
    tmp_path: Path, returned: str, said: str
) -> None:
    bad, good = listed(tmp_path, DEVICE.format(returned=returned, opens=""))
    assert said in bad.error
    assert good.variants


@pytest.mark.parametrize(
    ("opens", "said"),
    [
        ("def opened(unit, seed): raise OSError('no driver')", "OSError: no driver"),
        ("def opened(unit, seed): return 5", "it has no attribute 'name'"),
        ("def opened(seed): pass", "TypeError"),
        ("", "has no attribute 'opened'"),
        ("def opened(unit, seed):\n    import os; os._exit(3)", "exit code 3"),
        ("class opened(perfsuite.Device):\n    name = 'odd'\n    def __init__(self, **_): ...",
         "it has no method"),
    ],
)  # fmt: skip
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
    from perfsuite.boundary import UsageError
    from perfsuite.packs.load import chosen_accelerator

    texts = {name: DEVICE.format(returned=OWN, opens="") for name in ("bad", "worse")}
    packs = load_catalogue(
        [source(tmp_path, name, text) for name, text in texts.items()], tier=Tier.SMOKE
    )
    with pytest.raises(UsageError, match="two packs bring a device 'odd': bad and worse"):
        chosen_accelerator("odd", packs)
    with pytest.raises(UsageError, match="unknown device 'even'"):
        chosen_accelerator("even", packs)
    found = chosen_accelerator("auto", packs)
    assert found
    assert found.name == "odd"
    assert chosen_accelerator("cpu", packs) is None
