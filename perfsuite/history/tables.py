"""The tables of a history and their version."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
)

from perfsuite.errors import StoreError

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
