"""The controller's side of the other tools: a server for each unit, a process for each order."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from typing import IO, Self

import msgspec

from perfsuite.panel import Site
from perfsuite.prove.peers import Order
from perfsuite.prove.raw import Reading

# nvbench and the profiler start slowly; a tool that hangs is given up after this.
ANSWER_LIMIT_S = 120.0


class PeerServer:
    """A process that asks the other tools; it is started again after it was given up."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        self._server: subprocess.Popen[bytes] | None = None

    def ask(self, order: Order) -> list[Reading]:
        """Return what each tool says; a tool without an answer has a reason."""
        server = self._server = self._server or self._started()
        assert server.stdin is not None and server.stdout is not None  # noqa: S101, PT018 - pipes
        try:
            server.stdin.write(msgspec.json.encode(order) + b"\n")
            server.stdin.flush()
            ready, _, _ = select.select([server.stdout], [], [], ANSWER_LIMIT_S)
            said = server.stdout.readline() if ready else b""
        except OSError:
            said = b""
        if not said:
            self.close()
        found = msgspec.json.decode(said or b"[]", type=list[Reading])
        reason = "no answer" if said else f"no answer within {ANSWER_LIMIT_S:g} s"
        return found or [
            Reading(variant=order.variant, unit=order.unit, tool=tool, reason=reason)
            for tool in order.tools
        ]

    def close(self) -> None:
        """End the server and what it forked."""
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            for pipe in (self._server.stdin, self._server.stdout):
                if pipe is not None:
                    pipe.close()
            self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._log.close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "perfsuite.prove.peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._site.environment(),
            start_new_session=True,
        )
