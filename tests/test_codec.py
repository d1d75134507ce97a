"""The text of stored files: what comes back, what is refused, and where it says the fault is."""

from __future__ import annotations

import numpy as np
import pytest
from store_data import finished

from perfsuite.boundary import StoreError
from perfsuite.model import Axes, Need, Run
from perfsuite.store import files as codec

WHERE = "baselines/fake/memory.json"
OUTSIDE = "cannot be stored: a number is 0 or between 1e-100 and 1e+100"


def test_values_come_back_with_their_types() -> None:
    run = finished({"copy": 1.0})
    assert codec.convert(codec.read_json(codec.encode(run), where="x"), Run, where="x") == run
    axes: Axes = {"a": 1, "b": 1.0, "c": True, "d": "1", "e": 1e16, "f": 2**53 + 1}
    plain = codec.read_json(codec.encode(Need("arch", "x", {"n": (*axes.values(),)})), where="x")
    found = codec.convert(plain, Need, where="x").axes["n"]
    assert [(type(value), value) for value in found] == [(type(v), v) for v in axes.values()]
    assert codec.encode({"n": np.int64(3), "x": np.float64(2.5)}) == b'{"n":3,"x":2.5}'
    assert codec.encode("a\udc80b") == b'"a?b"', "half a character of a worker costs no result"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "not valid JSON") for text in ("", "{", '{"a": 1', "\x00", '{"a": 1}garbage')),
        *((text, "expected an object") for text in ("[]", "null", "3")),
        ('{\n "a": 1 "b": 2}', f"{WHERE}, line 2, column 9"),
        ('{\n<<<<<<< HEAD\n"a": 1\n}', f"{WHERE}, line 2, column 1"),
        ("[" * 100_000, "recursion"),
        ('{"a": {"b": 1,\n"b": 2}}', "duplicate key 'b'"),
        *((half, "surrogates not allowed") for half in ('"\\ud800"', '{"a\\uDFFF": 1}')),
        *((f'{{"a": {number}}}', OUTSIDE) for number in ("NaN", "-Infinity", "1e999", "-1E+0101")),
        *((f'{{"a": {number}}}', OUTSIDE) for number in ("9999e97", "-1e-400", "9" * 5000)),
        (f'{{"a": 0.{"0" * 60}1e-60}}', OUTSIDE),
    ],
)
def test_damaged_text_is_refused_by_its_place(text: str, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        codec.read_json(text.encode(), where=WHERE)
    assert said in str(caught.value)
    assert WHERE in caught.value.where
    assert caught.value.remedy
    with pytest.raises(StoreError, match="0xff"):
        codec.read_json(b'{"a": "\xff"}', where=WHERE)


def test_extreme_numbers_and_characters_are_read() -> None:
    text = f"1e16, 1E+100, -1e-100, 0e400, 0, 1e0000000, -0.{'0' * 29}1, {2**63 - 1}, {2**63}"
    found = codec.read_json(f'{{"n": [{text}], "c": "\\ud83d\\ude00"}}'.encode(), where=WHERE)
    assert found["n"] == [1e16, 1e100, -1e-100, 0, 0, 1, -1e-30, 2**63 - 1, 2.0**63]
    assert found["c"] == "\N{GRINNING FACE}"
