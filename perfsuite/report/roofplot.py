"""Draws a roofline: rates over operations per byte, both by powers of ten, as inline SVG.

Everything is placed in percent of the drawing, so that text, dots and lines keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from perfsuite.report import view
from perfsuite.report.charts import Axis

# How high the style sheet draws them, in pixels: an arrow is never shorter than it is wide.
HEIGHT, SMALL_HEIGHT = 416, 176
SHORTEST_ARROW = 24
LABEL = 14
HALF = 50
# An axis of so many powers of ten has room for values between them.
DENSE_UP_TO = 3
# Beyond so many points a page does without their titles.
MOST_TITLES = 1000


@dataclass(frozen=True, slots=True)
class Point:
    """One case: operations per byte, its rate per second now and, if it moved, before."""

    intensity: float
    rate: float
    before: float | None
    tone: str
    title: str
    is_loud: bool


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate per second that nothing exceeds; dashed unless it was measured."""

    name: str
    rate: float
    is_measured: bool
    is_link: bool = True


def plane(
    points: Sequence[Point], ceilings: Sequence[Ceiling], *, is_small: bool = False
) -> Markup:
    """Draw points under the ceilings of their links and operations."""
    x = _decades([one.intensity for one in points], [_ridge(ceilings)])
    rates = [rate for one in points for rate in (one.rate, one.before) if rate]
    y = _decades(rates, [one.rate for one in ceilings if not one.is_link])
    height = SMALL_HEIGHT if is_small else HEIGHT
    body = [*_grid(x, y, is_small=is_small), *_roofs(ceilings, (x, y), is_small=is_small)]
    body += _dots(points, (x, y), height)
    return _svg("roof small" if is_small else "roof", "".join(body))


def lane(points: Sequence[Point], ceiling: Ceiling | None) -> Markup:
    """Draw the rates of what moves bytes only along one line, up to the ceiling of their link."""
    x = _decades(
        [rate for one in points for rate in (one.rate, one.before) if rate],
        [ceiling.rate] if ceiling else [],
    )
    body = [
        f'<line class="grid" x1="{at:.1f}%" x2="{at:.1f}%" y2="100%"/>'
        f'<text class="mid" x="{at:.1f}%" y="100%" dy="14">'
        f"{view.flow(value, 'B/s', digits=1)}</text>"
        for value, at in _ticks(x)
    ]
    if ceiling:
        at, kind = _percent(ceiling.rate, x), "" if ceiling.is_measured else " given"
        body.append(
            f'<line class="ceiling{kind}" x1="{at:.2f}%" x2="{at:.2f}%" y2="100%"/>'
            f'<text class="name end" x="{at:.2f}%" dx="-4" y="10">{escape(ceiling.name)}</text>'
        )
    # Three heights in turn keep equal rates apart.
    for index, one in enumerate(points):
        body.append(_dot(one, _percent(one.rate, x), 40 + 20 * (index % 3), titled=len(points)))
    return _svg("roof lane", "".join(body))


def _grid(x: Axis, y: Axis, *, is_small: bool) -> Iterator[str]:
    for value, at in _ticks(x):
        label = view.figures(value, 1)
        yield (
            f'<line class="grid" x1="{at:.1f}%" x2="{at:.1f}%" y2="100%"/>'
            f'<text class="mid" x="{at:.1f}%" y="100%" dy="14">{label}</text>'
        )
    for value, at in _ticks(y):
        yield (
            f'<line class="grid" x2="100%" y1="{100 - at:.1f}%" y2="{100 - at:.1f}%"/>'
            f'<text class="end" x="-6" y="{100 - at:.1f}%" dy="4">'
            f"{view.flow(value, '', digits=1)}</text>"
        )
    unit = "FLOP/byte" if is_small else "operations per byte (FLOP/byte)"
    yield f'<text class="mid" x="50%" y="100%" dy="30">{unit}</text>'
    yield '<text class="end" x="-6" y="0" dy="-4">FLOP/s</text>'


def _roofs(
    ceilings: Sequence[Ceiling], axes: tuple[Axis, Axis], *, is_small: bool
) -> Iterator[str]:
    x, y = axes
    operations = sorted((one for one in ceilings if not one.is_link), key=lambda one: -one.rate)
    links = [one for one in ceilings if one.is_link]
    highest = operations[0].rate if operations else 10.0**y.high
    for one in links:
        low = max(10.0**x.low, 10.0**y.low / one.rate)
        high = min(10.0**x.high, highest / one.rate)
        yield _line(one, (low, low * one.rate), (high, high * one.rate), axes)
        at = _percent(low, x), 100 - _percent(low * one.rate, y)
        place = f'x="{at[0]:.2f}%" y="{at[1]:.2f}%" dx="12" dy="4"'
        yield f'<text class="name" {place}>{escape(one.name)}</text>'
    fastest = max((one.rate for one in links), default=math.inf)
    lowest = -math.inf
    for one in operations:
        left = max(one.rate / fastest, 10.0**x.low)
        yield _line(one, (left, one.rate), (10.0**x.high, one.rate), axes)
        # Labels of ceilings that lie close together are pushed apart, downwards.
        height = SMALL_HEIGHT if is_small else HEIGHT
        lowest = max(lowest + LABEL, (1 - _percent(one.rate, y) / 100) * height - 4)
        # Beside the ridge there is room only where that lies on the left.
        ridge = _percent(left, x)
        at_start = is_small and ridge < HALF
        place = f'class="name" x="{ridge:.1f}%" dx="6"' if at_start else 'class="name end" x="100%"'
        yield f'<text {place} y="{lowest:.0f}">{escape(one.name)}</text>'


def _line(
    one: Ceiling, start: tuple[float, float], end: tuple[float, float], axes: tuple[Axis, Axis]
) -> str:
    (x1, y1), (x2, y2) = (
        (_percent(a, axes[0]), 100 - _percent(b, axes[1])) for a, b in (start, end)
    )
    kind = "" if one.is_measured else " given"
    return (
        f'<line class="ceiling{kind}" x1="{x1:.2f}%" y1="{y1:.2f}%" x2="{x2:.2f}%" y2="{y2:.2f}%"/>'
    )


def _dots(points: Sequence[Point], axes: tuple[Axis, Axis], height: int) -> Iterator[str]:
    # What needs a reader is drawn last, above the others.
    for one in sorted(points, key=lambda one: one.is_loud):
        at = _percent(one.intensity, axes[0]), 100 - _percent(one.rate, axes[1])
        if one.before:
            way = (_percent(one.rate, axes[1]) - _percent(one.before, axes[1])) / 100 * height
            yield _arrow(one, at, math.copysign(max(abs(way), SHORTEST_ARROW), way))
        yield _dot(one, *at, titled=len(points))


def _dot(one: Point, x: float, y: float, *, titled: int) -> str:
    title = f"<title>{escape(one.title)}</title>" if titled <= MOST_TITLES else ""
    kind = f"{escape(one.tone)} loud" if one.is_loud else escape(one.tone)
    place = f'cx="{x:.2f}%" cy="{y:.2f}%" r="{5 if one.is_loud else 4}"'
    return f'<circle class="{kind}" {place}>{title}</circle>'


def _arrow(one: Point, at: tuple[float, float], way: float) -> str:
    # It comes from where the case was and ends at the dot; upwards is faster.
    tip, head = math.copysign(7, way), math.copysign(12, way)
    path = f"M0 {way:.0f}V{tip:.0f}M-4 {head:.0f}L0 {tip:.0f}L4 {head:.0f}"
    return (
        f'<svg x="{at[0]:.2f}%" y="{at[1]:.2f}%">'
        f'<path class="arrow {escape(one.tone)}" d="{path}"/></svg>'
    )


def _decades(values: Sequence[float], more: Sequence[float]) -> Axis:
    """Return an axis over powers of ten that shows all values, with room at both ends."""
    logs = [math.log10(value) for value in (*values, *more) if value > 0 and math.isfinite(value)]
    return Axis(min(logs, default=0) - 0.35, max(logs, default=1) + 0.25)


def _ridge(ceilings: Sequence[Ceiling]) -> float:
    links = [one.rate for one in ceilings if one.is_link]
    operations = [one.rate for one in ceilings if not one.is_link]
    return max(operations) / max(links) if links and operations else 0.0


def _ticks(axis: Axis) -> Iterator[tuple[float, float]]:
    """Yield round values and where they are, in percent; only powers of ten on a long axis."""
    steps = (1, 2, 5) if axis.high - axis.low < DENSE_UP_TO else (1,)
    for power in range(math.floor(axis.low), math.ceil(axis.high)):
        for value in (step * 10.0**power for step in steps):
            if axis.low <= math.log10(value) <= axis.high:
                yield value, _percent(value, axis)


def _percent(value: float, axis: Axis) -> float:
    return axis.at(math.log10(value), 100)


def _svg(kind: str, body: str) -> Markup:
    # Safe: numbers and tones, and text that is escaped above.
    return Markup(f'<svg class="{kind}" aria-hidden="true">{body}</svg>')  # noqa: S704
