"""JSON that is written and read strictly: plain text, finite numbers, each key once."""

from __future__ import annotations

import numbers
import re
import reprlib

# By name: a pack may replace what the module holds.
from json import JSONDecodeError, dumps, loads
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perfsuite.boundary import MAGNITUDE, MOST_WHOLE, StoreError, is_measurable
from perfsuite.store.files import is_absent, read

T = TypeVar("T")

# Finer than any noise; the digits after these only make diffs.
SHORT_DIGITS = 6
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def encode(value: object) -> bytes:
    """Return a value as one line of JSON; NaN and infinity are refused."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=plain_value)
        text = dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"cannot store a {type(value).__name__}: {error}",
            remedy="store plain text and numbers, and None where there is no number",
        ) from error
    # Output of a worker may hold half characters; losing one beats losing the result.
    return text.encode("utf-8", "replace")


def plain_value(value: object) -> object:
    """Return libraries' kinds of text and numbers as Python's: torch's version, numpy's scalars."""
    kinds: dict[type, Any] = {str: str, numbers.Integral: int, numbers.Real: float}
    for kind, own in kinds.items():
        if isinstance(value, kind):
            return own(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} is not plain data")


def schema_of(kind: type, *, title: str, version: int) -> str:
    """Return the JSON Schema of a record as text, ``version`` being the one it must have."""
    found = msgspec.json.schema(kind)
    found["$defs"][kind.__name__]["properties"]["schema"] = {"const": version}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return dumps({**head, **found}, indent=2) + "\n"


def round_digits(value: float) -> float:
    """Return the number with as many significant digits as are stored."""
    return float(f"{value:.{SHORT_DIGITS}g}")


def read_json(text: bytes, *, where: str, line: int = 1) -> dict[str, Any]:
    """Return the plain object of stored JSON; ``line`` is the number of its first line.

    Duplicate keys, half characters and numbers that nobody can have measured are refused.
    """
    try:
        decoded = text.decode()
        value = loads(
            decoded,
            object_pairs_hook=_unique,
            parse_constant=_number,
            parse_float=_number,
            parse_int=_number,
        )
        if _HALF.search(decoded):
            dumps(value, ensure_ascii=False).encode()
    except JSONDecodeError as error:
        spot = f"{where}, line {line + error.lineno - 1}, column {error.colno}"
        raise damaged(f"not valid JSON: {error.msg}", spot) from error
    except RecursionError as error:
        raise damaged("nested too deeply", f"{where}, line {line}") from error
    except ValueError as error:
        raise damaged(str(error), f"{where}, line {line}") from error
    if not isinstance(value, dict):
        told = f"expected an object, not {reprlib.repr(value)}"
        raise damaged(told, f"{where}, line {line}")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        key = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"duplicate key {key!r}")
    return found


def _number(digits: str) -> float:
    """Return a number; JSON's own nothing is fine, not what is too small for Python to tell."""
    number = float(digits)
    is_lost = not number and digits.lower().partition("e")[0].strip("-0.")
    if is_lost or not is_measurable(number):
        raise ValueError(
            f"{reprlib.repr(digits)} cannot be stored: a number is 0 or between "
            f"{1 / MAGNITUDE:g} and {MAGNITUDE:g}, with either sign"
        )
    is_whole = digits.lstrip("-").isdigit() and abs(int(digits)) <= MOST_WHOLE
    return int(digits) if is_whole else number


def convert(value: object, kind: type[T], *, where: str) -> T:
    """Return the value of plain data; what does not fit is refused by its path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise damaged(f"not a sound {kind.__name__}: {error}", where) from error


def take_schema(value: dict[str, Any], schema: str, *, where: str) -> None:
    """Take the schema out of a plain object; it must be the one that this version reads."""
    found = value.pop("schema", None)
    if found != schema:
        raise StoreError(
            f"unknown schema {found!r}; this perfsuite reads {schema!r}",
            where=where,
            remedy="use the perfsuite version that wrote the file, or make the file again",
        )


def read_stored(path: Path, schema: str) -> dict[str, Any] | None:
    """Return what a file of ours holds but its schema, None where there is no file.

    Raises OSError, StoreError.
    """
    if is_absent(path):
        return None
    found = read_json(read(path), where=str(path))
    take_schema(found, schema, where=str(path))
    return found


def damaged(what: str, where: str) -> StoreError:
    """Return the error of a stored file that does not hold what it should."""
    remedy = "correct the file, restore it from git, or remove it"
    return StoreError(what, where=where, remedy=remedy)
