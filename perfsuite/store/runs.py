"""Run files: append-only JSON lines, the folder of them, and their ids.

A run file has a JSON object a line, tagged with its kind: ``header`` (what ran where), ``plan``
(variants and claims), a ``result`` or ``trace`` for each as it ends, and once it is finished
``judged`` (verdicts, claims, notes) and a short ``end``. The last two may follow once more: what
was judged again later.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.model import Result, Run, Trace, Variant
from perfsuite.store.codec import (
    convert,
    damaged,
    encode,
    read_json,
    round_digits,
    take_schema,
)
from perfsuite.store.files import Closable, checked_name, listed, opened, read, refusing, unpacked

RUN_SCHEMA = "perfsuite.run/1"
# The fields of a run that stand in these lines; what is in none of them stands in the header.
PARTS = {
    "plan": ("variants", "instances", "canaries"),
    "judged": (
        *("verdicts", "claims", "notes", "units", "shift", "phases_s"),
        *("environments", "left_out"),
    ),
    "end": ("finished", "wall_s"),
}
LATER = {"results", "aside", "traces", *(name for names in PARTS.values() for name in names)}
# The end line is shorter than this, so that whether a run is finished is read from its tail.
TAIL_BYTES = 256
_START_DIGITS = 4  # of a second: finer than any block
_SECOND = "%Y%m%d-%H%M%S"


def _line(kind: str, values: dict[str, Any]) -> bytes:
    return encode({"kind": kind, **values}) + b"\n"


def _start_lines(run: Run) -> bytes:
    """Return the header and the plan; the plan names each case once, not a thousand times."""
    header = {name: getattr(run, name) for name in run.__struct_fields__ if name not in LATER}
    plan: dict[str, Any] = {"cases": {}, "variants": [], "instances": run.instances, "canaries": []}

    def without_case(variant: Variant) -> dict[str, Any]:
        name = f"{variant.pack}.{variant.case.name}"
        plan["cases"][name] = variant.case
        return {**msgspec.structs.asdict(variant), "case": name}

    plan["variants"] = [without_case(each) for each in run.variants]
    plan["canaries"] = [without_case(each) for each in run.canaries]
    return _line("header", {"schema": RUN_SCHEMA, **header}) + _line("plan", plan)


def end_lines(run: Run) -> bytes:
    """Return the lines that end a finished run."""
    parts = ({name: getattr(run, name) for name in PARTS[kind]} for kind in ("judged", "end"))
    return b"".join(map(_line, ("judged", "end"), parts))


def read_run(data: bytes, *, where: str) -> Run:
    """Return a run from whole lines of its file, be it the first alone.

    ``finished`` is empty if it has no end.
    """
    plain: dict[str, Any] = {}
    results: list[Result] = []
    traces: list[Trace] = []
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        place = f"{where}, line {number}"
        values = read_json(line, where=where, line=number)
        kind = values.pop("kind", None)
        is_late = "finished" in plain and kind in {"plan", "result"}
        if (kind == "header") != (number == 1) or is_late:
            raise _misplaced(kind, place)
        if kind == "header":
            take_schema(values, RUN_SCHEMA, where=place)
            plain = values
        elif kind == "result":
            results.append(convert(values, Result, where=place))
        elif kind == "trace":  # what is judged again may be traced before
            traces.append(convert(values, Trace, where=place))
        elif kind in PARTS:
            plain |= _with_cases(values, place) if kind == "plan" else values
        else:
            raise _misplaced(kind, place)
    run = convert(plain, Run, where=where)
    for name in (run.id, *(part.run for part in run.parts)):
        checked_name(name, "run id", where=where)
    checked_name(run.sku.slug, "SKU slug", where=where)
    own = tuple(result for result in results if not result.is_aside)
    aside = tuple(result for result in results if result.is_aside)
    return replace(run, results=own, aside=aside, traces=tuple(traces))


def _with_cases(plan: dict[str, Any], place: str) -> dict[str, Any]:
    try:
        cases = plan.pop("cases")
        for name in ("variants", "canaries"):
            plan[name] = [{**each, "case": cases[each["case"]]} for each in plan[name]]
    except (KeyError, TypeError) as error:
        raise _misplaced("plan", place) from error
    return plan


def _misplaced(kind: object, place: str) -> StoreError:
    return damaged(f"not a run file: unexpected line of kind {kind!r}", place)


def is_finished(tail: bytes) -> bool:
    """Say whether a run file that ends in these ``TAIL_BYTES`` or more is finished."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and last.startswith(b'{"kind":"end",')


def _whole(data: bytes, path: Path) -> Run:
    """Return a run from its file's text; a torn last line is dropped, and noted."""
    end = data.rfind(b"\n") + 1
    run, torn = read_run(data[:end], where=str(path)), len(data) - end
    note = (f"dropped a torn last line of {torn} bytes",) if torn else ()
    return replace(run, notes=(*run.notes, *note))


class RunFile(Closable):
    """An append-only run file, locked while it is open.

    ``run`` is the run as the file knows it: results so far, notes on what was lost.
    """

    run: Run

    def __init__(self, path: Path, *, flags: int = 0, remedy: str) -> None:
        self.path = path
        with refusing("cannot open the run file", path, remedy=remedy):
            if flags & os.O_CREAT:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | flags, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StoreError(
                "the run file is in use by another process",
                where=str(path),
                remedy="wait until that run ends, or end it",
            ) from error

    @classmethod
    def create(cls, folder: Path, run: Run) -> Self:
        """Start the file of a run in ``folder``/runs with its header and plan."""
        remedy = "make the folder writable, or choose another id if the file exists"
        file = cls(run_path(folder, run.id), flags=os.O_CREAT | os.O_EXCL, remedy=remedy)
        file.run = replace(
            run, verdicts=(), claims=(), finished="", wall_s=0.0, results=(), aside=(), traces=()
        )
        try:
            file._write(_start_lines(run))
        except StoreError:
            file.close()
            file.path.unlink()
            raise
        return file

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open the file of an interrupted run; ``run.results`` says what need not be repeated.

        A last line that was torn is cut off, with a note. A finished run is refused.
        """
        remedy = "name a file from .perfsuite/runs"
        file = cls(path, remedy=remedy)
        with ExitStack() as stack:
            stack.callback(file.close)
            with refusing("cannot read the run file", path, remedy=remedy):
                data = read(path)
            if is_finished(data):
                raise StoreError(
                    "the run is finished; there is nothing to resume",
                    where=str(path),
                    remedy="start a new run without --perf-resume",
                )
            file.run = _whole(data, path)
            os.ftruncate(file._descriptor, data.rfind(b"\n") + 1)
            stack.pop_all()
        return file

    @classmethod
    def amend(cls, path: Path, run: Run, *, traces: Iterable[Trace] = ()) -> Run:
        """Put verdicts and notes of ``run`` behind those that its finished file ends with.

        Of a variant that has a trace already, the one in ``traces`` holds from now on.
        """
        with cls(path, remedy="make it writable") as file:
            file.run = run
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
        self._write(_line("result", msgspec.structs.asdict(stored)))
        name = "aside" if stored.is_aside else "results"
        self.run = replace(self.run, **{name: (*getattr(self.run, name), stored)})
        return stored

    def append_trace(self, trace: Trace) -> None:
        """Put a trace on disk."""
        self._write(_line("trace", msgspec.structs.asdict(trace)))
        self.run = replace(self.run, traces=(*self.run.traces, trace))

    def finish(self, run: Run, *, traces: Sequence[Trace] = ()) -> Run:
        """End the file with verdicts, claims, notes and units of ``run``; return it as stored.

        With more ``traces`` at once: what ends with one of them alone counts as interrupted.
        """
        ended = replace(
            run,
            results=self.run.results,
            aside=self.run.aside,
            traces=(*self.run.traces, *traces),
            notes=tuple(dict.fromkeys((*self.run.notes, *run.notes))),
            finished=run.finished or datetime.now(UTC).isoformat(timespec="seconds"),
        )
        lines = [_line("trace", msgspec.structs.asdict(trace)) for trace in traces]
        self._write(b"".join(lines) + end_lines(ended))
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
            told = "the run file is closed"
            raise StoreError(told, where=str(self.path), remedy="resume the run")
        size = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, size)
            raise StoreError(
                f"cannot write to the run file: {error.strerror}",
                where=str(self.path),
                remedy="make room on the disk, then go on with --perf-resume",
            ) from error


def run_path(folder: Path, run_id: str) -> Path:
    """Return where a run's file lies in ``.perfsuite``."""
    return folder / "runs" / f"{checked_name(run_id, 'run id', where=folder)}.jsonl"


def load_run(path: Path) -> Run:
    """Return the run of a file, compressed or not; ``finished`` is empty if interrupted."""
    remedy = "name a file from .perfsuite/runs, or copy the run's file here"
    with refusing("cannot read the run file", path, remedy=remedy):
        data = unpacked(path)
    return _whole(data, path)


def list_runs(folder: Path) -> tuple[Path, ...]:
    """Return the run files of ``.perfsuite``, newest first."""
    place = folder / "runs"
    with refusing("cannot list the run files", place, remedy="make it a folder that is readable"):
        names = [name for name in listed(place) if name.endswith(".jsonl")]
    return tuple(sorted((place / name for name in names), key=lambda path: path.stem, reverse=True))


def next_run_id(folder: Path, now: datetime) -> str:
    """Return the id of a new run, such as ``20261121-103000-3f2a91c0``, behind all that are there.

    It has the time in UTC, the fraction of the second in four digits, and four random ones. Of two
    runs the later one has the greater id, also where the clock was set back between them.
    """

    def id_at(moment: datetime) -> str:
        fraction = moment.microsecond * 0x10000 // 1_000_000
        return f"{moment.astimezone(UTC):{_SECOND}}-{fraction:04x}{secrets.token_hex(2)}"

    found = id_at(now)
    for path in list_runs(folder):
        with suppress(ValueError, OverflowError):  # a file that was named by hand
            newest = datetime.strptime(path.stem[:15], _SECOND).replace(tzinfo=UTC)
            return found if path.stem < found else id_at(newest + timedelta(seconds=1))
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
        # What cannot be read cannot be resumed, and stops no other run; nor can what is locked.
        with suppress(OSError), opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            if not is_finished(file.read()):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
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
            header = read_run(first, where=str(path))
            units = {header.facts.unit, *(name for part in header.parts for name in part.units)}
            is_alike = header.sku.slug == sku and unit in units
            if not is_alike or header.settings.check_only:
                continue
            data = first + file.read()
            if is_finished(data):
                return read_run(data, where=str(path))
    return None
