"""Files that are there whole or not at all, locks, and JSON that is written and read strictly.

What is stored is read through ``opened`` and written to what ``inside`` allows: plain text, finite
numbers, each key once. What the system refuses is told in words of ours.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import numbers
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

# By name: a pack may replace what the module holds.
from json import JSONDecodeError, dumps, loads
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import msgspec

from perfsuite.boundary import (
    FILE_BYTES,
    MAGNITUDE,
    MOST_WHOLE,
    NAME_CHARACTERS,
    PerfError,
    StoreError,
    is_measurable,
    plain,
    shown,
)

T = TypeVar("T")

# It leads nowhere and is no option.
FILE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{NAME_CHARACTERS - 1}}}\Z")


class Closable(ABC):
    """What its ``with`` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; more than once does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder; the kernel gives it back when the process dies, however it dies."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def refusing(
    what: str, where: Path | str, *, remedy: str, kind: type[PerfError] = StoreError
) -> Iterator[None]:
    """Raise what the operating system refuses as an error that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}", where=str(where), remedy=remedy) from error


def checked_name(name: str, what: str, *, where: object) -> str:
    """Return an id that may be a file's name; another one is a StoreError."""
    if not FILE_NAME.match(name):
        remedy = "use up to 200 letters, digits, hyphens, dots and underscores"
        told = f"{what} {shown(name)} cannot be a file name"
        raise StoreError(told, where=str(where), remedy=remedy)
    return name


def inside(folder: Path, *names: str) -> Path:
    """Return the path of a file below a folder; StoreError where a name or link leads out of it.

    The file itself may be a link: ``replace_file`` puts a file in its place.
    """
    path = folder.joinpath(*(checked_name(name, "the name", where=folder) for name in names))
    place = os.path.realpath(path.parent)
    if not Path(place).is_relative_to(os.path.realpath(folder)):
        told = f"a link leads out of the folder, to {place!r}"
        remedy = "remove the link, or name another folder"
        raise StoreError(told, where=str(path.parent), remedy=remedy)
    return path


@contextmanager
def opened(path: Path, mode: str = "rb") -> Iterator[BinaryIO]:
    """Open a stored file; OSError for what cannot be opened, or is too large."""
    with path.open(mode) as file:
        if os.fstat(file.fileno()).st_size > FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES >> 20} MiB", str(path))
        yield file  # type: ignore[misc]


def read(path: Path) -> bytes:
    """Return a stored file's bytes; raises OSError as ``opened`` does."""
    with opened(path) as file:
        return file.read()


def is_absent(path: Path) -> bool:
    """Say whether nothing is there at all; OSError for what is there and cannot be looked at.

    A link that leads nowhere is there, and so is one in the place of a folder above.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        for each in (path, *path.parents):
            if each.is_symlink() and not each.exists():
                what = f"{str(each)!r} is a link that leads nowhere"
                raise FileNotFoundError(errno.ENOENT, what, str(path)) from error
        return True
    return False


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, none where there is no folder; raises OSError."""
    return [] if is_absent(folder) else sorted(each.name for each in folder.iterdir())


def replace_file(path: Path, data: bytes) -> Path:
    """Put ``data`` in the file's place at once and for good, or leave the old file as it is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        beside.unlink(missing_ok=True)
        # "x" follows no link that somebody put there.
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
    finally:
        beside.unlink(missing_ok=True)
    return path


def unpacked(path: Path) -> bytes:
    """Return a file's bytes, unpacked if its name ends in .gz; raises OSError, StoreError."""
    with opened(path) as file:
        if path.suffix != ".gz":
            return file.read()
        try:
            data = gzip.GzipFile(fileobj=file).read(FILE_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise StoreError(f"cannot be unpacked: {error}", where=str(path)) from error
    if len(data) > FILE_BYTES:
        raise StoreError(f"holds more than {FILE_BYTES >> 20} MiB", where=str(path))
    return data


# JSON.

# Finer than any noise; the digits after these only make diffs.
SHORT_DIGITS = 6
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def encode(value: object) -> bytes:
    """Return a value as one line of JSON; NaN and infinity are refused."""
    try:
        built = msgspec.to_builtins(value, enc_hook=plain_value)
        text = dumps(built, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
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
    except (ValueError, RecursionError) as error:
        raise damaged(str(error), f"{where}, line {line}") from error
    if not isinstance(value, dict):
        told = f"expected an object, not {shown(value)}"
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
            f"{shown(digits)} cannot be stored: a number is 0 or between "
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
            f"unknown schema {shown(found)}; this perfsuite reads {schema!r}",
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
    """Return the error of a stored file that does not hold what it should, however long that is."""
    remedy = "correct the file, restore it from git, or remove it"
    return StoreError(plain(what, most=NAME_CHARACTERS), where=where, remedy=remedy)
