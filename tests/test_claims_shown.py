"""Claims are told by pack and name, what is broken first, drawn over the ratio asked for."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import report_data as data
from msgspec.structs import replace

from perfsuite.model import ClaimInstance, ClaimVerdict, ClaimWord
from perfsuite.report import charts
from perfsuite.report.data import Chapter, Line, chapters, read

FAST, SLOW = "memory.h2d[mb=256,pinned=true]", "memory.h2d[mb=256,pinned=false]"


def instance(name: str, pack: str = "memory") -> ClaimInstance:
    return ClaimInstance(
        id=f"{pack}.h2d:{name}[mb=256]",
        pack=pack,
        name=name,
        faster=FAST,
        than=SLOW,
        by=2,
        source="s",
    )


def verdict(one: ClaimInstance, ratio: float | None, word: ClaimWord) -> ClaimVerdict:
    return ClaimVerdict(
        claim=one.id,
        word=word,
        reason="r",
        required=2.0,
        source="s",
        ratio=ratio,
        low=ratio and ratio * 0.99,
        high=ratio and ratio * 1.01,
    )


def shown(*found: tuple[ClaimInstance, float | None, ClaimWord]) -> list[Chapter]:
    run = replace(
        data.run_of(),
        instances=tuple(one for one, *_ in found),
        claims=tuple(verdict(*one) for one in found),
    )
    return chapters(read(run, baselines={}))


def line_of(ratio: float | None, word: ClaimWord = ClaimWord.HELD) -> Line:
    return shown((instance("pinned"), ratio, word))[0].tips[0].lines[0]


def centre(line: Line) -> float:
    point = ET.fromstring(line.bar).find("circle")  # noqa: S314 - our own drawing
    assert point is not None
    return float(point.attrib["cx"])


def test_what_is_broken_stands_first_at_every_level() -> None:
    found = shown(
        (instance("pinned"), 4.0, ClaimWord.HELD),
        (instance("fast", "zeta"), 3.0, ClaimWord.HELD),
        (instance("slow", "zeta"), 1.0, ClaimWord.BROKEN),
    )
    assert [one.pack for one in found] == ["zeta", "memory"]
    assert [tip.name for tip in found[0].tips] == ["slow", "fast"]
    assert [(mark.word, count) for mark, count in found[0].tallies] == [("broken", 1), ("held", 1)]


def test_a_claim_says_what_it_is_bound_by_and_what_its_variants_differ_by() -> None:
    line = line_of(4.0)
    assert (line.axes, line.than) == ("mb=256", "pinned=true over pinned=false")
    assert line.anchor == "v-memory-h2d-mb-256-pinned-true"


def test_the_ratio_asked_for_is_the_middle_of_the_drawing() -> None:
    middle = charts.BAR[0] / 2
    assert centre(line_of(2.0)) == middle
    assert centre(line_of(2.5)) > middle > centre(line_of(1.9, ClaimWord.BROKEN))
    assert centre(line_of(4.0)) == charts.BAR[0] * 3 / 4


def test_a_claim_without_a_ratio_is_not_drawn() -> None:
    assert line_of(None, ClaimWord.NOT_APPLICABLE).bar == ""


def test_a_claim_of_an_old_run_is_told_by_its_id_alone() -> None:
    run = replace(data.run_of(), instances=())
    found = chapters(read(run, baselines={}))
    assert [one.pack for one in found] == ["compute", "memory"]
    assert found[0].tips[0].lines[0].anchor == ""
