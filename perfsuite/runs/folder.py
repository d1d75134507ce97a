"""Finds and loads the run files of a ``.perfsuite`` folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perfsuite.codec import TAIL_BYTES, is_finished, read_header, read_run
from perfsuite.errors import StoreError
from perfsuite.files import listed, opened, refusing, unpacked
from perfsuite.model import Run
from perfsuite.runs.file import is_open, new_run_id, read_whole

_SECOND = "%Y%m%d-%H%M%S"


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


def next_run_id(folder: Path, now: datetime) -> str:
    """Return the id of a new run, which sorts behind all that are there.

    Of two runs the later one has the greater id, also where the clock was set back between them.
    """
    found = new_run_id(now)
    for path in list_runs(folder):
        try:
            newest = datetime.strptime(path.stem[:15], _SECOND).replace(tzinfo=UTC)
            return found if path.stem < found else new_run_id(newest + timedelta(seconds=1))
        except (ValueError, OverflowError):  # a file that was named by hand
            continue
    return found


def clock_notes(run: Run) -> Iterator[str]:
    """Say it if a run's id is of a later time than its start, as where the clock was set back."""
    if run.id[:15] > datetime.fromisoformat(run.started).astimezone(UTC).strftime(_SECOND):
        yield (
            f"this machine's clock is behind its runs: the id {run.id} is of a later time, so that "
            "this run counts as the newest; set the clock, or move runs of the future away"
        )


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
