"""One slot of a panel: a server process, and the workers it is asked to fork and reap."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO

from perfsuite import wire
from perfsuite.errors import DeviceError, PerfError
from perfsuite.files import refuse_few_files
from perfsuite.panel.ending import ServerLostError, exit_words, tail
from perfsuite.panel.process import WorkerProcess
from perfsuite.panel.site import Site

# Forking takes milliseconds; reaping waits for the kernel, which may free a GPU's memory first.
REPLY_LIMIT_S = 30.0
LEAVE_LIMIT_S = 15.0
# What a slot has open at most: its server, workers of three crews, and its share of the run.
FILES = 9


class Slot:
    """Keeps one server alive; ``generation`` counts the servers it has had."""

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.generation = 0
        self._site = site
        self._launch()

    @property
    def is_alive(self) -> bool:
        """Say whether the server runs."""
        return not self._control.is_closed and self._server.poll() is None

    @property
    def last_words(self) -> str:
        """How the server ended."""
        return exit_words(self._server.poll())

    def hello(self) -> int:
        """Return the server's process id once it answers; raises DeviceError if it ends first."""
        try:
            self._await_up()
            self._ask(wire.Ping(), wire.Hello)
        except ServerLostError as lost:
            raise self._hopeless(lost) from lost
        return self._server.pid

    def fork(self) -> WorkerProcess:
        """Return a fresh worker, of a new server if the old one died; raises DeviceError."""
        try:
            return self._fork()
        except ServerLostError:
            self._launch()
        try:
            return self._fork()
        except ServerLostError as lost:
            raise self._hopeless(lost) from lost

    def reap(self, pid: int, grace_s: float) -> wire.Exited:
        """End a worker's process group after ``grace_s``; raises ServerLostError."""
        return self._ask(wire.Reap(pid, grace_s), wire.Exited)

    def close(self) -> None:
        """End the server, which ends its workers."""
        self._control.close()
        try:
            self._server.wait(LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._log.close()

    def _launch(self) -> None:
        ours, theirs = wire.pair()
        if self.generation:
            self._log.close()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        command = (sys.executable, "-P", "-m", "perfsuite.server")
        own = self._site.accelerator
        preload = (own.folder, *own.preload) if own else ()
        self._server = subprocess.Popen(
            [*command, str(theirs.fileno()), self._site.device, *preload],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=self._site.environment(),
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        self._is_up = False
        self.generation += 1

    def _await_up(self) -> None:
        if not self._is_up:
            self._answer(wire.Hello, self._site.settings.start_limit_s)
            self._is_up = True

    def _fork(self) -> WorkerProcess:
        self._await_up()
        ours, theirs = wire.pair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the worker
        with theirs:
            try:
                pid = self._ask(wire.Fork(), wire.Forked, theirs.fileno(), output.fileno()).pid
            except ServerLostError:
                ours.close()
                output.close()
                raise
        return WorkerProcess(self, pid, ours, output)

    def _ask(self, request: wire.Message, kind: type[wire.Reply], *handles: int) -> wire.Reply:
        try:
            self._control.send(request, REPLY_LIMIT_S)
            if handles:
                self._control.send_handles(*handles)
        except OSError:
            raise self._lost("is gone") from None
        return self._answer(kind, REPLY_LIMIT_S)

    def _answer(self, kind: type[wire.Reply], limit_s: float) -> wire.Reply:
        try:
            reply = self._control.receive(limit_s)
        except (EOFError, OSError):
            raise self._lost("is gone") from None
        except PerfError as error:
            raise self._lost(f"sent a {error.what}") from error
        if reply is None:
            raise self._lost(f"gave no answer within {limit_s:g} s")
        if not isinstance(reply, kind):
            raise self._lost(f"answered {reply!r}")
        return reply

    def _lost(self, what: str) -> ServerLostError:
        """End what is left of the server; it cannot be trusted any more."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(1.0)
        self._kill()
        reason = f"the server of slot {self.index} {what} ({self.last_words})"
        return ServerLostError(reason, tail(self._log))

    def _kill(self) -> None:
        if self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def _hopeless(self, lost: ServerLostError) -> DeviceError:
        last = lost.output.strip().rpartition("\n")[2]
        return DeviceError(
            f"{lost}: {last!r}" if last else str(lost),
            where=f"python -m perfsuite.server for device {self._site.device!r}",
            remedy="run the command `perfsuite doctor`; the device's libraries may not import",
        )


def slots_of(site: Site) -> list[Slot]:
    """Return the slots of a panel; raises UsageError where too few files may be open for them."""
    refuse_few_files(FILES * site.slots)
    return [Slot(index, site) for index in range(site.slots)]
