"""The messages between a run and its workers, and the channel that carries them."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, TypeVar

import msgspec

from perfsuite.boundary import MESSAGE_BYTES, PerfError, plain
from perfsuite.model import (
    Accelerator,
    Axes,
    Code,
    DeviceFacts,
    Evidence,
    Kernel,
    Sampling,
    Settings,
    Status,
    TracedKernel,
    Tree,
)

# What panel, server and worker say to each other, as frozen dataclasses.


@dataclass(frozen=True, slots=True)
class Rival:
    """Another variant of the same case, to be measured in turns with a job's own, in quads."""

    axes: Axes
    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker is to measure, and as which process of its variant.

    ``ranks`` is 0 where no gang is needed; else the worker joins the others at ``rendezvous``, a
    file. ``kernels`` are all packs' kernels, for a pack whose hook asks for them. ``tree`` is where
    code that is imported by name comes from, where two revisions are compared. ``accelerator`` is
    the device, if a pack brings it.
    """

    pack: str
    origin: str
    case: str
    axes: Axes
    device: str
    settings: Settings
    seed: int
    slot: int
    rank: int = 0
    ranks: int = 0
    rendezvous: str = ""
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None
    rival: Rival | None = None
    accelerator: Accelerator | None = None


@dataclass(frozen=True, slots=True)
class Ping:
    """Panel to server: say hello once more."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Server to panel: everything is imported, workers can be forked."""

    pid: int


@dataclass(frozen=True, slots=True)
class Fork:
    """Panel to server: fork a worker; the handles of its socket and its output file follow."""


@dataclass(frozen=True, slots=True)
class Forked:
    """Server to panel: the worker runs, as leader of its own process group."""

    pid: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Panel to server: kill the worker's process group after ``grace_s``, and say how it ended."""

    pid: int
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exited:
    """Server to panel: exit code (minus the signal), and whether the server had to kill it.

    ``code`` is None when the process did not even leave when killed.
    """

    pid: int
    code: int | None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """Panel to worker: open the device and say what it is."""

    device: str
    accelerator: Accelerator | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """Worker to panel: the answer to ``Describe``."""

    facts: DeviceFacts


@dataclass(frozen=True, slots=True)
class Start:
    """Panel to worker: open the device and load the pack, launch nothing yet."""

    job: Job


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker to panel: the answer to ``Start``."""


@dataclass(frozen=True, slots=True)
class Check:
    """Panel to worker: build and check; others may do the same meanwhile.

    ``is_thorough`` asks for the whole check; a variant's further processes check once.
    """

    is_thorough: bool = True


@dataclass(frozen=True, slots=True)
class Checked:
    """Worker to panel: the answer to ``Check``."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Panel to worker: it is your turn to calibrate and settle, with the device to yourself.

    ``sampling`` is that of the baseline or of the process before, None where there is none.
    """

    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Worker to panel: a phase begins."""

    phase: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Worker to panel: the answer to ``Prepare``, with the sampling that was chosen."""

    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Panel to worker: it is your turn to take one block of samples."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Worker to panel: the answer to ``Measure``; the block itself is part of the evidence."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Panel to worker: sum up and leave."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker to panel: the answer to ``Finish``; ``rival`` is the evidence of the job's rival."""

    evidence: Evidence
    rival: Evidence | None = None


@dataclass(frozen=True, slots=True)
class TraceOne:
    """Panel to worker: say what a launch of the job's variant is made of; another one may follow.

    ``sets`` is how many input sets launches rotate over, as they were measured.
    """

    job: Job
    sets: int = 1


@dataclass(frozen=True, slots=True)
class Traced:
    """Worker to panel: the answer to ``TraceOne``; ``texts`` holds the PTX of its codes by hash."""

    kernels: tuple[TracedKernel, ...]
    codes: tuple[Code, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker to panel: the variant ended, and why; the worker leaves."""

    status: Status
    reason: str


_Asked = Ping | Fork | Reap | Describe | Start | Check | Prepare | Measure | Finish
_Answer = Hello | Forked | Exited | Described | Ready | Checked | Prepared | Measured | Finished
Message = _Asked | _Answer | Progress | TraceOne | Traced | Failed


# A message as bytes and back; what comes back has passed the limits of ``boundary``.


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


# One end of a socket between our processes: a whole message within a time, or none.
#
# Nothing here waits for the rest of a message longer than it was told to wait, whoever is at the
# other end: a workload can write to its worker's socket, and any process can be stopped.


# A message comes behind its length.
_HEAD_BYTES = 4
_CHUNK_BYTES = 1 << 20
# For how long what is there already is read beyond the time: a sender may never pause.
_BURST_S = 0.01


class Channel:
    """Sends and receives messages; both raise OSError or EOFError when the other side is gone."""

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
        self._put(memoryview(len(data).to_bytes(_HEAD_BYTES) + data), _end_of(limit_s))

    def receive(self, limit_s: float) -> Message | None:
        """Return the next message, None if it has not come as a whole in time.

        Raises PerfError for what is no message.
        """
        return self._received(time.monotonic() + limit_s)

    def await_message(self) -> Message:
        """Return the next message, however long it takes; raises PerfError like ``receive``."""
        message = self._received(None)
        assert message is not None  # noqa: S101 - there is no time limit
        return message

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

    def _put(self, left: memoryview, deadline: float | None) -> None:
        while left:
            if not self._is_ready(select.POLLOUT, deadline):
                raise TimeoutError
            with suppress(BlockingIOError):
                left = left[self._end.send(left) :]

    def _received(self, deadline: float | None) -> Message | None:
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
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        return bool(poller.poll(None if left_s is None else 1e3 * left_s))


def pair() -> tuple[Channel, Channel]:
    """Return both ends of a new socket; one of them is for another process."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def _end_of(limit_s: float | None) -> float | None:
    return None if limit_s is None else time.monotonic() + limit_s


# The messages between panel, server and worker: tagged JSON of frozen dataclasses, no pickle.


Reply = TypeVar("Reply", bound=Message)
