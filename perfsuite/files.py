"""Files that are there whole or not at all, locks, and the system's refusals in words of ours."""

from __future__ import annotations

import fcntl
import gzip
import os
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from perfsuite.errors import PerfError, StoreError, UsageError


class Closable:
    """What its ``with`` block closes."""

    def close(self) -> None:
        """Give back what is held; more than once does no harm."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def locked(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder; the kernel gives it back when the process dies, however it dies."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def refusing(
    what: str, where: Path | str, *, remedy: str, kind: type[PerfError] = StoreError
) -> Iterator[None]:
    """Raise what the operating system refuses as an error that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}", where=str(where), remedy=remedy) from error


def refuse_few_files(needed: int) -> None:
    """Raise UsageError unless this process may open so many more files, pipes and sockets."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        left = most - len(list(Path("/proc/self/fd").iterdir()))
    except OSError:  # not even this one
        left = 0
    if most != resource.RLIM_INFINITY and left < needed:
        raise UsageError(
            f"this process may open {left} more files, and needs {needed}",
            where=f"the limit of open files is {most}",
            remedy=f"raise it before the run: ulimit -n {max(1024, 2 * (most + needed))}",
        )


def replace_file(path: Path, data: bytes) -> Path:
    """Put ``data`` in the file's place at once and for good, or leave the old file as it is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        beside.unlink(missing_ok=True)
    return path


def unpacked(path: Path) -> bytes:
    """Return a file's bytes, unpacked if its name ends in .gz; raises OSError, StoreError."""
    data = path.read_bytes()
    try:
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StoreError(f"cannot be unpacked: {error}", where=str(path)) from error
