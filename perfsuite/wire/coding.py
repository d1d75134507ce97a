"""A message as bytes and back; what comes back has passed the limits of ``boundary``."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from perfsuite.boundary import MESSAGE_BYTES, plain
from perfsuite.errors import PerfError
from perfsuite.wire.messages import Message

# What is not printable: JSON writes most of it so, and the rest as it is.
_ESCAPED = re.compile(rb"\\[bfru]")


@cache
def _kinds() -> dict[str, type]:
    return {kind.__name__: kind for kind in Message.__args__}


@cache
def _decoders() -> dict[str, msgspec.json.Decoder[Any]]:
    return {name: msgspec.json.Decoder(kind) for name, kind in _kinds().items()}


def encode(message: Message) -> bytes:
    """Return a message as bytes, its type's name first; raises PerfError if they are too many."""
    data = msgspec.json.encode((type(message).__name__, message), enc_hook=_simple)
    if len(data) > MESSAGE_BYTES:
        raise too_long(len(data))
    return data


def _simple(value: Any) -> str | float | int:
    # Libraries have their own kinds of text and numbers: torch's version, numpy's scalars.
    for kind in (str, float, int):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot travel to the panel")


def decode(data: bytes) -> Message:
    """Return the message in ``data``, its texts plain; raises PerfError for anything that is none.

    A NaN arrives as null, so that it is refused here and not at the run file.
    """
    try:
        name, body = msgspec.json.decode(data, type=tuple[str, msgspec.Raw])
        if data.decode().isprintable() and not _ESCAPED.search(data):
            message: Message = _decoders()[name].decode(body)
        else:
            message = msgspec.convert(_cleaned(msgspec.json.decode(body)), _kinds()[name])
    except (KeyError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise PerfError(f"damaged message {data[:80]!r}: {error}") from error
    return message


def too_long(size: int) -> PerfError:
    """Return the error for a message of so many bytes."""
    return PerfError(f"message of {size >> 20} MiB; the limit is {MESSAGE_BYTES >> 20} MiB")


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return plain(value, most=MESSAGE_BYTES)
        case list():
            return [_cleaned(each) for each in value]
        case dict():
            return {_cleaned(name): _cleaned(each) for name, each in value.items()}
    return value
