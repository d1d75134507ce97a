"""JSON that is read strictly: schemas, unknown fields, duplicate keys, places of errors."""

from __future__ import annotations

import copy
import json
import math
import numbers
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Never, TypeVar

import msgspec
from msgspec.structs import replace

from perfsuite.boundary import (
    DIGITS,
    LEVELS,
    MAGNITUDE,
    MOST_WHOLE,
    StoreError,
    is_measurable,
)
from perfsuite.model import (
    CLOCKS,
    DIRECTIONS,
    BaselineEntry,
    BaselineMetric,
    Result,
    Run,
    Trace,
    Variant,
)
from perfsuite.store.files import checked_name

# Turns the model into JSON text and back, and says exactly what is wrong with a text.


T = TypeVar("T")

_STEP = re.compile(r"\.([^.\[`]+)|\[(\d+|\.\.\.)\]")
# A duplicate key is placed by the lines that name it; in more lines than this they say nothing.
_MOST_LINES_NAMED = 3
_MOST_SHOWN = 40
# Only with such an exponent, or so many digits, can a number be beyond MAGNITUDE or 64 bits.
# Looking for one beats looking at every number.
_EXTREME = re.compile(r"[-\[:,\s][\d.]+[eE][+-]?(?:[7-9]\d|\d{3})")
_LONG = re.compile(r"\d{19}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_CONTAINERS = (dict, list, tuple)
_TOO_DEEP = f"nested too deeply: more than {LEVELS} levels"


def encode(value: object) -> bytes:
    """Return a model value as one line of JSON; NaN and infinity are refused with their path."""
    plain = to_plain(value)
    try:
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise StoreError(
            f"cannot store {_not_finite(plain, '')} of a {type(value).__name__}",
            remedy="store None where there is no number",
        ) from error
    # Output of a worker may hold half characters; losing one beats losing the result.
    return text.encode("utf-8", "replace")


def decode(data: bytes, kind: type[T]) -> T:
    """Return a value from a message of this package's own; for stored text see ``read_json``.

    NaN and wrong types are refused. Duplicate and unknown keys are not looked for.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(
            f"cannot read a {kind.__name__} from {reprlib.repr(data)}: {error}",
            remedy="both ends of a message must be of one perfsuite version",
        ) from error


def to_plain(value: object) -> Any:
    """Return dicts, lists and scalars for a model value."""
    try:
        return msgspec.to_builtins(value, enc_hook=_to_number)
    except TypeError as error:
        raise StoreError(
            f"cannot store a {type(value).__name__}: {error}",
            remedy="store plain text and numbers only",
        ) from error


def schema_of(kind: type, *, title: str, version: int) -> str:
    """Return the JSON Schema of a dataclass as text, ``version`` being the one it must have."""
    found = msgspec.json.schema(kind)
    own = found["$defs"][kind.__name__]
    own["properties"]["schema"] = {"const": version}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps({**head, **found}, indent=2) + "\n"


def _to_number(value: object) -> object:
    """Turn numpy's scalars into Python's."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not plain data")


def _not_finite(plain: object, path: str) -> str:
    """Return path and value of the first number that JSON does not have, or nothing."""
    if isinstance(plain, float) and not math.isfinite(plain):
        return f"{path.lstrip('.')} = {plain!r}"
    children: Iterable[tuple[object, object]] = ()
    if isinstance(plain, dict):
        children = plain.items()
    elif isinstance(plain, (list, tuple)):
        children = enumerate(plain)
    return next(filter(None, (_not_finite(item, f"{path}.{key}") for key, item in children)), "")


def read_json(text: str | bytes, *, where: str, line: int = 0) -> Any:
    """Return plain values from stored JSON; duplicate keys, NaN and bad syntax are refused.

    So are numbers that nobody can have measured.
    ``line`` is the number of the line that the text is, if it is one line of a file.
    """
    place = f"{where}, line {line}" if line else where
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        is_long = _LONG.search(decoded)
        value = json.loads(
            decoded,
            object_pairs_hook=partial(_unique, decoded),
            parse_constant=_refuse_number,
            parse_float=_measurable if is_long or _EXTREME.search(decoded) else None,
            parse_int=_whole if is_long else None,
        )
        if _HALF.search(decoded):
            _refuse_halves(value)
    except json.JSONDecodeError as error:
        spot = f"{where}, line {line or error.lineno}, column {error.colno}"
        raise _damaged(f"not valid JSON: {error.msg}", spot) from error
    except UnicodeDecodeError as error:
        raise _damaged(f"not UTF-8: byte {error.object[error.start]:#x}", place) from error
    except RecursionError as error:
        raise _damaged(_TOO_DEEP, place) from error
    except _RefusedError as error:
        raise _damaged(str(error), place) from None
    return check_levels(value, where=place)


def check_levels(value: object, *, where: str) -> Any:
    """Return plain values from outside; those nested too deeply to be gone through are refused."""
    level: list[Any] = [[value]]
    for _ in range(LEVELS + 1):
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, _CONTAINERS)
        ]
        if not level:
            return value
    raise _damaged(_TOO_DEEP, where)


def _damaged(what: str, where: str) -> StoreError:
    return StoreError(
        what, where=where, remedy="correct the file, restore it from git, or remove it"
    )


class _RefusedError(Exception):
    pass


def _unique(text: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        key = next(name for name in names if names.count(name) > 1)
        quoted = json.dumps(key, ensure_ascii=False)
        lines = [str(number) for number, line in enumerate(text.split("\n"), 1) if quoted in line]
        place = f" (lines {', '.join(lines)})" if 1 < len(lines) <= _MOST_LINES_NAMED else ""
        raise _RefusedError(f"duplicate key {key!r}{place}")
    return found


def _refuse_number(digits: str) -> Never:
    raise _RefusedError(f"{digits} is not a number that can be stored")


def _whole(digits: str) -> float:
    if len(digits) > DIGITS:
        raise _RefusedError(f"a number of {len(digits)} digits, {digits[:20]}..., cannot be stored")
    number = int(digits)
    return number if abs(number) <= MOST_WHOLE else _measurable(digits)


def _refuse_halves(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise _RefusedError(f"half a character, {half!a}, cannot be stored") from None


def _measurable(digits: str) -> float:
    """Return a number; JSON's own nothing is fine, not what is too small for Python to tell."""
    number = float(digits)
    is_lost = not number and any(digit in "123456789" for digit in re.split("[eE]", digits)[0])
    if is_lost or not is_measurable(number):
        shown = digits if len(digits) <= _MOST_SHOWN else f"{digits[:20]}..."
        raise _RefusedError(
            f"{shown} cannot be stored: a number is 0 or between {1 / MAGNITUDE:g} and "
            f"{MAGNITUDE:g}, with either sign"
        )
    return number


def convert(value: object, kind: type[T], *, where: str) -> T:
    """Return the dataclass of plain values; a bad or an unknown key is refused by its path."""
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _damaged(_complaint(value, kind, error), where) from error
    unknown = _unknown_key(value, to_plain(found), "")
    if unknown:
        raise StoreError(
            f"unknown key {unknown!r} in a {kind.__name__}",
            where=where,
            remedy="remove it, or read the file with the perfsuite version that wrote it",
        )
    return found


def check_schema(value: object, schema: str, *, where: str) -> dict[str, Any]:
    """Return the plain mapping without its schema, which must be the one this version reads."""
    if not isinstance(value, dict):
        raise _damaged(f"expected an object, not {reprlib.repr(value)}", where)
    found = value.get("schema")
    if found != schema:
        raise StoreError(
            f"unknown schema {found!r}; this perfsuite reads {schema!r}",
            where=where,
            remedy="use the perfsuite version that wrote the file, or make the file again",
        )
    return {key: item for key, item in value.items() if key != "schema"}


def _unknown_key(value: Any, known: Any, path: str) -> str:
    """Return the path of the first key that the dataclass did not take."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in known:
                return f"{path}.{key}".lstrip(".")
            if isinstance(item, _CONTAINERS) and (
                below := _unknown_key(item, known[key], f"{path}.{key}")
            ):
                return below
    # The items of a list are of one kind: samples are passed over.
    elif value and isinstance(value[0], _CONTAINERS):
        pairs = enumerate(zip(value, known, strict=True))
        found = (_unknown_key(*pair, f"{path}.{index}") for index, pair in pairs)
        return next(filter(None, found), "")
    return ""


def _complaint(value: object, kind: type[T], error: msgspec.ValidationError) -> str:
    """Say which key is bad, why, and what it holds; msgspec leaves out the keys of mappings."""
    message, _, place = str(error).partition(" - at `$")
    node = root = copy.deepcopy(value)
    path: list[str] = []
    for name, index in _STEP.findall(place):
        key = name or index
        if index == "...":
            key = _guilty_key(root, node, kind, str(error))
        node = node[int(key)] if isinstance(node, (list, tuple)) else node[key]  # type: ignore[index]
        path.append(key)
    label = f"key {'.'.join(path)!r}" if path else f"a {kind.__name__}"
    return f"{label}: {message}, found {reprlib.repr(node)}"


def _guilty_key(root: object, node: Any, kind: type[T], complaint: str) -> str:
    """Return the mapping's key whose item alone is refused so, and leave only it in the mapping."""
    items: dict[str, object] = dict(node)

    def is_guilty(key: str) -> bool:
        node.clear()
        node[key] = items[key]
        try:
            msgspec.convert(root, kind)
        except msgspec.ValidationError as error:
            return str(error) == complaint
        return False

    return next(filter(is_guilty, items))


# The baseline files' text: JSON in block form, so that a git diff reads like a table.
#
# Each variant has a line for what it is, one for who accepted it, one for each metric, and one for
# each kernel that it launches. The lines that open and close it never change, so that git merges
# what two people did to neighbours without a conflict. For the same reason no table is shared by
# the variants: what is known of a run has a file of its own, which is the same whoever accepts the
# run.


BASELINE_SCHEMA = "perfsuite.baseline/1"
# Finer than any noise; the digits after these only make diffs.
BLOCKS_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Who made a result the baseline, when (UTC), and why."""

    by: str
    when: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a baseline keeps of a run its entries come from."""

    run: str
    started: str
    commit: str = ""
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A variant's baseline with its acceptance."""

    entry: BaselineEntry
    accepted: Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sheet:
    sku: str
    pack: str
    variants: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    accepted: Acceptance


def flat_text(value: object) -> bytes:
    """Return a small dataclass as a stored file, one line a key."""
    plain = {"schema": BASELINE_SCHEMA, **to_plain(value)}
    return msgspec.json.format(encode(plain), indent=2) + b"\n"


def read_flat(data: bytes, kind: type[T], *, where: str) -> T:
    """Return the dataclass of a small stored file."""
    plain = check_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    return convert(plain, kind, where=where)


def baseline_text(sku: str, pack: str, entries: Mapping[str, StoredEntry]) -> bytes:
    """Return the file of one pack on one SKU, variants and metrics sorted."""
    head = {"schema": BASELINE_SCHEMA, "sku": sku, "pack": pack}
    lines = ["{", *(f"{_text(key)}: {_text(value)}," for key, value in head.items())]
    blocks = [_block(key, entries[key]) for key in sorted(entries)]
    return "\n".join([*lines, '"variants": {', "\n,\n".join(blocks), "}", "}", ""]).encode()


def _block(variant: str, stored: StoredEntry) -> str:
    entry = to_plain(stored.entry)
    del entry["variant"], entry["metrics"]
    entry["kernels"] = kernels_to_plain(entry["kernels"])
    traced = "".join(_rows(name, entry.pop(name)) for name in ("kernels", "codes"))
    for name in ("sampling", "work_class", "load"):  # no diff for what is not known
        if not entry[name]:
            del entry[name]
    metrics = (
        f"    {_text(name)}: {_text(_rounded(metric))}"
        for name, metric in sorted(stored.entry.metrics.items())
    )
    lines = [
        f"{_text(variant)}: {{",
        f"  {_text(entry)[1:-1]},",
        f'  "accepted": {_text(stored.accepted)},',
        '  "metrics": {',
        ",\n".join(metrics),
        f"}}{traced}}}",
    ]
    return "\n".join(lines)


def _rows(name: str, items: list[dict[str, Any]]) -> str:
    """Return a list as more of an entry, one line an item; nothing for none."""
    text = ",\n".join(f"    {_text(item)}" for item in items)
    return f',\n  "{name}": [\n{text}\n  ]' if items else ""


def kernels_to_plain(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return plain kernels without counters where there are none, whole counts as integers."""
    return [
        {
            **{key: item for key, item in each.items() if key != "counters"},
            **({"counters": dict(_whole_blocks(each["counters"]))} if each["counters"] else {}),
        }
        for each in items
    ]


def _whole_blocks(counters: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, count in counters.items():
        yield name, int(count) if float(count).is_integer() else count


def _text(value: object) -> str:
    return msgspec.json.format(encode(value), indent=0).decode()


def _rounded(metric: BaselineMetric) -> dict[str, Any]:
    """Return the metric with short numbers; those of an exact metric keep every digit."""
    is_exact = not metric.values
    plain: dict[str, Any] = to_plain(metric)
    for key in ("center", "within", "between"):
        plain[key] = _short(plain[key], is_exact=is_exact)
    plain["values"] = {
        unit: [_short(value, is_exact=is_exact) for value in values]
        for unit, values in sorted(metric.values.items())
    }
    return plain


def _short(value: float, *, is_exact: bool) -> float:
    number = value if is_exact else round_digits(value)
    return int(number) if float(number).is_integer() else number


def round_digits(value: float) -> float:
    """Return the number with as many significant digits as are stored."""
    return float(f"{value:.{BLOCKS_DIGITS}g}")


def read_baseline(data: bytes, *, sku: str, pack: str, where: str) -> dict[str, StoredEntry]:
    """Return the entries of a pack's file by variant, each checked by itself."""
    plain = check_schema(read_json(data, where=where), BASELINE_SCHEMA, where=where)
    sheet = convert(plain, _Sheet, where=where)
    for key, expected in (("sku", sku), ("pack", pack)):
        if getattr(sheet, key) != expected:
            raise StoreError(
                f"key {key!r} is {getattr(sheet, key)!r}, the file's place says {expected!r}",
                where=where,
                remedy="move the file to its own place, or accept a run here",
            )
    return {
        variant: _read_entry(variant, value, pack=pack, where=f"{where}, variant {variant!r}")
        for variant, value in sheet.variants.items()
    }


def _read_entry(variant: str, value: object, *, pack: str, where: str) -> StoredEntry:
    if not isinstance(value, dict) or "variant" in value:
        raise _bad(f"expected an object without a key 'variant', not {value!r}", where)
    if not variant.startswith(f"{pack}."):
        raise _bad(f"the variant is not of pack {pack!r}", where)
    acceptance = {key: value[key] for key in ("accepted",) if key in value}
    rest = {key: item for key, item in value.items() if key != "accepted"}
    stored = StoredEntry(
        entry=convert({"variant": variant, **rest}, BaselineEntry, where=where),
        accepted=convert(acceptance, _Accepted, where=where).accepted,
    )
    checked_name(stored.entry.run, "run id", where=where)
    for fault in _faults(stored.entry):
        raise _bad(fault, where)
    return stored


def _faults(entry: BaselineEntry) -> Iterator[str]:
    """Yield numbers that no measurement yields; they would be read as a huge change."""
    if not entry.metrics:
        yield "key 'metrics' is empty"
    processes: dict[str, int] = {}
    for name, metric in sorted(entry.metrics.items()):
        key = f"key 'metrics.{name}"
        if metric.better not in DIRECTIONS:
            yield f"{key}.better' is {metric.better!r}, not one of {', '.join(DIRECTIONS)}"
        # Clocks always have noise; others have it where they have values by process.
        if not metric.values and name not in CLOCKS:
            continue
        yield from _bad_numbers(key, metric)
        found = {unit: len(row) for unit, row in metric.values.items()}
        if found != (processes := processes or found):
            yield f"{key}.values' has other processes than its neighbours"


def _bad_numbers(key: str, metric: BaselineMetric) -> Iterator[str]:
    if not metric.values or not all(metric.values.values()):
        yield f"{key}.values' has no process"
    least = {f"values.{unit}": min(row) for unit, row in metric.values.items()}
    for part, number in {"center": metric.center, **least}.items():
        if number <= 0:
            yield f"{key}.{part}' is {number!r}; it must be above 0"
    for part, number in (("within", metric.within), ("between", metric.between)):
        if number < 0:
            yield f"{key}.{part}' is {number!r}; it must not be negative"


def _bad(what: str, where: str) -> StoreError:
    return StoreError(what, where=where, remedy="restore the entry from git, or accept a run again")


# The run file's text: one JSON object a line, tagged with its kind.
#
# ``header`` (what ran where), ``plan`` (variants and claims), then a ``result`` for each measuring
# of a variant as it ends and a ``trace`` for each that was traced; ``judged`` (verdicts, claims,
# notes) and a short ``end`` once it is finished. Both may follow once more: what was judged again
# later.


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
