"""Cases stand where their rate and work put them, under ceilings that are drawn where they are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
import report_data as data

from perfsuite.judge.peaks import GENERIC, PEAKS
from perfsuite.model import Word, Work
from perfsuite.report import plots as roofplot
from perfsuite.report.data import Subject, read
from perfsuite.report.plots import place, roof

H200 = PEAKS["nvidia-h200"]


def parse(markup: str) -> ET.Element:
    return ET.fromstring(markup)  # noqa: S314 - our own drawing


def subject_of(told: data.Told) -> Subject:
    book = read(data.run_of((told,)), baselines=data.baselines_of((told,)))
    return book.subjects[0]


def percent(element: ET.Element, name: str) -> float:
    return float(element.attrib[name].removesuffix("%"))


def test_a_gemm_stands_under_the_rate_of_its_dtype() -> None:
    found = place(subject_of(data.gemm(8192, "cublas", 1399.0)), H200)
    assert found is not None
    assert found.intensity == pytest.approx(2 * 8192**3 / (6 * 8192**2))
    assert found.rate == pytest.approx(2 * 8192**3 / 1399e-6, rel=0.01)
    assert found.ceiling is not None
    assert found.ceiling.value == 798e12
    assert found.text.replace("\u202f", " ") == (
        "786 TFLOP/s, 98 % of the ceiling. Limited by bf16: 798 TFLOP/s, measured. 2 731 FLOP/B"
    )


def test_bytes_alone_stand_under_their_link() -> None:
    found = place(subject_of(data.stream("copy", 2**28, 1, 503.9)), H200)
    assert found is not None
    assert (found.link, found.dtype, found.balance) == ("hbm", "", "")
    assert "Limited by hbm" in found.text
    reading = replace(data.stream("copy", 2**28, 1, 503.9), work=Work(read_bytes=1e9))
    only = place(subject_of(reading), H200)
    assert only is not None
    assert only.link == "hbm_read"


def test_work_of_few_operations_a_byte_is_limited_by_its_link() -> None:
    told = replace(data.STORY[0], work=Work(read_bytes=1e9, flops=1e9, rate_dtype="fp32"))
    found = place(subject_of(told), H200)
    assert found is not None
    assert "Limited by hbm" in found.text


def test_only_what_has_moved_has_a_place_before() -> None:
    moved = place(subject_of(data.gemm(8192, "cublas", 1399.0, word=Word.SLOWER, theta=0.03)), H200)
    still = place(subject_of(data.gemm(4096, "cublas", 187.4)), H200)
    assert moved is not None
    assert still is not None
    assert moved.before is not None
    assert moved.before > moved.rate
    assert still.before is None


def test_without_work_or_time_there_is_no_place() -> None:
    assert place(subject_of(replace(data.STORY[0], work=None)), H200) is None
    assert place(subject_of(replace(data.STORY[0], work=Work())), H200) is None
    assert place(subject_of(data.STORY[24]), H200) is None
    assert roof([subject_of(data.STORY[24])], H200) is None


def test_of_a_product_without_peaks_rates_alone_are_told() -> None:
    found = roof([subject_of(one) for one in data.STORY[:2]], GENERIC)
    assert found is not None
    assert found.ceilings == ()
    assert "ceiling" not in found.lanes[0].drawing
    assert "ceiling" not in found.places[0].text


def test_a_run_is_one_plane_and_a_lane_for_each_link() -> None:
    found = roof(read(data.run_of(), baselines={}).timed, H200)
    assert found is not None
    assert [one.title for one in found.lanes] == ["hbm"]
    names = [name for name, *_ in found.ceilings]
    assert names == ["hbm", "bf16", "fp8"]
    dots = found.plane.count("<circle") + found.lanes[0].drawing.count("<circle")
    assert dots == len(found.places)


def dot(intensity: float, rate: float, before: float | None = None) -> roofplot.RoofplotPoint:
    return roofplot.RoofplotPoint(
        intensity, rate, before, "slower", "<b>", is_loud=before is not None
    )


CEILINGS = (
    roofplot.Ceiling("hbm", 4e12, is_measured=True),
    roofplot.Ceiling("bf16", 800e12, is_measured=False, is_link=False),
)


def test_a_case_at_its_ceiling_is_drawn_on_the_line() -> None:
    drawing = parse(roofplot.plane([dot(1000, 800e12), dot(10, 4e13)], CEILINGS))
    link, operations = drawing.findall("line[@class='ceiling']") + drawing.findall(
        "line[@class='ceiling given']"
    )
    high, low = drawing.findall("circle")
    assert percent(high, "cy") == pytest.approx(percent(operations, "y1"), abs=0.02)
    ends = [(percent(link, f"x{end}"), percent(link, f"y{end}")) for end in (1, 2)]
    slope = (ends[1][1] - ends[0][1]) / (ends[1][0] - ends[0][0])
    on_line = ends[0][1] + slope * (percent(low, "cx") - ends[0][0])
    assert percent(low, "cy") == pytest.approx(on_line, abs=0.1)
    # The roof has no gap: operations begin where the link ends.
    assert percent(link, "x2") == pytest.approx(percent(operations, "x1"), abs=0.02)


@pytest.mark.parametrize(("before", "sign"), [(810e12, -1), (700e12, 1), (8e12, 1)])
def test_an_arrow_comes_from_where_the_case_was(before: float, sign: int) -> None:
    drawing = parse(roofplot.plane([dot(1000, 800e12, before)], CEILINGS))
    path = drawing.find("svg/path")
    assert path is not None
    start = re.match(r"M0 (-?\d+)V", path.attrib["d"])
    assert start is not None
    assert math.copysign(1, int(start[1])) == sign
    assert abs(int(start[1])) >= roofplot.SHORTEST_ARROW


def test_names_of_near_ceilings_do_not_lie_on_each_other() -> None:
    near = [roofplot.Ceiling(f"c{n}", 8e14 + n, is_measured=True, is_link=False) for n in range(4)]
    drawing = parse(roofplot.plane([dot(1000, 1e14)], near))
    heights = sorted(float(text.attrib["y"]) for text in drawing.findall("text[@class='name end']"))
    assert [b - a for a, b in pairwise(heights)] == [roofplot.LABEL] * 3


def test_the_name_of_a_ceiling_at_the_right_edge_ends_there() -> None:
    # A case left of the ridge: in a small drawing the ridge lies near the right edge.
    drawing = parse(roofplot.plane([dot(0.1, 4e11)], CEILINGS, is_small=True))
    assert [text.text for text in drawing.findall("text[@class='name end']")] == ["bf16"]


def test_titles_and_names_are_text() -> None:
    ceiling = roofplot.Ceiling("<i>", 4e12, is_measured=True)
    for drawing in (
        roofplot.plane([dot(1, 1e12)], [ceiling]),
        roofplot.lane([dot(1, 1e12)], ceiling),
    ):
        assert parse(drawing).findall(".//b") + parse(drawing).findall(".//i") == []


def test_so_many_dots_go_without_titles() -> None:
    many = [dot(10, 1e12 + n) for n in range(roofplot.MOST_TITLES + 1)]
    assert "<title>" not in roofplot.plane(many, CEILINGS)
    assert "<title>" in roofplot.plane(many[1:], CEILINGS)


def test_a_case_of_no_bytes_has_no_place_on_the_plane() -> None:
    told = replace(data.STORY[0], work=Work(flops=1e12, rate_dtype="bf16"))
    found = roof([subject_of(told)], H200)
    assert found is not None
    assert found.plane == ""
    assert found.places[0].balance == ""
    assert "798" in found.places[0].text
