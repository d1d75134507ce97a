"""verdict.json holds what its committed schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import report_data as data

from perfsuite.report.data import read
from perfsuite.report.text import json_schema, verdict_json

SCHEMA = Path(__file__).parents[1] / "docs" / "verdict.schema.json"


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))


def written() -> dict[str, Any]:
    book = read(data.run_of(), baselines=data.baselines_of(), source="baseline nvidia-h200")
    found: dict[str, Any] = json.loads(verdict_json(book))
    return found


def test_the_committed_schema_is_that_of_the_code() -> None:
    if SCHEMA.read_text("utf-8") != json_schema():
        actual = Path(__file__).parent / "gold" / "actual" / SCHEMA.name
        actual.parent.mkdir(exist_ok=True)
        actual.write_text(json_schema(), "utf-8")
        pytest.fail(f"the schema differs: diff {SCHEMA} {actual}, then copy it over if it is right")


def test_the_file_conforms_to_the_schema() -> None:
    assert list(validator().iter_errors(written())) == []


@pytest.mark.parametrize(
    ("key", "value"), [("schema", 2), ("fails", "yes"), ("counts", {"same": "all"}), ("run", None)]
)
def test_the_schema_refuses_what_is_not_such_a_file(key: str, value: object) -> None:
    assert list(validator().iter_errors({**written(), key: value}))


def test_every_key_is_documented() -> None:
    text = (SCHEMA.parent / "verdict.md").read_text("utf-8")
    found = written()
    judged = next(one for one in found["variants"] if one["verdict"] and one["verdict"]["changes"])
    keys = {*found, *judged, *judged["verdict"], *judged["verdict"]["changes"][0]}
    keys |= {key for claim in found["claims"] for key in claim}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
