"""The run file's text: one JSON object a line, tagged with its kind.

``header`` (what ran where), ``plan`` (variants and claims), then a ``result`` for each measuring of
a variant as it ends and a ``trace`` for each that was traced; ``judged`` (verdicts, claims, notes)
and a short ``end`` once it is finished. Both may follow once more: what was judged again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from perfsuite.codec.blocks import kernels_to_plain
from perfsuite.codec.text import check_schema, convert, encode, read_json, to_plain
from perfsuite.errors import StoreError
from perfsuite.files import checked_name
from perfsuite.model import Result, Run, Trace, Variant

RUN_SCHEMA = "perfsuite.run/1"
# Lines whose keys are the run's own fields; what none of them has stands in the header.
_PARTS = {
    "plan": ("variants", "instances", "canaries"),
    "judged": (
        *("verdicts", "claims", "notes", "units", "shift", "phases_s"),
        *("environments", "left_out"),
    ),
    "end": ("finished", "wall_s"),
}
_MEASURED: Mapping[str, type[Any]] = {"result": Result, "trace": Trace}
_LATER = {"results", "aside", "traces", *chain.from_iterable(_PARTS.values())}
# The end line is shorter than this, so that whether a run is finished is read from its tail.
TAIL_BYTES = 256


def start_lines(run: Run) -> bytes:
    """Return the header and the plan of a run that has measured nothing yet."""
    bare = replace(run, variants=(), canaries=(), instances=(), verdicts=(), claims=())
    bare = replace(bare, results=(), aside=(), traces=())
    header = {key: item for key, item in to_plain(bare).items() if key not in _LATER}
    every = (*run.variants, *run.canaries)
    plan = {
        "cases": {variant.pack + "." + variant.case.name: variant.case for variant in every},
        "variants": [_without_case(variant) for variant in run.variants],
        "instances": run.instances,
        "canaries": [_without_case(variant) for variant in run.canaries],
    }
    return _line("header", {"schema": RUN_SCHEMA, **header}) + _line("plan", plan)


def _without_case(variant: Variant) -> dict[str, Any]:
    """Name the case, which the plan holds once, instead of repeating it a thousand times."""
    return {**to_plain(variant), "case": f"{variant.pack}.{variant.case.name}"}


def result_line(result: Result) -> bytes:
    """Return the line of one result."""
    return _line("result", to_plain(result))


def trace_line(trace: Trace) -> bytes:
    """Return the line of one trace."""
    plain = to_plain(trace)
    return _line("trace", {**plain, "kernels": kernels_to_plain(plain["kernels"])})


def end_lines(run: Run) -> bytes:
    """Return the lines that end a finished run."""
    return _part_line("judged", run) + _part_line("end", run)


def _part_line(kind: str, run: Run) -> bytes:
    return _line(kind, {name: getattr(run, name) for name in _PARTS[kind]})


def _line(kind: str, values: Mapping[str, Any]) -> bytes:
    return encode({"kind": kind, **values}) + b"\n"


def is_finished(tail: bytes) -> bool:
    """Say whether a run file that ends in these ``TAIL_BYTES`` or more is finished."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and last.startswith(b'{"kind":"end",')


def read_header(line: bytes, *, where: str) -> Run:
    """Return the run as its header line knows it: no variants, no results."""
    return _header(line, where)[1]


def _header(line: bytes, where: str) -> tuple[dict[str, Any], Run]:
    """Return the header's values, and the run that they are; its id becomes a file's name."""
    kind, values = _kind_and_values(line, where=where, number=1)
    if kind != "header":
        raise _misplaced(kind, where)
    header = check_schema(values, RUN_SCHEMA, where=where)
    run = convert(header, Run, where=f"{where}, line 1")
    for name in (run.id, *(part.run for part in run.parts)):
        checked_name(name, "run id", where=f"{where}, line 1")
    checked_name(run.sku.slug, "SKU slug", where=f"{where}, line 1")
    return header, run


def read_run(data: bytes, *, where: str) -> Run:
    """Return a run from the whole lines of its file; ``finished`` is empty if it has no end."""
    first, *lines = data.removesuffix(b"\n").split(b"\n")
    header, run = _header(first, where)
    measured: dict[str, list[Any]] = {"result": [], "trace": []}
    for number, line in enumerate(lines, 2):
        place = f"{where}, line {number}"
        kind, values = _kind_and_values(line, where=where, number=number)
        # What is judged again may be traced before.
        if kind in measured and (kind == "trace" or not run.finished):
            measured[kind].append(convert(values, _MEASURED[kind], where=place))
            continue
        whole = _with_cases(values, place) if kind == "plan" else values
        if (run.finished and kind == "plan") or whole.keys() != {*_PARTS.get(kind, ())}:
            raise _misplaced(kind, place)
        part = convert({**header, **whole}, Run, where=place)
        run = replace(run, **{name: getattr(part, name) for name in whole})
    own, aside = (
        tuple(result for result in measured["result"] if result.is_aside is is_aside)
        for is_aside in (False, True)
    )
    return replace(run, results=own, aside=aside, traces=tuple(measured["trace"]))


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


def _with_cases(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Put the cases that the plan holds once back into its variants."""
    rest = dict(values)
    cases = rest.pop("cases", None)
    for name in ("variants", "canaries"):
        variants = rest.get(name)
        if not isinstance(cases, dict) or not isinstance(variants, list):
            raise _misplaced("plan", where)
        rest[name] = [_with_case(variant, cases) for variant in variants]
    return rest


def _with_case(variant: object, cases: Mapping[str, Any]) -> object:
    if not isinstance(variant, dict):
        return variant
    return {**variant, "case": cases.get(str(variant.get("case")))}
