"""Files that are there whole or not at all, locks, and the system's refusals in words of ours.

What is stored is read through ``opened`` and written to what ``inside`` allows.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import re
import reprlib
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from perfsuite.boundary import FILE_BYTES, NAME_CHARACTERS, PerfError, StoreError

# It leads nowhere and is no option.
FILE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{NAME_CHARACTERS - 1}}}\Z")


class Closable(ABC):
    """What its ``with`` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held; more than once does no harm."""

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


def checked_name(name: str, what: str, *, where: object) -> str:
    """Return an id that may be a file's name; another one is a StoreError."""
    if not FILE_NAME.match(name):
        remedy = "use up to 200 letters, digits, hyphens, dots and underscores"
        told = f"{what} {reprlib.repr(name)} cannot be a file name"
        raise StoreError(told, where=str(where), remedy=remedy)
    return name


def inside(folder: Path, *names: str) -> Path:
    """Return the path of a file below a folder; StoreError where a name or link leads out of it.

    The file itself may be a link: ``replace_file`` puts a file in its place.
    """
    path = folder.joinpath(*(checked_name(name, "the name", where=folder) for name in names))
    place = os.path.realpath(path.parent)
    if not Path(place).is_relative_to(os.path.realpath(folder)):
        told = f"a link leads out of the folder, to {place!r}"
        remedy = "remove the link, or name another folder"
        raise StoreError(told, where=str(path.parent), remedy=remedy)
    return path


@contextmanager
def opened(path: Path, mode: str = "rb") -> Iterator[BinaryIO]:
    """Open a stored file; OSError for what is no regular file, such as a pipe, or is too large."""

    def without_waiting(name: str, flags: int) -> int:
        # A pipe that has nobody at its other end would block.
        return os.open(name, flags | os.O_NONBLOCK, 0o666)

    if path.is_fifo():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with open(path, mode, opener=without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if found.st_size > FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {FILE_BYTES >> 20} MiB", str(path))
        yield file  # type: ignore[misc]


def read(path: Path) -> bytes:
    """Return a stored file's bytes; raises OSError as ``opened`` does."""
    with opened(path) as file:
        return file.read()


def is_absent(path: Path) -> bool:
    """Say whether nothing is there at all; OSError for what is there and cannot be looked at.

    A link that leads nowhere is there, and so is one in the place of a folder above.
    """
    try:
        path.stat()
    except FileNotFoundError as error:
        for each in (path, *path.parents):
            if each.is_symlink() and not each.exists():
                what = f"{str(each)!r} is a link that leads nowhere"
                raise FileNotFoundError(errno.ENOENT, what, str(path)) from error
        return True
    return False


def listed(folder: Path) -> list[str]:
    """Return the names in a folder, none where there is no folder; raises OSError."""
    return [] if is_absent(folder) else sorted(each.name for each in folder.iterdir())


def replace_file(path: Path, data: bytes) -> Path:
    """Put ``data`` in the file's place at once and for good, or leave the old file as it is."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        beside.unlink(missing_ok=True)
        # "x" follows no link that somebody put there.
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
    finally:
        beside.unlink(missing_ok=True)
    return path


def unpacked(path: Path) -> bytes:
    """Return a file's bytes, unpacked if its name ends in .gz; raises OSError, StoreError."""
    with opened(path) as file:
        if path.suffix != ".gz":
            return file.read()
        try:
            data = gzip.GzipFile(fileobj=file).read(FILE_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise StoreError(f"cannot be unpacked: {error}", where=str(path)) from error
    if len(data) > FILE_BYTES:
        raise StoreError(f"holds more than {FILE_BYTES >> 20} MiB", where=str(path))
    return data
