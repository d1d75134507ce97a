"""One worker as the controller sees it: what it says, how long it takes, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from perfsuite import wire
from perfsuite.boundary import NAME_CHARACTERS, plain
from perfsuite.errors import PerfError
from perfsuite.isolation import UNTOLD
from perfsuite.model import Arm, Status
from perfsuite.panel.ending import (
    TAIL_CHARACTERS,
    EndedError,
    ServerLostError,
    exit_words,
    tail,
)

TICK_S = 0.1
OUTPUT_LIMIT_BYTES = 64 << 20
# A worker that closes its socket is about to exit; one that is told to abort prints its stack.
GRACE_S = 2.0
# A worker that was just forked, or has just answered, reads what it is told at once.
SEND_LIMIT_S = 30.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What is waited for, for how long, and who is told meanwhile.

    ``watch`` is called between ticks and may raise; ``announce`` gets the phases as they begin.
    """

    phase: str
    limit_s: float
    watch: Callable[[], None]
    announce: Callable[[str], None]


class Home(Protocol):
    """What a worker asks of the slot that forked it; its servers are counted by ``generation``."""

    index: int
    generation: int

    @property
    def is_alive(self) -> bool:
        """Say whether the server runs."""

    @property
    def last_words(self) -> str:
        """How the server ended."""

    def reap(self, pid: int, grace_s: float) -> wire.Exited:
        """End a worker's process group after ``grace_s``; raises ServerLostError."""


class WorkerProcess:
    """A forked worker: its socket, its output file, its memory and its death."""

    def __init__(self, slot: Home, pid: int, connection: wire.Channel, output: IO[bytes]) -> None:
        self.pid = pid
        self.arm = Arm.B
        self.started = time.monotonic()
        self._slot = slot
        self._generation = slot.generation
        self._connection = connection
        self._output = output
        self._doom = ""
        self._phase = ""
        self._exited: wire.Exited | None = None

    @property
    def phase(self) -> str:
        """The phase it last said that it is in, or is to be in."""
        return self._phase

    def last_output(self, most: int = TAIL_CHARACTERS) -> str:
        """Return the end of what it printed."""
        return tail(self._output, most)

    def fileno(self) -> int:
        """Return its socket's number, so that several can be waited for at once."""
        return self._connection.fileno()

    @property
    def is_orphan(self) -> bool:
        """Say whether the server that forked it is gone."""
        return self._generation != self._slot.generation or not self._slot.is_alive

    @property
    def is_fit(self) -> bool:
        """Say whether it lives, and the server that forked it."""
        return not self.is_orphan and resident_bytes(self.pid) > 0

    def await_news(self, limit_s: float) -> None:
        """Wait until it has said something or is gone, at most this long."""
        with contextlib.suppress(OSError):
            self._connection.has_news(limit_s)

    def tell(self, message: wire.Message) -> None:
        """Send a message; a worker that is gone is noticed when its answer is awaited."""
        with contextlib.suppress(OSError):
            self._connection.send(message, SEND_LIMIT_S)

    def hear(self, kind: type[wire.Reply], wait: Wait, *, since: float | None = None) -> wire.Reply:
        """Wait for a message of this kind; raises EndedError for whatever else happens.

        The time limit counts from ``since``, or from now.
        """
        self.begin(wait)
        deadline = (time.monotonic() if since is None else since) + wait.limit_s
        while True:
            message = self.listen(kind, wait, TICK_S)
            if message is not None:
                return message
            if time.monotonic() > deadline:
                raise self._overdue(wait)
            wait.watch()

    def begin(self, wait: Wait) -> None:
        """Note what is waited for from now on."""
        self._phase = wait.phase

    def listen(self, kind: type[wire.Reply], wait: Wait, patience_s: float) -> wire.Reply | None:
        """Return a message of this kind if one comes soon; raises EndedError as ``hear`` does."""
        message = self._next(patience_s)
        if isinstance(message, kind):
            return message
        match message:
            case wire.Progress(phase=phase):
                self._phase = plain(phase, most=NAME_CHARACTERS)
                wait.announce(self._phase)
            case wire.Failed(status=status, reason=reason):
                raise self._ended(status, plain(reason), is_told=True)
        return None

    def abort(self) -> None:
        """Let it write the stack it hangs in to its output, and die."""
        self._signal(signal.SIGABRT)

    def kill(self) -> None:
        """End it and what it started, without waiting."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Let it go and see it out, killing it after a grace."""
        self.hang_up()
        with contextlib.suppress(ServerLostError):
            self._end()

    def limit(self, memory_bytes: int) -> None:
        """Kill it if it holds more host memory than this, or floods the disk with output."""
        if self._doom:
            return
        held = resident_bytes(self.pid)
        if held > memory_bytes:
            self._doom = f"held {held >> 20} MiB of host memory, limit {memory_bytes >> 20} MiB"
        elif os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT_BYTES:
            self._doom = f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
        if self._doom:
            self._signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Tell it to leave, without waiting."""
        self._connection.close()

    def close(self) -> None:
        """Make sure that it is gone, and forget it."""
        self.end()
        self._output.close()

    def _end(self) -> wire.Exited:
        """See it out, killing its process group after a grace; raises ServerLostError."""
        if self._exited is None:
            try:
                self._exited = self._reaped()
            except ServerLostError:
                self._signal(signal.SIGKILL)
                raise
        return self._exited

    def _reaped(self) -> wire.Exited:
        if self.is_orphan:
            reason = f"the server of slot {self._slot.index} is gone ({self._slot.last_words})"
            raise ServerLostError(reason, "")
        return self._slot.reap(self.pid, GRACE_S)

    def _ended(
        self, status: Status, reason: str, *, is_server_lost: bool = False, is_told: bool = False
    ) -> EndedError:
        self.end()
        ended = EndedError(
            status, reason, self.last_output(), is_server_lost=is_server_lost, is_told=is_told
        )
        ended.arm = self.arm
        return ended

    def _next(self, patience_s: float) -> wire.Message | None:
        try:
            if (message := self._connection.receive(patience_s)) is not None:
                return message
        except (EOFError, OSError):
            raise self._death() from None
        except PerfError as error:
            raise self._ended(Status.ERROR, f"its worker sent a {error.what}") from error
        # What it forked may keep its socket open, so that its death shows no end of file.
        if resident_bytes(self.pid) == 0 and not self._connection.has_news(0):
            raise self._death()
        return None

    def _death(self) -> EndedError:
        try:
            exited = self._end()
        except ServerLostError as lost:
            return self._ended(Status.CRASHED, self._doom or str(lost), is_server_lost=True)
        is_cut_off = exited.is_forced or exited.code == UNTOLD
        words = "closed its socket" if is_cut_off else exit_words(exited.code)
        return self._ended(Status.CRASHED, self._doom or f"{words} during {self._phase}")

    def _overdue(self, wait: Wait) -> EndedError:
        self.abort()
        inner = f" (in {self._phase})" if self._phase != wait.phase else ""
        reason = f"{wait.phase} took longer than its limit of {wait.limit_s:g} s{inner}"
        return self._ended(Status.TIMED_OUT, reason)

    def _signal(self, number: signal.Signals) -> None:
        if self._exited is not None:
            return
        # While its server lives and has not reaped it, its id cannot be another process's.
        for kill in (os.killpg, os.kill) if number is signal.SIGKILL else (os.kill,):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, number)


def resident_bytes(pid: int) -> int:
    """Return the host memory a process holds; 0 when it is dead, waited for or not."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES
