"""The model as text: what comes back, and what is refused in which words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import pytest
from msgspec.structs import replace
from store_data import RUN_ID, finished, result, variant

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
    Variant,
)
from perfsuite.store import codec

WHERE = "baselines/fake/memory.json"


def refusal(text: str | bytes) -> str:
    with pytest.raises(StoreError) as caught:
        codec.read_json(text, where=WHERE)
    assert caught.value.remedy
    return str(caught.value)


def bad_value(value: object, kind: type) -> str:
    with pytest.raises(StoreError) as caught:
        codec.convert(value, kind, where=WHERE)
    assert caught.value.where == WHERE
    assert caught.value.remedy
    return caught.value.what


def test_round_trip_of_a_whole_run() -> None:
    run = finished({"copy": 12.5})
    assert codec.decode(codec.encode(run), Run) == run


def test_axes_keep_int_float_bool_and_text_apart() -> None:
    axes: Axes = {"a": 1, "b": 1.0, "c": True, "d": "1", "e": 1e16, "f": 2**53 + 1}
    found = codec.decode(codec.encode(axes), dict[str, str | int | float | bool])
    assert [(type(value), value) for value in found.values()] == [
        (type(value), value) for value in axes.values()
    ]


def test_converted_axes_keep_their_types_too() -> None:
    need = Need("arch", "sm_90", {"n": (1, 1.0, False, "x")})
    plain = codec.read_json(codec.encode(need), where=WHERE)
    found = codec.convert(plain, Need, where=WHERE)
    assert [type(value) for value in found.axes["n"]] == [int, float, bool, str]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_encode_refuses_what_json_does_not_have(number: float) -> None:
    block = Block(time_us=(1.0, number))
    with pytest.raises(StoreError, match=r"time_us\.1 = -?(nan|inf) of a Block"):
        codec.encode(block)


def test_encode_takes_numpy_scalars() -> None:
    import numpy as np

    metric = BaselineMetric(center=np.float64(2.5), unit="us", within=np.float64(0.5))
    assert json.loads(codec.encode(metric))["center"] == 2.5
    assert codec.encode({"n": np.int64(3)}) == b'{"n":3}'


def test_encode_refuses_what_is_not_plain_data() -> None:
    with pytest.raises(StoreError, match="complex is not plain data"):
        codec.encode({"x": 1j})


def test_encode_survives_half_characters_of_a_worker() -> None:
    assert codec.encode("a\udc80b") == b'"a?b"'


@pytest.mark.parametrize("data", [b'{"time_us":[NaN]}', b'{"time_us":"x"}', b"{", b"\xff"])
def test_decode_refuses_bad_messages(data: bytes) -> None:
    with pytest.raises(StoreError, match="cannot read a Block"):
        codec.decode(data, Block)


def test_syntax_errors_have_line_and_column() -> None:
    assert f"{WHERE}, line 2, column 9" in refusal('{\n "a": 1 "b": 2}')


def test_a_merge_conflict_is_a_syntax_error() -> None:
    assert f"{WHERE}, line 2, column 1" in refusal('{\n<<<<<<< HEAD\n"a": 1\n}')


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "\x00\x00", '{"a": 1}garbage'])
def test_damaged_text_is_never_read_as_empty(text: str) -> None:
    assert "not valid JSON" in refusal(text)


def test_bytes_that_are_no_text_are_refused() -> None:
    assert "not UTF-8: byte 0xff" in refusal(b'{"a": "\xff"}')


def test_deep_nesting_is_refused() -> None:
    assert "nested too deeply" in refusal("[" * 100_000)


def test_duplicate_keys_are_refused_with_their_lines() -> None:
    assert "duplicate key 'b' (lines 3, 4)" in refusal('{"a": {\n\n"b": 1,\n"b": 2}}')


def test_a_duplicate_of_a_common_key_is_named_without_lines() -> None:
    text = '[{"a": 1},\n{"a": 1},\n{"a": 1},\n{"a": 1, "a": 2}]'
    assert "duplicate key 'a'\n" in refusal(text)


@pytest.mark.parametrize("levels", [101, 500, 900, 50_000])
def test_lists_where_text_is_expected_are_refused(levels: int) -> None:
    assert "nested too deeply: more than 100 levels" in refusal("[" * levels + "]" * levels)
    text = f'{{"slug": {"[" * levels}{"]" * levels}}}'
    assert "nested too deeply" in refusal(text)


def test_a_hundred_levels_are_read() -> None:
    assert codec.read_json("[" * 100 + "]" * 100, where="a.json")


def test_numbers_are_as_long_as_a_machine_holds() -> None:
    assert "a number of 5000 digits, 99999999999999999999..., " in refusal("9" * 5000)
    assert codec.read_json("[9223372036854775807, 9223372036854775808]", where="a.json") == [
        2**63 - 1,
        float(2**63),
    ]


@pytest.mark.parametrize("text", ['"\\ud800"', '{"a\\uDFFF": 1}', '["\\ude00\\ud83d"]'])
def test_half_characters_are_refused(text: str) -> None:
    assert "half a character" in refusal(text)


def test_whole_characters_of_two_halves_are_read() -> None:
    assert codec.read_json('"\\ud83d\\ude00"', where="a.json") == "\N{GRINNING FACE}"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_stored_numbers_are_finite(number: str) -> None:
    assert f"{number} is not a number" in refusal(f'{{"center": {number}}}')


@pytest.mark.parametrize(
    "number",
    [
        *("1e999", "1e308", "-1E+0101", "1e101", "9999e97", "9" * 102, "9" * 400 + ".0"),
        *("1e-101", "5e-324", "-1e-400", f"0.{'0' * 100}1", f"0.{'0' * 60}1e-60"),
        *(f"{'9' * 60}e60", f"{'9' * 60}.5e50"),
    ],
)
@pytest.mark.parametrize("text", ["[{}]", "[0,{}]", '{{"center": {}}}', '{{"a":\n{}}}'])
def test_numbers_that_nobody_measured_are_refused(number: str, text: str) -> None:
    what = refusal(text.format(number))
    assert number[:20] in what
    assert "a number is 0 or between 1e-100 and 1e+100" in what


def test_large_and_small_numbers_are_read() -> None:
    text = f"[1e16, 1E+100, -1e-100, 0e400, 0.0, 1e0000000, -0.{'0' * 29}1]"
    assert codec.read_json(text, where=WHERE) == [1e16, 1e100, -1e-100, 0.0, 0.0, 1.0, -1e-30]


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        ({"slot": 0, "seed": 0, "exact": {"Peak Bytes": 1.0}}, Evidence),
        ({"time_us": [1.0], "metrics": {"Peak Bytes": [1.0]}}, Block),
        (
            {
                "variant": "a",
                "case_version": 1,
                "run": "r",
                "metrics": {"Peak Bytes": {"center": 1.0, "unit": ""}},
            },
            BaselineEntry,
        ),
    ],
)
def test_names_of_metrics_in_a_file_are_checked(plain: object, kind: type) -> None:
    assert "metric name 'Peak Bytes' must match" in bad_value(plain, kind)


@pytest.mark.parametrize("role", [b"target", b"ranks"])
def test_an_axis_that_a_stored_case_lacks_is_refused(role: bytes) -> None:
    lines = codec.start_lines(finished({"copy": 1.0}))
    odd = lines.replace(b'"%s":""' % role, b'"%s":"zz"' % role)
    assert odd != lines
    with pytest.raises(StoreError, match=f"{role.decode()}='zz' is not an axis of the case"):
        codec.read_run(odd, where="x")


def test_a_wrong_type_is_named_by_path_and_value() -> None:
    what = bad_value({"time_us": [1.0, "slow"]}, Block)
    assert what == "key 'time_us.1': Expected `float`, got `str`, found 'slow'"


def test_a_missing_key_is_named() -> None:
    assert "missing required field `unit`" in bad_value({"center": 1.0}, BaselineMetric)


def test_an_unknown_key_is_named_by_path() -> None:
    plain = {"time_us": [1.0], "health": {"power": 3.0}}
    assert bad_value(plain, Block).startswith("key 'health': Object contains unknown field `power`")


def test_an_unknown_key_inside_a_list_is_named() -> None:
    plain = {"variant": "a", "status": "ok", "evidence": [{"slot": 0, "seed": 0, "oops": 1}]}
    assert "key 'evidence.0': Object contains unknown field `oops`" in bad_value(plain, Result)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(StoreError, match="Invalid enum value 'kept'"):
        codec.convert("kept", ClaimWord, where=WHERE)


def test_a_value_that_the_model_refuses_is_refused() -> None:
    assert "processes must be at least 1" in bad_value({"processes": 0}, Settings)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Mappings in a mapping, whose keys msgspec leaves out of its errors."""

    rows: Mapping[str, Mapping[str, tuple[float, ...]]]
    label: str = ""


def test_keys_of_mappings_are_in_the_path() -> None:
    plain = {"rows": {"a": {"x": [1.0]}, "b": {"x": [1.0], "y": [1.0, None]}}, "label": 3}
    what = bad_value(plain, Shelf)
    assert what == "key 'rows.b.y.1': Expected `float`, got `null`, found None"
    assert plain["rows"] == {"a": {"x": [1.0]}, "b": {"x": [1.0], "y": [1.0, None]}}


def test_a_case_stands_once_in_the_plan() -> None:
    run = finished({"copy": 1.0})
    variants = tuple(variant("copy", n) for n in range(1, 200))
    lines = codec.start_lines(replace(run, variants=variants))
    assert lines.count(b"Copy n floats.") == 1
    found = codec.read_run(lines, where="x.jsonl")
    assert found.variants == variants
    assert all(isinstance(each, Variant) for each in found.variants)


def test_a_run_of_another_version_is_refused_with_the_versions_read() -> None:
    lines = codec.start_lines(finished({"copy": 1.0})).replace(
        b"perfsuite.run/1", b"perfsuite.run/2"
    )
    with pytest.raises(StoreError) as caught:
        codec.read_run(lines, where="x.jsonl")
    assert "'perfsuite.run/2'" in caught.value.what
    assert "'perfsuite.run/1'" in caught.value.what


@pytest.mark.parametrize("run_id", ["../../x", "/x", "..", "", "a\n", "a\x1b]0;x\x07", "x" * 201])
def test_a_run_whose_id_leads_elsewhere_is_refused(run_id: str) -> None:
    text = codec.start_lines(finished({"copy": 1.0}, run_id=run_id))
    for reads in (
        partial(codec.read_header, text.partition(b"\n")[0]),
        partial(codec.read_run, text),
    ):
        with pytest.raises(StoreError, match=r"run id .* cannot be a file name(?s:.*)x, line 1"):
            reads(where="x")


def test_input_sets_that_nobody_makes_are_refused() -> None:
    said = bad_value({"launches": 1, "sets": 10**9}, Sampling)
    assert "sets must be from 1 to 256, not 1000000000" in said
    assert "sets must be" in bad_value({"slot": 0, "seed": 0, "sets": 0}, Evidence)


@pytest.mark.parametrize("text", [b"", b"[]\n", b'{"kind":"result"}\n', b'{"a":1}\n'])
def test_what_is_no_run_file_is_refused(text: bytes) -> None:
    with pytest.raises(StoreError):
        codec.read_run(text, where="x.jsonl")


def test_a_bad_line_of_a_run_is_named_by_number() -> None:
    lines = codec.start_lines(finished({"copy": 1.0}))
    bad = codec.result_line(result(RUN_ID, 1.0)).replace(b'"status":"ok"', b'"status":"fine"')
    with pytest.raises(StoreError) as caught:
        codec.read_run(lines + bad, where="x.jsonl")
    assert caught.value.where == "x.jsonl, line 3"
    assert "'status'" in caught.value.what


def test_a_line_that_is_no_json_is_named_by_number_and_column() -> None:
    lines = codec.start_lines(finished({"copy": 1.0}))
    with pytest.raises(StoreError) as caught:
        codec.read_run(lines + b'{"kind": oops}\n', where="x.jsonl")
    assert caught.value.where == "x.jsonl, line 3, column 10"


def test_a_plan_with_an_unknown_case_is_refused() -> None:
    lines = codec.start_lines(finished({"copy": 1.0}))
    with pytest.raises(StoreError, match=r"key 'variants\.0\.case'"):
        codec.read_run(
            lines.replace(b'"cases":{"memory.copy"', b'"cases":{"memory.kopy"'), where="x"
        )


@pytest.mark.parametrize(
    "plan", [b'{"kind":"plan"}\n', b'{"kind":"plan","cases":{},"variants":1}\n']
)
def test_a_plan_without_its_parts_is_refused(plan: bytes) -> None:
    header = codec.start_lines(finished({"copy": 1.0})).split(b"\n")[0] + b"\n"
    with pytest.raises(StoreError, match="'plan'"):
        codec.read_run(header + plan, where="x")


def test_a_variant_that_is_no_object_is_refused() -> None:
    header = codec.start_lines(finished({"copy": 1.0})).split(b"\n")[0] + b"\n"
    plan = b'{"kind":"plan","cases":{},"variants":[3],"instances":[],"canaries":[]}\n'
    with pytest.raises(StoreError, match=r"key 'variants\.0'"):
        codec.read_run(header + plan, where="x")


def test_nothing_comes_after_the_end() -> None:
    run = finished({"copy": 1.0})
    lines = codec.start_lines(run) + codec.end_lines(run)
    assert codec.is_finished(lines[-codec.TAIL_BYTES :])
    with pytest.raises(StoreError, match="unexpected line of kind 'result'"):
        codec.read_run(lines + codec.result_line(run.results[0]), where="x")
