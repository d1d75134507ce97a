"""Reads series from a history, and says where their level shifted.

Each row comes in through ``soundness.sound``, which leaves out what is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, select

from perfsuite.history import soundness
from perfsuite.history.shifts import with_change_points
from perfsuite.history.soundness import sound
from perfsuite.history.store import KEY, History
from perfsuite.history.tables import moves, points, runs, series
from perfsuite.model import (
    BaselineMove,
    Point,
    Run,
    RunLabel,
    Series,
    SeriesKey,
    Trend,
    Trends,
)
from perfsuite.sku import sku_for

TIME = "time_us"
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
                key=key, points=_points(history, connection, number, last), moves=accepted[number]
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
        if number in columns and (found := sound(history, _column, soundness.COLUMN, cells)):
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
    found = (sound(history, str, {"object": soundness.text}, [cell]) for cell in cells)
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
        int(row[0]): sound(history, SeriesKey, soundness.KEYS, row[1:])
        for row in connection.execute(query)
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


def _points(
    history: History, connection: Connection, number: int, last: int | None
) -> tuple[Point, ...]:
    newest = runs.c.started.desc(), runs.c.number.desc(), points.c.part.desc()
    query = select(*_POINT).join_from(points, runs).where(points.c.series == number)
    rows = connection.execute(query.order_by(*newest).limit(last)).fetchall()
    found = (sound(history, Point, soundness.POINT, row) for row in reversed(rows))
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
            if point := sound(history, Point, soundness.POINT, row[1:]):
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
    found = {
        int(row[0]): sound(history, RunLabel, soundness.LABEL, row[1:]) for row in reversed(rows)
    }
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
            if move := sound(history, make, soundness.MOVE, cells):
                found[number].append(move)
    return {number: tuple(each) for number, each in found.items()}


def _chunks(values: Sequence[int] | Sequence[str]) -> Iterator[Sequence[int] | Sequence[str]]:
    for start in range(0, len(values), MOST_NAMED):
        yield values[start : start + MOST_NAMED]
