"""The text of stored files: what comes back, what is refused, and where it says the fault is."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from store_data import entry_of, finished, ran, variant

from perfsuite.boundary import StoreError
from perfsuite.model import (
    Axes,
    BaselineEntry,
    BaselineMetric,
    Block,
    ClaimWord,
    Evidence,
    Need,
    Result,
    Run,
    Sampling,
    Settings,
)
from perfsuite.store import codec

WHERE = "baselines/fake/memory.json"
RUN = finished({"copy": 1.0})
START, END = codec.start_lines(RUN), codec.end_lines(RUN)
RESULT = codec.result_line(RUN.results[0])
WHOLE = START + RESULT + END
COPY = RUN.variants[0].id
SHEET = codec.baseline_text("fake", "memory", {COPY: entry_of(COPY)})


def refused(text: str | bytes) -> str:
    with pytest.raises(StoreError) as caught:
        codec.read_json(text, where=WHERE)
    assert caught.value.remedy
    return str(caught.value)


def test_what_is_stored_comes_back() -> None:
    assert codec.decode(codec.encode(RUN), Run) == RUN
    assert codec.read_run(WHOLE, where="x") == RUN
    found = codec.read_baseline(SHEET, sku="fake", pack="memory", where="x")
    assert found == {COPY: entry_of(COPY)}
    assert codec.baseline_text("fake", "memory", found) == SHEET


def test_axes_keep_int_float_bool_and_text_apart() -> None:
    axes: Axes = {"a": 1, "b": 1.0, "c": True, "d": "1", "e": 1e16, "f": 2**53 + 1}
    plain = codec.read_json(codec.encode(Need("arch", "x", {"n": (*axes.values(),)})), where="x")
    found = codec.convert(plain, Need, where="x").axes["n"]
    assert [(type(value), value) for value in found] == [(type(v), v) for v in axes.values()]


def test_numpy_scalars_are_stored_as_numbers() -> None:
    import numpy as np

    metric = BaselineMetric(center=np.float64(2.5), unit="us")
    assert json.loads(codec.encode(metric))["center"] == 2.5
    assert codec.encode({"n": np.int64(3)}) == b'{"n":3}'


def test_half_characters_of_a_worker_cost_no_result() -> None:
    assert codec.encode("a\udc80b") == b'"a?b"'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1j])
def test_what_json_does_not_have_is_not_stored(value: Any) -> None:
    with pytest.raises(StoreError, match="cannot store a Block"):
        codec.encode(Block(time_us=(1.0, value)))


@pytest.mark.parametrize("data", [b'{"time_us":[NaN]}', b'{"time_us":"x"}', b"{", b"\xff"])
def test_bad_messages_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="cannot read a Block"):
        codec.decode(data, Block)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "not valid JSON") for text in ("", "{", '{"a": 1', "\x00", '{"a": 1}garbage')),
        ('{\n "a": 1 "b": 2}', f"{WHERE}, line 2, column 9"),
        ('{\n<<<<<<< HEAD\n"a": 1\n}', f"{WHERE}, line 2, column 1"),
        (b'{"a": "\xff"}', "0xff"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": {"b": 1,\n"b": 2}}', "duplicate key 'b'"),
        *((half, "surrogates not allowed") for half in ('"\\ud800"', '{"a\\uDFFF": 1}')),
        *(
            (f'{{"a": [{number}]}}', "cannot be stored: a number is 0 or between 1e-100 and 1e+100")
            for number in (
                *("NaN", "-Infinity", "1e999", "1e308", "-1E+0101", "1e101", "9999e97", "9" * 5000),
                *("1e-101", "5e-324", "-1e-400", f"0.{'0' * 60}1e-60", f"{'9' * 60}.5e50"),
            )
        ),
    ],
)
def test_damaged_text_is_refused_by_its_place(text: str | bytes, said: str) -> None:
    message = refused(text)
    assert said in message
    assert WHERE in message


def test_extreme_numbers_and_characters_are_read() -> None:
    text = f"[1e16, 1E+100, -1e-100, 0e400, 0, 1e0000000, -0.{'0' * 29}1, {2**63 - 1}, {2**63}]"
    found = codec.read_json(text, where=WHERE)
    assert found == [1e16, 1e100, -1e-100, 0, 0, 1, -1e-30, 2**63 - 1, 2.0**63]
    assert codec.read_json('"\\ud83d\\ude00"', where=WHERE) == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("plain", "kind", "said"),
    [
        ({"time_us": [1.0, "slow"]}, Block, "Expected `float`, got `str` - at `$.time_us[1]`"),
        ({"center": 1.0}, BaselineMetric, "missing required field `unit`"),
        ({"time_us": [], "health": {"watt": 3.0}}, Block, "unknown field `watt` - at `$.health`"),
        ("kept", ClaimWord, "Invalid enum value 'kept'"),
        ({"processes": 0}, Settings, "processes must be at least 1"),
        ({"launches": 1, "sets": 10**9}, Sampling, "sets must be from 1 to 256, not 1000000000"),
        ({"launches": -1, "sets": 1}, Sampling, "launches must be 1 or more"),
        ({"slot": 0, "seed": 0, "sets": 0}, Evidence, "sets must be"),
        ({"slot": 0, "seed": 0, "exact": {"A b": 1}}, Evidence, "metric name 'A b' must match"),
        ({"time_us": [1.0], "metrics": {"A b": [1.0]}}, Block, "metric name 'A b' must match"),
        (
            {"variant": "a", "case_version": 1, "run": "r", "metrics": {"A b": {"center": 1}}},
            BaselineEntry,
            "missing required field `unit`",
        ),
        ({"variant": "a", "status": "fine"}, Result, "'fine' - at `$.status`"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_path(
    plain: object, kind: type, said: str
) -> None:
    with pytest.raises(StoreError) as caught:
        codec.convert(plain, kind, where=WHERE)
    assert said in caught.value.what
    assert (caught.value.where, bool(caught.value.remedy)) == (WHERE, True)


def test_a_case_stands_once_in_the_plan() -> None:
    variants = tuple(variant("copy", n) for n in range(1, 200))
    lines = codec.start_lines(replace(RUN, variants=ran(*variants)))
    assert lines.count(b"Copy n floats.") == 1
    assert codec.read_run(lines, where="x.jsonl").variants == ran(*variants)


HEADER = START.split(b"\n")[0] + b"\n"
PLAN = b'{"kind":"plan","cases":{},"variants":%s,"instances":[],"canaries":[]}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "not a run file") for text in (b"[]\n", b'{"kind":"result"}\n', b"{}\n")),
        (START.replace(b"run/1", b"run/2"), "'perfsuite.run/2'; this perfsuite reads"),
        (START.replace(b'"target":""', b'"target":"zz"'), "target='zz' is not an axis of the case"),
        (START.replace(b'"ranks":""', b'"ranks":"zz"'), "ranks='zz' is not an axis of the case"),
        (START.replace(b'"cases":{"memory.copy"', b'"cases":{"memory.kopy"'), "x, line 2"),
        (HEADER + b'{"kind":"plan"}\n', "'plan'"),
        *((HEADER + PLAN % odd, "x, line 2") for odd in (b"1", b"[3]", b'[{"case":"b"}]')),
        (START + RESULT.replace(b'"ok"', b'"fine"'), "x, line 3"),
        (START + b'{"kind": oops}\n', "x, line 3, column 10"),
        (START + END.replace(b'"wall_s"', b'"wall"'), "unknown field `wall`"),
        (WHOLE + RESULT, "unexpected line of kind 'result'"),
        (WHOLE + START.split(b"\n")[1], "unexpected line of kind 'plan'"),
    ],
)
def test_a_damaged_run_file_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(StoreError) as caught:
        codec.read_run(text, where="x")
    assert said in str(caught.value)


@pytest.mark.parametrize("run_id", ["../../x", "/x", "..", "", "a\n", "a\x1b]0;x\x07", "x" * 201])
def test_a_run_whose_id_leads_elsewhere_is_refused(run_id: str) -> None:
    text = codec.start_lines(replace(RUN, id=run_id))
    header = partial(codec.read_header, text.partition(b"\n")[0])
    for reads in (header, partial(codec.read_run, text)):
        with pytest.raises(StoreError, match=r"run id .* cannot be a file name(?s:.*)x, line 1"):
            reads(where="x")


def test_whether_a_run_is_finished_is_read_from_its_tail() -> None:
    assert codec.is_finished(WHOLE[-codec.TAIL_BYTES :])
    assert not codec.is_finished(START + RESULT)
    assert not codec.is_finished(WHOLE[:-1])


@settings(max_examples=300, deadline=None)
@given(data=st.data(), text=st.sampled_from([WHOLE, SHEET]), junk=st.binary(max_size=6))
def test_a_damaged_file_is_read_or_refused(data: st.DataObject, text: bytes, junk: bytes) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    damaged = text[:start] + junk + text[end:]
    with suppress(StoreError):
        if text == WHOLE:
            assert codec.read_run(damaged, where="x").started
        else:
            stored = codec.read_baseline(damaged, sku="fake", pack="memory", where="x")
            assert all(each.entry.metrics for each in stored.values())
