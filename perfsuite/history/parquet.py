"""A history in one Parquet file, and back: a row per point, with what is needed to store it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import and_, select

from perfsuite.codec import decode, encode
from perfsuite.errors import StoreError
from perfsuite.files import opened, refusing
from perfsuite.history.reading import moves_with_keys
from perfsuite.history.rows import StoredPoint, StoredRun
from perfsuite.history.soundness import (
    blob,
    environment,
    maybe,
    moment,
    number,
    raw,
    sound,
    values,
    whole,
)
from perfsuite.history.store import KEY, History
from perfsuite.history.tables import points, runs, samples, series
from perfsuite.model import BaselineMove, Point, SeriesKey

SCHEMA = b"perfsuite.history/1"
ROWS_AT_ONCE = 50_000
_RUN = {"run": "id", "started": "started", "commit": "commit_id"}
_RUN |= {"run_sku": "sku", "run_unit": "unit", "environment": "environment"}
_POINT = (
    *("part", "center", "process_values", "between_processes", "processes"),
    *("word", "theta", "low", "high", "why_not"),
)
_NAMES = (*_RUN, *KEY, *_POINT, "samples")
_SOUND = {
    **dict.fromkeys(_NAMES, raw),
    **dict.fromkeys(("center", "theta", "low", "high"), maybe),
    "process_values": values,
    "environment": environment,
    "samples": blob,
    "started": moment,
    "between_processes": number,
    "case_version": whole,
    "processes": whole,
}


def write_parquet(history: History, path: Path) -> int:
    """Write all points with their series, runs and samples; return how many points."""
    pa, parquet = _libraries()
    kept = and_(
        samples.c.run == points.c.run,
        samples.c.series == points.c.series,
        samples.c.part == points.c.part,
    )
    columns = [runs.c[name] for name in _RUN.values()]
    columns += [series.c[name] for name in KEY] + [points.c[name] for name in _POINT]
    query = select(*columns, samples.c.data).select_from(
        points.join(runs).join(series).outerjoin(samples, kept)
    )
    query = query.order_by(points.c.run, points.c.series, points.c.part)
    count = 0
    with (
        refusing("cannot write the file", path, remedy="name another place"),
        history.reading() as connection,
    ):
        accepted = encode(moves_with_keys(history, connection))
        form = _form(pa).with_metadata({"perfsuite": SCHEMA, "baseline_moves": accepted})
        with parquet.ParquetWriter(path, form, compression="zstd") as writer:
            rows = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
            for part in rows.partitions():
                own = [row for row in part if sound(history, dict, _SOUND, row) is not None]
                # Of no row at all there are no columns.
                cells = list(zip(*own, strict=True)) or [()] * len(_NAMES)
                arrays = list(map(pa.array, cells, (each.type for each in form)))
                writer.write_batch(pa.record_batch(arrays, schema=form))
                count += len(own)
    return count


def read_parquet(path: Path) -> tuple[Iterator[StoredRun], tuple[BaselineMove, ...]]:
    """Return the runs and the acceptances of a file; another file is a StoreError."""
    pa, parquet = _libraries()
    with refusing("cannot read the file", path, remedy="name a file that exists"):
        try:
            with opened(path):  # a pipe would block
                file = parquet.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise _foreign(path, str(error)) from error
    told = file.schema_arrow.metadata or {}
    if told.get(b"perfsuite") != SCHEMA or not file.schema_arrow.equals(_form(pa)):
        raise _foreign(path, f"schema {told.get(b'perfsuite', b'none')!r}")
    accepted = decode(told.get(b"baseline_moves", b""), tuple[BaselineMove, ...])
    rows = (row for batch in file.iter_batches(ROWS_AT_ONCE) for row in batch.to_pylist())
    return _whole(_runs(rows), path), accepted


def _whole(runs: Iterator[StoredRun], path: Path) -> Iterator[StoredRun]:
    """Yield the runs; what is damaged behind a good head is refused as a bad head is."""
    try:
        yield from runs
    # Arrow's own errors are ValueErrors and OSErrors; a text that is null has no methods.
    except (ValueError, OSError, AttributeError, TypeError) as error:
        raise _foreign(path, str(error)) from error


def _runs(rows: Iterable[dict[str, Any]]) -> Iterator[StoredRun]:
    for run, group in groupby(rows, key=lambda row: row["run"]):
        own: Sequence[dict[str, Any]] = list(group)
        first = own[0]
        yield StoredRun(
            id=run,
            started=first["started"],
            commit=first["commit"],
            sku=first["run_sku"],
            unit=first["run_unit"],
            environment=decode(first["environment"].encode(), dict[str, str]),
            points=tuple(map(_stored, own)),
        )


def _stored(row: dict[str, Any]) -> StoredPoint:
    point = Point(
        run=row["run"],
        started=row["started"],
        commit=row["commit"],
        center=row["center"],
        values=decode(row["process_values"].encode(), dict[str, tuple[float, ...]]),
        between=row["between_processes"],
        word=row["word"],
        theta=row["theta"],
        low=row["low"],
        high=row["high"],
        part=row["part"],
        why_not=row["why_not"],
    )
    return StoredPoint(SeriesKey(**{name: row[name] for name in KEY}), point, row["samples"])


def _form(pa: Any) -> Any:
    """Return the columns with their types; what is not listed is text."""
    number = dict.fromkeys(("center", "between_processes", "theta", "low", "high"), pa.float64())
    kinds = {**number, "processes": pa.int32(), "case_version": pa.int32()}
    kinds["samples"] = pa.binary()
    return pa.schema([(name, kinds.get(name, pa.string())) for name in _NAMES])


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise StoreError(
            "Parquet files need pyarrow", remedy='pip install "perfsuite[parquet]"'
        ) from error
    return pa, parquet


def _foreign(path: Path, why: str) -> StoreError:
    return StoreError(
        f"not a history: {why}",
        where=str(path),
        remedy="name a file that perfsuite history export of this version wrote",
    )
