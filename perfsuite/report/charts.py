"""Small charts as inline SVG: numbers in, markup out; colours come from the style sheet's tones.

Plots are drawn on a grid of 1000 by the chart's height and stretched to the width of the page;
strokes and dots keep their size by ``vector-effect``. Labels are in a chart of their own that is
not stretched, placed in percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH = 1000
BAR = (140, 18)
GATES = 2
STRIP = 28
TRACK = 64
LEVEL = 34
# How many points the outline of a density has.
OUTLINE = 24
# Six dots of different heights keep equal samples apart; the order is fixed, not random.
_LIFT = (0, 2, -2, 1, -1, 3)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from ``low`` to ``high``; what lies beyond is drawn at the edge."""

    low: float
    high: float

    def at(self, value: float, width: float = WIDTH) -> float:
        """Return the position of a value on a scale ``width`` wide."""
        span = (self.high - self.low) or 1.0
        return min(1.0, max(0.0, (value - self.low) / span)) * width

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        step = _round_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def axis_of(values: Sequence[float], *, keep: Sequence[float] = ()) -> Axis:
    """Return an axis that shows all but the most extreme values, and those of ``keep``."""
    ordered = sorted(values)
    cut = len(ordered) // 100
    inner = [*ordered[cut : len(ordered) - cut], *keep]
    low, high = min(inner), max(inner)
    margin = (high - low) * 0.06 or abs(high) * 0.001 or 1.0
    return Axis(low - margin, high + margin)


def change_bar(
    theta: float, *, ends: tuple[float, float], limits: tuple[float, float], tone: str
) -> Markup:
    """Draw a change with its interval against threshold and gate, two gates to either side."""
    width, height = BAR
    axis = Axis(-GATES * limits[1], GATES * limits[1])
    x = [round(axis.at(value, width), 1) for value in (*ends, theta)]
    band, gates = ([axis.at(sign * limit, width) for sign in (-1, 1)] for limit in limits)
    rules = (
        f'<path class="threshold" d="M{band[0]:.1f} 1H{band[1]:.1f}v{height - 2}H{band[0]:.1f}z"/>'
        f'<path class="gate" d="M{gates[0]:.1f} 1v{height - 2}M{gates[1]:.1f} 1v{height - 2}'
        f'M{width / 2:g} 0v{height}"/>'
    )
    return _markup(
        f'<svg class="bar {escape(tone)}" viewBox="0 0 {width} {height}" '
        f'aria-hidden="true">{rules}<path class="span" d="M{x[0]:g} 9H{max(x[1], x[0] + 1):g}"/>'
        f"{_point(x[2], theta, axis)}</svg>"
    )


def proportions(parts: Sequence[tuple[str, int]]) -> Markup:
    """Draw how a whole is made up of toned parts, in the order given."""
    total = sum(count for _, count in parts) or 1
    drawn, x = [], 0.0
    for tone, count in parts:
        # A single slower variant among ten thousand must still be seen.
        width = max(count / total * WIDTH, 6.0 if count else 0.0)
        drawn.append(
            f'<rect class="{escape(tone)}" x="{x:.1f}" width="{max(width - 2, 2):.1f}" height="8"/>'
        )
        x += width
    return _markup(
        f'<svg class="proportions" viewBox="0 0 {max(x, 1):.1f} 8" preserveAspectRatio="none" '
        f'aria-hidden="true">{"".join(drawn)}</svg>'
    )


def strip(blocks: Sequence[Sequence[float]], axis: Axis, *, centre: float, tone: str) -> Markup:
    """Draw every sample of a process, block under block, over their density; and its median."""
    lane = (STRIP - 6) / max(1, len(blocks))
    dots = "".join(
        f"M{axis.at(value):.0f} {3 + lane * (row + 0.5) + _LIFT[index % 6] * lane / 9:.1f}h0"
        for row, block in enumerate(blocks)
        for index, value in enumerate(block)
    )
    values = [value for block in blocks for value in block]
    body = f'<path class="dots" d="{dots}"/>{_median(axis.at(centre))}'
    return _plot(STRIP, tone, _density(values, axis) + body)


def points(values: Sequence[float], axis: Axis, *, tone: str) -> Markup:
    """Draw the estimates of several processes of which no samples are at hand."""
    ticks = "".join(f"M{axis.at(value):.0f} 5v14" for value in values)
    return _plot(STRIP, tone, f'<path class="estimates" d="{ticks}"/>')


def track(rows: Sequence[tuple[str, Sequence[float]]], axis: Axis) -> Markup:
    """Draw values in time order; each row is a turn with its tone, turns shaded in alternation."""
    total = sum(len(values) for _, values in rows) or 1
    shades, dots, x = [], [], 0
    for turn, (tone, values) in enumerate(rows):
        left, width = x / total * WIDTH, len(values) / total * WIDTH
        if turn % 2:
            shades.append(f"M{left:.0f} 0h{width:.0f}v{TRACK}h-{width:.0f}z")
        path = "".join(
            f"M{(x + index + 0.5) / total * WIDTH:.0f} "
            f"{4 + (1 - axis.at(value, 1)) * (TRACK - 8):.0f}h0"
            for index, value in enumerate(values)
        )
        dots.append(f'<path class="dots {escape(tone)}" d="{path}"/>')
        x += len(values)
    shade = f'<path class="shade" d="{"".join(shades)}"/>'
    return _plot(TRACK, "track", shade + "".join(dots))


def levels(turns: Sequence[tuple[str, int, float | None]], axis: Axis) -> Markup:
    """Draw one value a turn as a level as wide as the turn's samples, by tone."""
    total = sum(count for _, count, _ in turns) or 1
    paths: dict[str, str] = {}
    x = 0
    for tone, count, value in turns:
        if value is not None:
            y = 4 + (1 - axis.at(value, 1)) * (LEVEL - 8)
            line = f"M{x / total * WIDTH:.0f} {y:.1f}h{count / total * WIDTH:.0f}"
            paths[tone] = paths.get(tone, "") + line
        x += count
    drawn = (f'<path class="level {escape(tone)}" d="{d}"/>' for tone, d in paths.items())
    return _plot(LEVEL, "track low", "".join(drawn))


def scale(axis: Axis, labels: Sequence[tuple[float, str]]) -> Markup:
    """Draw the labels under a stack of strips."""
    texts = "".join(
        f'<text x="{axis.at(value, 100):.1f}%" y="14">{escape(text)}</text>'
        for value, text in labels
    )
    ticks = "".join(
        f'<line x1="{at:.1f}%" x2="{at:.1f}%" y2="3"/>'
        for at in (axis.at(value, 100) for value, _ in labels)
    )
    return _markup(f'<svg class="scale" aria-hidden="true">{ticks}{texts}</svg>')


def _markup(text: str) -> Markup:
    # Safe: numbers, names of tones and scale labels only; whatever is text is escaped above.
    return Markup(text)  # noqa: S704


def _plot(height: int, tone: str, body: str) -> Markup:
    return _markup(
        f'<svg class="plot {escape(tone)}" viewBox="0 0 {WIDTH} {height}" '
        f'preserveAspectRatio="none" aria-hidden="true">{body}</svg>'
    )


def _density(values: Sequence[float], axis: Axis) -> str:
    """Return the outline of a biweight kernel density of the samples, as high as the strip."""
    ordered, count = sorted(values), len(values)
    spread = ordered[3 * count // 4] - ordered[count // 4]
    # Silverman's rule for this kernel, by the quartiles: outliers do not widen it.
    width = max(2.07 * spread / count**0.2, (axis.high - axis.low) / 150)
    step = (ordered[-1] - ordered[0] + 2 * width) / OUTLINE
    points = [ordered[0] - width + index * step for index in range(OUTLINE + 1)]
    heights = [
        sum((1 - u * u) ** 2 for value in ordered if -1 < (u := (value - at) / width) < 1)
        for at in points
    ]
    high = max(heights) or 1.0
    line = "L".join(
        f"{axis.at(at):.0f} {STRIP - height / high * (STRIP - 3):.0f}"
        for at, height in zip(points, heights, strict=True)
    )
    return f'<path class="density" d="M{axis.at(points[0]):.0f} {STRIP}L{line}V{STRIP}z"/>'


def _median(x: float) -> str:
    return f'<path class="median" d="M{x:.0f} 1v{STRIP - 2}"/>'


def _point(x: float, theta: float, axis: Axis) -> str:
    if axis.low <= theta <= axis.high:
        return f'<circle class="point" cx="{x:g}" cy="9" r="3.4"/>'
    tip = -6 if theta > axis.high else 6
    return f'<path class="point" d="M{x:g} 9l{tip} -5v10z"/>'


def _round_step(step: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= step * (1 - 1e-9))
