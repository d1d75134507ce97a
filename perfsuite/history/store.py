"""A history that is open: runs go in once, series come out, old samples are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from perfsuite.boundary import plain
from perfsuite.codec import encode
from perfsuite.errors import StoreError
from perfsuite.history import tables
from perfsuite.history.address import open_engine
from perfsuite.history.rows import StoredPoint, StoredRun
from perfsuite.model import BaselineMove, Point, SeriesKey

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
                tables.prepare(connection, self.where)
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
            new = _unless_there(connection, tables.runs, ["id"]).returning(tables.runs.c.number)
            number = connection.execute(new, values).scalar_one_or_none()
            if number is None:
                there = select(tables.runs.c.number).where(tables.runs.c.id == values["id"])
                self._refuse_loss(1, len(connection.execute(there).all()), "runs")
                return False
            keys = _numbers(connection, [stored.key for stored in run.points])
            # The same point twice is one: a stage that was measured again counts as it ended.
            found = {(keys[_identity(each.key)], each.point.part): each for each in run.points}
            rows = [_point_row(number, key[0], each.point) for key, each in found.items()]
            kept = [_samples_row(number, key[0], each) for key, each in found.items()]
            _insert(connection, tables.points, rows)
            _insert(connection, tables.samples, [row for row in kept if row["data"] is not None])
            many = select(func.count()).select_from(tables.points)
            there = many.where(tables.points.c.run == number)
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

    def add_moves(self, moves: Iterable[BaselineMove]) -> None:
        """Store acceptances; those that are there already stay as they are."""
        each = list(moves)
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
            connection.execute(
                _unless_there(connection, tables.moves, ["series", "accepted"]), rows
            )

    def prune(self, before: str) -> int:
        """Drop the samples of runs that started before this time; return how many points' ones."""
        old = select(tables.runs.c.number).where(tables.runs.c.started < before)
        with self.writing() as connection:
            where = tables.samples.c.run.in_(old)
            many = select(func.count()).select_from(tables.samples).where(where)
            count: int = connection.execute(many).scalar_one()
            connection.execute(delete(tables.samples).where(where))
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
    columns = [tables.series.c[name] for name in _IDENTITY]
    query = select(tables.series.c.number, *columns).where(tables.series.c.sku.in_(skus))
    known = {tuple(row[1:]): int(row[0]) for row in connection.execute(query)}
    missing = sorted(wanted.keys() - known.keys(), key=repr)
    if missing:  # in one order for all: two writers would wait for each other
        rows = [_columns(wanted[each]) for each in missing]
        connection.execute(_unless_there(connection, tables.series, _IDENTITY), rows)
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
