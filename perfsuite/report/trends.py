"""The page of a SKU's trends: a row per series with a small chart, and a large one when opened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from markupsafe import Markup

from perfsuite.files import refusing, replace_file
from perfsuite.model import ChangePoint, RunLabel, Trend, Trends
from perfsuite.report import charts, render, view
from perfsuite.report.history import change_words, commits

SPARK = (160, 24)
# What JSON leaves as it is and HTML does not.
_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Line:
    """One series as its row shows it."""

    trend: Trend
    spark: Markup
    level: str
    moved: str
    tone: str
    events: tuple[str, ...]
    left_out: int


def write_trends(trends: Trends, folder: Path) -> Path:
    """Write a SKU's page into a folder; raises StoreError where that cannot be written."""
    path = folder / f"trends-{view.slug(trends.sku)}.html"
    with refusing("cannot write the trends", path, remedy="make the folder writable"):
        return replace_file(path, trends_page(trends).encode("utf-8", "replace"))


def trends_page(trends: Trends) -> str:
    """Return the page; what shifted last stands first."""
    lines = sorted((_line(row, trends.runs) for row in trends.rows), key=_urgency, reverse=True)
    return (
        render.environment()
        .get_template("trends.html.j2")
        .render(
            trends=trends,
            lines=lines,
            shifted=sum(bool(line.events) for line in lines),
            data=_data(trends, lines),
            styles=[render.inline("vendor/uplot/uPlot.min.css"), render.inline("trends.css")],
            scripts=[render.inline("vendor/uplot/uPlot.iife.min.js"), render.inline("trends.js")],
        )
    )


def _urgency(line: Line) -> tuple[str, str]:
    changes = line.trend.change_points
    return changes[-1].started if changes else "", line.trend.key.variant


def _line(trend: Trend, runs: Sequence[RunLabel]) -> Line:
    key, changes = trend.key, trend.change_points or ()
    last = changes[-1] if changes else None
    counted = [
        (place, center)
        for index, (place, center) in enumerate(zip(trend.runs, trend.centers, strict=True))
        if center is not None and index not in trend.why_not
    ]
    level = last.after if last else fmean(center for _, center in counted) if counted else None
    return Line(
        trend=trend,
        spark=_spark(counted, len(runs), changes, {run.id: at for at, run in enumerate(runs)}),
        level=view.NOTHING if level is None else view.amount(level, key.unit),
        moved=_moved(last) if last else "",
        tone=_tone(last, key.better) if last else "same",
        events=tuple(_words(change, key.unit) for change in reversed(changes)),
        left_out=len(trend.why_not),
    )


def _moved(change: ChangePoint) -> str:
    by = (
        view.percent(change.change, half_width=abs(change.change) / 10)
        if change.before
        else "from nothing"
    )
    return f"{by} since {view.moment(change.started).partition(' ')[0]}"


def _words(change: ChangePoint, unit: str) -> str:
    when = view.moment(change.started)
    return f"{when}, run {change.run}: {change_words(change, unit)}; {commits(change)}"


def _tone(change: ChangePoint, better: str) -> str:
    if better == "equal":
        return "worse"
    return "worse" if (change.after > change.before) == (better == "lower") else "better"


def _spark(
    counted: Sequence[tuple[int, float]],
    many: int,
    changes: Sequence[ChangePoint],
    places: dict[str, int],
) -> Markup:
    width, height = SPARK
    if not counted:
        return Markup()
    axis = charts.axis_of([center for _, center in counted])
    step = width / max(1, many - 1)
    low, scale = axis.low, (height - 2) / ((axis.high - axis.low) or 1.0)
    # A page has thousands of these: whole pixels, and no call per point.
    top = height - 1
    line = " ".join(f"{at * step:.0f},{top - (y - low) * scale:.0f}" for at, y in counted)
    rules = "".join(f"M{(places[each.run] - 0.5) * step:.0f} 0v{height}" for each in changes)
    rule = f'<path d="{rules}"/>' if rules else ""
    return Markup(  # noqa: S704 - numbers only
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-hidden="true">{rule}<polyline points="{line}"/></svg>'
    )


def _data(trends: Trends, lines: Sequence[Line]) -> Markup:
    """Return what the charts draw as JSON that no text in it can end."""
    plain = {
        "runs": [[run.id, run.started, view.commit(run.commit)] for run in trends.runs],
        "series": [
            {
                "name": f"{line.trend.key.variant} {line.trend.key.metric}",
                "unit": line.trend.key.unit,
                "runs": line.trend.runs,
                "centers": line.trend.centers,
                "not": line.trend.why_not,
                "changes": [change.run for change in line.trend.change_points or ()],
            }
            for line in lines
        ],
    }
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))  # noqa: S704 - escaped for where it stands
