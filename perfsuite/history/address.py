"""Where a history is: a URL whose password neither stands in a file nor is ever shown."""

from __future__ import annotations

import configparser
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.errors import StoreError, UsageError
from perfsuite.files import refusing

if TYPE_CHECKING:
    from sqlalchemy import Engine

DEFAULT = "sqlite:///.perfsuite/history.db"
# Its URL wins over the project's setting: a password belongs here.
VARIABLE = "PERFSUITE_HISTORY"
INI = "perf_history"
BUSY_S = 30
_DRIVERS = ("sqlite", "postgresql")


def url_of(root: Path) -> str:
    """Return the URL of a project's history, as its settings and the environment have it."""
    return os.environ.get(VARIABLE, "") or _from_settings(root)


def _from_settings(root: Path) -> str:
    """Return what pytest would read: the first file that has a section for it holds."""
    for name, section in (("pytest.ini", "pytest"), ("tox.ini", "pytest")):
        if name == "tox.ini" and (found := _from_toml(root / "pyproject.toml")) is not None:
            return found
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(root / name, encoding="utf-8")
        if parser.has_section(section):
            return parser.get(section, INI, fallback=DEFAULT)
    return DEFAULT


def _from_toml(path: Path) -> str | None:
    if not path.is_file():
        return None
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}", where=str(path)) from error
    settings = tool.get("pytest", {}).get("ini_options")
    return None if settings is None else str(settings.get(INI, DEFAULT))


def open_engine(url: str, root: Path) -> Engine:
    """Return the engine of a URL; a SQLite file's path is relative to ``root``."""
    try:
        from sqlalchemy import create_engine, event
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise StoreError("a history needs SQLAlchemy", remedy="pip install sqlalchemy") from error
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() not in _DRIVERS:
            raise NoSuchModuleError
        if parsed.get_backend_name() == "postgresql":
            if parsed.drivername == "postgresql":
                parsed = parsed.set(drivername="postgresql+psycopg")
            return create_engine(parsed, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError):
        # Without the URL: where it cannot be read, its password cannot be told from the rest.
        raise UsageError(
            "the URL of the history cannot be used",
            where=f"{VARIABLE} or ini {INI}",
            remedy=f"write {DEFAULT} or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE",
        ) from None
    except ImportError as error:
        raise StoreError(
            f"PostgreSQL needs a driver: {error}", remedy='pip install "perfsuite[postgres]"'
        ) from error
    path = root / (parsed.database or "history.db")
    with refusing("cannot make the folder of the history", path.parent, remedy="make it writable"):
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        parsed.set(database=str(path)), connect_args={"timeout": BUSY_S, "isolation_level": None}
    )
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin(connection: object) -> None:
    """Wait for other writers at the start: a reader that turns writer would fail at once."""
    is_writer = connection.get_execution_options().get("writes")  # type: ignore[attr-defined]
    connection.exec_driver_sql(  # type: ignore[attr-defined]
        "BEGIN IMMEDIATE" if is_writer else "BEGIN"
    )
