"""Where a history is: a URL whose password neither stands in a file nor is ever shown."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.boundary import from_environment
from perfsuite.errors import StoreError, UsageError
from perfsuite.files import is_absent, refusing
from perfsuite.ini import text_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

DEFAULT = "sqlite:///.perfsuite/history.db"
# Its URL wins over the project's setting: a password belongs here.
VARIABLE = "PERFSUITE_HISTORY"
INI = "perf_history"
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
