"""Keeps two runs of one user off the same GPU."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from perfsuite.errors import UsageError
from perfsuite.files import Closable


class UnitLock(Closable):
    """Holds a unit (a GPU's or a machine's short key) for this process until closed.

    The kernel gives it back when the process dies, however it dies. Raises ``UsageError`` naming
    the holder when the unit is taken.
    """

    def __init__(self, unit: str) -> None:
        self.path = _folder() / f"{unit}.lock"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise UsageError(
                f"unit {unit!r} is being measured by process {holder}",
                where=str(self.path),
                remedy="wait until that run ends, stop it, or choose another device",
            ) from error
        os.truncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the unit back. The file stays: removing it would let two holders in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"perfsuite-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise UsageError(
            f"the folder for locks {str(path)!r} belongs to somebody else",
            where=str(path),
            remedy="have it removed, or set TMPDIR to a folder of your own",
        )
    return path
