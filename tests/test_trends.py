"""The page of a SKU's trends, and the part of a report that tells of earlier runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import report_data as data
from msgspec.structs import replace

from perfsuite.boundary import StoreError
from perfsuite.history.pages import trends_page, write_trends
from perfsuite.model import BaselineMove, ChangePoint, Point, Series, SeriesKey
from perfsuite.report.data import read
from perfsuite.report.html import render_page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"
KEY = SeriesKey(sku="nvidia-h200", variant="a.b[n=1]", metric="time_us", regime="paced", unit="us")
CHANGE = ChangePoint(
    run="r3",
    started="2026-11-04T02:00:00+00:00",
    commit_before="aaa",
    commit="bbb",
    before=100.0,
    after=103.0,
    p_value=1e-9,
)
CENTERS = (100.0, 100.1, 99.9, 103.0, 250.0, 103.1)
POINTS = tuple(
    Point(
        run=f"r{n}",
        started=f"2026-11-0{n + 1}T02:00:00+00:00",
        commit=f"c{n}",
        center=center,
        why_not="machine-shift" if n == 4 else "",
    )
    for n, center in enumerate(CENTERS)
)
MOVE = BaselineMove(
    key=KEY, run="r4", accepted="2026-11-05T09:00:00", by="me", reason="new driver", center=103.0
)


def series(*changes: ChangePoint, key: SeriesKey = KEY, move: BaselineMove = MOVE) -> Series:
    return Series(key=key, points=POINTS, change_points=changes, moves=(move,))


def page_of(*found: Series) -> str:
    return trends_page("nvidia-h200", found)


class Tags(HTMLParser):
    """What a browser would make of a page: its tags, and what is not well-formed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.found if name in attrs]


def test_a_series_is_a_row_that_is_read_without_scripts() -> None:
    page = page_of(series(CHANGE))
    row = page.partition("<details>")[2].partition("</details>")[0]
    told = ("a.b[n=1]", "+3.00", "since 2026-11-04", "aaa..bbb", "1 run left out")
    assert not [each for each in told if each not in row]
    assert row.count("<polyline") == 1


def test_what_shifted_last_stands_first() -> None:
    later = replace(CHANGE, run="r4", started="2026-11-05T02:00:00+00:00")
    changes = {"quiet": (), "early": (CHANGE,), "late": (later,)}
    rows = [series(*each, key=replace(KEY, variant=name)) for name, each in changes.items()]
    assert re.findall(r'class="id">(\w+)<', page_of(*rows)) == ["late", "early", "quiet"]


@pytest.mark.parametrize(("better", "tone"), [("lower", "worse"), ("higher", "better")])
def test_a_metric_s_direction_says_what_is_worse(better: str, tone: str) -> None:
    assert f'<b class="{tone}">' in page_of(series(CHANGE, key=replace(KEY, better=better)))


def test_the_page_needs_nothing_from_elsewhere_and_allows_nothing_else() -> None:
    page = page_of(series(CHANGE))
    tags = Tags(page)
    assert not tags.attributes("src") + tags.attributes("href")
    assert "://" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    policy = next(one for one in tags.attributes("content") if "default-src 'none'" in one)
    assert policy.count("sha256-") == 5
    assert "unsafe" not in policy


def test_hostile_text_stays_text() -> None:
    key = replace(KEY, variant=HOSTILE, metric=HOSTILE, unit=HOSTILE)
    change = replace(CHANGE, run=HOSTILE, commit=HOSTILE, commit_before=HOSTILE)
    point = replace(POINTS[0], run=HOSTILE, commit=HOSTILE)
    page = page_of(Series(key=key, points=(point,), change_points=(change,)))
    tags = Tags(page)
    assert not {"img"} & {tag for tag, _ in tags.found}
    assert not [attrs for _, attrs in tags.found if "onerror" in attrs]
    assert page.count("</script>") == 4
    text = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(text)["runs"][0][0] == HOSTILE


def test_a_series_without_any_point_that_counts_has_a_row() -> None:
    crashed = replace(POINTS[0], center=None, why_not="crashed")
    assert "1 run left out" in page_of(Series(key=KEY, points=(crashed,), change_points=()))
    assert "No series yet" in page_of()


def test_a_page_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write the trends"):
        write_trends("x", [], tmp_path / "file")


def past(known: Series) -> str:
    """Return what a report says of a variant's past."""
    book = read(data.run_of(), baselines={}, history={data.variant_of(data.STORY[0]).id: known})
    return render_page(book).partition("<h3>History")[2].partition("</section>")[0]


def test_a_variant_s_past_tells_of_shifts_and_acceptances_newest_first() -> None:
    told = past(series(CHANGE))
    assert "time_us, the last 6 runs" in told
    assert "1 run left out" in told
    accepted, shifted = told.split("<li>")[1:]
    assert "by me: new driver" in accepted
    assert "level shifted by" in shifted
    assert "aaa..bbb" in shifted
    assert " to 103" in told  # what does not count does not set the scale
    assert not past(replace(series(), points=series().points[:1]))


def test_a_level_from_nothing_has_no_percent() -> None:
    change = replace(CHANGE, before=0.0, after=8.0)
    told = past(series(change, key=replace(KEY, unit="count")))
    assert "level shifted by 0\u202fcount to 8\u202fcount" in told


def test_a_report_shows_a_variant_s_past_and_keeps_hostile_text_out() -> None:
    variant = data.variant_of(data.STORY[0]).id
    move = replace(MOVE, reason=HOSTILE, by=HOSTILE)
    known = {variant: series(replace(CHANGE, commit=HOSTILE), move=move)}
    book = read(data.run_of(), baselines=data.baselines_of(), history=known)
    page = render_page(book)
    assert page.count("<h3>History") == 1
    assert not [attrs for _, attrs in Tags(page).found if "onerror" in attrs]
    assert "<h3>History" not in render_page(read(data.run_of(), baselines=data.baselines_of()))
