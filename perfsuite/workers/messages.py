"""The messages between a run and its workers, and the channel that carries them."""

from __future__ import annotations

import re
import select
import socket
import time
from contextlib import suppress
from functools import cache
from typing import Any, Self

import msgspec

from perfsuite.boundary import MESSAGE_BYTES, PerfError, plain
from perfsuite.engine.trace import Anatomy
from perfsuite.model import (
    Accelerator,
    Axes,
    DeviceFacts,
    Evidence,
    Kernel,
    Sampling,
    Settings,
    Status,
    Tree,
)
from perfsuite.packs.listing import Listed, Listing

# How a worker exits that failed and could not say why: its socket was closed under it.
UNTOLD = 70


class Message(msgspec.Struct, frozen=True, tag=True):
    """What goes through a channel."""


class Fork(Message, frozen=True):
    """To a server: fork a worker; the handles of its socket and its output file follow."""


class Reap(Message, frozen=True):
    """To a server: kill a worker's process group after ``grace_s``, and say how it ended."""

    pid: int
    grace_s: float = 0.0


class Call(Message, frozen=True):
    """To a worker: do a step of ``STEPS``. To a server: say that it is there."""

    step: str
    given: msgspec.Raw = msgspec.Raw(b"null")


class Progress(Message, frozen=True):
    """From a worker: a phase begins."""

    phase: str


class Done(Message, frozen=True):
    """From a worker: a step is done. From a server: what it was asked for."""

    step: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")


class Failed(Message, frozen=True):
    """From a worker: the variant ended, and why; the worker leaves."""

    status: Status
    reason: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Which variant a process is to run, with what code, and as which process of it.

    ``ranks`` is 0 where no gang is needed; else the process joins the others at ``rendezvous``, a
    file. ``kernels`` are all packs' kernels, for a pack whose hook asks for them. ``tree`` is where
    code that is imported by name comes from, where two revisions are compared. ``accelerator`` is
    the device, if a pack brings it. ``rival`` holds the axes of another variant of the case, to be
    measured in turns with this one.
    """

    pack: str
    origin: str
    case: str
    axes: Axes
    device: str
    settings: Settings
    seed: int = 0
    slot: int = 0
    rank: int = 0
    ranks: int = 0
    rendezvous: str = ""
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None
    accelerator: Accelerator | None = None
    rival: Axes | None = None
    rival_sampling: Sampling | None = None


# What a worker can do: what each step takes and what it gives. "prepare" takes the sampling of the
# baseline or of the process before, and gives the one that was chosen. "check" takes whether the
# check is to be thorough. "trace" takes how many input sets launches rotate over, too. "call" takes
# a feature's function, as ``module:name``, and what it is given.
STEPS: dict[str, tuple[Any, Any]] = {
    "describe": (tuple[str, Accelerator | None], DeviceFacts),
    "list": (Listing, Listed),
    "call": (tuple[str, msgspec.Raw], msgspec.Raw),
    "start": (Job, None),
    "check": (bool, None),
    "prepare": (Sampling | None, Sampling | None),
    "measure": (None, None),
    "finish": (None, tuple[Evidence, ...]),
    "trace": (tuple[Job, int], Anatomy),
}

# What is not printable: JSON writes most of it so, and the rest as it is.
_ESCAPED = re.compile(rb"\\[bfru]")


def _plain_value(value: Any) -> str | float | int:
    # Libraries have their own kinds of text and numbers: torch's version, numpy's scalars.
    for kind in (str, float, int):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot travel to the panel")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain_value)
_BROKEN = (UnicodeDecodeError, RecursionError, msgspec.MsgspecError)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def raw(value: Any) -> msgspec.Raw:
    """Return what a message carries of a value."""
    return msgspec.Raw(_ENCODER.encode(value))


def read(value: bytes | msgspec.Raw, kind: Any) -> Any:
    """Return the value that a message carries; raises PerfError where it is of another kind.

    A NaN arrives as null, so that it is refused here and not at the run file.
    """
    try:
        return _decoder(kind).decode(value)
    except _BROKEN as error:
        raise PerfError(f"damaged message {bytes(value)[:80]!r}: {error}") from error


def encode(message: Message) -> bytes:
    """Return a message as bytes; raises PerfError if they are too many."""
    data = _ENCODER.encode(message)
    if len(data) > MESSAGE_BYTES:
        raise too_long(len(data))
    return data


def decode(data: bytes) -> Message:
    """Return the message in ``data``, its texts plain; raises PerfError for what is none."""
    try:
        if not data.decode().isprintable() or _ESCAPED.search(data):
            data = _ENCODER.encode(_cleaned(msgspec.json.decode(data)))
    except _BROKEN as error:
        raise PerfError(f"damaged message {data[:80]!r}: {error}") from error
    message: Message = read(data, Fork | Reap | Call | Progress | Done | Failed)
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


# A message comes behind its length.
_HEAD_BYTES = 4
_CHUNK_BYTES = 1 << 20
# For how long what is there already is read beyond the time: a sender may never pause.
_BURST_S = 0.01


class Channel:
    """One end of a socket between our processes; OSError or EOFError when the other side is gone.

    Nothing here waits for the rest of a message longer than it was told to wait, whoever is at the
    other end: a workload can write to its worker's socket, and any process can be stopped.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._begun = bytearray()

    @classmethod
    def at(cls, number: int) -> Self:
        """Return a channel of an open socket that was handed to this process."""
        return cls(socket.socket(fileno=number))

    @property
    def is_closed(self) -> bool:
        """Say whether this end was closed."""
        return self._end.fileno() < 0

    def fileno(self) -> int:
        """Return the socket's number, so that several can be waited for at once."""
        return self._end.fileno()

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message; raises TimeoutError if the other side does not take it in time."""
        data = encode(message)
        left = memoryview(len(data).to_bytes(_HEAD_BYTES) + data)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while left:
            if not self._is_ready(select.POLLOUT, deadline):
                raise TimeoutError
            with suppress(BlockingIOError):
                left = left[self._end.send(left) :]

    def receive(self, limit_s: float | None) -> Message | None:
        """Return the next message, None if it has not come as a whole in time.

        Raises PerfError for what is no message.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while missing := self._missing():
            is_over = deadline is not None and time.monotonic() > deadline + _BURST_S
            if is_over or not self._is_ready(select.POLLIN, deadline):
                return None
            with suppress(BlockingIOError):
                # Never more than this message: what follows may be open files.
                chunk = self._end.recv(min(missing, _CHUNK_BYTES))
                if not chunk:
                    raise EOFError
                self._begun += chunk
        data, self._begun = bytes(self._begun[_HEAD_BYTES:]), bytearray()
        return decode(data)

    def has_news(self, limit_s: float) -> bool:
        """Wait until more has come or the other side is gone; say whether it has."""
        return self._is_ready(select.POLLIN, time.monotonic() + limit_s)

    def send_handles(self, *handles: int) -> None:
        """Send open files behind a message that announces them."""
        socket.send_fds(self._end, [b"\0"], handles)

    def receive_handles(self, count: int) -> list[int]:
        """Return the open files that a message announced; raises OSError if they are not all."""
        self._is_ready(select.POLLIN, None)
        _, handles, *_ = socket.recv_fds(self._end, 1, count, socket.MSG_CMSG_CLOEXEC)
        if len(handles) < count:
            raise OSError(f"{len(handles)} of {count} open files arrived: too many are open here")
        return handles

    def close(self) -> None:
        """Close this end, which the other side notices."""
        self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _missing(self) -> int:
        """Return how many bytes are known to be missing of the message that has begun."""
        if len(self._begun) < _HEAD_BYTES:
            return _HEAD_BYTES - len(self._begun)
        size = int.from_bytes(self._begun[:_HEAD_BYTES])
        if size > MESSAGE_BYTES:
            raise too_long(size)
        return _HEAD_BYTES + size - len(self._begun)

    def _is_ready(self, event: int, deadline: float | None) -> bool:
        if self.is_closed:
            raise OSError("this end is closed")
        poller = select.poll()
        poller.register(self._end, event)
        left_ms = None if deadline is None else 1e3 * max(0.0, deadline - time.monotonic())
        return bool(poller.poll(left_ms))


def pair() -> tuple[Channel, Channel]:
    """Return both ends of a new socket; one of them is for another process."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)
