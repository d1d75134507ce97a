"""The history in a SQL database: points of runs, read as series with the shifts of their level.

A run is a row of ``runs``; each metric of each variant that it measured is a row of ``points``,
which says all of itself. Any program may write to the database: a row that holds what perfsuite
never writes costs that row.
"""

from __future__ import annotations

import math
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import MAXYEAR, MINYEAR, datetime
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from msgspec import MsgspecError, convert, json, to_builtins
from msgspec.structs import replace
from sqlalchemy import (
    URL,
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
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from perfsuite.boundary import StoreError, UsageError, from_environment, is_measurable, plain
from perfsuite.history import DEFAULT, INI
from perfsuite.judge.noise import entries_of
from perfsuite.model import (
    Arm,
    BaselineEntry,
    BaselineMove,
    ChangePoint,
    Point,
    Regime,
    Result,
    Run,
    Series,
    SeriesKey,
    Status,
    Variant,
)
from perfsuite.run.config import text_of
from perfsuite.stats import MAD_TO_SD
from perfsuite.store.baselines import Baselines, Root
from perfsuite.store.codec import encode
from perfsuite.store.files import Closable, is_absent, refusing
from perfsuite.store.sku import sku_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

# The tables.

TIME = "time_us"
# Its URL wins over the project's setting: a password belongs here.
VARIABLE = "PERFSUITE_HISTORY"
VERSION = 3
# Any number that all perfsuites of a server agree on, for the lock of those that make tables.
LOCK = 0x70657266

# What tells a series from others.
IDENTITY = ("sku", "variant", "metric", "regime", "case_version")

metadata = MetaData()
text = partial(Column, type_=Text, nullable=False)
schema = Table("perfsuite_schema", metadata, Column("version", Integer, nullable=False))
# Times are ISO 8601 in UTC, which sort as text.
runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    text("id", unique=True),
    text("started", index=True),
    *map(text, ("commit_id", "sku", "unit", "environment")),
)


def identity(*, is_key: bool) -> Iterator[Column[Any]]:
    """Yield the columns of what tells a series from others."""
    for name in IDENTITY:
        kind = Integer if name == "case_version" else Text
        yield Column(name, kind, nullable=False, primary_key=is_key)


# By run first: what is new is written at the end, and the last nights of all series lie together.
points = Table(
    "points",
    metadata,
    Column("run", ForeignKey("runs.number"), primary_key=True),
    Column("place", Integer, primary_key=True),
    *identity(is_key=False),
    *map(text, ("unit", "better", "part")),
    Column("center", Double),
    text("process_values"),
    Column("between_processes", Double, nullable=False),
    text("word"),
    *(Column(name, Double) for name in ("theta", "low", "high")),
    text("why_not"),
    Index("points_of_variant", "variant", "run"),
    sqlite_with_rowid=False,
)
samples = Table(
    "samples",
    metadata,
    Column("run", ForeignKey("runs.number"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)
moves = Table(
    "baseline_moves",
    metadata,
    *identity(is_key=True),
    text("accepted", primary_key=True),
    *map(text, ("run_id", "by", "reason")),
    Column("center", Double, nullable=False),
)
KEY = (*IDENTITY, "unit", "better")
# What a point says; on a page of all series only the first three.
POINT = {
    "center": points.c.center,
    "part": points.c.part,
    "why_not": points.c.why_not,
    "values": points.c.process_values,
    "between": points.c.between_processes,
    "word": points.c.word,
    "theta": points.c.theta,
    "low": points.c.low,
    "high": points.c.high,
}
FEW = ("center", "part", "why_not")

# The database behind a URL, whose password neither stands in a file nor is ever shown.

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
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed, root)
        if parsed.get_backend_name() == "postgresql":
            has_limit = "connect_timeout" in parsed.query or parsed.get_driver_name() != "psycopg"
            settings = {} if has_limit else {"connect_timeout": CONNECT_S}
            engine = create_engine(parsed, connect_args=settings)
            event.listen(engine, "begin", _limit_statements)
            return engine
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


def _limit_statements(connection: Connection) -> None:
    # In each transaction: a pooler between may refuse it as an option of the connection.
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(STATEMENT_S * 1000)}")


def _sqlite(url: URL, root: Path) -> Engine:
    path = root / (url.database or "history.db")
    with refusing("cannot make the folder of the history", path.parent, remedy="make it writable"):
        path.parent.mkdir(parents=True, exist_ok=True)
    # SQLite would make the file that a link leads to, wherever that is.
    with refusing("cannot open the history", path, remedy="remove the link, or make its file"):
        is_absent(path)
    settings = {"timeout": BUSY_S, "isolation_level": None}
    engine = create_engine(url.set(database=str(path)), connect_args=settings)

    @event.listens_for(engine, "connect")
    def set_up(connection: sqlite3.Connection, _: object) -> None:
        # Bytes that are no text cost their row, not the query.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer waits for others at the start: a reader that turns writer would fail at once.
        is_writer = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    @event.listens_for(engine, "before_cursor_execute")
    def limit(_: Connection, cursor: sqlite3.Cursor, *__: object) -> None:
        deadline = time.monotonic() + STATEMENT_S
        cursor.connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)

    return engine


# What is kept of a run.


class Stored(NamedTuple):
    """A run as rows: its own, and a row for each point, its samples compressed in it."""

    run: Mapping[str, str]
    points: Sequence[Mapping[str, Any]] = ()


def stored_of(run: Run) -> Stored:
    """Return what a history keeps of a run; one that was interrupted is a ``UsageError``."""
    if not run.finished:
        raise UsageError(
            f"run {run.id!r} was interrupted", remedy="finish it with pytest --perf --perf-resume"
        )
    row = {
        "id": run.id,
        "started": run.started,
        "commit_id": run.commit,
        "sku": run.sku.slug,
        "unit": run.facts.unit,
        "environment": encode({**run.facts.environment, **run.facts.state}).decode(),
    }
    if run.settings.check_only:
        return Stored(row)
    parts: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in (*run.results, *run.aside):
        if result.status is not Status.SKIPPED:
            parts[_part_of(result)][result.variant].append(result)
    variants = {one.id: one.variant for one in run.every}
    found: list[Mapping[str, Any]] = []
    for part, by_variant in parts.items():
        # What failed is kept as far as it was measured: only its mark tells it from the rest.
        every = (result for results in by_variant.values() for result in results)
        ended = tuple(replace(result, status=Status.OK) for result in every)
        entries = entries_of(run, ended)
        for name in by_variant.keys() & variants.keys():
            found += _rows(run, variants[name], part, by_variant[name], entries.get(name))
    return Stored(row, found)


def _part_of(result: Result) -> str:
    """Return what a result is a part of besides the run's own measuring."""
    if result.claim:
        return f"claim {result.claim}"
    if result.arm is Arm.A:
        return "arm A"
    return result.stage.value if result.stage.is_canary else ""


def _rows(
    run: Run, variant: Variant, part: str, results: Sequence[Result], entry: BaselineEntry | None
) -> Iterator[dict[str, Any]]:
    """Yield a row per metric of a variant; of what yielded no number one that says why."""
    last = {result.stage: result.status for result in results}
    failed = [status.value for status in last.values() if status is not Status.OK]
    shifted = ["machine-shift"] if run.shift is not None else []
    verdicts = {} if part else {verdict.variant: verdict for verdict in run.verdicts}
    verdict = verdicts.get(variant.id)
    changes = {change.metric: change for change in verdict.changes} if verdict else {}
    row: dict[str, Any] = {
        "sku": sku_for(variant, run.facts, own=run.sku).slug,
        "variant": variant.id,
        "regime": variant.case.regime.value,
        "case_version": results[-1].case_version,
        "part": part,
        "why_not": ", ".join(filter(None, (part, *failed, *shifted))),
    }
    nothing = dict.fromkeys(("center", "theta", "low", "high", "samples"))
    if entry is None:
        if row["why_not"] and variant.case.regime is not Regime.EXACT:
            blank = {"metric": TIME, "unit": "us", "better": "lower", "word": ""}
            blank["word"] = verdict.word.value if verdict else ""
            yield row | nothing | blank | {"process_values": "{}", "between_processes": 0.0}
        return
    for name, metric in entry.metrics.items():
        each = row | nothing
        each |= {"metric": name, "unit": metric.unit, "better": metric.better, "word": ""}
        each |= {"center": metric.center, "between_processes": metric.between}
        each["process_values"] = encode(metric.values).decode()
        if verdict and (name in changes or name == TIME):
            each["word"] = verdict.word.value
        if change := changes.get(name):
            each |= {"theta": change.theta, "low": change.low, "high": change.high}
        if metric.values:
            evidence = [process for result in results for process in result.evidence]
            told = encode([process.samples(name) for process in evidence])
            each["samples"] = zlib.compress(told, 1)
        yield each


def unpack_samples(data: bytes) -> list[list[list[float]]]:
    """Return the samples of a point by process and block."""
    return json.decode(zlib.decompress(data), type=list[list[list[float]]])


def moves_of(run: Run, roots: Sequence[Root]) -> Iterator[BaselineMove]:
    """Yield the acceptance behind each metric of the variants that the run has results of."""
    measured = {result.variant for result in run.results}
    skus = {
        one.id: sku_for(one.variant, run.facts, own=run.sku)
        for one in run.variants
        if one.id in measured
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


# A history that is open: runs go in once, series come out, old samples are dropped.


class History(Closable):
    """An open history; any error of the database is a ``StoreError`` without a password."""

    def __init__(self, url: str, root: Path) -> None:
        self._engine = open_engine(url, root)
        # A query may hold a password as well.
        self.where = self._engine.url.set(query={}).render_as_string(hide_password=True)
        # Rows that were left out, since they hold what perfsuite never writes.
        self.damaged = 0
        try:
            with self.writing() as connection:
                self._prepare(connection)
        except BaseException:
            self.close()
            raise

    def _prepare(self, connection: Connection) -> None:
        """Make the tables where there are none; those of another version are refused."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        if not inspect(connection).has_table(schema.name):
            metadata.create_all(connection)
            connection.execute(insert(schema).values(version=VERSION))
        found = connection.execute(select(schema.c.version)).scalar_one()
        if found != VERSION:
            raise StoreError(
                f"the history has version {str(found)[:20]!r}; "
                f"this perfsuite reads {VERSION} alone",
                where=self.where,
                remedy="name another history and import the runs, or use the perfsuite that "
                "made it",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how much of what was read is damaged."""
        rows = "1 damaged row" if self.damaged == 1 else f"{self.damaged} damaged rows"
        told = f"{rows} of the history left out ({self.where}): another program wrote to it"
        return (told,) if self.damaged else ()

    def add(self, stored: Stored) -> bool:
        """Store a run; False if it was there already, which changes nothing."""
        with self.writing() as connection:
            new = _unless_there(connection, runs, "id").returning(runs.c.number)
            run = connection.execute(new, _plain(stored.run)).scalar_one_or_none()
            if run is None:
                there = select(runs.c.number).where(runs.c.id == plain(stored.run["id"]))
                self._refuse_loss(1, len(connection.execute(there).all()), "runs")
                return False
            # The same point twice is one: a stage that was measured again counts as it ended.
            kept = {(_identity(row), row["part"]): row for row in stored.points}
            rows = [{**_plain(row), "run": run, "place": n} for n, row in enumerate(kept.values())]
            told = [
                {"run": run, "place": row["place"], "data": data}
                for row in rows
                if (data := row.pop("samples"))
            ]
            for table, new_rows in ((points, rows), (samples, told)):
                if new_rows:
                    connection.execute(insert(table), new_rows)
            many = select(func.count()).select_from(points).where(points.c.run == run)
            self._refuse_loss(len(rows), connection.execute(many).scalar_one(), "points")
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
        rows = [
            _plain(
                {name: getattr(move.key, name) for name in IDENTITY}
                | {name: getattr(move, name) for name in ("accepted", "by", "reason", "center")}
                | {"run_id": move.run}
            )
            for move in accepted
        ]
        if rows:
            with self.writing() as connection:
                connection.execute(_unless_there(connection, moves, *IDENTITY, "accepted"), rows)

    def prune(self, before: str) -> int:
        """Drop the samples of runs that started before this time; return how many points' ones."""
        old = select(runs.c.number).where(runs.c.started < before)
        with self.writing() as connection:
            count = connection.execute(delete(samples).where(samples.c.run.in_(old))).rowcount
        if count and self._engine.dialect.name == "sqlite":
            with self._refusing(), self._engine.connect() as connection:
                # Outside of any transaction and without a limit: only this gives the disk space.
                bare = cast("sqlite3.Connection", connection.connection.dbapi_connection)
                bare.set_progress_handler(None, 0)
                bare.execute("VACUUM")
        return count

    def series(
        self, where: ColumnElement[bool], *, last: int | None = None, few: bool = False
    ) -> list[Series]:
        """Return the series of the points that are asked for, of the ``last`` runs that have any.

        Where their levels shifted is not looked for yet; with ``few`` a point has few fields.
        """
        # Not "exists": PostgreSQL makes a join of that, over all points there are.
        any_point = select(points.c.run).where(points.c.run == runs.c.number, where).limit(1)
        labels = select(runs.c.number, runs.c.id, runs.c.started, runs.c.commit_id)
        labels = labels.where(any_point.scalar_subquery().is_not(None))
        labels = labels.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(last)
        names = FEW if few else tuple(POINT)
        query = select(points.c.run, *(points.c[name] for name in KEY))
        query = query.add_columns(*(POINT[name] for name in names)).where(where)
        keys: dict[tuple[Any, ...], SeriesKey | None] = {}
        found: dict[SeriesKey, list[tuple[int, str, Point]]] = defaultdict(list)
        with self.reading() as connection:
            rows = connection.execute(labels).all()
            places = {row[0]: place for place, row in enumerate(reversed(rows))}
            known = {row[0]: self._label(*row[1:]) for row in rows}
            if last is not None:
                query = query.where(points.c.run.in_(places))
            for run, *cells in connection.execute(query).cursor.fetchall():
                named, rest = tuple(cells[: len(KEY)]), cells[len(KEY) :]
                if named not in keys:
                    keys[named] = self._sound(SeriesKey, dict(zip(KEY, named, strict=True)))
                key, label = keys[named], known.get(run)
                if key is None or label is None:
                    continue
                row = dict(zip(names, rest, strict=True))
                if point := self._sound(Point, label | row):
                    found[key].append((places[run], point.part, point))
        order = sorted(found, key=lambda key: (key.variant, key.metric, key.sku, key.case_version))
        by_time = {key: sorted(found[key], key=lambda each: each[:2]) for key in order}
        return [
            Series(key=key, points=tuple(point for *_, point in each))
            for key, each in by_time.items()
        ]

    def with_past(self, found: Iterable[Series]) -> list[Series]:
        """Return series with what was accepted of each, and where its level shifted."""
        chosen = {_identity(to_builtins(each.key)): each for each in found}
        names = {each.key.variant for each in chosen.values()}
        query = select(moves).where(moves.c.variant.in_(names)).order_by(moves.c.accepted)
        accepted: dict[tuple[Any, ...], list[BaselineMove]] = defaultdict(list)
        with self.reading() as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        for row in rows:
            series = _identity(row)
            if series in chosen:
                told = {name: row[name] for name in ("accepted", "by", "reason", "center")}
                told |= {"run": row["run_id"], "key": to_builtins(chosen[series].key)}
                if move := self._sound(BaselineMove, told):
                    accepted[series].append(move)
        return [
            Series(
                key=each.key,
                points=each.points,
                change_points=change_points(each.valid),
                moves=tuple(accepted[key]),
            )
            for key, each in chosen.items()
        ]

    def texts(self, column: Column[str], part: str = "", most: int | None = None) -> list[str]:
        """Return the different texts of a column of the points, those with ``part`` in them."""
        query = select(column).distinct().order_by(column).limit(most)
        with self.reading() as connection:
            cells = connection.execute(query.where(column.contains(part, autoescape=True)))
            return [plain(cell) for cell in cells.scalars() if isinstance(cell, str)]

    def _label(self, run: object, started: object, commit: object) -> dict[str, Any] | None:
        """Return what a row says of a run, None where it is damaged."""
        label = {"run": run, "started": started, "commit": commit}
        with suppress(TypeError, ValueError):  # a time that is none is shown as it is
            when = datetime.fromisoformat(cast("str", started))
            if not MINYEAR < when.year < MAXYEAR:  # at the edge no other zone has it
                label["started"] = None
        return label if self._sound(Point, label) else None

    def _sound(self, kind: type[T], row: Mapping[str, Any]) -> T | None:
        """Return what is made of a row; None, counted, if it is damaged."""
        try:
            return convert({name: _cell(name, cell) for name, cell in row.items()}, kind)
        except (TypeError, ValueError, MsgspecError):
            self.damaged += 1
            return None

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction that waits for other writers."""
        with self._refusing(), self._engine.connect() as connection:
            connection.execution_options(writes=True)
            with connection.begin():
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that sees one state of the history."""
        with self._refusing(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _refusing(self) -> Iterator[None]:
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


def _unless_there(
    connection: Connection, table: Table, *unique: str
) -> postgresql.Insert | sqlite.Insert:
    """Return an insert that leaves a row that is there as it is."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing(index_elements=unique)
    return sqlite.insert(table).on_conflict_do_nothing(index_elements=unique)


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def _cell(name: str, cell: Any) -> Any:
    """Return a cell as it may be shown; ValueError for a number that nobody can have measured."""
    if isinstance(cell, float) and not is_measurable(cell):
        raise ValueError(cell)
    if name == "values":
        found = json.decode(cell, type=dict[str, tuple[float, ...]])
        return {plain(unit): [_cell("", one) for one in each] for unit, each in found.items()}
    return plain(cell) if isinstance(cell, str) else cell


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with texts that any database can hold."""
    return {name: plain(it) if isinstance(it, str) else it for name, it in row.items()}


# What is asked of a history.

# Of all series of a SKU, or beside a run, the last months are read.
LAST, RECENT = 90, 60
# Names shown where one is not found.
MOST_LIKE = 5


def series_of(history: History, variant: str, *, metric: str = "") -> list[Series]:
    """Return the series of a variant: all its metrics or one."""
    where = points.c.variant == variant
    return history.with_past(
        history.series(where & (points.c.metric == metric) if metric else where)
    )


def recent(history: History, run: Run, variants: Collection[str]) -> dict[str, Series]:
    """Return the last points of each variant's main series: its time, or what it has instead.

    Of each SKU its own: a run's gangs and compilation targets have others than its device.
    """
    skus_of = {
        one.id: sku_for(one.variant, run.facts, own=run.sku).slug
        for one in run.variants
        if one.id in variants
    }
    where = points.c.variant.in_(skus_of) & points.c.sku.in_({*skus_of.values()})
    main: dict[str, Series] = {}
    for each in history.series(where & (points.c.part == ""), last=RECENT):
        key = each.key
        known = main.get(key.variant)
        is_better = known is None or _rank(known.key) < _rank(key)
        if key.sku == skus_of[key.variant] and is_better:
            main[key.variant] = each
    return {each.key.variant: each for each in history.with_past(main.values())}


def _rank(key: SeriesKey) -> tuple[bool, int]:
    return key.metric == TIME, key.case_version


def trends(
    history: History, sku: str, *, last: int = LAST, metrics: Collection[str] = ()
) -> list[Series]:
    """Return all series of a SKU over the last runs that have any point of them."""
    where = (points.c.sku == sku) & (points.c.part == "")
    if metrics:
        where &= points.c.metric.in_(sorted(metrics))
    return [
        Series(key=each.key, points=each.points, change_points=change_points(each.valid))
        for each in history.series(where, last=last, few=True)
    ]


def skus(history: History) -> list[str]:
    """Return the SKUs that have any series."""
    return history.texts(points.c.sku)


def variants_like(history: History, text: str) -> list[str]:
    """Return some variants whose id contains a text."""
    return history.texts(points.c.variant, text, MOST_LIKE)


# Where the level of a series of nights shifts.

# Fewer values at a level are outliers, not a level.
FEWEST = 3
# The smallest threshold of a verdict: a smaller shift is no news, however certain.
LEAST_SHIFT = 0.0025
# Of a shift, corrected for the number of places where it could have been.
MOST_P = 0.001
# A value this many standard deviations from its neighbours' median is drawn in to that distance.
REACH = 4.0
NEIGHBOURS = 5


class Shift(NamedTuple):
    """A shift of the level at ``place``, the first value after it, as a difference of means.

    ``p_value`` is Student's t of both levels times the number of places looked at.
    """

    place: int
    size: float
    p_value: float


def change_points(valid: Sequence[Point]) -> tuple[ChangePoint, ...] | None:
    """Return where the level of points that count shifted; None where nothing can look."""
    centers = [point.center or 0.0 for point in valid]
    # Counts may be nothing at all, which has no logarithm.
    add = 0.0 if all(center > 0 for center in centers) else 1.0
    try:
        found = shifts([math.log(max(center, 0.0) + add) for center in centers])
    except ImportError:  # there is no ruptures for every Python
        return None
    ends = [0, *(shift.place for shift in found), len(valid)]
    told = []
    for shift, start, end in zip(found, ends, ends[2:], strict=False):
        before, after = valid[start : shift.place], valid[shift.place : end]
        there, here = ({unit for each in side for unit in each.values} for side in (before, after))
        told.append(
            ChangePoint(
                run=after[0].run,
                started=after[0].started,
                commit_before=before[-1].commit,
                commit=after[0].commit,
                before=fmean(centers[start : shift.place]),
                after=fmean(centers[shift.place : end]),
                p_value=shift.p_value,
                is_other_unit=bool(here and there and not here & there),
            )
        )
    return tuple(told)


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
    from scipy.ndimage import median_filter

    raw = np.asarray(values, dtype=float)
    # Between neighbours, which a shift does not raise.
    steps = np.diff(raw)
    away = MAD_TO_SD * float(_median(np.abs(steps - _median(steps)))) / math.sqrt(2)
    noise = max(away, LEAST_SHIFT / 10)
    # A shift stays as it is once most of the neighbours are behind it.
    middles, edge = median_filter(raw, NEIGHBOURS), NEIGHBOURS // 2
    middles[:edge], middles[-edge:] = middles[edge], middles[-edge - 1]
    near = np.clip(raw, middles - REACH * noise, middles + REACH * noise)
    scaled = ((near - near[0]) / noise).reshape(-1, 1)
    search = KernelCPD(kernel="linear", min_size=FEWEST).fit(scaled)
    ends = [0, *(int(end) for end in search.predict(pen=3 * math.log(len(raw))))]
    while len(ends) > 2:  # noqa: PLR2004 - more than one level
        found = [_shift(near, *at, noise) for at in zip(ends, ends[1:], ends[2:], strict=False)]
        weakest = max(found, key=lambda shift: (shift.p_value, -abs(shift.size)))
        if weakest.p_value < MOST_P:
            weakest = min(found, key=lambda shift: abs(shift.size))
            if abs(weakest.size) >= LEAST_SHIFT:
                return tuple(found)
        ends.remove(weakest.place)
    return ()


def _median(values: NDArray[np.float64]) -> np.float64:
    """Return the (upper) median; numpy's own takes most of the time of a thousand series."""
    import numpy as np

    middle = len(values) // 2
    found: np.float64 = np.partition(values, middle)[middle]
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
