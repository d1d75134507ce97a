"""JSON Schemas of what perfsuite stores, from the dataclasses that it reads them into."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from markup import code, documented, table

from perfsuite.model import BaselineEntry, CaseInfo, Result, Run, Sku, Trace, Variant
from perfsuite.report.files import json_schema
from perfsuite.store.baselines import BASELINE_SCHEMA, Acceptance, RunFacts
from perfsuite.store.runs import LATER, PARTS, RUN_SCHEMA

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
TITLES = {
    "verdict": "verdict.json, the outcome of a run",
    "run": "A line of a run file",
    "baseline": "A pack's accepted numbers on a SKU",
}


def verdict_schema() -> Schema:
    """Return the schema of verdict.json."""
    found: Schema = json.loads(json_schema())
    return found


def run_schema() -> Schema:
    """Return the schema of one line of a run file; its kind says which."""
    _, found = msgspec.json.schema_components(
        [Run, CaseInfo, Variant, Result, Trace, *PARTS.values()], ref_template="#/$defs/{name}"
    )
    own = found["Run"]["properties"]
    header = {name: told for name, told in own.items() if name not in LATER}
    lines = {
        "header": _object({"schema": {"const": RUN_SCHEMA}, **header}, found["Run"]["required"]),
        **{kind: _object(found.pop(part.__name__)["properties"]) for kind, part in PARTS.items()},
        "result": {"$ref": "#/$defs/Result"},
        "trace": {"$ref": "#/$defs/Trace"},
    }
    lines["plan"]["properties"]["cases"] = _mapping("CaseInfo")
    # Each stands in a line that says its kind besides.
    for name in ("Result", "Trace"):
        found[name].pop("additionalProperties", None)
    # A variant names its case, which the plan holds once.
    found["Variant"]["properties"]["case"] = {"type": "string"}
    for name in ("Run", "VariantRun", "Expected"):
        del found[name]
    kinds = [
        {"allOf": [_object({"kind": {"const": name}}, ["kind"]), told]}
        for name, told in lines.items()
    ]
    return {"$schema": DRAFT, "title": TITLES["run"], "oneOf": kinds, "$defs": found}


def baseline_schema() -> Schema:
    """Return the schema of ``baselines/<sku>/<pack>.json``."""
    _, found = msgspec.json.schema_components(
        [BaselineEntry, Acceptance, RunFacts, Sku], ref_template="#/$defs/{name}"
    )
    entry = found["BaselineEntry"]
    entry["required"] = [name for name in entry["required"] if name != "variant"] + ["accepted"]
    del entry["properties"]["variant"]
    entry["properties"]["accepted"] = {"$ref": "#/$defs/Acceptance"}
    head = {
        "schema": {"const": BASELINE_SCHEMA},
        "sku": {"type": "string"},
        "pack": {"type": "string"},
    }
    body = _object({**head, "variants": _mapping("BaselineEntry")}, [*head, "variants"])
    return {"$schema": DRAFT, "title": TITLES["baseline"], **body, "$defs": found}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    own = [name for name in required or () if name in properties]
    return {"type": "object", "properties": properties, "required": own}


def _mapping(name: str) -> Schema:
    return {"type": "object", "additionalProperties": {"$ref": f"#/$defs/{name}"}}


def schema_page(schemas: Mapping[str, Schema]) -> str:
    """Return the page of all schemas, with a table for each object."""
    return "".join(["# Stored files\n\n", *_schemas(schemas)])


def _schemas(schemas: Mapping[str, Schema]) -> Iterator[str]:
    yield "JSON Schemas (draft 2020-12), made from the code that reads and writes the files. A new "
    yield "key is no new schema: ignore what you do not know.\n\n"
    for name in schemas:
        yield f"- {TITLES[name]}: [{name}.schema.json]({name}.schema.json)\n"
    objects: Schema = {}
    for schema in schemas.values():
        # What two files share is the same object.
        objects |= {**schema["$defs"], **objects}
    for name, told in sorted(objects.items()):
        yield f"\n## {name}\n\n{documented(inspect.cleandoc(told.get('description', '')))}"
        if "enum" in told:
            yield "One of " + ", ".join(map(code, told["enum"])) + ".\n\n"
        needed = told.get("required", ())
        rows = [
            (code(key), _kind(of), "" if key in needed else "optional")
            for key, of in told.get("properties", {}).items()
        ]
        if rows:
            yield table(("key", "type", ""), rows)


def _kind(told: Schema) -> str:
    if "$ref" in told:
        name = told["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in told:
        return " or ".join(map(_kind, told["anyOf"]))
    if "const" in told:
        return code(json.dumps(told["const"]))
    of = told.get("type", "anything")
    if of == "array":
        inner: Schema = told.get("items") or next(iter(told.get("prefixItems", ())), {})
        return f"list of {_kind(inner)}" if inner else "list"
    if of == "object":
        values = told.get("additionalProperties")
        return f"by name: {_kind(values)}" if isinstance(values, dict) and values else "object"
    return " or ".join(of) if isinstance(of, list) else str(of)
