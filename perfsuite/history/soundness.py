"""Rows of a database as values of ours: any program may write to it, so that a row may be damaged.

SQLite keeps no column to its type. A row that holds what perfsuite never writes is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any, TypeVar

from perfsuite.boundary import is_measurable, plain
from perfsuite.codec import decode
from perfsuite.errors import StoreError
from perfsuite.history.store import KEY, History

T = TypeVar("T")
# Returns the value of a cell; raises TypeError or ValueError if it is damaged.
Read = Callable[[Any], Any]


def raw(cell: Any) -> str:
    """Return a text that is for programs, of any length."""
    if not isinstance(cell, str):
        raise TypeError
    return cell


def text(cell: Any) -> str:
    """Return a text."""
    return plain(raw(cell))


def moment(cell: Any) -> str:
    """Return a time, as the text it is stored as; one that is none is shown as it is."""
    found = text(cell)
    with suppress(ValueError):
        when = datetime.fromisoformat(found)
        if not MINYEAR < when.year < MAXYEAR:  # at the edge no other zone has it
            raise TypeError
    return found


def whole(cell: Any) -> int:
    """Return a whole number."""
    if type(cell) is not int:
        raise TypeError
    return cell


def number(cell: Any) -> float:
    """Return a number that can have been measured."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        raise TypeError
    if not is_measurable(cell):
        raise ValueError
    return cell


def maybe(cell: Any) -> float | None:
    """Return a number, or None where nothing was measured."""
    return None if cell is None else number(cell)


def values(cell: Any) -> dict[str, tuple[float, ...]]:
    """Return the processes' values by unit."""
    found = decode(raw(cell).encode(), dict[str, tuple[float, ...]])
    return {plain(unit): tuple(map(number, row)) for unit, row in found.items()}


LABEL: Mapping[str, Read] = {"id": text, "started": moment, "commit": text}
POINT: Mapping[str, Read] = {
    **dict.fromkeys(("run", "started", "commit"), text),
    "started": moment,
    "center": maybe,
    "values": values,
    "between": number,
    "word": text,
    **dict.fromkeys(("theta", "low", "high"), maybe),
    **dict.fromkeys(("part", "why_not"), text),
}
MOVE: Mapping[str, Read] = {
    "run": text,
    "accepted": moment,
    "by": text,
    "reason": text,
    "center": number,
}
KEYS: Mapping[str, Read] = {name: whole if name == "case_version" else text for name in KEY}
COLUMN: Mapping[str, Read] = {"center": maybe, "why_not": text}


def sound(
    history: History, make: Callable[..., T], kinds: Mapping[str, Read], row: Sequence[Any]
) -> T | None:
    """Return what is made of a row, by the columns' names; None, noted, if it is damaged."""
    try:
        cells = zip(kinds.items(), row, strict=True)
        return make(**{name: read(cell) for (name, read), cell in cells})
    except (TypeError, ValueError, StoreError):
        history.damaged += 1
        return None
