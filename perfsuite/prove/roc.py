"""Draws ROC curves as SVG files of their own: false alarms across, changes found upwards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from perfsuite.prove.tools import OURS, Tool

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, KEY = 640, 400, 52, 16, 44, 190
# False alarms are on a logarithmic scale from here: rarer ones are not resolved by the draws.
LEAST = 2e-3
# Told apart without colour vision by their dashes as well (Okabe and Ito's palette).
STYLES = (("#0072b2", ""), ("#d55e00", "6 3"), ("#009e73", "2 3"), ("#cc79a7", "9 3 2 3"),
          ("#e69f00", "4 4"))  # fmt: skip


def draw(tools: Sequence[Tool], title: str) -> str:
    """Return the curves of several tools as one SVG."""
    lines = "".join(_curve(tool, row) for row, tool in enumerate(tools))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{_axes()}{lines}</svg>\n'
    )


def _x(rate: float) -> float:
    share = 1 - math.log(max(rate, LEAST)) / math.log(LEAST)
    return LEFT + share * (WIDTH - KEY - LEFT)


def _y(power: float) -> float:
    return TOP + (1 - power) * (HEIGHT - TOP - BOTTOM)


def _axes() -> str:
    parts = []
    for power in (0, 0.25, 0.5, 0.75, 1):
        y = _y(power)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - KEY}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{power:.0%}</text>'
        )
    for rate in (LEAST, 0.01, 0.1, 1):
        x, label = _x(rate), f"{rate:.1%}".replace(".0%", "%")
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'
        )
    middle = (LEFT + WIDTH - KEY) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">false alarms (A/A)</text>'
        f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {HEIGHT / 2})">changes found</text>'
    )
    return "".join(parts)


def _curve(tool: Tool, row: int) -> str:
    color, dashes = STYLES[row % len(STYLES)]
    points = " ".join(f"{_x(rate):.1f},{_y(power):.1f}" for rate, power in tool.curve())
    line = (
        f'fill="none" stroke="{color}" stroke-width="{3 if tool.name == OURS else 2}" '
        f'stroke-dasharray="{dashes}"'
    )
    x, y = WIDTH - KEY + 14, TOP + 14 + 20 * row
    return str(
        Markup('<polyline points="{}" {}/>').format(points, Markup(line))  # noqa: S704 - ours
        + Markup('<path d="M{} {}h24" {}/>').format(x, y, Markup(line))  # noqa: S704 - ours
        + Markup('<text x="{}" y="{}">{}</text>').format(x + 30, y + 4, tool.name)
    )
