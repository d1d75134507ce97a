"""Run files: append-only JSON lines, the folder of them, and their ids."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.model import Result, Run, Trace
from perfsuite.store.codec import (
    TAIL_BYTES,
    end_lines,
    is_finished,
    read_header,
    read_run,
    result_line,
    round_digits,
    start_lines,
    trace_line,
)
from perfsuite.store.files import (
    Closable,
    checked_name,
    listed,
    opened,
    read,
    refusing,
    unpacked,
)

_START_DIGITS = 4  # of a second: finer than any block


def new_run_id(now: datetime) -> str:
    """Return an id that sorts by time: ``20261121-103000-3f2a91c0``.

    UTC, the fraction of the second in four digits, and four random ones.
    """
    fraction = now.microsecond * 0x10000 // 1_000_000
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{fraction:04x}{secrets.token_hex(2)}"


def run_path(folder: Path, run_id: str) -> Path:
    """Return where a run's file lies in ``.perfsuite``."""
    return folder / "runs" / f"{checked_name(run_id, 'run id', where=folder)}.jsonl"


class RunFile(Closable):
    """An append-only run file, locked while it is open.

    ``run`` is the run as the file knows it: results so far, notes on what was lost.
    """

    def __init__(self, path: Path, *, descriptor: int, run: Run) -> None:
        self.path = path
        self.run = run
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, folder: Path, run: Run) -> Self:
        """Start the file of a run in ``folder``/runs with its header and plan."""
        path = run_path(folder, run.id)
        remedy = "make the folder writable, or choose another id if the file exists"
        with refusing("cannot create a run file", path, remedy=remedy):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        started = run.having(results=(), verdicts=(), traces=())
        started = replace(started, claims=(), finished="", wall_s=0.0)
        file = cls(path, descriptor=descriptor, run=started)
        try:
            _lock(descriptor, path)
            file._write(start_lines(run))
        except StoreError:
            file.close()
            path.unlink()
            raise
        return file

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open the file of an interrupted run; ``run.results`` says what need not be repeated.

        A last line that was torn is cut off, with a note. A finished run is refused.
        """
        remedy = "name a file from .perfsuite/runs"
        with refusing("cannot open the run file", path, remedy=remedy):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            _lock(descriptor, path)
            with refusing("cannot read the run file", path, remedy=remedy):
                data = read(path)
            run = _unfinished(data, path)
            os.ftruncate(descriptor, data.rfind(b"\n") + 1)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor=descriptor, run=run)

    @classmethod
    def amend(cls, path: Path, run: Run, *, traces: Iterable[Trace] = ()) -> Run:
        """Put verdicts and notes of ``run`` behind those that its finished file ends with.

        Of a variant that has a trace already, the one in ``traces`` holds from now on.
        """
        with refusing("cannot open the run file", path, remedy="make it writable"):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        with cls(path, descriptor=descriptor, run=run) as file:
            _lock(descriptor, path)
            return file.finish(run, traces=tuple(traces))

    def append(self, result: Result) -> Result:
        """Put a result on disk and return it as stored: samples have six digits."""
        evidence = []
        for process in result.evidence:
            blocks = (
                replace(
                    block,
                    time_us=tuple(map(round_digits, block.time_us)),
                    cycles=tuple(map(round_digits, block.cycles)),
                    start_s=round(block.start_s, _START_DIGITS),
                )
                for block in process.blocks
            )
            evidence.append(replace(process, blocks=tuple(blocks)))
        stored = replace(result, evidence=tuple(evidence))
        self._write(result_line(stored))
        name = "canaries" if stored.stage.is_canary else "variants"
        self._add(name, stored.variant, "results", stored)
        return stored

    def append_trace(self, trace: Trace) -> None:
        """Put a trace on disk."""
        self._write(trace_line(trace))
        self._add("variants", trace.variant, "traces", trace)

    def _add(self, side: str, variant: str, name: str, value: object) -> None:
        runs = list(getattr(self.run, side))
        for place, one in enumerate(runs):
            if one.id == variant:
                runs[place] = replace(one, **{name: (*getattr(one, name), value)})
        self.run = replace(self.run, **{side: tuple(runs)})

    def finish(self, run: Run, *, traces: Sequence[Trace] = ()) -> Run:
        """End the file with verdicts, claims, notes and units of ``run``; return it as stored.

        With more ``traces`` at once: what ends with one of them alone counts as interrupted.
        """
        notes = dict.fromkeys((*self.run.notes, *run.notes))
        measured = (*self.run.results, *self.run.aside)
        ended = replace(
            run.having(results=measured, traces=(*self.run.traces, *traces)),
            notes=tuple(notes),
            finished=run.finished or datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._write(b"".join(map(trace_line, traces)) + end_lines(ended))
        self.run = ended
        self.close()
        return ended

    def close(self) -> None:
        """Let go of the file; a run that was not finished can be resumed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: bytes) -> None:
        """Append whole lines and wait until they are on disk; half a line is taken back."""
        if self._descriptor < 0:
            raise StoreError(
                "the run file is closed", where=str(self.path), remedy="resume the run"
            )
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise StoreError(
                f"cannot write to the run file: {error.strerror}",
                where=str(self.path),
                remedy="make room on the disk, then go on with --perf-resume",
            ) from error
        self._size += len(data)


def is_open(path: Path) -> bool:
    """Say whether a process is still writing this run file."""
    with opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_whole(data: bytes, path: Path) -> Run:
    """Return a run from its file's text; a torn last line is dropped, and noted."""
    end = data.rfind(b"\n") + 1
    run, torn = read_run(data[:end], where=str(path)), len(data) - end
    note = (f"dropped a torn last line of {torn} bytes",) if torn else ()
    return replace(run, notes=(*run.notes, *note))


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(
            "the run file is in use by another process",
            where=str(path),
            remedy="wait until that run ends, or end it",
        ) from error


def _unfinished(data: bytes, path: Path) -> Run:
    if is_finished(data):
        raise StoreError(
            "the run is finished; there is nothing to resume",
            where=str(path),
            remedy="start a new run without --perf-resume",
        )
    return read_whole(data, path)


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
    found = []
    for path in list_runs(folder):
        # What cannot be read cannot be resumed, and stops no other run.
        with suppress(OSError):
            with opened(path) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                tail = file.read()
            if not is_finished(tail) and not is_open(path):
                found.append(path)
    return tuple(found)


def last_run(folder: Path, *, sku: str, unit: str, before: str = "") -> Run | None:
    """Return the newest finished and measured run of this SKU (its slug) on this unit, or None.

    A merged run is of all its shards' units.

    ``before`` is a run id: only older runs count. A file that cannot be read is passed over, since
    any older run answers as well; ``load_run`` says what is wrong with it.
    """
    for path in list_runs(folder):
        if before and path.stem >= before:
            continue
        with suppress(StoreError, OSError), opened(path) as file:
            first = file.readline()
            header = read_header(first, where=str(path))
            units = {header.facts.unit, *(name for part in header.parts for name in part.units)}
            is_alike = header.sku.slug == sku and unit in units
            if not is_alike or header.settings.check_only:
                continue
            data = first + file.read()
            if is_finished(data):
                return read_run(data, where=str(path))
    return None
