"""Numbers have the digits that their noise supports, their unit, and a word beside a colour."""

from __future__ import annotations

import itertools
import string
from pathlib import Path
from typing import Any

import pytest
from judge_data import result
from msgspec import structs

from perfsuite.judge.noise import values_of
from perfsuite.model import ClaimWord, Reason, Status, Word
from perfsuite.report import data, view

GOLD = Path(__file__).parent / "gold" / "sentences.txt"
# Of every kind of reason.
FACTS: dict[str, Any] = {
    "baseline": 22.5, "before": 3, "better": "higher", "by": 2.0, "clock": -0.02,
    "commit": "9c1e4f7", "comparisons": 200, "comparable": 20, "count": 1,
    "differing": ("driver", "torch"), "error": "time_us must be a positive number, not nan",
    "high": 0.025, "issue": "https://example.org/7", "level": 0.99, "limit": 0.0025, "low": -0.015,
    "metric": "peak_bytes", "metrics": ("loads", "stores"), "most": 100.0, "moved": 12,
    "name": "memory.copy[]", "now": 6, "of": "", "processes": 6, "quads": 36, "ratio": 2.04,
    "revision": "revision 9c1e4f7 (main)", "share": 0.4, "source": "", "stage": "canary-start",
    "status": "wrong", "text": "ecc was off and is on", "than": 9.0, "theta": 0.0204, "time": 0.02,
    "unit": "GPU-1234-5678", "units": ("GPU-1234", ""), "up_to": 0.01, "variant": "memory.add[]",
    "why": "it must fit", "word": "slower",
}  # fmt: skip


def test_every_kind_of_reason_has_its_sentence() -> None:
    told = []
    for kind, template in view.SENTENCES.items():
        names = {name for _, name, _, _ in string.Formatter().parse(template) if name}
        told.append(f"{kind}: {view.sentence(Reason(kind, {name: FACTS[name] for name in names}))}")
    for of, word in (("code", "slower"), ("time", "same"), ("", "unclear")):
        facts = {**FACTS, "of": of, "word": word, "better": "lower" if of else "higher"}
        told.append(f"interval: {view.sentence(Reason('interval', facts))}")
    assert "\n".join(told) + "\n" == GOLD.read_text("utf-8")


def test_a_process_is_shown_by_the_estimate_that_it_is_judged_by() -> None:
    (process,) = result(count=1).evidence
    block, times = process.blocks[0], ((100.0, 100.0, 250.0), (101.0,) * 3, (110.0,) * 3)
    blocks = tuple(structs.replace(block, time_us=each) for each in times)
    shown = structs.replace(process, blocks=blocks)
    (judged,) = values_of(structs.replace(result(count=1), evidence=(shown,)))
    assert data.middle(shown, "time_us") == judged.time_us == pytest.approx(103.0)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (view.time(22.94321, 0.0005), "22.943 us"),
        (view.time(22.94321, 0.016), "22.9 us"),
        (view.time(1399.04, 0.0004), "1.3990 ms"),
        (view.time(234.0, 0.3), "230 us"),
        (view.time(234.0, 4.0), "200 us"),  # as much noise as value leaves one digit
        (view.time(0.0421, None), "42.1 ns"),
        (view.time(2_500_000.0, 0.01), "2.500 s"),
        (view.time(0.0, 0.01), "0 ns"),
        (view.time(998.7, 0.001, like=1002.0), "0.9987 ms"),
        (view.time(None, None), "-"),
        (view.percent(0.0142, half_width=0.0008), "+1.42 %"),
        (view.percent(-0.0142, half_width=0.008), "-1.4 %"),
        (view.percent(0.0142, half_width=0.06), "+1 %"),
        (view.percent(0.00001, half_width=0.0008), "0.00 %"),
        (view.percent(12.5), "+1 250.00 %"),
        (view.percent(None), "-"),
        (view.interval(-0.0015, 0.0019), "-0.15 to +0.19 %"),
        (view.moved(4.0, 5.0), "+25.00 %"),
        (view.moved(4.0, 4.0), "="),
        (view.moved(0.0, 4.0), "from none"),
        (view.moved(None, 4.0), "-"),
        (view.amount(4262.4, "GB/s"), "4 262 GB/s"),
        (view.amount(0.0634, "TFLOP/s"), "63.4 GFLOP/s"),
        (view.amount(536870912, "launches"), "536 870 912 launches"),
        (view.amount(253317.2, "", 0.0004), "253 320"),
        (view.amount(2.5, "1/s"), "2.50 per second"),
        (view.amount(512, "bytes"), "512 B"),
        (view.amount(536870912, "bytes"), "537 MB"),
        (view.amount(None, "bytes"), "-"),
        (view.flow(1.2e12, "B"), "1.20 TB"),
        (view.share(None), "-"),
        (view.ratio(None), "-"),
        (view.spread(0.00001), "< 0.01 %"),
        (view.spread(0.0004), "0.040 %"),
        (view.p_value(1e-9), "< 0.001"),
        (view.duration(0.42), "0.42 s"),
        (view.duration(59.7), "1 min 0 s"),
        (view.duration(7260), "2 h 1 min"),
        (view.moment("2026-11-21T11:30:00+01:00"), "2026-11-21 10:30 UTC"),
        (view.moment("yesterday"), "yesterday"),
        (view.commit("9c1e4f70a2b85d3340cc"), "9c1e4f70a2b8"),
        (view.commit("9c1e4f70a2b8-dirty"), "9c1e4f70a2b8-dirty"),
        (view.command("a.b[n=; rm ~]"), "pytest --perf --perf-select 'a.b[n=; rm ~]'"),
        (view.href("https://docs.example/x?y=1"), "https://docs.example/x?y=1"),
        *((view.href(each), "") for each in ("javascript:alert(1)", "data:text/html,x", "ftp://a")),
        *((view.href(each), "") for each in (" https://a.b", 'https://a.b" onclick="x')),
    ],
)
def test_values_are_told_with_their_unit_to_their_noise(shown: str, told: str) -> None:
    assert shown.translate(view.PLAIN) == told


def test_every_word_has_a_mark_with_a_glyph_and_a_meaning() -> None:
    words = [word.value for word in itertools.chain(Word, Status, ClaimWord)]
    marks = [view.mark(word) for word in words if word != Status.OK]
    assert all(mark.meaning and mark.glyph for mark in marks)
    assert view.mark("haunted").word == "haunted"
