"""The text of stored files: JSON that is read strictly, run files and baseline sheets.

A run file has a JSON object a line, tagged with its kind: ``header`` (what ran where), ``plan``
(variants and claims), a ``result`` or ``trace`` for each as it ends, and once it is finished
``judged`` (verdicts, claims, notes) and a short ``end``. The last two may follow once more: what
was judged again later.

A baseline sheet reads like a table in a git diff. Each variant has a line for what it is, one for
who accepted it, one for each metric and each kernel that it launches. The lines that open and close
it never change, so that git merges what two people did to neighbours without a conflict. For the
same reason variants share no table: what is known of a run has a file of its own.
"""

from __future__ import annotations

import json
import numbers
import re
import reprlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from perfsuite.boundary import MAGNITUDE, MOST_WHOLE, StoreError, is_measurable
from perfsuite.model import (
    CLOCKS,
    DIRECTIONS,
    BaselineEntry,
    BaselineMetric,
    ClaimInstance,
    ClaimVerdict,
    LeftOut,
    MachineShift,
    Record,
    Result,
    Run,
    Trace,
    Variant,
    VariantRun,
    Verdict,
)
from perfsuite.store.files import checked_name

T = TypeVar("T")

BASELINE_SCHEMA = "perfsuite.baseline/1"
RUN_SCHEMA = "perfsuite.run/1"
# Finer than any noise; the digits after these only make diffs.
SHORT_DIGITS = 6
# The end line is shorter than this, so that whether a run is finished is read from its tail.
TAIL_BYTES = 256
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class _Plan(Record, frozen=True):
    """The line behind the header: what is to be measured."""

    variants: tuple[Variant, ...]
    instances: tuple[ClaimInstance, ...]
    canaries: tuple[Variant, ...]


class _Judged(Record, frozen=True):
    """The line behind the last result: what is said of them."""

    verdicts: tuple[Verdict, ...]
    claims: tuple[ClaimVerdict, ...]
    notes: tuple[str, ...]
    units: Mapping[str, str]
    shift: MachineShift | None
    phases_s: Mapping[str, float]
    environments: Mapping[str, Mapping[str, str]]
    left_out: tuple[LeftOut, ...]


class _End(Record, frozen=True):
    """The last line."""

    finished: str
    wall_s: float


_PARTS: tuple[type[Record], ...] = (_Plan, _Judged, _End)
# What is no part of another line stands in the header.
_LATER = set(chain.from_iterable(part.__struct_fields__ for part in _PARTS))


def encode(value: object) -> bytes:
    """Return a value as one line of JSON; NaN and infinity are refused."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_to_number)
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"cannot store a {type(value).__name__}: {error}",
            remedy="store plain text and numbers, and None where there is no number",
        ) from error
    # Output of a worker may hold half characters; losing one beats losing the result.
    return text.encode("utf-8", "replace")


def _to_number(value: object) -> object:
    """Turn numpy's scalars into Python's."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def decode(data: bytes, kind: type[T]) -> T:
    """Return a value from a message of this package's own; for stored text see ``read_json``."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"cannot read a {kind.__name__} from {reprlib.repr(data)}: {error}",
            remedy="both ends of a message must be of one perfsuite version",
        ) from error


def schema_of(kind: type, *, title: str, version: int) -> str:
    """Return the JSON Schema of a dataclass as text, ``version`` being the one it must have."""
    found = msgspec.json.schema(kind)
    own = found["$defs"][kind.__name__]
    own["properties"]["schema"] = {"const": version}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **found}, indent=2) + "\n"


def round_digits(value: float) -> float:
    """Return the number with as many significant digits as are stored."""
    return float(f"{value:.{SHORT_DIGITS}g}")


def read_json(text: str | bytes, *, where: str, line: int = 0) -> Any:
    """Return plain values from stored JSON.

    Duplicate keys, half characters and numbers that nobody can have measured are refused.
    ``line`` is the number of the line that the text is, if it is one line of a file.
    """
    place = f"{where}, line {line}" if line else where
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        value = json.loads(
            decoded,
            object_pairs_hook=_unique,
            parse_constant=_measurable,
            parse_float=_measurable,
            parse_int=_whole,
        )
        if _HALF.search(decoded):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        spot = f"{where}, line {line or error.lineno}, column {error.colno}"
        raise _damaged(f"not valid JSON: {error.msg}", spot) from error
    except RecursionError as error:
        raise _damaged("nested too deeply", place) from error
    except ValueError as error:
        raise _damaged(str(error), place) from error
    return value


def _damaged(what: str, where: str) -> StoreError:
    return StoreError(
        what, where=where, remedy="correct the file, restore it from git, or remove it"
    )


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        key = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {key!r}")
    return found


def _whole(digits: str) -> float:
    number = _measurable(digits)
    return int(digits) if abs(int(digits)) <= MOST_WHOLE else number


def _measurable(digits: str) -> float:
    """Return a number; JSON's own nothing is fine, not what is too small for Python to tell."""
    number = float(digits)
    is_lost = not number and any(digit in "123456789" for digit in re.split("[eE]", digits)[0])
    if is_lost or not is_measurable(number):
        raise ValueError(
            f"{reprlib.repr(digits)} cannot be stored: a number is 0 or between "
            f"{1 / MAGNITUDE:g} and {MAGNITUDE:g}, with either sign"
        )
    return number


def convert(value: object, kind: type[T], *, where: str) -> T:
    """Return the value of plain data; what does not fit is refused by its path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _damaged(f"not a sound {kind.__name__}: {error}", where) from error


def _checked_schema(value: object, schema: str, *, where: str) -> dict[str, Any]:
    """Return the plain mapping without its schema, which must be the one this version reads."""
    if not isinstance(value, dict):
        raise _damaged(f"expected an object, not {reprlib.repr(value)}", where)
    found = value.pop("schema", None)
    if found != schema:
        raise StoreError(
            f"unknown schema {found!r}; this perfsuite reads {schema!r}",
            where=where,
            remedy="use the perfsuite version that wrote the file, or make the file again",
        )
    return value


class Acceptance(Record, frozen=True, kw_only=True):
    """Who made a result the baseline, when (UTC), and why."""

    by: str
    when: str
    reason: str


class RunFacts(Record, frozen=True, kw_only=True):
    """What a baseline keeps of a run its entries come from."""

    run: str
    started: str
    commit: str = ""
    command: str = ""
    environment: Mapping[str, str] = {}


class StoredEntry(Record, frozen=True, kw_only=True):
    """A variant's baseline with its acceptance."""

    entry: BaselineEntry
    accepted: Acceptance


class _Sheet(Record, frozen=True):
    sku: str
    pack: str
    variants: Mapping[str, dict[str, Any]]


def flat_text(value: Record) -> bytes:
    """Return a small record as a stored file, one line a key."""
    plain = {"schema": BASELINE_SCHEMA, **msgspec.to_builtins(value)}
    return msgspec.json.format(encode(plain), indent=2) + b"\n"


def read_flat(data: bytes, kind: type[T], *, where: str) -> T:
    """Return the record of a small stored file."""
    plain = _checked_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    return convert(plain, kind, where=where)


def baseline_text(sku: str, pack: str, entries: Mapping[str, StoredEntry]) -> bytes:
    """Return the file of one pack on one SKU, variants and metrics sorted."""
    head = {"schema": BASELINE_SCHEMA, "sku": sku, "pack": pack}
    lines = ["{", *(f"{_text(key)}: {_text(value)}," for key, value in head.items())]
    blocks = [_block(key, entries[key]) for key in sorted(entries)]
    return "\n".join([*lines, '"variants": {', "\n,\n".join(blocks), "}", "}", ""]).encode()


def _block(variant: str, stored: StoredEntry) -> str:
    entry = msgspec.to_builtins(stored.entry)
    lists = {name: entry.pop(name) for name in ("kernels", "codes")}
    for name in ("sampling", "work_class", "load"):  # no diff for what is not known
        if not entry[name]:
            del entry[name]
    for kernel in lists["kernels"]:
        if not kernel["counters"]:
            del kernel["counters"]
    del entry["variant"], entry["metrics"]
    metrics = [
        f"    {_text(name)}: {_text(_shortened(metric))}"
        for name, metric in sorted(stored.entry.metrics.items())
    ]
    lines = [
        f"{_text(variant)}: {{",
        f"  {_text(entry)[1:-1]},",
        f'  "accepted": {_text(stored.accepted)},',
        '  "metrics": {',
        ",\n".join(metrics),
        "}",
    ]
    for name, items in lists.items():
        if items:
            rows = ",\n".join(f"    {_text(item)}" for item in items)
            lines[-1] += f',\n  "{name}": [\n{rows}\n  ]'
    return "\n".join(lines) + "}"


def _text(value: object) -> str:
    return msgspec.json.format(encode(value), indent=0).decode()


def _shortened(metric: BaselineMetric) -> dict[str, Any]:
    """Return the metric with short numbers; those of an exact metric keep every digit."""

    def short(value: float) -> float:
        number = round_digits(value) if metric.values else value
        return int(number) if float(number).is_integer() else number

    rows = sorted(metric.values.items())
    return {
        **msgspec.to_builtins(metric),
        **{name: short(getattr(metric, name)) for name in ("center", "within", "between")},
        "values": {unit: [short(value) for value in values] for unit, values in rows},
    }


def read_baseline(data: bytes, *, sku: str, pack: str, where: str) -> dict[str, StoredEntry]:
    """Return the entries of a pack's file by variant, each checked by itself."""
    plain = _checked_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    sheet = convert(plain, _Sheet, where=where)
    for key, expected in (("sku", sku), ("pack", pack)):
        if getattr(sheet, key) != expected:
            raise StoreError(
                f"key {key!r} is {getattr(sheet, key)!r}, the file's place says {expected!r}",
                where=where,
                remedy="move the file to its own place, or accept a run here",
            )
    found = {}
    for variant, value in sheet.variants.items():
        place = f"{where}, variant {variant!r}"
        accepted = value.pop("accepted", None)
        whole = {"entry": {**value, "variant": variant}, "accepted": accepted}
        stored = found[variant] = convert(whole, StoredEntry, where=place)
        checked_name(stored.entry.run, "run id", where=place)
        for fault in _faults(stored.entry, pack):
            remedy = "restore the entry from git, or accept a run again"
            raise StoreError(fault, where=place, remedy=remedy)
    return found


def _faults(entry: BaselineEntry, pack: str) -> Iterator[str]:
    """Yield numbers that no measurement yields; they would be read as a huge change."""
    if not entry.variant.startswith(f"{pack}."):
        yield f"the variant is not of pack {pack!r}"
    if not entry.metrics:
        yield "key 'metrics' is empty"
    processes: dict[str, int] = {}
    for name, metric in sorted(entry.metrics.items()):
        key = f"key 'metrics.{name}"
        if metric.better not in DIRECTIONS:
            yield f"{key}.better' is {metric.better!r}, not one of {', '.join(DIRECTIONS)}"
        # Others than clocks have noise where they have values by process.
        if not metric.values and name not in CLOCKS:
            continue
        if not metric.values or not all(metric.values.values()):
            yield f"{key}.values' has no process"
        least = min(metric.center, *chain.from_iterable(metric.values.values()))
        if least <= 0:
            yield f"{key}' has a center or a value of {least!r}; it must be above 0"
        if (spread := min(metric.within, metric.between)) < 0:
            yield f"{key}' has a within or between of {spread!r}; it must not be negative"
        found = {unit: len(row) for unit, row in metric.values.items()}
        if found != (processes := processes or found):
            yield f"{key}.values' has other processes than its neighbours"


def start_lines(run: Run) -> bytes:
    """Return the header and the plan of a run that has measured nothing yet."""
    header = {name: getattr(run, name) for name in run.__struct_fields__ if name not in _LATER}
    variants, canaries = ([one.variant for one in each] for each in (run.variants, run.canaries))
    plan = {
        "cases": {f"{each.pack}.{each.case.name}": each.case for each in (*variants, *canaries)},
        "variants": [_without_case(variant) for variant in variants],
        "instances": run.instances,
        "canaries": [_without_case(variant) for variant in canaries],
    }
    return _line("header", {"schema": RUN_SCHEMA, **header}) + _line("plan", plan)


def _without_case(variant: Variant) -> dict[str, Any]:
    """Name the case, which the plan holds once, instead of repeating it a thousand times."""
    return {**msgspec.structs.asdict(variant), "case": f"{variant.pack}.{variant.case.name}"}


def result_line(result: Result) -> bytes:
    """Return the line of one result."""
    return _line("result", msgspec.structs.asdict(result))


def trace_line(trace: Trace) -> bytes:
    """Return the line of one trace."""
    return _line("trace", msgspec.structs.asdict(trace))


def end_lines(run: Run) -> bytes:
    """Return the lines that end a finished run."""
    held = [one.expected for one in run.every if one.expected.environment]
    judged = _Judged(
        verdicts=run.verdicts,
        claims=run.claims,
        notes=run.notes,
        units=run.units,
        shift=run.shift,
        phases_s=run.phases_s,
        environments={each.entry.run: each.environment for each in held if each.entry},
        left_out=run.left_out,
    )
    end = _End(run.finished, run.wall_s)
    lines = {"judged": judged, "end": end}
    return b"".join(_line(kind, msgspec.structs.asdict(part)) for kind, part in lines.items())


def _line(kind: str, values: Mapping[str, Any]) -> bytes:
    return encode({"kind": kind, **values}) + b"\n"


def is_finished(tail: bytes) -> bool:
    """Say whether a run file that ends in these ``TAIL_BYTES`` or more is finished."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and last.startswith(b'{"kind":"end",')


def read_header(line: bytes, *, where: str) -> Run:
    """Return the run as its header line knows it: no variants, no results."""
    place = f"{where}, line 1"
    kind, values = _kind_and_values(line, where=where, number=1)
    if kind != "header":
        raise _misplaced(kind, where)
    run = convert(_checked_schema(values, RUN_SCHEMA, where=where), Run, where=place)
    for name in (run.id, *(part.run for part in run.parts)):
        checked_name(name, "run id", where=place)
    checked_name(run.sku.slug, "SKU slug", where=place)
    return run


def read_run(data: bytes, *, where: str) -> Run:
    """Return a run from the whole lines of its file; ``finished`` is empty if it has no end."""
    first, *lines = data.removesuffix(b"\n").split(b"\n")
    run = read_header(first, where=where)
    results: list[Result] = []
    traces: list[Trace] = []
    judged: _Judged | None = None
    for number, line in enumerate(lines, 2):
        place = f"{where}, line {number}"
        kind, values = _kind_and_values(line, where=where, number=number)
        # What is judged again may be traced before.
        if kind == "trace":
            traces.append(convert(values, Trace, where=place))
        elif kind == "result" and not run.finished:
            results.append(convert(values, Result, where=place))
        elif kind == "plan" and not run.finished:
            _put_cases(values, place)
            plan = convert(values, _Plan, where=place)
            run = replace(
                run,
                variants=tuple(VariantRun(variant=each) for each in plan.variants),
                instances=plan.instances,
                canaries=tuple(VariantRun(variant=each) for each in plan.canaries),
            )
        elif kind == "judged":
            judged = convert(values, _Judged, where=place)
        elif kind == "end":
            end = convert(values, _End, where=place)
            run = replace(run, finished=end.finished, wall_s=end.wall_s)
        else:
            raise _misplaced(kind, place)
    try:
        run = run.having(results=results, traces=traces)
        if judged is None:
            return run
        run = run.having(verdicts=judged.verdicts, left_out=judged.left_out)
    except ValueError as error:
        remedy = "restore the file from where it was copied"
        raise StoreError(str(error), where=where, remedy=remedy) from error
    return replace(
        run,
        claims=judged.claims,
        notes=judged.notes,
        units=judged.units,
        shift=judged.shift,
        phases_s=judged.phases_s,
    )


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


def _put_cases(plan: dict[str, Any], where: str) -> None:
    """Put the cases that the plan holds once back into its variants."""
    try:
        cases = plan.pop("cases")
        for name in ("variants", "canaries"):
            plan[name] = [{**each, "case": cases[each["case"]]} for each in plan[name]]
    except (KeyError, TypeError) as error:
        raise _misplaced("plan", where) from error
