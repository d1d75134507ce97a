"""Workloads of plain Python, without torch: their data are compared, refilled and counted."""

from __future__ import annotations

import array
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfsuite.boundary import CaseError
from perfsuite.devices.plain import PlainDevice
from perfsuite.devices.protocol import open_device

ROOT = Path(__file__).parents[1]
PACK = Path(__file__).parent / "packs" / "plain.py"
# Finds no module of these names, as if they were not installed; the second only in workers.
BLOCKER = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else find(name, path, target)

PathFinder.find_spec = classmethod(find_others)
"""


def shown(place: Path, *words: str) -> dict[str, Any]:
    """Measure the pack where torch is not installed; return its verdicts by variant."""
    (place / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    before = set(place.glob("reports/*/verdict.json"))
    # A change of the machine's speed is to cost no second stage.
    own = ("--perf-device=cpu", "--perf-processes=1", "-operf_threshold=99", *words)
    only = (f"--perf-packs={PACK}",)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "perfsuite.plugin", "--perf"]
    environment = {"PYTHONPATH": f"{place}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run([*command, *only, *own], check=False, cwd=place, env=os.environ | environment)
    (new,) = set(place.glob("reports/*/verdict.json")) - before
    assert new.with_name("index.html").is_file()
    told = json.loads(new.read_text("utf-8"))
    return {each["variant"].partition("=")[2].rstrip("]"): each for each in told["variants"]}


def test_plain_python_is_measured_twice_where_no_torch_is(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    first = shown(tmp_path)
    words = {way: each["word"] for way, each in first.items()}
    right = {"bytes", "records", "arrays"}
    assert words == dict.fromkeys(right, "new") | {"kept": "wrong", "torch": "error"}
    assert "after" in first["kept"]["reason"]
    assert "torch is not installed" in first["torch"]["reason"]
    second = shown(tmp_path, "--perf-select=way!=kept,way!=torch")
    # How fast this machine is then does not matter.
    assert {each["word"] for each in second.values()} <= {"same-code", "unclear"}
    assert not any(each["verdict"]["changes"] for each in second.values())
    assert second.keys() == right


# Results.

DATA: Any = type("Data", (PlainDevice,), dict.fromkeys(PlainDevice.__abstractmethods__))(None, 0)
CPU: Any = open_device("cpu")
HALVES = np.arange(8, dtype=np.float32) / 2
MANY = [math.sin(n) for n in range(1 << 17)]
ONE_OFF = [*MANY[:-1], MANY[-1] + 2e-10]
BIG = 2**53


@pytest.mark.parametrize(
    ("got", "want", "why"),
    [
        (b"abc", bytearray(b"abc"), ""),
        (b"abd", b"abc", "from place 2 on it is b'd', not b'c'"),
        (b"abc", b"abcd", "from place 3 on it is b'', not b'd'"),
        ("abc", b"abc", "'abc', not b'abc'"),
        ([1, 2, 3], (1, 2, 3), ""),
        ([1, 2, 4], [1, 2, 3], "worst at [2]: got 4, expected 3; relative error"),
        ([1, 2], [1, 2, 3], "shape"),
        # As floats these are the same.
        ([BIG + 1], [BIG], "relative error"),
        ([10**400], [10**400 + 1], "integers differ"),
        ([10**400, 1], [10**400, 1], ""),
        (MANY, [each * (1 + 1e-14) for each in MANY], ""),
        (ONE_OFF, MANY, f"1 of {len(MANY)} elements are wrong, worst at [{len(MANY) - 1}]: got"),
        (MANY, [each * (1 + 1e-9) for each in MANY], "relative error"),
        ([math.nan], [math.nan], "NaN"),
        ([1e200, 1.0], [1e200, 2.0], ""),
        ([1e200], [1.001e200], "1 of 1 elements are wrong, worst at [0]: got 1e+200"),
        ([math.inf, 1.0], [math.inf, 1.0], "NaN"),
        (array.array("d"), np.array([], np.float32), ""),
        ([1 + 2j], [1 + 2j], ""),
        ([1 + 2j], [1 - 2j], "relative error"),
        ((HALVES,), HALVES.tolist(), ""),
        (HALVES[::2], HALVES[::2].astype(np.float64), ""),
        (HALVES.reshape(2, 4), HALVES, "shape (2, 4) not (8,)"),
        (HALVES * np.float32(1.001), HALVES, "relative error"),
        (HALVES.astype(np.float16) * np.float16(1.001), HALVES, ""),
        (HALVES * 1j, HALVES * 1j, ""),
        (HALVES * 1j, HALVES * 2j, "relative error"),
        (array.array("q", [BIG + 1]), array.array("q", [BIG]), "relative error"),
        ({"a": [1.0], "b": None}, {"a": [1.0], "b": None}, ""),
        ({"a": [1.0]}, {"a": [2.0]}, "at ['a']"),
        ({"a": 1}, {"b": 1}, "or others"),
        ([{"x": "one"}, 2], [{"x": "two"}, 2], "at [0]['x']"),
        ({1, 2}, {2, 1}, ""),
        ({1, 2}, {1, 3}, "not {1, 3}"),
        ([None, "a"], [None, "a"], ""),
        (1.0, 1.0, ""),
        (np.array([{}], object), np.array([{1: 2}], object), "{1: 2}"),
        (np.array([{}, 1], object), np.array([{}, 1], object), "cannot be compared"),
        ([1], None, "nothing to compare with"),
        ((), (), "nothing to compare with"),
    ],
)
def test_what_differs_is_seen_and_said(got: Any, want: Any, why: str) -> None:
    comparison = DATA.compare(got, want, None)
    assert comparison.is_right == (not why)
    assert why in comparison.reason


def test_a_tolerance_is_for_numbers_alone() -> None:
    assert DATA.compare([1.0, 2.0], [1.001, 2.0], 0.01).is_right
    assert DATA.compare({"a": [1, 2]}, {"a": [1.001, 2]}, 0.01).limit == 0.01
    assert not DATA.compare(b"ab", b"ac", 0.1).is_right


# Data.


LAYOUTS = [
    lambda n: ([n, n + 1],),
    lambda n: (bytearray([n]), 3),
    lambda n: (np.full((2, 3), n)[:, ::2],),
    lambda n: (array.array("d", [n]),),
    lambda n: ([{"name": f"n{n}"}, {"name": "x", "all": (n,)}],),
    lambda n: ({"a": {"b": [bytearray([n]), n]}},),
    lambda n: (SimpleNamespace(held=[[n], f"n{n}"]),),
    lambda n: ({n, n + 7}, {n: "key"}),
    lambda n: ([n] * n,),
    lambda n: ([10**5000 + n],),
]


@pytest.mark.parametrize("made", LAYOUTS)
def test_other_data_come_to_where_the_arguments_lie(made: Any) -> None:
    old, fresh = made(1), made(2)
    first = DATA.digest(old, [])
    assert first == DATA.digest(made(1), []) != DATA.digest(fresh, [])
    assert DATA.refill(old, fresh, [])
    assert DATA.digest(old, []) == DATA.digest(fresh, [])
    # What they came from is not what they lie in.
    assert DATA.refill(old, made(1), [])
    assert DATA.digest(fresh, []) == DATA.digest(made(2), [])
    assert DATA.digest(old, []) == first


@pytest.mark.parametrize(
    ("old", "fresh"),
    [
        (([1], b"a"), ([2], b"b")),
        (([1], 3), ([2], 4)),
        (([1], bytearray(b"a")), ([2], bytearray(b"ab"))),
        (([1], np.ones(3)), ([2], np.ones(3, np.float32))),
        (([1], iter("a")), ([2], iter("a"))),
        (([1], np.frombuffer(b"abcd", np.uint8)), ([2], np.ones(4, np.uint8))),
    ],
)
def test_what_cannot_be_refilled_stays_as_it_is(old: Any, fresh: Any) -> None:
    assert not DATA.refill(old, fresh, [])
    assert old[0] == [1]


def test_outputs_are_filled_with_what_is_no_result_and_are_no_input() -> None:
    own: list[Any] = [
        [1.0, 2],
        {"a": "b"},
        bytearray(2),
        np.zeros((2, 2))[:, 0],
        array.array("i", [0]),
        [[1]],
    ]
    arguments = (*own, [5])
    before = DATA.digest(arguments, own)
    DATA.poison([*own, None])
    assert DATA.digest(arguments, own) == before == DATA.digest(([5],), [])
    numbers, named, raw, floats, ints, nested = own
    assert all(map(math.isnan, [*numbers, named["a"], *floats, *nested[0]]))
    assert (raw, ints[0]) == (b"\x7f\x7f", 0x7F7F7F7F)
    assert DATA.refill((numbers, [1]), ([3.0, 3.0], [2]), own)
    assert math.isnan(numbers[0])
    for each in (b"read only", {1}, np.array([None])):
        with pytest.raises(CaseError, match="cannot be filled"):
            DATA.poison([each])


def test_bytes_are_those_of_all_data_and_of_what_is_shared_once() -> None:
    values = np.zeros(1000)
    assert DATA.bytes_of([values, values[:10], memoryview(values[3:].data)]) == values.nbytes
    assert DATA.bytes_of([b"abc", bytearray(5)]) == 8
    numbers = [float(n) for n in range(1000)]
    assert 30_000 < DATA.bytes_of([numbers, {"same": numbers}, 0]) < 35_000
    # Two results in the same memory are known by that.
    assert DATA.bytes_of([(numbers, 1.5), (numbers, 2.5)]) < 2 * DATA.bytes_of([(numbers, 1.5)])


def test_the_same_bytes_in_another_shape_are_other_data() -> None:
    torch = pytest.importorskip("torch")
    flat = np.arange(6.0)
    assert DATA.digest((flat.reshape(2, 3),), []) != DATA.digest((flat.reshape(3, 2),), [])
    assert DATA.digest((flat,), []) != DATA.digest((flat.view("i8"),), [])
    row = torch.arange(6.0)
    values = [row, row.view(2, 3), row.view(3, 2).t(), row[:3], row.view(torch.int32)]
    halves = [(row[:3], row[3:]), (row[3:], row[:3])]
    assert len({CPU.digest(each, []) for each in (*((each,) for each in values), *halves)}) == 7
    # What cannot be read tells nothing, and is not left out.
    assert None in CPU.digest((row, row.to_mkldnn()), [])


def test_where_torch_is_the_same_code_has_the_plain_data() -> None:
    pytest.importorskip("torch")
    old, fresh = ([1.0, 2.0], {"a": bytearray(b"x")}), ([3.0, 4.0], {"a": bytearray(b"y")})
    assert CPU.bytes_of(old) == DATA.bytes_of(old)
    assert CPU.digest(old, []) == DATA.digest(old, [])
    assert CPU.compare([1.0], [2.0], None) == DATA.compare([1.0], [2.0], None)
    assert CPU.refill(old, fresh, [])
    assert old == fresh
    CPU.poison(old)
    assert math.isnan(old[0][0])
    assert CPU.rng(7).seed == 7
    assert DATA.software().items() < CPU.software().items()
