"""The run file's text: one JSON object a line, tagged with its kind.

``header`` (what ran where), ``plan`` (variants and claims), then a ``result`` for each measuring of
a variant as it ends; ``judged`` (verdicts, claims, notes) and a short ``end`` once it is finished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from perfsuite.codec.text import check_schema, convert, encode, read_json, to_plain
from perfsuite.errors import StoreError
from perfsuite.model import ClaimInstance, ClaimVerdict, Result, Run, Variant, Verdict

RUN_SCHEMA = "perfsuite.run/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    variants: tuple[Variant, ...]
    instances: tuple[ClaimInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    verdicts: tuple[Verdict, ...]
    claims: tuple[ClaimVerdict, ...]
    notes: tuple[str, ...]
    units: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    finished: str
    wall_s: float


# Lines whose fields are the run's own; what none of them has stands in the header.
_PARTS: dict[str, type[_Plan | _Judged | _End]] = {"plan": _Plan, "judged": _Judged, "end": _End}
_LATER = {field.name for part in _PARTS.values() for field in fields(part)} | {"results", "aside"}
# The end line is shorter than this, so that whether a run is finished is read from its tail.
TAIL_BYTES = 256


def start_lines(run: Run) -> bytes:
    """Return the header and the plan of a run that has measured nothing yet."""
    bare = to_plain(
        replace(run, variants=(), instances=(), results=(), aside=(), verdicts=(), claims=())
    )
    header = {key: item for key, item in bare.items() if key not in _LATER}
    plan = {
        "cases": {variant.pack + "." + variant.case.name: variant.case for variant in run.variants},
        "variants": [_without_case(variant) for variant in run.variants],
        "instances": run.instances,
    }
    return _line("header", {"schema": RUN_SCHEMA, **header}) + _line("plan", plan)


def _without_case(variant: Variant) -> dict[str, Any]:
    """Name the case, which the plan holds once, instead of repeating it a thousand times."""
    return {**to_plain(variant), "case": f"{variant.pack}.{variant.case.name}"}


def result_line(result: Result) -> bytes:
    """Return the line of one result."""
    return _line("result", to_plain(result))


def end_lines(run: Run) -> bytes:
    """Return the lines that end a finished run."""
    return _part_line("judged", run) + _part_line("end", run)


def _part_line(kind: str, run: Run) -> bytes:
    return _line(kind, {field.name: getattr(run, field.name) for field in fields(_PARTS[kind])})


def _line(kind: str, values: Mapping[str, Any]) -> bytes:
    return encode({"kind": kind, **values}) + b"\n"


def is_finished(tail: bytes) -> bool:
    """Say whether a run file that ends in these ``TAIL_BYTES`` or more is finished."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and last.startswith(b'{"kind":"end",')


def read_header(line: bytes, *, where: str) -> Run:
    """Return the run as its header line knows it: no variants, no results."""
    kind, values = _kind_and_values(line, where=where, number=1)
    if kind != "header":
        raise _misplaced(kind, where)
    return convert(check_schema(values, RUN_SCHEMA, where=where), Run, where=f"{where}, line 1")


def read_run(data: bytes, *, where: str) -> Run:
    """Return a run from the whole lines of its file; ``finished`` is empty if it has no end."""
    first, *lines = data.removesuffix(b"\n").split(b"\n")
    run = read_header(first, where=where)
    results: list[Result] = []
    for number, line in enumerate(lines, 2):
        place = f"{where}, line {number}"
        kind, values = _kind_and_values(line, where=where, number=number)
        if run.finished or kind not in {*_PARTS, "result"}:
            raise _misplaced(kind, place)
        if kind == "result":
            results.append(convert(values, Result, where=place))
        else:
            run = _with_part(run, kind, values, where=place)
    own = tuple(result for result in results if not result.is_aside)
    return replace(run, results=own, aside=tuple(result for result in results if result.is_aside))


def _kind_and_values(line: bytes, *, where: str, number: int) -> tuple[str, dict[str, Any]]:
    value = read_json(line, where=where, line=number)
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise _misplaced("", f"{where}, line {number}")
    return value.pop("kind"), value


def _misplaced(kind: str, where: str) -> StoreError:
    return StoreError(
        f"not a run file: unexpected line of kind {kind!r}",
        where=where,
        remedy="name a file from .perfsuite/runs that this version of perfsuite wrote",
    )


def _with_part(run: Run, kind: str, values: Mapping[str, Any], *, where: str) -> Run:
    whole = _with_cases(values, where) if kind == "plan" else values
    part = convert(whole, _PARTS[kind], where=where)
    return replace(run, **{field.name: getattr(part, field.name) for field in fields(part)})


def _with_cases(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Put the cases that the plan holds once back into its variants."""
    cases, variants = values.get("cases"), values.get("variants")
    if not isinstance(cases, dict) or not isinstance(variants, list):
        raise _misplaced("plan", where)
    rest = {key: item for key, item in values.items() if key != "cases"}
    return {**rest, "variants": [_with_case(variant, cases) for variant in variants]}


def _with_case(variant: object, cases: Mapping[str, Any]) -> object:
    if not isinstance(variant, dict):
        return variant
    return {**variant, "case": cases.get(str(variant.get("case")))}
