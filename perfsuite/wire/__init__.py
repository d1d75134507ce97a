"""The messages between panel, server and worker: tagged JSON of frozen dataclasses, no pickle."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perfsuite.boundary import MESSAGE_BYTES
from perfsuite.errors import PerfError
from perfsuite.wire.messages import (
    Check,
    Checked,
    Describe,
    Described,
    Exited,
    Failed,
    Finish,
    Finished,
    Fork,
    Forked,
    Hello,
    Job,
    Measure,
    Measured,
    Message,
    Ping,
    Prepare,
    Prepared,
    Progress,
    Ready,
    Reap,
    Rival,
    Start,
    Traced,
    TraceOne,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = [
    "Check",
    "Checked",
    "Describe",
    "Described",
    "Exited",
    "Failed",
    "Finish",
    "Finished",
    "Fork",
    "Forked",
    "Hello",
    "Job",
    "Measure",
    "Measured",
    "Message",
    "Ping",
    "Prepare",
    "Prepared",
    "Progress",
    "Ready",
    "Reap",
    "Reply",
    "Rival",
    "Start",
    "TraceOne",
    "Traced",
    "decode",
    "encode",
    "receive",
    "send",
]

Reply = TypeVar("Reply", bound=Message)


@cache
def _decoders() -> dict[str, msgspec.json.Decoder[Any]]:
    return {kind.__name__: msgspec.json.Decoder(kind) for kind in Message.__args__}


def encode(message: Message) -> bytes:
    """Return a message as bytes, its type's name first."""
    return msgspec.json.encode((type(message).__name__, message), enc_hook=_plain)


def _plain(value: Any) -> str | float | int:
    # Libraries have their own kinds of text and numbers: torch's version, numpy's scalars.
    for kind in (str, float, int):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot travel to the panel")


def decode(data: bytes) -> Message:
    """Return the message in ``data``; raises PerfError for anything that is none."""
    try:
        name, body = msgspec.json.decode(data, type=tuple[str, msgspec.Raw])
        message: Message = _decoders()[name].decode(body)
    except (KeyError, msgspec.MsgspecError) as error:
        # A NaN arrives as null, so that it is refused here and not at the run file.
        raise PerfError(f"damaged message {data[:80]!r}: {error}") from error
    return message


def send(connection: Connection, message: Message) -> None:
    """Send a message; raises OSError when the other side is gone."""
    connection.send_bytes(encode(message))


def receive(connection: Connection) -> Message:
    """Wait for a message; raises EOFError or OSError when the other side is gone."""
    return decode(connection.recv_bytes(MESSAGE_BYTES))
