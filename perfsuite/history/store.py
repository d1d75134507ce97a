"""The history in a SQL database: points of runs, read as series with the shifts of their level.

A run is a row of ``runs``; each metric of each variant that it measured is a row of ``points``,
which says all of itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import sqlalchemy as sa
from msgspec import Meta, MsgspecError, convert, json
from msgspec.structs import replace
from sqlalchemy import Column, Connection, Double, Integer, Text, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from perfsuite import model
from perfsuite.boundary import MAGNITUDE, StoreError, UsageError, from_environment, plain
from perfsuite.history import DEFAULT, INI
from perfsuite.judge.noise import entries_of
from perfsuite.run.config import setting
from perfsuite.stats import MAD_TO_SD, grouped
from perfsuite.store.baselines import Baselines, Root, runs_of
from perfsuite.store.files import Closable, encode, is_absent, refusing
from perfsuite.store.sku import skus_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


class SeriesKey(model.Record, frozen=True, kw_only=True):
    """What makes points comparable: one metric of one version of a variant, on one SKU."""

    sku: str
    variant: str
    metric: str
    regime: str
    case_version: int = 1
    unit: str = ""
    better: str = "lower"


class Point(model.Record, frozen=True, kw_only=True):
    """One run's estimate of a metric; relative numbers as in ``Change`` and ``BaselineMetric``.

    ``why_not`` says why it enters no average and no change point; "" if it does.
    ``center`` is None where nothing was measured, ``values`` are the processes' by card.
    """

    run: str
    started: str
    commit: str = ""
    center: Annotated[float, Meta(ge=-MAGNITUDE, le=MAGNITUDE)] | None = None
    values: Mapping[str, tuple[float, ...]] = {}
    between: float = 0.0
    word: str = ""
    theta: float | None = None
    low: float | None = None
    high: float | None = None
    why_not: str = ""

    @property
    def is_valid(self) -> bool:
        """Say whether it counts."""
        return not self.why_not and self.center is not None


class ChangePoint(model.Record, frozen=True, kw_only=True):
    """Where the level of a series shifted: in which run first, after which commit, by how much.

    ``before`` and ``after`` are the levels in the metric's unit; ``is_other_unit`` if no card
    measured on both sides.
    """

    run: str
    started: str
    commit_before: str
    commit: str
    before: float
    after: float
    p_value: float
    is_other_unit: bool = False

    @property
    def between(self) -> tuple[str, ...]:
        """The commits between which it shifted; one, if both are the same."""
        return tuple(dict.fromkeys((self.commit_before, self.commit)))

    @property
    def change(self) -> float:
        """The relative change of the metric's own value; infinite from nothing."""
        return self.after / self.before - 1 if self.before else math.inf


class BaselineMove(model.Record, frozen=True, kw_only=True):
    """An acceptance: from when on, of which run, a series is compared with ``center``."""

    run: str
    accepted: str
    by: str
    reason: str
    center: float


class Series(model.Record, frozen=True, kw_only=True):
    """The points of one series in order of time; ``change_points`` is None if nobody looked."""

    key: SeriesKey
    points: tuple[Point, ...]
    change_points: tuple[ChangePoint, ...] | None = None
    moves: tuple[BaselineMove, ...] = ()

    @property
    def valid(self) -> tuple[Point, ...]:
        """The points that count."""
        return tuple(point for point in self.points if point.is_valid)


# Its URL wins over the project's setting: a password belongs here.
VARIABLE = "PERFSUITE_HISTORY"
VERSION = 3
# Any number that all perfsuites of a server agree on, for the lock of those that make tables.
LOCK = 0x70657266
# A server that takes a connection may never answer, and a view may have rows without end.
BUSY_S, CONNECT_S, STATEMENT_S = 30, 10, 60.0
# Of all series of a SKU, or beside a run, the last months are read.
LAST, RECENT = 90, 60

# Columns have the names of what is made of them as keys.
metadata = sa.MetaData()
text = partial(Column, type_=Text, nullable=False)
schema = sa.Table("perfsuite_schema", metadata, Column("version", Integer, nullable=False))
# Times are ISO 8601 in UTC, which sort as text.
runs = sa.Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    text("id", key="run", unique=True),
    text("started", index=True),
    text("commit_id", key="commit"),
    *map(text, ("sku", "unit", "environment")),
)
# What tells a series from others.
IDENTITY = ("sku", "variant", "metric", "regime", "case_version")
# By run first: what is new is written at the end, and the last nights of all series lie together.
points = sa.Table(
    "points",
    metadata,
    Column("run", sa.ForeignKey("runs.number"), key="number", primary_key=True),
    Column("place", Integer, primary_key=True),
    *map(text, IDENTITY[:-1]),
    Column("case_version", Integer, nullable=False),
    *map(text, ("unit", "better")),
    # Empty for what counts as a run's own measuring, which is all that is written and read.
    text("part"),
    Column("center", Double),
    text("process_values", key="values"),
    Column("between_processes", Double, key="between", nullable=False),
    text("word"),
    *(Column(name, Double) for name in ("theta", "low", "high")),
    text("why_not"),
    sa.Index("points_of_variant", "variant", "number"),
    sqlite_with_rowid=False,
)
moves = sa.Table(
    "baseline_moves",
    metadata,
    *(text(name, primary_key=True) for name in IDENTITY[:-1]),
    Column("case_version", Integer, primary_key=True),
    text("accepted", primary_key=True),
    text("run_id", key="run"),
    *map(text, ("by", "reason")),
    Column("center", Double, nullable=False),
)
KEY, MOVE = SeriesKey.__struct_fields__, BaselineMove.__struct_fields__
LABEL = ("run", "started", "commit")
# What a point says.
POINT = ("center", "why_not", "values", "between", "word", "theta", "low", "high")


def url_of(root: Path, known: str | None = None) -> str:
    """Return the URL of a project's history: the environment's, else the project's setting."""
    return from_environment(VARIABLE) or (
        str(setting(root, INI, DEFAULT)) if known is None else known
    )


def open_engine(url: str, root: Path) -> sa.Engine:
    """Return the engine of a URL; a SQLite file's path is relative to ``root``."""
    try:
        parsed = sa.make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() == "postgresql":
            has_limit = parsed.get_driver_name() in {"psycopg", "psycopg2"}
            limit = {"connect_timeout": str(CONNECT_S)} if has_limit else {}
            return sa.create_engine(parsed.set(query={**limit, **parsed.query}))
        if parsed.get_backend_name() == "sqlite":
            path = root / (parsed.database or "history.db")
            told = "cannot make the folder of the history"
            with refusing(told, path.parent, remedy="make it writable"):
                path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite would make the file that a link leads to, wherever that is.
            with refusing("cannot open the history", path, remedy="remove the link, or its file"):
                is_absent(path)
            settings = {"timeout": BUSY_S, "isolation_level": None}
            return sa.create_engine(parsed.set(database=str(path)), connect_args=settings)
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


def _points(run: model.Run) -> Iterator[dict[str, Any]]:
    """Yield a row per metric of a variant; of what yielded no number one that says why."""
    ran: dict[str, dict[model.Stage, model.Result]] = defaultdict(dict)
    for result in run.asked:
        if result.status is not model.Status.SKIPPED:
            ran[result.variant][result.stage] = result
    # What failed is kept as far as it was measured: only its mark tells it from the rest.
    ended = [replace(each, status=model.Status.OK) for own in ran.values() for each in own.values()]
    entries, skus = entries_of(run, ended), skus_of(run)
    for one in run.variants:
        own = ran[one.id]
        failed = [each.status.value for each in own.values() if each.status is not model.Status.OK]
        why_not = ", ".join(failed)
        metrics: Mapping[str, model.BaselineMetric | None] = {}
        if entry := entries.get(one.id):
            metrics = entry.metrics
        elif own and why_not and one.variant.case.regime is not model.Regime.EXACT:
            metrics = {model.TIME.name: None}
        verdict = one.verdict
        changes = {change.metric: change for change in verdict.changes} if verdict else {}
        for name, metric in metrics.items():
            change = changes.get(name)
            yield {
                "sku": skus[one.id].slug,
                "variant": one.id,
                "metric": name,
                "regime": one.variant.case.regime.value,
                "case_version": next(iter(own.values())).case_version,
                "unit": metric.unit if metric else model.TIME.unit,
                "better": metric.better if metric else model.TIME.better,
                "part": "",
                "center": metric.center if metric else None,
                "values": encode(metric.values if metric else {}).decode(),
                "between": metric.between if metric else 0.0,
                "word": verdict.word.value
                if verdict and (change or name == model.TIME.name)
                else "",
                **{part: getattr(change, part, None) for part in ("theta", "low", "high")},
                "why_not": why_not,
            }


def _moves(run: model.Run, roots: Sequence[Root]) -> Iterator[dict[str, Any]]:
    """Yield the acceptance behind each metric of the variants that the run has results of."""
    measured = {result.variant for result in run.asked}
    skus = {name: sku for name, sku in skus_of(run).items() if name in measured}
    baselines = Baselines.load_each(roots, skus.values())
    for name, sku in skus.items():
        if (known := baselines[sku.slug].entries.get(name)) is None:
            continue
        for metric, estimate in known.metrics.items():
            yield {
                "sku": sku.slug,
                "variant": name,
                "metric": metric,
                "regime": known.regime,
                "case_version": known.case_version,
                "accepted": known.accepted.when,
                "run": max(runs_of([known])),  # a card may have joined since the reference's
                "by": known.accepted.by,
                "reason": known.accepted.reason,
                "center": estimate.center,
            }


class History(Closable):
    """An open history; any error of the database is a ``StoreError`` without a password."""

    def __init__(self, url: str, root: Path) -> None:
        self._engine = open_engine(url, root)
        # A query may hold a password as well.
        self.where = self._engine.url.set(query={}).render_as_string(hide_password=True)
        try:
            with self.connected(writes=True) as connection:
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
                if not sa.inspect(connection).has_table(schema.name):
                    metadata.create_all(connection)
                    connection.execute(schema.insert().values(version=VERSION))
                found = connection.execute(select(schema.c.version)).scalar_one()
        except BaseException:
            self.close()
            raise
        if found != VERSION:
            self.close()
            raise StoreError(
                f"the history has version {str(found)[:20]!r}; "
                f"this perfsuite reads {VERSION} alone",
                where=self.where,
                remedy="name another history and import the runs, or use the perfsuite that "
                "made it",
            )

    @contextmanager
    def connected(self, *, writes: bool = False) -> Iterator[Connection]:
        """Give a connection in a transaction that sees one state and is stored at the end."""
        try:
            with self._engine.connect() as connection:
                if connection.dialect.name == "sqlite":
                    # A writer waits for others at the start: a reader that turns writer fails.
                    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
                else:
                    # In each transaction: a pooler may refuse it as an option of the connection.
                    limit_ms = round(STATEMENT_S * 1000)
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {limit_ms}")
                yield connection
                connection.commit()
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
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

    def add(self, run: model.Run, roots: Sequence[Root] = ()) -> bool:
        """Store a run, and what was accepted of its variants; False if it was there already.

        What is there already stays as it is. ``UsageError`` for a run that was interrupted.
        """
        if not run.finished:
            raise UsageError(
                f"run {run.id!r} was interrupted",
                remedy="finish it with pytest --perf --perf-resume",
            )
        label = {"run": run.id, "started": run.started, "commit": run.commit}
        label |= {"sku": run.sku.slug, "unit": run.facts.unit}
        label["environment"] = encode({**run.facts.environment, **run.facts.state}).decode()
        rows = [] if run.settings.check_only else [_plain(row) for row in _points(run)]
        accepted = [_plain(row) for row in _moves(run, roots)]
        with self.connected(writes=True) as connection:
            is_server = connection.dialect.name == "postgresql"
            insert = postgresql.insert if is_server else sqlite.insert
            if accepted:
                connection.execute(insert(moves).on_conflict_do_nothing(), accepted)
            new = insert(runs).on_conflict_do_nothing().returning(runs.c.number)
            number = connection.execute(new, _plain(label)).scalar_one_or_none()
            placed = [row | {"number": number, "place": n} for n, row in enumerate(rows)]
            if placed and number is not None:
                connection.execute(insert(points), placed)
            return number is not None

    def series_of(self, variant: str, *, metric: str = "") -> list[Series]:
        """Return the series of a variant: all its metrics or one."""
        where = points.c.variant == variant
        return self._with_past(self._read(where & (points.c.metric == metric) if metric else where))

    def recent(self, run: model.Run, variants: Collection[str]) -> dict[str, Series]:
        """Return the last points of each variant's main series: its time, or what it has instead.

        Of each SKU its own: a run's gangs and compilation targets have others than its device.
        """
        skus = {name: sku.slug for name, sku in skus_of(run).items() if name in variants}
        where = points.c.variant.in_(skus) & points.c.sku.in_({*skus.values()})
        found = self._read(where, last=RECENT)
        found.sort(key=lambda each: (each.key.metric == model.TIME.name, each.key.case_version))
        own = (each for each in found if each.key.sku == skus[each.key.variant])
        main = {each.key.variant: each for each in own}
        return {each.key.variant: each for each in self._with_past(main.values())}

    def trends(self, sku: str, *, last: int = LAST, metrics: Collection[str] = ()) -> list[Series]:
        """Return all series of a SKU over the last runs that have any point of them."""
        where = points.c.sku == sku
        if metrics:
            where &= points.c.metric.in_(sorted(metrics))
        found = self._read(where, last=last)
        return [replace(each, change_points=change_points(each.valid)) for each in found]

    def skus(self) -> list[str]:
        """Return the SKUs that have any series."""
        with self.connected() as connection:
            rows = connection.execute(select(points.c.sku).distinct().order_by(points.c.sku)).all()
        return [plain(cell) for (cell,) in rows]

    def _read(self, where: sa.ColumnElement[bool], *, last: int = 0) -> list[Series]:
        """Return the series of the points asked for, of the ``last`` runs only if that is given."""
        columns = (*(points.c[name] for name in KEY), *(runs.c[name] for name in LABEL))
        query = select(*columns, *(points.c[name] for name in POINT))
        where &= points.c.part == ""
        query = query.join(runs).where(where)
        with self.connected() as connection:
            if last:
                # Not "exists": PostgreSQL makes a join of that, over all points there are.
                one = (
                    select(points.c.number).where(points.c.number == runs.c.number, where).limit(1)
                )
                newest = select(runs.c.number).where(one.scalar_subquery().is_not(None))
                newest = newest.order_by(runs.c.started.desc(), runs.c.run.desc()).limit(last)
                query = query.where(points.c.number.in_(connection.execute(newest).scalars().all()))
            in_time = query.order_by(runs.c.started, runs.c.run)
            rows = connection.execute(in_time).cursor.fetchall()
        keyed = grouped(rows, lambda row: row[: len(KEY)])
        found = {
            self._sound(SeriesKey, KEY, key): tuple(
                self._sound(Point, (*LABEL, *POINT), row[len(KEY) :]) for row in own
            )
            for key, own in keyed.items()
        }
        order = sorted(found, key=lambda key: (key.variant, key.metric, key.sku, key.case_version))
        return [Series(key=key, points=found[key]) for key in order]

    def _with_past(self, found: Collection[Series]) -> list[Series]:
        """Return series with what was accepted of each, and where its level shifted."""
        identity = [moves.c[name] for name in IDENTITY]
        query = select(*identity, *(moves.c[name] for name in MOVE)).order_by(moves.c.accepted)
        accepted: dict[tuple[Any, ...], list[BaselineMove]] = defaultdict(list)
        with self.connected() as connection:
            known = query.where(moves.c.variant.in_({each.key.variant for each in found}))
            rows = connection.execute(known).cursor.fetchall()
        for row in rows:
            move = self._sound(BaselineMove, MOVE, row[len(IDENTITY) :])
            accepted[row[: len(IDENTITY)]].append(move)
        return [
            replace(
                each,
                change_points=change_points(each.valid),
                moves=tuple(accepted[tuple(getattr(each.key, name) for name in IDENTITY)]),
            )
            for each in found
        ]

    def _sound(self, kind: type[T], names: Sequence[str], cells: Sequence[Any]) -> T:
        """Return what is made of cells; StoreError where another program wrote to one."""
        row = _plain(dict(zip(names, cells, strict=True)))
        try:
            if "values" in row:
                row["values"] = json.decode(row["values"])
            return convert(row, kind)
        except (TypeError, MsgspecError) as error:
            raise StoreError(
                f"the history holds a damaged row, {row}: {error}",
                where=self.where,
                remedy="correct or delete the row",
            ) from error


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with texts that any database can hold."""
    return {name: plain(it) if isinstance(it, str) else it for name, it in row.items()}


# Fewer values at a level are outliers, not a level.
FEWEST = 3
# The smallest threshold of a verdict: a smaller shift is no news, however certain.
LEAST_SHIFT = 0.0025
# Of a shift, corrected for the number of places where it could have been.
MOST_P = 0.001
# A value this many standard deviations from its neighbours' median is drawn in to that distance.
REACH, NEIGHBOURS = 4.0, 5


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
    told = []
    ends = [0, *(shift.place for shift in found), len(valid)]
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
    away = MAD_TO_SD * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
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
