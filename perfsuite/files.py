"""Files that are there whole or not at all, and the system's refusals in words of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfsuite.errors import PerfError, StoreError


@contextmanager
def refusing(
    what: str, where: Path | str, *, remedy: str, kind: type[PerfError] = StoreError
) -> Iterator[None]:
    """Raise what the operating system refuses as an error that says what to do about it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}", where=str(where), remedy=remedy) from error


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
