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
from perfsuite.report import data as marks
from perfsuite.report import view

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


def plain(text: str) -> str:
    return text.replace(view.SPACE, " ").replace(view.MINUS, "-")


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
    blocks = ((100.0, 100.0, 250.0), (101.0,) * 3, (110.0,) * 3)
    (process,) = result(count=1).evidence
    shown = structs.replace(
        process, blocks=tuple(structs.replace(process.blocks[0], time_us=b) for b in blocks)
    )
    one = structs.replace(result(count=1), evidence=(shown,))
    (judged,) = values_of(one)
    assert marks.middle(shown, "time_us") == judged.time_us
    assert judged.time_us == pytest.approx(103.0)


@pytest.mark.parametrize(
    ("time_us", "noise", "shown"),
    [
        (22.94321, 0.0005, "22.943 µs"),
        (22.94321, 0.016, "22.9 µs"),
        (1399.04, 0.0004, "1.3990 ms"),
        (234.0, 0.3, "230 µs"),
        (0.0421, None, "42.1 ns"),
        (2_500_000.0, 0.01, "2.500 s"),
        (12.0, 0.0, "12.0 µs"),
        (0.0, 0.01, "0 ns"),
    ],
)
def test_time_has_the_digits_that_the_noise_supports(
    time_us: float, noise: float | None, shown: str
) -> None:
    assert plain(view.time(time_us, noise)) == shown


def test_rates_have_three_digits_in_a_unit_that_fits() -> None:
    assert plain(view.rate(4262.4, "GB/s")) == f"4{view.SPACE}262 GB/s".replace(view.SPACE, " ")
    assert plain(view.rate(0.0634, "TFLOP/s")) == "63.4 GFLOP/s"


def test_noise_as_large_as_the_value_leaves_one_digit() -> None:
    assert plain(view.time(234.0, 4.0)) == "200 µs"


def test_baseline_is_shown_in_the_unit_of_now() -> None:
    assert plain(view.time(998.7, 0.001, like=1002.0)) == "0.9987 ms"


@pytest.mark.parametrize(
    ("change", "half_width", "shown"),
    [
        (0.0142, 0.0008, "+1.42 %"),
        (-0.0142, 0.008, "-1.4 %"),
        (0.0142, 0.06, "+1 %"),
        (0.00001, 0.0008, "0.00 %"),
        (12.5, 0.0, f"+1{view.SPACE}250.00 %"),
    ],
)
def test_change_has_a_sign_and_the_digits_of_its_interval(
    change: float, half_width: float, shown: str
) -> None:
    assert plain(view.percent(change, half_width=half_width)) == plain(shown)


def test_interval_has_one_unit_and_equal_digits() -> None:
    assert plain(view.interval(-0.0015, 0.0019)) == "-0.15 to +0.19 %"


def test_unknown_values_are_a_dash_and_not_a_zero() -> None:
    shown = {
        view.time(None, None),
        view.cycles(None, None),
        view.clock(None),
        view.percent(None),
        view.share(None),
        view.spread(None),
        view.ratio(None),
        view.relative_error(None),
    }
    assert shown == {view.NOTHING}


@pytest.mark.parametrize(
    ("count", "shown"), [(512, "512 B"), (536870912, "537 MB"), (1.2e12, "1.20 TB"), (0, "0 B")]
)
def test_sizes_are_decimal(count: float, shown: str) -> None:
    assert plain(view.size(count)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.42, "0.42 s"),
        (9.96, "10.0 s"),
        (59.7, "1 min 0 s"),
        (72.4, "1 min 12 s"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_read_as_a_person_says_them(seconds: float, shown: str) -> None:
    assert plain(view.duration(seconds)) == shown


def test_moments_are_in_utc_and_text_that_is_none_stays() -> None:
    assert view.moment("2026-11-21T11:30:00+01:00") == "2026-11-21 10:30 UTC"
    assert view.moment("2026-11-21T10:30:00") == "2026-11-21 10:30 UTC"
    assert view.moment("yesterday") == "yesterday"


def test_small_numbers_are_bounded_instead_of_written_out() -> None:
    assert plain(view.spread(0.00001)) == "< 0.01 %"
    assert plain(view.p_value(1e-9)) == "< 0.001"
    assert plain(view.spread(0.0004)) == "0.040 %"
    assert plain(view.relative_error(0)) == "0"


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        " https://a.b",
        'https://a.b" onclick="x',
        "ftp://a",
    ],
)
def test_only_plain_web_addresses_become_links(address: str) -> None:
    assert view.href(address) == ""
    assert view.href("https://docs.example/x?y=1") == "https://docs.example/x?y=1"


def test_a_commit_is_cut_and_keeps_that_the_tree_was_changed() -> None:
    assert view.commit("9c1e4f70a2b85d3340cc") == "9c1e4f70a2b8"
    assert view.commit("9c1e4f70a2b8-dirty") == "9c1e4f70a2b8-dirty"
    assert view.commit("") == ""


def test_command_is_quoted_for_a_shell() -> None:
    assert view.command("a.b[n='; rm -rf ~']").startswith("pytest --perf --perf-select 'a.b[n=")
    assert view.command("a.b[n=1]") == "pytest --perf --perf-select 'a.b[n=1]'"


def test_every_word_has_a_mark_with_a_glyph_and_a_meaning() -> None:
    words = [
        word.value for word in itertools.chain(Word, Status, ClaimWord) if word is not Status.OK
    ]
    assert {word for word in words if not marks.mark(word).meaning} == set()
    assert all(marks.mark(word).glyph for word in words)


def test_a_word_of_a_later_version_keeps_its_text() -> None:
    assert marks.mark("haunted").word == "haunted"
