"""A file of pytest-benchmark as a run of the history, so that old series get change points.

Its SKU and regime are names that nothing measured here has: what another tool timed, on the host's
clock in one process, is compared with nothing but itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfsuite.boundary import is_measurable, plain
from perfsuite.codec import convert, read_json
from perfsuite.errors import StoreError
from perfsuite.files import read, refusing
from perfsuite.history.rows import TIME, StoredPoint, StoredRun, pack_samples
from perfsuite.model import Point, SeriesKey
from perfsuite.sku import slugify

TOOL = "pytest-benchmark"
US_PER_S = 1e6
DIGITS = 12


@dataclass(frozen=True, slots=True)
class Stats:
    """Durations in seconds; ``data`` is there only if the file was written with it."""

    median: float
    data: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One test."""

    fullname: str
    stats: Stats


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFile:
    """What is read of a file; the rest is let be."""

    datetime: datetime
    benchmarks: tuple[Benchmark, ...]
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any] = field(default_factory=dict)


def read_benchmark(path: Path) -> StoredRun:
    """Return the run that a JSON file of pytest-benchmark is; another file is a StoreError."""
    with refusing("cannot read the file", path, remedy="name a file that exists"):
        data = read(path)
    file = convert(
        read_json(data, where=str(path)), BenchmarkFile, where=str(path), is_foreign=True
    )
    _refuse(file, path)
    commit = str(file.commit_info.get("id") or "")
    is_dirty = commit and file.commit_info.get("dirty")
    run = StoredRun(
        id=f"{TOOL}-{hashlib.sha256(data).hexdigest()[:DIGITS]}",
        started=_started(file, path),
        commit=plain(f"{commit}-dirty" if is_dirty else commit),
        sku=_sku(file.machine_info),
        unit=plain(str(file.machine_info.get("node", ""))),
        environment={
            plain(name): plain(value)
            for name, value in file.machine_info.items()
            if isinstance(value, str)
        },
    )
    return replace(run, points=tuple(_point(run, each) for each in file.benchmarks))


def _started(file: BenchmarkFile, path: Path) -> str:
    told = file.datetime if file.datetime.tzinfo else file.datetime.replace(tzinfo=UTC)
    try:
        return told.astimezone(UTC).isoformat(timespec="seconds")
    except OverflowError:
        raise _bad(f"key 'datetime' is {told.isoformat()}, which no calendar has", path) from None


def _bad(what: str, path: Path) -> StoreError:
    return StoreError(what, where=str(path), remedy="correct the file, or name another one")


def _sku(machine: Mapping[str, Any]) -> str:
    """Return a name that no product has: ``slugify`` leaves no underscore."""
    cpu = machine.get("cpu")
    known: Sequence[Any] = [machine.get(name) for name in ("processor", "machine")]
    brand = cpu.get("brand_raw") or cpu.get("brand") if isinstance(cpu, dict) else None
    named = next((slugify(name) for name in (brand, *known) if name and isinstance(name, str)), "")
    return f"{TOOL}_{named or 'unknown'}"


def _refuse(file: BenchmarkFile, path: Path) -> None:
    if "sku" in file.machine_info:
        raise StoreError(
            "perfsuite wrote this file itself",
            where=str(path),
            remedy="import the run: perfsuite history import RUN",
        )
    if not file.benchmarks:
        raise StoreError("it holds no benchmark", where=str(path), remedy="name another file")
    for each in file.benchmarks:
        durations = (each.stats.median, *each.stats.data)
        if min(durations) <= 0 or not is_measurable(max(durations) * US_PER_S):
            raise _bad(f"{each.fullname} has a duration that is none", path)


def _point(run: StoredRun, told: Benchmark) -> StoredPoint:
    key = SeriesKey(
        sku=run.sku,
        variant=plain(told.fullname),
        metric=TIME,
        regime=TOOL,
        unit="us",
        better="lower",
    )
    center = told.stats.median * US_PER_S
    point = Point(
        run=run.id,
        started=run.started,
        commit=run.commit,
        center=center,
        values={run.unit: (center,)},
    )
    samples = [second * US_PER_S for second in told.stats.data]
    return StoredPoint(key, point, pack_samples([[samples]]) if samples else None)
