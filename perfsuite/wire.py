"""The messages between panel, server and worker: tagged JSON of frozen dataclasses, no pickle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perfsuite.errors import PerfError
from perfsuite.model import Axes, DeviceFacts, Evidence, Kernel, Sampling, Settings, Status, Tree

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# What is longer than this was not written by us.
MOST_BYTES = 256 << 20


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
    code that is imported by name comes from, where two revisions are compared.
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
class Failed:
    """Worker to panel: the variant ended, and why; the worker leaves."""

    status: Status
    reason: str


Message = (
    Ping
    | Hello
    | Fork
    | Forked
    | Reap
    | Exited
    | Describe
    | Described
    | Start
    | Ready
    | Check
    | Checked
    | Prepare
    | Progress
    | Prepared
    | Measure
    | Measured
    | Finish
    | Finished
    | Failed
)

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
    return decode(connection.recv_bytes(MOST_BYTES))


def plain(text: str) -> str:
    """Return text that any file, page and terminal can hold: no control characters, no halves."""
    kept = (c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(kept)
