"""Charts draw what they are given, inside their box, in tones of the style sheet."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from perfsuite.report import charts


def parse(markup: str) -> ET.Element:
    return ET.fromstring(markup)  # noqa: S314 - our own drawing


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path)]


def bar(theta: float, half: float = 0.001) -> ET.Element:
    ends = (theta - half, theta + half)
    return parse(charts.change_bar(theta, ends=ends, limits=(0.0025, 0.01), tone="slower"))


def test_no_change_lies_in_the_middle_of_the_bar() -> None:
    point = bar(0.0).find("circle")
    assert point is not None
    assert float(point.attrib["cx"]) == charts.BAR[0] / 2


@pytest.mark.parametrize(("theta", "edge", "tip"), [(0.5, charts.BAR[0], "-6"), (-0.5, 0, "6")])
def test_a_change_beyond_the_bar_becomes_an_arrow_at_its_edge(
    theta: float, edge: float, tip: str
) -> None:
    drawing = bar(theta)
    assert drawing.find("circle") is None
    assert drawing[-1].attrib["d"].startswith(f"M{edge} 9l{tip} ")


def test_gate_and_threshold_are_drawn_where_they_are() -> None:
    paths = {path.attrib["class"]: path.attrib["d"] for path in bar(0.0).iter("path")}
    assert paths["gate"].startswith("M35.0 ")
    assert "M105.0 " in paths["gate"]
    assert paths["threshold"].startswith("M61.2 ") or paths["threshold"].startswith("M61.3 ")


def test_a_bar_without_width_is_still_drawn() -> None:
    drawing = parse(charts.change_bar(0.0, ends=(0.0, 0.0), limits=(0.0, 0.0), tone="same"))
    assert drawing.find("circle") is not None


def test_a_strip_has_a_dot_for_every_sample_inside_its_box() -> None:
    blocks = [[1.0, 2.0, 3.0], [2.0, 2.0, 50.0]]
    axis = charts.Axis(1.0, 3.0)
    drawing = parse(charts.strip(blocks, axis, centre=2.0, tone="now"))
    density, samples, _ = drawing
    dots = points(samples.attrib["d"])
    assert density.attrib["class"] == "density"
    assert len(dots) == 6
    assert all(0 <= x <= charts.WIDTH and 0 <= y <= charts.STRIP for x, y in dots)


def test_a_track_is_in_time_order_and_shades_every_other_turn() -> None:
    drawing = parse(charts.track([("slot0", [1.0, 2.0]), ("slot1", [3.0])], charts.Axis(1.0, 3.0)))
    shade, *turns = drawing
    assert shade.attrib["d"] == f"M667 0h333v{charts.TRACK}h-333z"
    xs = [x for turn in turns for x, _ in points(turn.attrib["d"])]
    assert xs == sorted(xs)


def test_levels_are_as_wide_as_their_turns_and_leave_out_what_is_not_known() -> None:
    turns = [("slot0", 30, 1.0), ("slot1", 10, None), ("slot0", 10, 3.0)]
    drawing = parse(charts.levels(turns, charts.Axis(1.0, 3.0)))
    (path,) = drawing
    assert path.attrib["d"] == f"M0 {charts.LEVEL - 4:.1f}h600M800 4.0h200"


def test_a_density_is_highest_where_the_samples_are() -> None:
    axis = charts.Axis(0.0, 10.0)
    blocks = [[2.0, 2.1, 1.9, 2.0, 2.05, 8.0]]
    outline = parse(charts.strip(blocks, axis, centre=2.0, tone="now"))[0].attrib["d"]
    tops = [tuple(map(float, pair)) for pair in re.findall(r"L([\d.]+) ([\d.]+)", outline)]
    assert min(tops, key=lambda top: top[1])[0] == pytest.approx(200, abs=60)


def test_proportions_keep_the_smallest_part_visible() -> None:
    drawing = parse(charts.proportions([("slower", 1), ("same", 10_000)]))
    assert float(drawing[0].attrib["width"]) >= 2
    assert [part.attrib["class"] for part in drawing] == ["slower", "same"]


def test_an_axis_leaves_out_the_most_extreme_hundredth_but_keeps_what_it_must() -> None:
    values = [10.0 + 0.01 * step for step in range(200)] + [1000.0]
    assert charts.axis_of(values).high < 13
    assert charts.axis_of(values, keep=[20.0]).high >= 20


def test_an_axis_of_equal_values_has_room_around_them() -> None:
    axis = charts.axis_of([5.0, 5.0])
    assert axis.low < 5.0 < axis.high
    assert charts.axis_of([0.0]).high > 0


def test_ticks_are_round_and_inside() -> None:
    ticks = charts.Axis(1.353, 1.402).ticks()
    assert ticks == pytest.approx([1.36, 1.38, 1.4])


def test_labels_of_a_scale_are_text() -> None:
    drawing = charts.scale(charts.Axis(0, 1), [(0.5, "<b>1 µs</b>")])
    assert "&lt;b&gt;" in drawing
    assert "50.0%" in drawing
