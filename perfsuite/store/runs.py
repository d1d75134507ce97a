"""Run files: append-only JSON lines, the folder of them, and their ids.

A run file has a JSON object a line, tagged with its kind: ``header`` (what ran where), ``plan``
(variants and claims, and where their code comes from), a ``result`` or ``trace`` for each as it
ends, and once it is finished ``judged`` (verdicts, claims, notes) and a short ``end``. The last two
may follow once more: what was judged again later.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from msgspec.structs import asdict, replace

from perfsuite import model
from perfsuite.boundary import StoreError
from perfsuite.store import files

RUN_SCHEMA, REFERENCES_SCHEMA = "perfsuite.run/1", "perfsuite.reference/1"
_REFERENCES = "reference.json"
# The lines of a variant, and which one it is.
_OF_VARIANT = re.compile(rb'\{"kind":"(?:result|trace)","variant":("(?:[^"\\]|\\.)*")')
# The end line is shorter than this, so that whether a run is finished is read from its tail.
TAIL_BYTES = 256
_START_DIGITS = 4  # of a second: finer than any block
_SECOND = "%Y%m%d-%H%M%S"


class Plan(model.Record, frozen=True):
    """The line behind the header: what is to be measured."""

    variants: tuple[model.Variant, ...]
    instances: tuple[model.ClaimInstance, ...]
    canaries: tuple[model.Variant, ...]
    sources: Mapping[str, model.Source] = {}


class Judged(model.Record, frozen=True):
    """The line behind the last result: what is said of them."""

    verdicts: tuple[model.Verdict, ...]
    claims: tuple[model.ClaimVerdict, ...]
    notes: tuple[str, ...]
    units: Mapping[str, str]
    phases_s: Mapping[str, float]
    left_out: tuple[model.LeftOut, ...]
    forecasts: tuple[tuple[float, float], ...] = ()


class End(model.Record, frozen=True):
    """The last line."""

    finished: str
    wall_s: float


class References(model.Record, frozen=True):
    """By SKU and unit: the run that each variant is compared with, where one was named."""

    units: Mapping[str, Mapping[str, str]] = {}


# What the judged line of older files has, and nothing reads.
RETIRED = frozenset({"shift", "environments"})
PARTS: dict[str, type[model.Record]] = {"plan": Plan, "judged": Judged, "end": End}
# What is no part of another line stands in the header.
LATER = {name for part in PARTS.values() for name in part.__struct_fields__}


def _line(kind: str, values: Mapping[str, Any]) -> bytes:
    return files.encode({"kind": kind, **values}) + b"\n"


def _start_lines(run: model.Run) -> bytes:
    """Return the header and the plan; the plan names each case once, not a thousand times."""
    header = {name: getattr(run, name) for name in run.__struct_fields__ if name not in LATER}
    cases: dict[str, model.CaseInfo] = {}

    def without_case(variant: model.Variant) -> dict[str, Any]:
        name = f"{variant.pack}.{variant.case.name}"
        cases[name] = variant.case
        return {**asdict(variant), "case": name}

    plan = {
        "cases": cases,
        "variants": [without_case(each.variant) for each in run.variants],
        "instances": run.instances,
        "canaries": [without_case(each.variant) for each in run.canaries],
        "sources": run.sources,
    }
    return _line("header", {"schema": RUN_SCHEMA, **header}) + _line("plan", plan)


def end_lines(run: model.Run) -> bytes:
    """Return the lines that end a finished run."""
    judged = {name: getattr(run, name) for name in Judged.__struct_fields__}
    return _line("judged", judged) + _line("end", asdict(End(run.finished, run.wall_s)))


def read_run(data: bytes, *, where: str) -> model.Run:
    """Return a run from whole lines of its file, be it the first alone.

    ``finished`` is empty if it has no end.
    """
    first, *lines = data.removesuffix(b"\n").split(b"\n")
    place = f"{where}, line 1"
    header = files.read_json(first, where=where)
    if header.pop("kind", None) != "header":
        raise files.damaged("not a run file: it begins with no header", place)
    files.take_schema(header, RUN_SCHEMA, where=place)
    run = files.convert(header, model.Run, where=place)
    for name in (run.id, *(part.run for part in run.parts)):
        files.checked_name(name, "run id", where=place)
    files.checked_name(run.sku.slug, "SKU slug", where=place)
    results: list[model.Result] = []
    traces: list[model.Trace] = []
    judged: dict[str, Any] = {}
    for number, line in enumerate(lines, 2):
        place = f"{where}, line {number}"
        values = files.read_json(line, where=where, line=number)
        kind = values.pop("kind", None)
        if kind == "trace":  # what is judged again may be traced before
            traces.append(files.convert(values, model.Trace, where=place))
        elif kind == "result" and not run.finished:
            results.append(files.convert(values, model.Result, where=place))
        elif kind == "plan" and not run.finished:
            plan = files.convert(_with_cases(values, place), Plan, where=place)
            variants, canaries = (
                tuple(model.VariantRun(variant=each) for each in some)
                for some in (plan.variants, plan.canaries)
            )
            run = replace(run, variants=variants, canaries=canaries)
            run = replace(run, instances=plan.instances, sources=plan.sources)
        elif kind == "judged":
            kept = {name: value for name, value in values.items() if name not in RETIRED}
            judged = asdict(files.convert(kept, Judged, where=place))
        elif kind == "end":
            run = replace(run, **asdict(files.convert(values, End, where=place)))
        else:
            raise files.damaged(f"not a run file: unexpected line of kind {kind!r}", place)
    said = {name: judged.pop(name) for name in ("verdicts", "left_out") if judged}
    try:
        return _declared(replace(run.having(results=results, traces=traces, **said), **judged))
    except ValueError as error:
        raise files.damaged(str(error), where) from error


def _declared(run: model.Run) -> model.Run:
    """Return a run whose claims are all declared; raises ValueError if one is not."""
    if lost := {one.claim for one in run.claims} - {one.id for one in run.instances}:
        raise ValueError(f"the run has no claim {min(lost)!r}")
    return run


def _with_cases(plan: dict[str, Any], place: str) -> dict[str, Any]:
    """Put the cases that the plan holds once back into its variants."""
    try:
        cases = plan.pop("cases")
        for name in ("variants", "canaries"):
            plan[name] = [{**each, "case": cases[each["case"]]} for each in plan[name]]
    except (KeyError, TypeError) as error:
        raise files.damaged("not a run file: a variant has no case", place) from error
    return plan


def is_finished(tail: bytes) -> bool:
    """Say whether a run file that ends in these ``TAIL_BYTES`` or more is finished."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    return tail.endswith(b"\n") and last.startswith(b'{"kind":"end",')


def _whole(data: bytes, path: Path) -> model.Run:
    """Return a run from its file's text; a torn last line is dropped, and noted."""
    end = data.rfind(b"\n") + 1
    run, torn = read_run(data[:end], where=str(path)), len(data) - end
    note = (f"dropped a torn last line of {torn} bytes",) if torn else ()
    return replace(run, notes=(*run.notes, *note))


class RunFile(files.Closable):
    """An append-only run file, locked while it is open.

    ``run`` is the run as the file knows it: results so far, notes on what was lost.
    """

    run: model.Run

    def __init__(self, path: Path, *, flags: int = 0, remedy: str) -> None:
        self.path = path
        with files.refusing("cannot open the run file", path, remedy=remedy):
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
    def create(cls, folder: Path, run: model.Run) -> Self:
        """Start the file of a run in ``folder``/runs with its header and plan."""
        remedy = "make the folder writable, or choose another id if the file exists"
        file = cls(run_path(folder, run.id), flags=os.O_CREAT | os.O_EXCL, remedy=remedy)
        bare = run.having(results=(), verdicts=(), traces=())
        file.run = replace(bare, claims=(), finished="", wall_s=0.0)
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
            with files.refusing("cannot read the run file", path, remedy=remedy):
                data = files.read(path)
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

    def append(self, result: model.Result) -> model.Result:
        """Put a result on disk and return it as stored: samples have six digits."""
        evidence = []
        for process in result.evidence:
            blocks = (
                replace(
                    block,
                    time_us=tuple(map(files.round_digits, block.time_us)),
                    cycles=tuple(map(files.round_digits, block.cycles)),
                    start_s=round(block.start_s, _START_DIGITS),
                )
                for block in process.blocks
            )
            evidence.append(replace(process, blocks=tuple(blocks)))
        stored = replace(result, evidence=tuple(evidence))
        self._write(_line("result", asdict(stored)))
        name = "canaries" if stored.stage.is_canary else "variants"
        self._add(name, stored.variant, "results", stored)
        return stored

    def append_trace(self, trace: model.Trace) -> None:
        """Put a trace on disk."""
        self._write(_line("trace", asdict(trace)))
        self._add("variants", trace.variant, "traces", trace)

    def _add(self, side: str, variant: str, name: str, value: object) -> None:
        runs = list(getattr(self.run, side))
        for place, one in enumerate(runs):
            if one.id == variant:
                runs[place] = replace(one, **{name: (*getattr(one, name), value)})
        self.run = replace(self.run, **{side: tuple(runs)})

    def finish(self, run: model.Run) -> model.Run:
        """End the file with verdicts, claims, notes and units of ``run``; return it as stored."""
        measured = (*self.run.results, *self.run.aside)
        ended = replace(
            run.having(results=measured, traces=self.run.traces),
            notes=tuple(dict.fromkeys((*self.run.notes, *run.notes))),
            finished=run.finished or datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._write(end_lines(ended))
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
    return folder / "runs" / f"{files.checked_name(run_id, 'run id', where=folder)}.jsonl"


def load_run(path: Path) -> model.Run:
    """Return the run of a file, compressed or not; ``finished`` is empty if interrupted."""
    remedy = "name a file from .perfsuite/runs, or copy the run's file here"
    with files.refusing("cannot read the run file", path, remedy=remedy):
        data = files.unpacked(path)
    return _whole(data, path)


def list_runs(folder: Path) -> tuple[Path, ...]:
    """Return the run files of ``.perfsuite``, newest first."""
    place = folder / "runs"
    with files.refusing(
        "cannot list the run files", place, remedy="make it a folder that is readable"
    ):
        names = [name for name in files.listed(place) if name.endswith(".jsonl")]
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


def unfinished(folder: Path) -> tuple[Path, ...]:
    """Return the files of interrupted runs, newest first; a run still going on is none."""
    found = []
    for path in list_runs(folder):
        # What cannot be read cannot be resumed, and stops no other run; nor can what is locked.
        with suppress(OSError), files.opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            if not is_finished(file.read()):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                found.append(path)
    return tuple(found)


Needs = Callable[[model.Run], Collection[str]]


def ended_runs(
    paths: Iterable[Path],
    *,
    sku: str = "",
    unit: str = "",
    needs: Needs | None = None,
    damaged: Callable[[Path], object] = str,
) -> Iterator[model.Run]:
    """Yield the finished and measured runs among files, of a SKU (its slug) and unit if given.

    A merged run is of all its shards' units. ``needs`` says of a run that has a plan alone which
    variants' results are read; where that is none, the run is passed over. So is a file that cannot
    be read, of which ``damaged`` is told: others may answer as well.
    """
    for path in paths:
        try:
            if run := _ended(path, sku, unit, needs):
                yield run
        except (StoreError, OSError):
            damaged(path)


def _ended(path: Path, sku: str, unit: str, needs: Needs | None) -> model.Run | None:
    with files.opened(path) as file:
        head, where = file.readline(), str(path)
        header = read_run(head, where=where)
        units = {header.facts.unit, *(name for part in header.parts for name in part.units)}
        if sku not in {"", header.sku.slug} or unit not in {"", *units}:
            return None
        head += file.readline()
        names = needs(read_run(head, where=where)) if needs else None
        if header.settings.check_only or (names is not None and not names):
            return None
        data = head + file.read()
    if not is_finished(data):
        return None
    return read_run(data if names is None else _part(data, names), where=where)


def _part(data: bytes, names: Collection[str]) -> bytes:
    """Return a run's lines without other variants' results: reading those takes seconds a night."""
    wanted = {files.encode(name) for name in names}
    lines = ((_OF_VARIANT.match(line), line) for line in data.splitlines(keepends=True))
    return b"".join(line for found, line in lines if not found or found[1] in wanted)


def last_run(folder: Path, *, sku: str = "", unit: str = "", before: str = "") -> model.Run | None:
    """Return the newest run that ended, of a SKU (its slug) and unit if given, or None.

    ``before`` is a run id: only older runs count.
    """
    paths = (path for path in list_runs(folder) if not before or path.stem < before)
    return next(ended_runs(paths, sku=sku, unit=unit), None)


def read_references(folder: Path, run: model.Run) -> Mapping[str, str]:
    """Return which runs ``write_references`` made those that a run's variants are compared with."""
    return _references(folder).units.get(f"{run.sku.slug}/{run.facts.unit}", {})


def write_references(folder: Path, run: model.Run, names: Iterable[str]) -> None:
    """Compare these variants with this run from now on, on its SKU and its shards' units."""
    path, own = folder / _REFERENCES, {run.facts.unit, *(part.facts.unit for part in run.parts)}
    remedy = "make the folder writable; the reference is as it was"
    with files.refusing("cannot keep the reference", path, remedy=remedy), files.locked(folder):
        units = dict(_references(folder).units)
        chosen = dict.fromkeys(names, run.id)
        for unit in (f"{run.sku.slug}/{each}" for each in own):
            units[unit] = {**units.get(unit, {}), **chosen}
        whole = {"schema": REFERENCES_SCHEMA, "units": units}
        text = json.dumps(whole, indent=2, sort_keys=True)
        files.replace_file(path, text.encode("utf-8", "replace") + b"\n")


def _references(folder: Path) -> References:
    path = folder / _REFERENCES
    remedy = "remove it, and name the reference again: perfsuite baseline reset"
    with files.refusing("cannot read which runs are the reference", path, remedy=remedy):
        found = files.read_stored(path, REFERENCES_SCHEMA)
    return files.convert(found or {}, References, where=str(path))
