"""The part of a variant's section that tells of earlier runs: its points, shifts and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.model import BaselineMove, ChangePoint, Point, Series
from perfsuite.report import charts, view

HEIGHT = 72
EDGE = 6
# A single point is no history.
FEWEST = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the history in words."""

    when: str
    what: str


@dataclass(frozen=True, slots=True)
class Past:
    """A variant's history as a chart, the ends of its scale, and its events in words."""

    plot: Markup
    high: str
    low: str
    label: str
    events: tuple[Line, ...]
    left_out: int


def past(series: Series | None) -> Past | None:
    """Return what earlier runs say of a variant, None where there are none."""
    if series is None or len(series.valid) < FEWEST:
        return None
    shown = [point for point in series.points if point.center is not None]
    moves = _in_sight(series.moves, shown)
    centers = [point.center or 0.0 for point in series.valid]
    axis = charts.axis_of(centers, keep=[move.center for move in moves])
    changes = series.change_points or ()
    key = series.key
    return Past(
        plot=_plot(shown, axis, changes, moves),
        high=view.amount(max(centers), key.unit),
        low=view.amount(min(centers), key.unit),
        label=f"{key.metric}, the last {view.count(len(shown), 'run')}",
        events=tuple(_events(series, changes, moves)),
        left_out=len(series.points) - len(series.valid),
    )


def change_words(change: ChangePoint, unit: str) -> str:
    """Return by how much a level shifted, with the p value."""
    # A tenth of the shift is the last digit that says something of it.
    tenth = abs(change.change) / 10
    noise = tenth if 0 < abs(change.change) < 1 else None
    levels = " to ".join(view.amount(each, unit, noise) for each in (change.before, change.after))
    by = view.percent(change.change, half_width=tenth) if change.before else levels
    other = "; measured on another card from here on" if change.is_other_unit else ""
    return f"{by} ({levels}, p {view.p_value(change.p_value)}){other}"


def commits(change: ChangePoint) -> str:
    """Return the commits between which the level shifted."""
    before, after = view.commit(change.commit_before), view.commit(change.commit)
    if not after:
        return "no commit known"
    return f"{before}..{after}" if before != after else f"{after}, as before"


def _events(
    series: Series, changes: Sequence[ChangePoint], moves: Sequence[BaselineMove]
) -> Iterator[Line]:
    """Yield what happened, the newest first."""
    unit = series.key.unit
    found = [
        (change.started, f"level shifted by {change_words(change, unit)}; {commits(change)}")
        for change in changes
    ]
    found += [
        (
            move.accepted,
            f"baseline accepted at {view.amount(move.center, unit)} by {move.by}: {move.reason}",
        )
        for move in moves
    ]
    return (Line(view.moment(when), what) for when, what in sorted(found, reverse=True))


def _in_sight(moves: Sequence[BaselineMove], points: Sequence[Point]) -> list[BaselineMove]:
    """Return the acceptances since the first point, and the one that held then."""
    before = [move for move in moves if move.accepted < points[0].started]
    return [*before[-1:], *(move for move in moves if move.accepted >= points[0].started)]


def _plot(
    points: Sequence[Point],
    axis: charts.Axis,
    changes: Sequence[ChangePoint],
    moves: Sequence[BaselineMove],
) -> Markup:
    """Draw points in order of time: the accepted level behind them, a rule where it shifted."""
    step = charts.WIDTH / len(points)
    place = {point.run: (index + 0.5) * step for index, point in enumerate(points)}
    counted = [point for point in points if point.is_valid]
    left_out = [point for point in points if not point.is_valid]
    rules = "".join(f"M{place[change.run] - step / 2:.0f} 0v{HEIGHT}" for change in changes)
    line = " ".join(f"{place[each.run]:.0f},{_y(each.center, axis)}" for each in counted)
    thin = 'stroke="currentColor" vector-effect="non-scaling-stroke"'
    parts = (
        f'<path {thin} stroke-opacity=".3" stroke-width="6" d="{_accepted(points, axis, moves)}"/>',
        f'<path class="median" stroke-dasharray="3 3" d="{rules}"/>',
        f'<polyline {thin} stroke-opacity=".5" points="{line}"/>',
        _dots("now", counted, place, axis),
        _dots("unclear", left_out, place, axis),
    )
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="plot track" viewBox="0 0 {charts.WIDTH} {HEIGHT}" '
        f'preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg>'
    )


def _dots(tone: str, points: Sequence[Point], place: dict[str, float], axis: charts.Axis) -> str:
    path = "".join(f"M{place[each.run]:.0f} {_y(each.center, axis)}h0" for each in points)
    return f'<path class="dots {tone}" d="{path}"/>'


def _accepted(points: Sequence[Point], axis: charts.Axis, moves: Sequence[BaselineMove]) -> str:
    step = charts.WIDTH / len(points)
    starts = [sum(point.started < move.accepted for point in points) * step for move in moves]
    ends = [*starts[1:], float(charts.WIDTH)]
    return "".join(
        f"M{start:.0f} {_y(move.center, axis)}H{end:.0f}"
        for start, end, move in zip(starts, ends, moves, strict=False)
    )


def _y(center: float | None, axis: charts.Axis) -> str:
    return f"{EDGE + (1 - axis.at(center or 0.0, 1)) * (HEIGHT - 2 * EDGE):.0f}"
