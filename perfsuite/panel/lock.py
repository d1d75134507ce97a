"""Keeps two runs of one machine off the same device, whoever starts them and wherever."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import struct

from perfsuite.boundary import from_environment
from perfsuite.errors import UsageError
from perfsuite.files import Closable

# Runs with another word here do not see each other's locks: for tests that measure nothing real.
VARIABLE = "PERFSUITE_LOCKS"
# Whoever was refused stays in the queue for good: as many are told who holds the unit.
_QUEUE = 4096
_ASK_S = 1.0
_PEER = struct.Struct("3i")  # process, user and group


class UnitLock(Closable):
    """Holds a unit (a GPU's or a machine's short key) for this process until closed.

    The lock is the name of a socket: no file is in its way, TMPDIR and users make no difference,
    and the kernel gives it back when the process dies, however it dies. Containers with a network
    of their own do not see it. Raises ``UsageError`` naming the holder when the unit is taken.
    """

    def __init__(self, unit: str) -> None:
        key = hashlib.sha256(f"{from_environment(VARIABLE)}/{unit}".encode()).hexdigest()[:24]
        self._name = f"\0perfsuite-{key}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self._name)
            self._socket.listen(_QUEUE)
        except OSError as error:
            self._socket.close()
            where = f"the socket @{self._name[1:]} in /proc/net/unix"
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"unit {unit!r} is being measured by process {self._holder()}",
                    where=where,
                    remedy="wait until that run ends, stop it, or choose another device",
                ) from error
            raise UsageError(
                f"unit {unit!r} cannot be locked: {error.strerror}",
                where=where,
                remedy="let this user make Unix sockets; a sandbox may forbid them",
            ) from error

    def close(self) -> None:
        """Give the unit back."""
        self._socket.close()

    def _holder(self) -> str:
        """Return the id of the process that holds the name; a container may hide it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.settimeout(_ASK_S)
                asking.connect(self._name)
                told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return "unknown"
        process, user, _ = _PEER.unpack(told)
        mine = user == os.getuid()
        return f"{process or 'unknown'}{'' if mine else f' of user {user}'}"
