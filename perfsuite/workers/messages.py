"""The messages between a run and its workers, and the channel that carries them."""

from __future__ import annotations

import os
import re
import socket
from typing import Any, NamedTuple

import msgspec

from perfsuite import model
from perfsuite.boundary import MESSAGE_BYTES, REPLACEMENT, PerfError, plain
from perfsuite.store.files import Closable, plain_value

# How a worker exits that failed and could not say why: its socket was closed under it.
UNTOLD = 70
# A longer message travels as an open file, which a packet of these bytes announces.
PACKET_BYTES = 32 << 10
LONG = b"long"
# Escapes in JSON. All but these are of what is not printable.
_ESCAPE = re.compile(r"\\(?:u.{4}|.)")
_KEPT = {r"\n", r"\t", r"\"", r"\\"}


class Call(msgspec.Struct, frozen=True, tag=True):
    """To a server or a worker: do a step, as its method ``do_...`` says."""

    step: str
    given: msgspec.Raw = msgspec.Raw(b"null")


class Progress(msgspec.Struct, frozen=True, tag=True):
    """From a worker: a phase begins."""

    phase: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """A step is done."""

    value: msgspec.Raw
    step: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: the variant ended, and why; the worker leaves."""

    status: model.Status
    reason: str


Message = Call | Progress | Done | Failed


class Ending(NamedTuple):
    """How a process ended: its exit code (minus the signal), None if it does not even die.

    ``is_forced`` says that it had to be killed; ``lost`` what became of its server, if that died.
    """

    code: int | None
    is_forced: bool
    lost: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Which variant a process is to run, with what code, and as which process of it.

    The data of the check come from ``check_seed``. ``ranks`` is 0 where no gang is needed; else the
    process joins the others at ``rendezvous``, a file. ``kernels`` are all packs' kernels, for a
    pack whose hook asks for them. ``tree`` is where code that is imported by name comes from, where
    two revisions are compared. ``accelerator`` is the device, if a pack brings it.
    """

    pack: str
    origin: str
    case: str
    axes: model.Axes
    device: str
    settings: model.Settings
    seed: int = 0
    check_seed: int = 0
    slot: int = 0
    rank: int = 0
    ranks: int = 0
    rendezvous: str = ""
    kernels: tuple[model.Kernel, ...] = ()
    tree: model.Tree | None = None
    accelerator: model.Accelerator | None = None


_ENCODER = msgspec.json.Encoder(enc_hook=plain_value)


def raw(value: Any) -> msgspec.Raw:
    """Return what a message carries of a value."""
    return msgspec.Raw(_ENCODER.encode(value))


def read(value: bytes | msgspec.Raw, kind: Any) -> Any:
    """Return the value that a message carries, its texts plain; PerfError if of another kind.

    A NaN arrives as null, so that it is refused here and not at the run file.
    """
    try:
        text = plain(bytes(value).decode(), most=MESSAGE_BYTES)
        text = _ESCAPE.sub(lambda found: found[0] if found[0] in _KEPT else REPLACEMENT, text)
        return msgspec.json.decode(text, type=kind)
    except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise PerfError(f"damaged message {bytes(value)[:80]!r}: {error}") from error


class Channel(Closable):
    """One end of a socket between our processes; OSError or EOFError when the other side is gone.

    A message is one packet: none is ever half there, whatever a workload writes to its worker's
    socket. ``handles`` are the open files that came along with the last one.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.handles: list[int] = []

    def fileno(self) -> int:
        """Return the socket's number, so that several can be waited for at once."""
        return self._end.fileno()

    def send(self, message: Message, limit_s: float | None = None, *handles: int) -> None:
        """Send a message, and open files with it; TimeoutError if it is not taken in time."""
        data = _ENCODER.encode(message)
        if len(data) > MESSAGE_BYTES:
            what = f"message of {len(data) >> 20} MiB; the limit is {MESSAGE_BYTES >> 20} MiB"
            raise PerfError(what)
        self._end.settimeout(limit_s)
        if len(data) <= PACKET_BYTES:
            socket.send_fds(self._end, [data], handles)
            return
        with os.fdopen(os.memfd_create("message"), "wb", buffering=0) as file:
            file.write(data)
            socket.send_fds(self._end, [LONG], [file.fileno()])

    def receive(self, limit_s: float | None) -> Message | None:
        """Return the next message, None if none comes in time; PerfError for what is none."""
        self._end.settimeout(limit_s)
        # That it died before it read all, which is forgotten once asked for, hides what it said.
        self._end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            packet = socket.recv_fds(self._end, PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, TimeoutError):
            return None
        data, self.handles, *_ = packet
        if not data:
            raise EOFError
        if data == LONG and self.handles:
            with os.fdopen(self.handles.pop(), "rb") as file:
                file.seek(0)
                data = file.read(MESSAGE_BYTES)
        message: Message = read(data, Message)
        return message

    def close(self) -> None:
        """Close this end, which the other side notices."""
        self._end.close()


def pair() -> tuple[Channel, Channel]:
    """Return both ends of a new socket; one of them is for another process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours), Channel(theirs)
