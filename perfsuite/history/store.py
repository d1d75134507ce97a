"""The history in a SQL database: points of runs, read as series with their shifts."""

from __future__ import annotations

import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from perfsuite.boundary import StoreError, UsageError, from_environment, is_measurable, plain
from perfsuite.history import DEFAULT, INI
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    Arm,
    BaselineEntry,
    BaselineMetric,
    BaselineMove,
    Change,
    ChangePoint,
    Point,
    Regime,
    Result,
    Run,
    RunLabel,
    Series,
    SeriesKey,
    Status,
    Trend,
    Trends,
    Variant,
    Verdict,
)
from perfsuite.run.config import text_of
from perfsuite.stats import MAD_TO_SD
from perfsuite.store.baselines import Baselines, Root
from perfsuite.store.codec import decode, encode
from perfsuite.store.files import is_absent, refusing
from perfsuite.store.sku import sku_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sqlalchemy import URL


# Where a history is: a URL whose password neither stands in a file nor is ever shown.


# Its URL wins over the project's setting: a password belongs here.
VARIABLE = "PERFSUITE_HISTORY"
BUSY_S = 30
# A server that takes a connection may never answer, and a view may have rows without end.
CONNECT_S = 10
STATEMENT_S = 60.0
# Instructions of SQLite's between two looks at the clock: some milliseconds.
_STEPS = 100_000


def url_of(root: Path, setting: str | None = None) -> str:
    """Return the URL of a project's history: the environment's, else the project's setting."""
    return from_environment(VARIABLE) or (
        text_of(root, INI, DEFAULT) if setting is None else setting
    )


def open_engine(url: str, root: Path) -> Engine:
    """Return the engine of a URL; a SQLite file's path is relative to ``root``."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, root)
        if parsed.get_backend_name() == "postgresql":
            return _postgresql(parsed)
    except (ArgumentError, NoSuchModuleError, ValueError):  # a port or an option that is no number
        pass
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL needs a driver: {error}", remedy='pip install "perfsuite[postgres]"'
        ) from error
    # Without the URL: where it cannot be read, its password cannot be told from the rest.
    raise UsageError(
        "the URL of the history cannot be used",
        where=f"{VARIABLE} or ini {INI}",
        remedy=f"write {DEFAULT} or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE",
    )


def _postgresql(url: URL) -> Engine:
    from sqlalchemy import create_engine, event

    is_known = url.get_driver_name().startswith("psycopg") and "connect_timeout" not in url.query
    settings = {"connect_timeout": CONNECT_S} if is_known else {}
    engine = create_engine(url, connect_args=settings)
    event.listen(engine, "begin", _limit_statements)
    return engine


def _limit_statements(connection: Connection) -> None:
    # In each transaction: a pooler between may refuse it as an option of the connection.
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(STATEMENT_S * 1000)}")


def _sqlite(url: URL, root: Path) -> Engine:
    from sqlalchemy import create_engine, event

    path = root / (url.database or "history.db")
    with refusing("cannot make the folder of the history", path.parent, remedy="make it writable"):
        path.parent.mkdir(parents=True, exist_ok=True)
    # SQLite would make the file that a link leads to, wherever that is.
    with refusing("cannot open the history", path, remedy="remove the link, or make its file"):
        is_absent(path)
    settings = {"timeout": BUSY_S, "isolation_level": None}
    engine = create_engine(url.set(database=str(path)), connect_args=settings)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", _limit)
    event.listen(engine, "checkin", _unlimit)
    return engine


def _set_up(connection: sqlite3.Connection, _: object) -> None:
    # Bytes that are no text cost their row, not the query.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin(connection: Connection) -> None:
    """Wait for other writers at the start: a reader that turns writer would fail at once."""
    is_writer = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _limit(_: Connection, cursor: sqlite3.Cursor, *__: object) -> None:
    """Interrupt a statement, with the reading of its rows, that takes too long."""
    deadline = time.monotonic() + STATEMENT_S
    cursor.connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)


def _unlimit(connection: sqlite3.Connection | None, _: object) -> None:
    """Let what runs on the bare connection take its time: VACUUM."""
    if connection is not None:
        connection.set_progress_handler(None, 0)


# Finds where the level of a series of nights shifts.


# Fewer values at a level are outliers, not a level.
FEWEST = 3
# The smallest threshold of a verdict: a smaller shift is no news, however certain.
LEAST_SHIFT = 0.0025
# Of a shift, corrected for the number of places where it could have been.
MOST_P = 0.001
# A value this many standard deviations from its neighbours' median is drawn in to that distance.
REACH = 4.0
NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class Shift:
    """A shift of the level at ``index``, the first value after it, as a difference of means.

    ``p_value`` is Student's t of both levels times the number of places looked at.
    """

    index: int
    size: float
    p_value: float


def shifts(values: Sequence[float]) -> tuple[Shift, ...]:
    """Return where the level of (log) values shifts.

    Candidates are the best segmentation by squared error (ruptures' PELT) at a penalty of
    3 log n variances; then the weakest goes, until each is certain and large enough, as in Hunter
    (Fleming et al., ICPE 2023).
    """
    if len(values) < 2 * FEWEST:
        return ()
    import numpy as np
    from ruptures import KernelCPD

    raw = np.asarray(values, dtype=float)
    noise = _noise(raw)
    near = _drawn_in(raw, REACH * noise)
    scaled = ((near - near[0]) / noise).reshape(-1, 1)
    search = KernelCPD(kernel="linear", min_size=FEWEST).fit(scaled)
    ends = [0, *(int(end) for end in search.predict(pen=3 * math.log(len(raw))))]
    while len(ends) > 2:  # noqa: PLR2004 - more than one level
        found = [
            _shift(near, *place, noise) for place in zip(ends, ends[1:], ends[2:], strict=False)
        ]
        weakest = max(found, key=lambda shift: (shift.p_value, -abs(shift.size)))
        if weakest.p_value < MOST_P:
            weakest = min(found, key=lambda shift: abs(shift.size))
            if abs(weakest.size) >= LEAST_SHIFT:
                return tuple(found)
        ends.remove(weakest.index)
    return ()


def _noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation between neighbours, which a shift does not raise."""
    import numpy as np

    steps = np.diff(values)
    away = np.abs(steps - _median(steps))
    return max(MAD_TO_SD * float(_median(away)) / math.sqrt(2), LEAST_SHIFT / 10)


def _drawn_in(values: NDArray[np.float64], reach: float) -> NDArray[np.float64]:
    """Return the values, those far from the median of their neighbours at most ``reach`` from it.

    A shift stays as it is once most of the neighbours are behind it.
    """
    import numpy as np

    inside = len(values) - NEIGHBOURS + 1
    inner = _median(np.array([values[at : at + inside] for at in range(NEIGHBOURS)]).T)
    edge = NEIGHBOURS // 2
    middles = np.concatenate([[inner[0]] * edge, inner, [inner[-1]] * edge])
    return np.minimum(np.maximum(values, middles - reach), middles + reach)


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (upper) median; numpy's own takes most of the time of a thousand series."""
    import numpy as np

    middle = values.shape[-1] // 2
    found: NDArray[np.float64] = np.partition(values, middle)[..., middle]
    return found


def _shift(values: NDArray[np.float64], start: int, place: int, end: int, noise: float) -> Shift:
    from scipy.special import stdtr

    left, right = values[start:place], values[place:end]
    degrees = len(left) + len(right) - 2
    squares = len(left) * left.var() + len(right) * right.var()
    # Values that are rounded alike have no spread of their own.
    variance = max(squares / degrees, (noise / 10) ** 2)
    size = float(right.mean() - left.mean())
    error = math.sqrt(variance * (1 / len(left) + 1 / len(right)))
    p_value = 2 * float(stdtr(degrees, -abs(size) / error)) * (len(values) - 2 * FEWEST + 1)
    return Shift(place, size, min(1.0, p_value))


# Says of series that were read where their level shifted.


def with_shifts(found: Trends) -> Trends:
    """Return the trends with where each series' level shifted."""
    return replace(found, rows=tuple(_with_shifts(row, found.runs) for row in found.rows))


def with_change_points(one: Series) -> Series:
    """Return the series with where its level shifted; points that do not count are passed over."""
    valid = one.valid
    found = _shifted([point.center or 0.0 for point in valid])
    if found is None:
        return one
    cuts = [0, *(shift.index for shift in found), len(valid)]
    units = [
        {unit for point in valid[start:end] for unit in point.values}
        for start, end in pairwise(cuts)
    ]
    labels = [RunLabel(point.run, point.started, point.commit) for point in valid]
    told = tuple(
        replace(_told(shift, labels), is_other_unit=bool(here and there and not here & there))
        for shift, there, here in zip(found, units, units[1:], strict=False)
    )
    return replace(one, change_points=told)


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A shift with the levels around it in the metric's unit."""

    index: int
    before: float
    after: float
    p_value: float


def _shifted(centers: Sequence[float]) -> list[_Shifted] | None:
    """Return each shift; None where nothing can look."""
    if not centers:
        return []
    # Counts may be nothing at all, which has no logarithm.
    add = 0.0 if all(center > 0 for center in centers) else 1.0
    try:
        found = shifts([math.log(max(center, 0.0) + add) for center in centers])
    except ImportError:  # there is no ruptures for every Python
        return None
    ends = [0, *(shift.index for shift in found), len(centers)]
    levels = [fmean(centers[start:end]) for start, end in pairwise(ends)]
    around = zip(found, levels, levels[1:], strict=False)
    return [_Shifted(each.index, before, after, each.p_value) for each, before, after in around]


def _told(shift: _Shifted, labels: Sequence[RunLabel]) -> ChangePoint:
    before, first = labels[shift.index - 1], labels[shift.index]
    return ChangePoint(
        run=first.id,
        started=first.started,
        commit_before=before.commit,
        commit=first.commit,
        before=shift.before,
        after=shift.after,
        p_value=shift.p_value,
    )


def _with_shifts(row: Trend, labels: Sequence[RunLabel]) -> Trend:
    counted = [
        at for at, center in enumerate(row.centers) if center is not None and at not in row.why_not
    ]
    found = _shifted([row.centers[at] or 0.0 for at in counted])
    if not found:
        return row if found is None else replace(row, change_points=())
    own = [labels[row.runs[at]] for at in counted]
    return replace(row, change_points=tuple(_told(shift, own) for shift in found))


# A run as a history keeps it: its points with what makes them count, their samples compressed.


ARM_A = "arm A"
MACHINE_SHIFT = "machine-shift"
TIME = "time_us"


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """A point, the series it belongs to, and its samples by process and block, compressed."""

    key: SeriesKey
    point: Point
    samples: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """What is kept of a run: where it was made, and its points."""

    id: str
    started: str
    commit: str
    sku: str
    unit: str
    environment: Mapping[str, str] = field(default_factory=dict)
    points: tuple[StoredPoint, ...] = ()


def stored_of(run: Run) -> StoredRun:
    """Return what a history keeps of a run; one that was interrupted is a ``UsageError``."""
    if not run.finished:
        raise UsageError(
            f"run {run.id!r} was interrupted", remedy="finish it with pytest --perf --perf-resume"
        )
    return StoredRun(
        id=run.id,
        started=run.started,
        commit=run.commit,
        sku=run.sku.slug,
        unit=run.facts.unit,
        environment={**run.facts.environment, **run.facts.state},
        points=() if run.settings.check_only else tuple(_points(run)),
    )


def pack_samples(processes: Sequence[Sequence[Sequence[float]]]) -> bytes:
    """Return samples by process and block in few bytes."""
    return zlib.compress(encode(processes), 1)


def unpack_samples(data: bytes) -> list[list[list[float]]]:
    """Return what ``pack_samples`` packed."""
    return decode(zlib.decompress(data), list[list[list[float]]])


def _points(run: Run) -> Iterator[StoredPoint]:
    parts: dict[str, list[Result]] = {}
    for result in (*run.results, *run.aside):
        if result.status is not Status.SKIPPED:
            parts.setdefault(_part_of(result), []).append(result)
    variants = {variant.id: variant for variant in (*run.canaries, *run.variants)}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    for part, results in parts.items():
        # What failed is kept as far as it was measured: only its mark tells it from the rest.
        ended = tuple(replace(result, status=Status.OK) for result in results)
        entries = entries_of(replace(run, results=ended))
        found: dict[str, list[Result]] = {}
        for result in results:
            found.setdefault(result.variant, []).append(result)
        for name, own in found.items():
            if name not in variants:
                continue
            verdict = None if part else verdicts.get(name)
            blank = Point(run=run.id, started=run.started, commit=run.commit, part=part)
            point = replace(
                blank, why_not=_why_not(run, part, own), word=verdict.word.value if verdict else ""
            )
            told = _Told(run, variants[name], own, verdict, point)
            yield from told.points(entries.get(name))


def _part_of(result: Result) -> str:
    if result.claim:
        return f"claim {result.claim}"
    if result.arm is Arm.A:
        return ARM_A
    return result.stage.value if result.stage.is_canary else ""


def _why_not(run: Run, part: str, results: Sequence[Result]) -> str:
    """Say why what was measured is no point of the variant's history."""
    last = {result.stage: result.status for result in results}
    failed = [status.value for status in last.values() if status is not Status.OK]
    shifted = [MACHINE_SHIFT] if run.shift is not None else []
    return ", ".join([*([part] if part else []), *failed, *shifted])


@dataclass(frozen=True, slots=True)
class _Told:
    """One variant in one part of a run."""

    run: Run
    variant: Variant
    results: Sequence[Result]
    verdict: Verdict | None
    point: Point

    def points(self, entry: BaselineEntry | None) -> Iterator[StoredPoint]:
        """Yield a point per metric; of what yielded no number one that says why."""
        if entry is None:
            if self.point.why_not and self.variant.case.regime is not Regime.EXACT:
                yield StoredPoint(self._key(TIME, BaselineMetric(center=0, unit="us")), self.point)
            return
        changes = {change.metric: change for change in self._changes()}
        for name, metric in entry.metrics.items():
            point = replace(
                self.point,
                center=metric.center,
                values=metric.values,
                between=metric.between,
                word=self.point.word if name in changes or name == TIME else "",
            )
            if name in changes:
                change = changes[name]
                point = replace(point, theta=change.theta, low=change.low, high=change.high)
            yield StoredPoint(self._key(name, metric), point, self._samples(name, metric))

    def _changes(self) -> tuple[Change, ...]:
        return self.verdict.changes if self.verdict else ()

    def _key(self, name: str, metric: BaselineMetric) -> SeriesKey:
        return SeriesKey(
            sku=sku_for(self.variant, self.run.facts, own=self.run.sku).slug,
            variant=self.variant.id,
            metric=name,
            regime=self.variant.case.regime.value,
            case_version=self.results[-1].case_version,
            unit=metric.unit,
            better=metric.better,
        )

    def _samples(self, name: str, metric: BaselineMetric) -> bytes | None:
        if not metric.values:
            return None
        evidence = [process for result in self.results for process in result.evidence]
        return pack_samples([process.samples(name) for process in evidence])


# The tables of a history and their version.


metadata = MetaData()

schema = Table("perfsuite_schema", metadata, Column("version", Integer, nullable=False))
# Times are ISO 8601 in UTC, which sort as text.
runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("started", Text, nullable=False, index=True),
    Column("commit_id", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("environment", Text, nullable=False),
)
series = Table(
    "series",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("sku", Text, nullable=False),
    Column("variant", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("regime", Text, nullable=False),
    Column("case_version", Integer, nullable=False),
    Column("unit", Text, nullable=False),
    Column("better", Text, nullable=False),
    UniqueConstraint("sku", "variant", "metric", "regime", "case_version"),
    Index("series_of_variant", "variant"),
)
# By run first: what is new is written at the end, and the last nights of all series lie together.
points = Table(
    "points",
    metadata,
    Column("run", ForeignKey("runs.number", ondelete="CASCADE"), primary_key=True),
    Column("series", ForeignKey("series.number"), primary_key=True),
    Column("part", Text, primary_key=True),
    Column("center", Double),
    Column("process_values", Text, nullable=False),
    Column("between_processes", Double, nullable=False),
    Column("processes", Integer, nullable=False),
    Column("word", Text, nullable=False),
    Column("theta", Double),
    Column("low", Double),
    Column("high", Double),
    Column("why_not", Text, nullable=False),
    Index("points_of_series", "series", "run"),
    sqlite_with_rowid=False,
)
samples = Table(
    "samples",
    metadata,
    Column("run", ForeignKey("runs.number", ondelete="CASCADE"), primary_key=True),
    Column("series", ForeignKey("series.number"), primary_key=True),
    Column("part", Text, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
moves = Table(
    "baseline_moves",
    metadata,
    Column("series", ForeignKey("series.number"), primary_key=True),
    Column("accepted", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("center", Double, nullable=False),
)


VERSION = 2
# Any number that all perfsuites of a server agree on, for the lock of those that make tables.
LOCK = 0x70657266


def prepare(connection: Connection, where: str) -> None:
    """Make the tables where there are none; those of another version are a ``StoreError``."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
    if not inspect(connection).has_table(schema.name):
        metadata.create_all(connection)
        connection.execute(insert(schema).values(version=VERSION))
        return
    found = connection.execute(select(schema.c.version)).scalar_one()
    if found != VERSION:
        raise StoreError(
            f"the history has version {str(found)[:20]!r}; this perfsuite reads {VERSION} alone",
            where=where,
            remedy="name another history and import the runs, or use the perfsuite that made it",
        )


# A history that is open: runs go in once, series come out, old samples are dropped.


# Columns of a series that tell it from others, in the key's own words.
_IDENTITY = ("sku", "variant", "metric", "regime", "case_version")
KEY = (*_IDENTITY, "unit", "better")


class History:
    """An open history; any error of the database is a ``StoreError`` without a password."""

    def __init__(self, url: str, root: Path) -> None:
        self._engine: Engine = open_engine(url, root)
        # A query may hold a password as well.
        self.where = self._engine.url.set(query={}).render_as_string(hide_password=True)
        # Rows that were left out, since they hold what perfsuite never writes.
        self.damaged = 0
        try:
            with self.writing() as connection:
                prepare(connection, self.where)
        except BaseException:
            self.close()
            raise

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how much of what was read is damaged."""
        rows = "1 damaged row" if self.damaged == 1 else f"{self.damaged} damaged rows"
        told = f"{rows} of the history left out ({self.where}): another program wrote to it"
        return (told,) if self.damaged else ()

    def add(self, run: StoredRun) -> bool:
        """Store a run; False if it was there already, which changes nothing."""
        with self.writing() as connection:
            values = _stored(
                {
                    "id": run.id,
                    "started": run.started,
                    "commit_id": run.commit,
                    "sku": run.sku,
                    "unit": run.unit,
                    "environment": encode(_stored(run.environment)).decode(),
                }
            )
            new = _unless_there(connection, runs, ["id"]).returning(runs.c.number)
            number = connection.execute(new, values).scalar_one_or_none()
            if number is None:
                there = select(runs.c.number).where(runs.c.id == values["id"])
                self._refuse_loss(1, len(connection.execute(there).all()), "runs")
                return False
            keys = _numbers(connection, [stored.key for stored in run.points])
            # The same point twice is one: a stage that was measured again counts as it ended.
            found = {(keys[_identity(each.key)], each.point.part): each for each in run.points}
            rows = [_point_row(number, key[0], each.point) for key, each in found.items()]
            kept = [_samples_row(number, key[0], each) for key, each in found.items()]
            _insert(connection, points, rows)
            _insert(connection, samples, [row for row in kept if row["data"] is not None])
            many = select(func.count()).select_from(points)
            there = many.where(points.c.run == number)
            self._refuse_loss(len(rows), connection.execute(there).scalar_one(), "points")
            return True

    def _refuse_loss(self, wanted: int, found: int, table: str) -> None:
        if found != wanted:
            raise StoreError(
                f"the history took a run and kept {found} of {wanted} rows of table {table!r}",
                where=self.where,
                remedy="remove its trigger or rule that drops rows, and store the run again: "
                "perfsuite history import RUN",
            )

    def add_moves(self, accepted: Iterable[BaselineMove]) -> None:
        """Store acceptances; those that are there already stay as they are."""
        each = list(accepted)
        if not each:
            return
        with self.writing() as connection:
            keys = _numbers(connection, [move.key for move in each])
            rows = [
                _stored(
                    {
                        "series": keys[_identity(move.key)],
                        "accepted": move.accepted,
                        "run_id": move.run,
                        "by": move.by,
                        "reason": move.reason,
                        "center": move.center,
                    }
                )
                for move in each
            ]
            connection.execute(_unless_there(connection, moves, ["series", "accepted"]), rows)

    def prune(self, before: str) -> int:
        """Drop the samples of runs that started before this time; return how many points' ones."""
        old = select(runs.c.number).where(runs.c.started < before)
        with self.writing() as connection:
            where = samples.c.run.in_(old)
            many = select(func.count()).select_from(samples).where(where)
            count: int = connection.execute(many).scalar_one()
            connection.execute(delete(samples).where(where))
        if count and self._engine.dialect.name == "sqlite":
            with self.refusing(), self._engine.connect() as connection:
                # Outside of any transaction, as SQLite wants it: only this gives the disk space.
                connection.connection.cursor().execute("VACUUM")
        return count

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction that waits for other writers."""
        with self.refusing(), self._engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the history."""
        with self.refusing(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise what the database refuses as an error of ours."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            first = str(cause).strip().partition("\n")[0]
            raise StoreError(
                f"the history refuses: {first}",
                where=self.where,
                remedy="see that it can be reached, written and has room; runs can be stored "
                "later: perfsuite history import RUN",
            ) from error

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _unless_there(
    connection: Connection, table: Table, unique: Sequence[str]
) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that leaves a row that is there as it is."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=unique)
    return sqlite.insert(table).on_conflict_do_nothing(index_elements=unique)


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))


def _stored(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row with texts that any database can hold."""
    return {name: plain(it) if isinstance(it, str) else it for name, it in row.items()}


def _columns(key: SeriesKey) -> dict[str, object]:
    return _stored({name: getattr(key, name) for name in KEY})


def _identity(key: SeriesKey) -> tuple[object, ...]:
    return tuple(_columns(key)[name] for name in _IDENTITY)


def _numbers(connection: Connection, keys: Sequence[SeriesKey]) -> dict[tuple[object, ...], int]:
    """Return the number of each series, those made that are not there."""
    wanted = {_identity(key): key for key in keys}
    skus = sorted({plain(key.sku) for key in keys})
    columns = [series.c[name] for name in _IDENTITY]
    query = select(series.c.number, *columns).where(series.c.sku.in_(skus))
    known = {tuple(row[1:]): int(row[0]) for row in connection.execute(query)}
    missing = sorted(wanted.keys() - known.keys(), key=repr)
    if missing:  # in one order for all: two writers would wait for each other
        rows = [_columns(wanted[each]) for each in missing]
        connection.execute(_unless_there(connection, series, _IDENTITY), rows)
        known = {tuple(row[1:]): int(row[0]) for row in connection.execute(query)}
    return known


def _point_row(run: int, series: int, point: Point) -> dict[str, object]:
    return {
        "run": run,
        "series": series,
        "part": point.part,
        "center": point.center,
        "process_values": encode(point.values).decode(),
        "between_processes": point.between,
        "processes": sum(map(len, point.values.values())),
        "word": point.word,
        "theta": point.theta,
        "low": point.low,
        "high": point.high,
        "why_not": point.why_not,
    }


def _samples_row(run: int, series: int, stored: StoredPoint) -> dict[str, object]:
    return {"run": run, "series": series, "part": stored.point.part, "data": stored.samples}


# Rows of a database as values of ours: any program may write to it, so that a row may be damaged.
#
# SQLite keeps no column to its type. A row that holds what perfsuite never writes is left out.


T = TypeVar("T")
# Returns the value of a cell; raises TypeError or ValueError if it is damaged.
Read = Callable[[Any], Any]


def raw(cell: Any) -> str:
    """Return a text that is for programs, of any length."""
    if not isinstance(cell, str):
        raise TypeError
    return cell


def text(cell: Any) -> str:
    """Return a text."""
    return plain(raw(cell))


def moment(cell: Any) -> str:
    """Return a time, as the text it is stored as; one that is none is shown as it is."""
    found = text(cell)
    with suppress(ValueError):
        when = datetime.fromisoformat(found)
        if not MINYEAR < when.year < MAXYEAR:  # at the edge no other zone has it
            raise TypeError
    return found


def whole(cell: Any) -> int:
    """Return a whole number."""
    if type(cell) is not int:
        raise TypeError
    return cell


def number(cell: Any) -> float:
    """Return a number that can have been measured."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        raise TypeError
    if not is_measurable(cell):
        raise ValueError
    return cell


def maybe(cell: Any) -> float | None:
    """Return a number, or None where nothing was measured."""
    return None if cell is None else number(cell)


def values(cell: Any) -> dict[str, tuple[float, ...]]:
    """Return the processes' values by unit."""
    found = decode(raw(cell).encode(), dict[str, tuple[float, ...]])
    return {plain(unit): tuple(map(number, row)) for unit, row in found.items()}


LABEL: Mapping[str, Read] = {"id": text, "started": moment, "commit": text}
POINT: Mapping[str, Read] = {
    **dict.fromkeys(("run", "started", "commit"), text),
    "started": moment,
    "center": maybe,
    "values": values,
    "between": number,
    "word": text,
    **dict.fromkeys(("theta", "low", "high"), maybe),
    **dict.fromkeys(("part", "why_not"), text),
}
MOVE: Mapping[str, Read] = {
    "run": text,
    "accepted": moment,
    "by": text,
    "reason": text,
    "center": number,
}
KEYS: Mapping[str, Read] = {name: whole if name == "case_version" else text for name in KEY}
COLUMN: Mapping[str, Read] = {"center": maybe, "why_not": text}


def sound(
    history: History, make: Callable[..., T], kinds: Mapping[str, Read], row: Sequence[Any]
) -> T | None:
    """Return what is made of a row, by the columns' names; None, noted, if it is damaged."""
    try:
        cells = zip(kinds.items(), row, strict=True)
        return make(**{name: read(cell) for (name, read), cell in cells})
    except (TypeError, ValueError, StoreError):
        history.damaged += 1
        return None


# Reads series from a history, and says where their level shifted.
#
# Each row comes in through ``soundness.sound``, which leaves out what is damaged.


# Years are read one series at a time; of all series of a SKU, or beside a run, the last months.
LAST = 90
RECENT = 60
# Names shown where one is not found.
MOST_LIKE = 5
# A statement with more values than this is slower than two.
MOST_NAMED = 500
_LABEL = [runs.c[name] for name in ("id", "started", "commit_id")]
_POINT = (
    *_LABEL,
    *(points.c[name] for name in ("center", "process_values", "between_processes", "word")),
    *(points.c[name] for name in ("theta", "low", "high", "part", "why_not")),
)


def series_of(
    history: History, variant: str, *, metric: str = "", last: int | None = None
) -> list[Series]:
    """Return the series of a variant: all its metrics or one, with the ``last`` points of each."""
    where = series.c.variant == variant
    if metric:
        where &= series.c.metric == metric
    with history.reading() as connection:
        keys = _keys(history, connection, where)
        accepted = _moves(history, connection, keys)
        found = [
            Series(
                key=key,
                points=_points_reading(history, connection, number, last),
                moves=accepted[number],
            )
            for number, key in keys.items()
        ]
    return [with_change_points(each) for each in found if each.points]


def recent(history: History, run: Run, variants: Collection[str]) -> dict[str, Series]:
    """Return the last points of each variant's main series: its time, or what it has instead.

    Of each SKU its own: a run's gangs and compilation targets have others than its device.
    """
    skus_of = {
        variant.id: sku_for(variant, run.facts, own=run.sku).slug
        for variant in run.variants
        if variant.id in variants
    }
    with history.reading() as connection:
        keys: dict[int, SeriesKey] = {}
        for names in _chunks(sorted(skus_of)):
            keys |= _keys(history, connection, series.c.variant.in_(names))
        main = _main({n: key for n, key in keys.items() if key.sku == skus_of[key.variant]})
        rows = _recent_rows(history, connection, main)
        accepted = _moves(history, connection, main)
    return {
        key.variant: with_change_points(
            Series(key=key, points=tuple(rows[number]), moves=accepted[number])
        )
        for number, key in main.items()
        if rows[number]
    }


def trends(
    history: History, sku: str, *, last: int = LAST, metrics: Collection[str] = ()
) -> Trends:
    """Return all series of a SKU over the last runs that have any point of them."""
    of_sku = series.c.sku == sku
    if metrics:
        of_sku &= series.c.metric.in_(sorted(metrics))
    with history.reading() as connection:
        keys = _keys(history, connection, of_sku)
        places = _last_runs(history, connection, select(series.c.number).where(of_sku), last)
        query = select(points.c.series, points.c.run, points.c.center, points.c.why_not)
        query = query.where(points.c.run.in_(list(places)), points.c.part == "")
        rows = connection.execute(query).cursor.fetchall()
    at = {number: place for place, number in enumerate(places)}
    columns: dict[int, list[tuple[int, float | None, str]]] = {number: [] for number in keys}
    for number, run, *cells in rows:
        if number in columns and (found := sound(history, _column, COLUMN, cells)):
            columns[number].append((at[run], *found))
    each = (_trend(key, sorted(columns[n])) for n, key in keys.items() if columns[n])
    return Trends(sku=sku, runs=tuple(places.values()), rows=tuple(each))


def skus(history: History) -> list[str]:
    """Return the SKUs that have any series."""
    with history.reading() as connection:
        query = select(series.c.sku).distinct().order_by(series.c.sku)
        return _texts(history, connection.execute(query).scalars())


def variants_like(history: History, text: str) -> list[str]:
    """Return some variants whose id contains a text."""
    query = select(series.c.variant).distinct().order_by(series.c.variant).limit(MOST_LIKE)
    with history.reading() as connection:
        found = query.where(series.c.variant.contains(text, autoescape=True))
        return _texts(history, connection.execute(found).scalars())


def _texts(history: History, cells: Iterable[Any]) -> list[str]:
    found = (sound(history, str, {"object": text}, [cell]) for cell in cells)
    return [each for each in found if each is not None]


def _column(center: float | None, why_not: str) -> tuple[float | None, str]:
    return center, why_not


def _trend(key: SeriesKey, rows: Sequence[tuple[int, float | None, str]]) -> Trend:
    places, centers, reasons = zip(*rows, strict=True)
    why_not = {index: why for index, why in enumerate(reasons) if why}
    return Trend(key=key, runs=places, centers=centers, why_not=why_not)


def _keys(
    history: History, connection: Connection, where: ColumnElement[bool]
) -> dict[int, SeriesKey]:
    order = [series.c[name] for name in ("variant", "metric", "sku", "case_version")]
    columns = [series.c[name] for name in KEY]
    query = select(series.c.number, *columns).where(where).order_by(*order)
    found = {
        int(row[0]): sound(history, SeriesKey, KEYS, row[1:]) for row in connection.execute(query)
    }
    return {number: key for number, key in found.items() if key is not None}


def _main(keys: Mapping[int, SeriesKey]) -> dict[int, SeriesKey]:
    """Return one series per variant: its newest version, its time if it has one."""
    best: dict[str, tuple[tuple[object, ...], int]] = {}
    for number, key in keys.items():
        rank = (key.metric == TIME, key.case_version, -number)
        if key.variant not in best or rank > best[key.variant][0]:
            best[key.variant] = (rank, number)
    return {number: keys[number] for _, number in best.values()}


def _points_reading(
    history: History, connection: Connection, number: int, last: int | None
) -> tuple[Point, ...]:
    newest = runs.c.started.desc(), runs.c.number.desc(), points.c.part.desc()
    query = select(*_POINT).join_from(points, runs).where(points.c.series == number)
    rows = connection.execute(query.order_by(*newest).limit(last)).fetchall()
    found = (sound(history, Point, POINT, row) for row in reversed(rows))
    return tuple(point for point in found if point is not None)


def _recent_rows(
    history: History, connection: Connection, keys: Collection[int]
) -> dict[int, list[Point]]:
    found: dict[int, list[Point]] = {number: [] for number in keys}
    for numbers in _chunks(sorted(keys)):
        wanted = select(series.c.number).where(series.c.number.in_(numbers))
        places = list(_last_runs(history, connection, wanted, RECENT))
        query = select(points.c.series, *_POINT).join_from(points, runs)
        query = query.where(points.c.run.in_(places), points.c.series.in_(numbers))
        query = query.where(points.c.part == "").order_by(runs.c.started, runs.c.number)
        for row in connection.execute(query):
            if point := sound(history, Point, POINT, row[1:]):
                found[row[0]].append(point)
    return found


def _last_runs(
    history: History, connection: Connection, wanted: Select[int], last: int
) -> dict[int, RunLabel]:
    """Return the last runs that have a point of the wanted series, in order of time."""
    any_point = (
        select(points.c.series)
        .where(points.c.run == runs.c.number, points.c.part == "", points.c.series.in_(wanted))
        .limit(1)
        .scalar_subquery()
    )
    newest = runs.c.started.desc(), runs.c.number.desc()
    # Not "exists": PostgreSQL makes a join of that, over all points there are.
    query = (
        select(runs.c.number, *_LABEL).where(any_point.is_not(None)).order_by(*newest).limit(last)
    )
    rows = connection.execute(query).fetchall()
    found = {int(row[0]): sound(history, RunLabel, LABEL, row[1:]) for row in reversed(rows)}
    return {number: label for number, label in found.items() if label is not None}


def _moves(
    history: History, connection: Connection, keys: Mapping[int, SeriesKey]
) -> dict[int, tuple[BaselineMove, ...]]:
    found: dict[int, list[BaselineMove]] = {number: [] for number in keys}
    columns = [moves.c[name] for name in ("series", "run_id", "accepted", "by", "reason", "center")]
    for numbers in _chunks(sorted(keys)):
        query = select(*columns).where(moves.c.series.in_(numbers)).order_by(moves.c.accepted)
        for number, *cells in connection.execute(query):
            make = partial(BaselineMove, key=keys[number])
            if move := sound(history, make, MOVE, cells):
                found[number].append(move)
    return {number: tuple(each) for number, each in found.items()}


def _chunks(values: Sequence[int] | Sequence[str]) -> Iterator[Sequence[int] | Sequence[str]]:
    for start in range(0, len(values), MOST_NAMED):
        yield values[start : start + MOST_NAMED]


# What was accepted for the variants of a run, as moves in their history.


def moves_of(run: Run, roots: Sequence[Root]) -> Iterator[BaselineMove]:
    """Yield the acceptance behind each metric of the variants that the run has results of."""
    measured = {result.variant for result in run.results}
    skus = {
        variant.id: sku_for(variant, run.facts, own=run.sku)
        for variant in run.variants
        if variant.id in measured
    }
    stored = Baselines.load_each(roots, skus.values())
    for name, sku in skus.items():
        known = stored[sku.slug].stored.get(name)
        if known is None:
            continue
        for metric, estimate in known.entry.metrics.items():
            key = SeriesKey(
                sku=sku.slug,
                variant=name,
                metric=metric,
                regime=known.entry.regime,
                case_version=known.entry.case_version,
                unit=estimate.unit,
                better=estimate.better,
            )
            yield BaselineMove(
                key=key,
                run=known.entry.run,
                accepted=known.accepted.when,
                by=known.accepted.by,
                reason=known.accepted.reason,
                center=estimate.center,
            )
