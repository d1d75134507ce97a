"""The history of many runs, on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from history_data import COPY, commit_of, night, nights
from msgspec.structs import replace
from sqlalchemy import create_engine, select, text
from store_data import OTHER_UNIT, evidence

from perfsuite.boundary import PerfError, StoreError, UsageError
from perfsuite.history import store as tables
from perfsuite.history.store import (
    History,
    recent,
    series_of,
    skus,
    stored_of,
    trends,
    unpack_samples,
    variants_like,
)
from perfsuite.model import (
    Arm,
    BaselineMove,
    Change,
    MachineShift,
    Result,
    Run,
    Series,
    SeriesKey,
    Sku,
    Stage,
    Status,
    Verdict,
    Word,
)

pytest_plugins = ["postgres_server"]

SKU = "nvidia-h200"
KEY = SeriesKey(sku=SKU, variant=COPY, metric="time_us", regime="paced", unit="us")
MOVE = BaselineMove(
    key=KEY, run="night-0001", accepted="2026-01-02T12:00:00", by="me", reason="new", center=301.0
)
CHANGE = Change(
    metric="time_us", unit="us", baseline=294.0, current=300.0, theta=0.02, low=0.01, high=0.03,
    threshold=0.0025, gate=0.01, detectable=0.002,
)  # fmt: skip
SHIFT = MachineShift(
    word=Word.SLOWER, reason="all", moved=3, comparable=3, units=("u",), canaries=(), variants=()
)


@pytest.fixture
def history(url: str) -> Iterator[History]:
    with History(url, Path("/")) as opened:
        yield opened


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[History]:
    """A history on SQLite, where the database makes no difference."""
    with History("sqlite:///.perfsuite/history.db", tmp_path) as opened:
        yield opened


def store(history: History, *runs: Run) -> None:
    for run in runs:
        assert history.add(stored_of(run))


def time_of(history: History) -> Series:
    (series,) = series_of(history, COPY, metric="time_us")
    return series


def everything(history: History) -> list[object]:
    every = tables.metadata.sorted_tables
    with history.reading() as connection:
        return [sorted(map(repr, connection.execute(select(table)))) for table in every]


def test_a_run_is_read_back_as_it_was_measured(history: History) -> None:
    verdict = Verdict(variant=COPY, word=Word.SLOWER, reason="it is", changes=(CHANGE,))
    store(history, night(0).having(verdicts=(verdict,)))
    history.add_moves([MOVE])
    series = time_of(history)
    (point,) = series.points
    assert (series.key, series.moves) == (KEY, (MOVE,))
    assert point.center == pytest.approx(300.0, rel=1e-3)
    assert [len(values) for values in point.values.values()] == [3]
    assert (point.word, point.theta, point.low, point.high) == ("slower", 0.02, 0.01, 0.03)
    assert (point.run, point.commit, point.is_valid) == ("night-0000", commit_of(0), True)
    assert [each.key.metric for each in series_of(history, COPY)] == [
        *("cycles", "peak_bytes", "time_us")
    ]


def test_storing_a_run_twice_changes_nothing(history: History) -> None:
    store(history, night(0))
    history.add_moves([MOVE])
    before = everything(history)
    assert not history.add(stored_of(night(0)))
    history.add_moves([replace(MOVE, reason="another"), MOVE])
    assert everything(history) == before


def test_writers_at_the_same_time_store_every_run_once(url: str) -> None:
    runs = [stored_of(each) for each in nights(6)]

    def write(_: int) -> int:
        with History(url, Path("/")) as own:
            return sum(own.add(run) for run in runs)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(write, range(4))) == len(runs)
    with History(url, Path("/")) as history:
        assert [point.run for point in time_of(history).points] == [each.run["id"] for each in runs]


def with_aside(run: Run) -> Run:
    arm_a = replace(run.results[0], arm=Arm.A)
    return run.having(results=(*run.results, *(arm_a, replace(arm_a, claim="memory.twice"))))


def with_canaries(run: Run) -> Run:
    start = replace(run.results[0], stage=Stage.CANARY_START)
    end = replace(start, stage=Stage.CANARY_END)
    return replace(run, canaries=run.variants).having(results=(start, *run.results, end))


def as_status(status: Status) -> Callable[[Run], Run]:
    return lambda run: run.having(results=(replace(run.results[0], status=status),))


def shifted(run: Run) -> Run:
    return replace(run, shift=SHIFT)


@pytest.mark.parametrize(
    ("change", "left_out", "counted"),
    [
        (with_aside, ["arm A", "claim memory.twice"], 1),
        (with_canaries, ["canary-end", "canary-start"], 1),
        (as_status(Status.DISTURBED), ["disturbed"], 0),
        (as_status(Status.WRONG), ["wrong"], 0),
        (shifted, ["machine-shift"], 0),
    ],
)
def test_what_does_not_count_is_stored_with_its_reason(
    lite: History, change: Callable[[Run], Run], left_out: list[str], counted: int
) -> None:
    store(lite, change(night(0)))
    series = time_of(lite)
    assert sorted(point.why_not for point in series.points if point.why_not) == left_out
    assert all(point.center for point in series.points)
    assert len(series.valid) == counted


def test_a_crash_is_a_point_without_a_number(lite: History) -> None:
    crashed = Result(variant=COPY, status=Status.CRASHED, reason="signal 11")
    store(lite, night(0), night(1).having(results=(crashed,)))
    told = [(point.center is None, point.why_not) for point in time_of(lite).points]
    assert told == [(False, ""), (True, "crashed")]


def test_bad_nights_make_no_change_point(lite: History) -> None:
    bad = [shifted(night(n, {"copy": 330.0 + n / 100})) for n in range(10, 20)]
    store(lite, *(bad[n - 10] if 10 <= n < 20 else each for n, each in enumerate(nights(30))))
    (row,) = trends(lite, SKU, metrics=["time_us"])
    assert (time_of(lite).change_points, row.change_points) == ((), ())
    assert {point.why_not for point in row.points} == {"", "machine-shift"}


def test_a_change_point_says_since_when_and_between_which_commits(history: History) -> None:
    store(history, *nights(40, step=0.03, at=25))
    (change,) = time_of(history).change_points or ()
    assert (change.run, change.commit_before, change.commit) == (
        *("night-0025", commit_of(24), commit_of(25)),
    )
    assert change.change == pytest.approx(0.03, abs=0.002)
    assert change.p_value < 1e-6
    assert not change.is_other_unit
    (row,) = trends(history, SKU, metrics=["time_us"])
    assert row.change_points == (change,)
    assert recent(history, night(0), [COPY])[COPY].change_points == (change,)


def test_a_change_point_on_another_card_says_so(lite: History) -> None:
    store(lite, *nights(10))
    store(lite, *(night(n, {"copy": 310.0 + n / 50}, unit=OTHER_UNIT) for n in range(10, 20)))
    (change,) = time_of(lite).change_points or ()
    assert change.is_other_unit


def test_the_last_runs_are_read_in_order_of_time(history: History) -> None:
    store(history, *nights(12)[::-1])
    assert [point.run[-2:] for point in time_of(history).points] == [f"{n:02}" for n in range(12)]
    told = [[point.run[-2:] for point in each.points] for each in trends(history, SKU, last=3)]
    assert told == 3 * [["09", "10", "11"]]


def test_a_run_s_own_past_is_of_its_product_and_newest_version(lite: History) -> None:
    run, other = night(1), Sku(slug="nvidia-b300", name="NVIDIA B300")
    later = run.having(results=(replace(run.results[0], case_version=2),))
    store(lite, night(0), later, replace(night(2), sku=other))
    versions = [each.key.case_version for each in series_of(lite, COPY, metric="time_us")]
    assert versions == [1, 1, 2]
    assert recent(lite, night(0), [COPY])[COPY].key.case_version == 2
    assert len(recent(lite, replace(run, sku=other), [COPY])[COPY].points) == 1
    assert recent(lite, replace(run, sku=replace(other, slug="x")), [COPY]) == {}
    assert skus(lite) == ["nvidia-b300", SKU]


def test_what_is_no_finished_measurement_has_no_points(lite: History) -> None:
    run = night(0)
    with pytest.raises(UsageError, match="--perf-resume"):
        stored_of(replace(run, finished=""))
    store(lite, replace(run, settings=replace(run.settings, check_only=True)))
    assert skus(lite) == []


def test_samples_are_kept_until_they_are_pruned(history: History) -> None:
    store(history, night(0), night(100))
    same = (tables.samples.c.run, tables.samples.c.place)
    query = select(tables.samples.c.data).where(
        *(mine == theirs for mine, theirs in zip(same, tables.points.primary_key, strict=True)),
        tables.points.c.metric == "time_us",
    )
    with history.reading() as connection:
        packed = connection.execute(query).scalars().first()
    assert unpack_samples(packed or b"") == [
        evidence(300.0, slot=slot).samples("time_us") for slot in range(3)
    ]
    assert history.prune("2026-02-01") == 2  # time and cycles of the first night
    assert history.prune("2026-02-01") == 0
    assert len(time_of(history).valid) == 2


@pytest.mark.parametrize("version", [2, 99])
def test_a_history_of_another_version_is_refused(url: str, version: int) -> None:
    History(url, Path("/")).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE perfsuite_schema SET version = :v"), {"v": version})
    engine.dispose()
    with pytest.raises(StoreError, match=f"version '{version}'"):
        History(url, Path("/"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://perf:s3cret@127.0.0.1:1/x",
        "postgresql+psycopg://127.0.0.1:1/x?user=perf&password=s3cret",
        "postgres//perf:s3cret@host/x",
        "mysql://perf:s3cret@host/x",
        "oracle+nothing://perf:s3cret@host/x",
        "postgresql://perf:s3cret",
        "sqlite:///x.db?timeout=s3cret",
    ],
)
def test_a_password_is_never_told(url: str, tmp_path: Path) -> None:
    with pytest.raises(PerfError) as caught:
        History(url, tmp_path)
    assert "s3cret" not in str(caught.value)


def test_a_wrong_password_is_refused_without_telling_it(postgres: str) -> None:
    with pytest.raises(StoreError, match="authentication failed") as caught:
        History(postgres.replace("s3cret", "gue55ed"), Path("/"))
    assert "gue55ed" not in str(caught.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("not a database at all" * 100, encoding="utf-8")
    with pytest.raises(StoreError, match="not a database"):
        History("sqlite:///history.db", tmp_path)


def test_variants_are_found_by_a_part_of_their_id(lite: History) -> None:
    store(lite, night(0, {"copy": 1.0, "compute.softmax": 2.0}))
    assert (variants_like(lite, "copy"), variants_like(lite, "%")) == ([COPY], [])


@pytest.mark.parametrize("table", ["runs", "points"])
def test_a_database_that_drops_a_run_is_told_of(lite: History, table: str) -> None:
    act = f"CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END"
    with lite.writing() as connection:
        connection.execute(text(act))
    with pytest.raises(StoreError, match=f"kept 0 of . rows of table '{table}'"):
        lite.add(stored_of(night(0)))


def test_a_view_without_end_is_interrupted(lite: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.history.store.STATEMENT_S", 0.2)
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r"
    with pytest.raises(StoreError, match="interrupted"), lite.reading() as connection:
        connection.execute(text(endless)).all()


def test_a_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfsuite.history.store.CONNECT_S", 2)  # less is none to libpq
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://perf@127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(StoreError, match="timeout"):
            History(url, Path("/"))
