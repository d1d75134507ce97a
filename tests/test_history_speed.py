"""A year of nights of 1,000 variants and three metrics: what reading it takes.

The aims are 20 ms for one series, 200 ms for the last 30 nights of all, 2 s for the page of trends.
SQLite works in this process, whose own time counts; what waits for a server is timed by the wall,
and given more for what a CI machine does besides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from history_data import FIRST, commit_of
from sqlalchemy import insert, text

from perfsuite.history import store as tables
from perfsuite.history.pages import write_trends
from perfsuite.history.store import History, series_of, trends, with_shifts

pytest_plugins = ["postgres_server"]

SKU = "nvidia-h200"
NIGHTS, VARIANTS, METRICS = 365, 1000, ("time_us", "cycles", "energy_j")
SHIFTED, SINCE = 50, 350
PATIENCE = {"sqlite": 4, "postgresql": 10}

# Noise of 0.3 % from squares modulo a prime; every 50th series is 2 % up at the end.
FILL = f"""
INSERT INTO points (run, series, part, center, process_values, between_processes, processes, word,
                    theta, low, high, why_not)
SELECT runs.number, series.number, '',
       (100 + ((runs.number * runs.number * (series.number % 97 + 1) + series.number * 7919) % 1009)
        / 1009.0) * (CASE WHEN series.number % {SHIFTED} = 0 AND runs.number > {SINCE}
                     THEN 1.02 ELSE 1.0 END),
       '{{"3f2a91c04d7e":[100.031,100.042,100.027]}}', 0.001, 3, 'same', 0.001, -0.002, 0.003, ''
FROM runs CROSS JOIN series ORDER BY runs.number, series.number
"""  # noqa: S608 - constants


def fill(history: History) -> None:
    nights = [
        {
            "number": number,
            "id": f"night-{number:04}",
            "started": (FIRST + timedelta(days=number)).isoformat(timespec="seconds"),
            "commit_id": commit_of(number),
            "sku": SKU,
            "unit": "u",
            "environment": "{}",
        }
        for number in range(1, NIGHTS + 1)
    ]
    every = [(n, metric) for n in range(VARIANTS) for metric in METRICS]
    keys = [
        {
            "number": number,
            "sku": SKU,
            "variant": f"memory.case[n={n}]",
            "metric": metric,
            "regime": "paced",
            "case_version": 1,
            "unit": "us",
            "better": "lower",
        }
        for number, (n, metric) in enumerate(every, start=1)
    ]
    with history.writing() as connection:
        connection.execute(insert(tables.runs), nights)
        connection.execute(insert(tables.series), keys)
        connection.execute(text(FILL))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def year(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[History]:
    """A history of 1,095,000 points."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('year')}/history.db"
    else:
        url = request.getfixturevalue("make_database")()
    with History(url, Path("/")) as history:
        started = time.monotonic()
        fill(history)
        print(f"{request.param}: filled in {time.monotonic() - started:.1f} s")  # noqa: T201
        yield history


def is_quick(year: History, call: Callable[[], object], aim_s: float) -> bool:
    """Say whether the shortest of a few times is near the aim, after one that fills caches."""
    call()
    kind = year.where.partition("+")[0].partition(":")[0]
    clock = time.process_time if kind == "sqlite" else time.perf_counter
    taken = []
    for _ in range(3):
        started = clock()
        call()
        taken.append(clock() - started)
    print(f"{kind}: {min(taken) * 1e3:.1f} ms")  # noqa: T201
    return min(taken) < aim_s * PATIENCE[kind]


def test_one_series_of_a_year_takes_twenty_milliseconds(year: History) -> None:
    def read() -> int:
        (series,) = series_of(year, "memory.case[n=499]", metric="time_us")
        return len(series.points)

    assert read() == NIGHTS
    assert is_quick(year, read, 0.02)


def test_the_last_thirty_nights_of_all_take_a_fifth_of_a_second(year: History) -> None:
    found = trends(year, SKU, last=30)
    assert len(found.rows) == VARIANTS * len(METRICS)
    assert {len(row.runs) for row in found.rows} == {30}
    assert is_quick(year, lambda: trends(year, SKU, last=30), 0.2)


def test_the_page_of_trends_takes_two_seconds(year: History, tmp_path: Path) -> None:
    found = with_shifts(trends(year, SKU))
    shifted = sum(bool(row.change_points) for row in found.rows)
    assert shifted >= VARIANTS * len(METRICS) // SHIFTED
    assert is_quick(year, lambda: write_trends(with_shifts(trends(year, SKU)), tmp_path), 2.0)
