"""Turns the model into JSON text and back, and says exactly what is wrong with a text."""

from __future__ import annotations

import copy
import json
import math
import numbers
import re
import reprlib
from collections.abc import Iterable
from functools import partial
from typing import Any, Never, TypeVar

import msgspec

from perfsuite.boundary import DIGITS, LEVELS, MAGNITUDE, MOST_WHOLE, is_measurable
from perfsuite.errors import StoreError

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
