"""Finds and loads the run files of a ``.perfsuite`` folder."""

from __future__ import annotations

import os
from pathlib import Path

from perfsuite.codec import TAIL_BYTES, is_finished, read_header, read_run
from perfsuite.errors import StoreError
from perfsuite.files import listed, opened, refusing, unpacked
from perfsuite.model import Run
from perfsuite.runs.file import is_open, read_whole


def load_run(path: Path) -> Run:
    """Return the run of a file, compressed or not; ``finished`` is empty if interrupted."""
    remedy = "name a file from .perfsuite/runs, or copy the run's file here"
    with refusing("cannot read the run file", path, remedy=remedy):
        data = unpacked(path)
    return read_whole(data, path)


def list_runs(folder: Path) -> tuple[Path, ...]:
    """Return the run files of ``.perfsuite``, newest first."""
    place = folder / "runs"
    with refusing("cannot list the run files", place, remedy="make it a folder that is readable"):
        names = [name for name in listed(place) if name.endswith(".jsonl")]
    return tuple(sorted((place / name for name in names), key=lambda path: path.stem, reverse=True))


def unfinished(folder: Path) -> tuple[Path, ...]:
    """Return the files of interrupted runs, newest first; a run still going on is none."""
    return tuple(path for path in list_runs(folder) if _is_interrupted(path))


def _is_interrupted(path: Path) -> bool:
    try:
        return not is_finished(_tail(path)) and not is_open(path)
    except OSError:  # what cannot be read cannot be resumed, and stops no other run
        return False


def _tail(path: Path) -> bytes:
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read()


def last_run(folder: Path, *, sku: str, unit: str, before: str = "") -> Run | None:
    """Return the newest finished and measured run of this SKU (its slug) on this unit, or None.

    A merged run is of all its shards' units.

    ``before`` is a run id: only older runs count. A file that cannot be read is passed over, since
    any older run answers as well; ``load_run`` says what is wrong with it.
    """
    for path in list_runs(folder):
        if before and path.stem >= before:
            continue
        try:
            run = _matching_run(path, sku=sku, unit=unit)
        except (StoreError, OSError):
            continue
        if run:
            return run
    return None


def _matching_run(path: Path, *, sku: str, unit: str) -> Run | None:
    with opened(path) as file:
        first = file.readline()
        header = read_header(first, where=str(path))
        units = {header.facts.unit, *(name for part in header.parts for name in part.units)}
        if header.sku.slug != sku or unit not in units or header.settings.check_only:
            return None
        data = first + file.read()
    return read_run(data, where=str(path)) if is_finished(data) else None
