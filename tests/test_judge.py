"""Each word with the kinds of its reasons, from made-up processes of known truth."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judge_data import (
    AGAINST,
    COPY,
    CPU,
    IN_TURNS,
    clocks,
    entry,
    facts,
    kinds,
    result,
    variant,
    verdict,
)
from msgspec import structs

from perfsuite.judge.claims import judge_claims
from perfsuite.judge.compare import Against, Policy
from perfsuite.judge.verdict import judge, wants_confirmation
from perfsuite.model import (
    BaselineMetric,
    Budget,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Confirmation,
    Evidence,
    Health,
    Metric,
    Regime,
    Result,
    Stage,
    Status,
    Word,
)
from perfsuite.store.codec import encode

ALONE = {"time_us": 1400.0}
SLOWER, SAME, UNCLEAR, FASTER = Word.SLOWER, Word.SAME, Word.UNCLEAR, Word.FASTER
LAUNCHES = Metric("launches", "launches")


@pytest.mark.parametrize(
    ("now", "before", "against", "word", "told"),
    [
        ({}, {}, AGAINST, SAME, "time interval detectable processes"),
        ({"levels": ALONE}, {}, AGAINST, SAME, "interval detectable processes"),
        ({"levels": clocks(0.02)}, {}, AGAINST, SLOWER, "time interval processes"),
        ({"levels": clocks(-0.03)}, {}, AGAINST, FASTER, "time interval processes"),
        ({"levels": clocks(0.02, -0.02)}, {}, AGAINST, SAME, "code_is_same"),
        ({"levels": clocks(0.0, 0.02)}, {}, AGAINST, SLOWER, "clocks interval"),
        ({"levels": clocks(0.05, -0.05)}, {}, AGAINST, UNCLEAR, "clock_lost detectable"),
        ({"levels": clocks(0.2, -0.05)}, {}, AGAINST, SLOWER, "clocks interval"),
        # In turns time counts beside the code.
        ({"levels": clocks(0.02, -0.02)}, {"count": 6}, IN_TURNS, SLOWER, "code_is_same interval"),
        ({"unit": "b"}, {}, AGAINST, SAME, "processes_elsewhere"),
        ({"unit": "b", "levels": clocks(0.008)}, {}, AGAINST, UNCLEAR, "processes_elsewhere"),
        ({"levels": clocks(0.01), "count": 3, "strays": {0: 0.03, 1: -0.03}}, {}, AGAINST,
         UNCLEAR, "detectable processes"),
        ({"count": 3, "strays": {1: -0.09}}, {}, AGAINST, SAME, "strays"),
        ({}, {"count": 3, "strays": {0: -0.035, 1: -0.035}}, AGAINST, UNCLEAR, "detectable"),
        # A host's clock scatters more.
        ({"levels": {"time_us": 1486.0}, "count": 3}, {}, CPU, SAME, "interval"),
        ({"levels": {"time_us": 1890.0}}, {}, CPU, SLOWER, "interval"),
        # Circumstances that forbid a comparison, or leave nothing to compare with.
        ({}, {"case_version": 7}, AGAINST, Word.NEW, "version"),
        ({}, {"levels": {}}, AGAINST, Word.NEW, "no_time"),
        ({}, {"regime": "sustained"}, AGAINST, Word.INCOMPARABLE, "regime"),
        ({}, {"state": {"ecc": "off"}}, AGAINST, Word.INCOMPARABLE, "other_kind"),
        ({}, {}, replace(AGAINST, mismatches={"p.c[]": "other"}), Word.INCOMPARABLE, "other_kind"),
        # Samples that are none.
        ({"levels": {"time_us": math.nan}}, {}, AGAINST, UNCLEAR, "unusable"),
        ({"levels": {"time_us": 0.0}}, {}, AGAINST, UNCLEAR, "unusable"),
        ({"levels": {"time_us": -1.0}}, {}, AGAINST, UNCLEAR, "unusable"),
        ({"levels": {"cycles": 1.0}}, {}, AGAINST, UNCLEAR, "no_samples"),
        # What has no noise.
        ({"exact": {"launches": 4}}, {"exact": ((LAUNCHES, 3),)}, AGAINST, SLOWER, "exact_worse"),
        ({"exact": {"launches": 2}}, {"exact": ((LAUNCHES, 3),)}, AGAINST, FASTER, "exact"),
        ({"exact": {"launches": 3}}, {"exact": ((LAUNCHES, 3),)}, AGAINST, SAME, "time interval"),
    ],
)  # fmt: skip
def test_words(
    now: dict[str, Any], before: dict[str, Any], against: Against, word: Word, told: str
) -> None:
    found = verdict(result(**now), entry(**before), against)
    assert found.word is word
    assert " ".join(told.split()) in " ".join(kinds(found.reasons))
    assert found.in_turns is bool(against.arms)


def test_slower_code_fails_beyond_the_gate() -> None:
    far, near = (verdict(result(clocks(by)), entry()) for by in (0.02, 0.008))
    assert (far.word, far.fails, far.confirmation) == (SLOWER, True, Confirmation.FRESH)
    assert far.changes[0].theta == pytest.approx(0.0202, abs=1e-3)
    assert far.changes[0].threshold == 0.0025
    assert (near.word, near.fails) == (SLOWER, False)
    exact = verdict(result(exact={"launches": 4}), entry(exact=((LAUNCHES, 3),)))
    assert exact.fails


def test_every_metric_has_one_reason_of_its_own() -> None:
    (said,) = facts(verdict(result(clocks(0.02)), entry()).reasons, "interval")
    assert (said["of"], said["word"], said["level"], said["limit"]) == (
        "code",
        "slower",
        0.99,
        0.0025,
    )
    (said,) = facts(verdict(result(ALONE), entry()).reasons, "interval")
    assert (said["of"], said["word"], said["level"]) == ("time", "same", 0.8)
    both = verdict(result(clocks(0.02, -0.02)), entry(count=6), IN_TURNS)
    assert [each["metric"] for each in facts(both.reasons, "interval")] == ["time_us", "elapsed_us"]


def test_a_against_b_is_surer_and_rarely_wrong() -> None:
    now, before = result(clocks(0.004)), entry(count=6)
    runs, turns = (verdict(now, before, each).changes[0] for each in (AGAINST, IN_TURNS))
    assert turns.detectable < runs.detectable
    assert turns.theta == pytest.approx(runs.theta)
    source = random.Random(5)  # noqa: S311 - made-up samples

    def moved() -> dict[int, float]:
        return {slot: source.gauss(0, 0.0015) for slot in range(6)}

    words = Counter(
        verdict(
            result(clocks(), strays=moved(), wobble=0.0),
            entry(count=6, strays=moved(), wobble=0.0),
            IN_TURNS,
        ).word
        for _ in range(500)
    )
    assert words[SLOWER] + words[FASTER] <= 2
    assert words[UNCLEAR] <= 0.05 * 500


@pytest.mark.parametrize("count", range(1, 13))
def test_any_number_of_processes_is_judged(count: int) -> None:
    words = [verdict(result(clocks(by), count), entry(count=count)).word for by in (0.0, 0.05)]
    assert words == [SAME, SLOWER]


def test_clocks_that_disagree_on_the_direction_are_no_evidence() -> None:
    found = verdict(result(clocks(0.02, -0.04)), entry())
    assert (found.word, found.changes[0].p_value) == (UNCLEAR, 1.0)
    # Memory-bound code does not follow the SM clock.
    assert verdict(result(clocks(0.0, -0.02)), entry(), of=variant(COPY)).word is SAME


@pytest.mark.parametrize(("p_value", "is_wanted"), [(0.05, True), (0.5, False)])
def test_what_is_measured_again(p_value: float, *, is_wanted: bool) -> None:
    found = verdict(result(clocks(0.05, -0.05)), entry())
    change = structs.replace(found.changes[0], threshold=0.0025, gate=0.01, p_value=p_value)
    for word, at_all, in_brief in (
        (UNCLEAR, True, is_wanted), (SAME, is_wanted, is_wanted), (SLOWER, True, True),
    ):  # fmt: skip
        one = structs.replace(found, word=word, changes=(change,))
        assert wants_confirmation(one) is at_all
        assert wants_confirmation(one, is_brief=True) is in_brief
    screen = verdict(result(clocks(-0.03), 3, stage=Stage.SCREEN), entry())
    assert (screen.word, screen.confirmation) == (FASTER, Confirmation.NONE)
    assert wants_confirmation(screen)


@pytest.mark.parametrize(
    ("screened", "confirmation"),
    [("b", Confirmation.FRESH), ("c", Confirmation.ANOTHER_GPU), ("", Confirmation.FRESH)],
)
def test_how_a_change_was_confirmed(screened: str, confirmation: Confirmation) -> None:
    results = {"p.c[]": result(clocks(0.25), 3, unit=screened)} if screened else {}
    against = replace(AGAINST, screened=results)
    found = verdict(result(clocks(0.25), unit="b"), entry(), against)
    assert (found.word, found.confirmation) == (SLOWER, confirmation)
    turns = verdict(result(clocks(0.25)), entry(count=6), IN_TURNS)
    assert turns.confirmation is Confirmation.IN_TURNS


@pytest.mark.parametrize(
    ("screened", "word"),
    [(clocks(0.022), SLOWER), (clocks(-0.008), UNCLEAR), ({"time_us": math.nan}, SLOWER)],
)
def test_a_screen_on_another_unit_may_doubt(screened: Mapping[str, float], word: Word) -> None:
    against = replace(AGAINST, screened={"p.c[]": result(screened, 3, unit="c")})
    assert verdict(result(clocks(0.022), unit="b"), entry(), against).word is word


@pytest.mark.parametrize(
    ("by", "known", "word"),
    [(0.05, "a", UNCLEAR), (0.25, "a", SLOWER), (0.05, "b", SLOWER), (0.05, "acd", SLOWER)],
)
def test_one_card_that_the_baseline_has_never_seen_is_not_enough(
    by: float, known: str, word: Word
) -> None:
    found = verdict(result(clocks(by), unit="b"), entry(count=6, units=known))
    assert found.word is word
    assert ("one_card" in kinds(found.reasons), found.card) == (
        (True, "b") if word is UNCLEAR else (False, "")
    )


def test_common_units_are_compared_alone_and_a_bare_centre_is_one_process() -> None:
    both, slow = entry(units="ab"), entry(clocks(0.3))
    metrics = {
        name: structs.replace(m, values={**m.values, "b": slow.metrics[name].values["a"]})
        for name, m in both.metrics.items()
    }
    assert verdict(result(), structs.replace(both, metrics=metrics)).word is SAME
    bare = {name: structs.replace(m, values={}) for name, m in both.metrics.items()}
    found = verdict(result(), structs.replace(both, metrics=bare))
    assert found.word is SAME
    assert next(facts(found.reasons, "processes_elsewhere")) == {"before": 1, "now": 6}


def test_short_launch_is_not_slower_by_less_than_the_floor() -> None:
    now, before = ({k: v / 700 for k, v in clocks(by).items()} for by in (0.012, 0.0))
    found = verdict(result(now), entry(before, 6), of=variant(None))
    assert found.changes[0].threshold == pytest.approx(0.01, rel=0.01)
    assert found.word is not SLOWER


@pytest.mark.parametrize(
    ("time", "percent", "load", "against", "kind"),
    [
        (0.35, 0.0, 0.0, CPU, ""),
        (0.35, 8.0, 0.0, CPU, ""),
        (0.35, 40.0, 0.0, CPU, "load"),
        (1.2, 40.0, 0.0, CPU, ""),
        (0.35, 40.0, 0.0, replace(CPU, arms=frozenset({"p.c[]"})), ""),
        (0.35, 0.0, 0.4, CPU, "load_before"),
        (-0.35, 0.0, 0.4, CPU, "load_before"),
    ],
)
def test_change_that_others_load_may_explain_is_unclear(
    time: float, percent: float, load: float, against: Against, kind: str
) -> None:
    now, health = result({"time_us": 1400 * math.exp(time)}), Health(foreign_percent=percent)
    loaded = [
        structs.replace(each, blocks=tuple(structs.replace(b, health=health) for b in each.blocks))
        for each in now.evidence
    ]
    now = structs.replace(now, evidence=tuple(loaded))
    found = verdict(now, structs.replace(entry(count=3), load=load), against)
    assert (found.word is UNCLEAR) is bool(kind)
    assert found.word.moved is not bool(kind)
    assert kind in [*kinds(found.reasons), ""]


@pytest.mark.parametrize("metric", ["time_us", "cycles", "peak_bytes"])
def test_budget_holds_without_a_baseline(metric: str) -> None:
    now = result(exact={"peak_bytes": 1e9})
    tight = variant(budgets=(Budget(metric, 100.0, "must fit"),))
    found = verdict(now, None, of=tight)
    assert (found.word, found.fails) == (Word.OVER_BUDGET, True)
    assert kinds(found.reasons) == ["over_budget", "no_entry"]
    loose = variant(budgets=(Budget(metric, 1e12, ""), Budget("unknown", 0, "")))
    assert verdict(now, None, of=loose).word is Word.NEW


def test_weak_change_among_many_comparisons_is_unclear() -> None:
    ids = [f"p.c[n={i}]" for i in range(200)]
    now = {name: result(clocks(0.006 if name == ids[0] else 0.0)) for name in ids}
    variants = [variant(name=name) for name in ids]
    many = judge(now, variants=variants, entries=dict.fromkeys(ids, entry()), against=AGAINST)
    assert verdict(now[ids[0]], entry()).word is SLOWER
    assert (many[0].word, kinds(many[0].reasons)[-1]) == (UNCLEAR, "weak")
    failed = {name: structs.replace(each, status=Status.CRASHED) for name, each in now.items()}
    assert judge(failed, variants=variants, entries={}, against=AGAINST) == ()


def test_policy_says_what_fails_and_what_moved() -> None:
    strict = replace(AGAINST, policy=Policy(fail_on=("new", "unclear")))
    assert verdict(result(), None, strict).fails
    slow = verdict(result(clocks(0.02)), entry(), strict)
    assert (slow.word, slow.fails) == (SLOWER, False)
    loose = replace(AGAINST, policy=Policy(threshold=0.05, gate=0.1))
    found = verdict(result(clocks(0.02)), entry(), loose)
    assert (found.word, found.changes[0].threshold, found.changes[0].gate) == (SAME, 0.05, 0.1)
    for wrong in ({"threshold": -1.0}, {"gate": math.nan}, {"alpha": 0.0}, {"fail_on": ("slow",)}):
        with pytest.raises(ValueError, match="Policy"):
            Policy(**wrong)


# Metrics that are no clock.

TTFT, RATE = Metric("ttft_ms", "ms"), Metric("goodput_rps", "requests/s", "higher")
SERVED = {"time_us": 1e6, "ttft_ms": 40.0, "goodput_rps": 20.0}


@pytest.mark.parametrize(
    ("now", "word", "kind"),
    [
        ({}, SAME, "interval"),
        ({"ttft_ms": 60.0}, SLOWER, "interval"),
        ({"goodput_rps": 10.0}, SLOWER, "interval"),
        ({"goodput_rps": 40.0}, FASTER, "interval"),
        ({"ttft_ms": 0.0}, SAME, "not_judged"),
        ({"goodput_rps": 0.0}, SLOWER, "exact_worse"),
        ({"goodput_rps": None}, UNCLEAR, "lost"),
    ],
)
def test_words_of_a_service(now: dict[str, float | None], word: Word, kind: str) -> None:
    served = variant(None, regime=Regime.END_TO_END, metrics=(TTFT, RATE))
    levels = {name: level for name, level in {**SERVED, **now}.items() if level is not None}
    before = entry(SERVED, 6, declared=(TTFT, RATE), wobble=10.0, regime="end_to_end")
    found = verdict(result(levels, wobble=10.0), before, of=served)
    assert found.word is word
    assert kind in kinds(found.reasons)
    for change in found.changes:
        if change.metric == "goodput_rps" and change.degrees:
            assert change.current == pytest.approx(levels["goodput_rps"], rel=0.02)
    encode(found)


def test_a_threshold_of_a_metric_with_noise_counts_where_it_is_the_larger_one() -> None:
    own = structs.replace(TTFT, threshold=0.6)
    before = entry(SERVED, 6, wobble=10.0, regime="end_to_end")
    of = variant(None, regime=Regime.END_TO_END, metrics=(own,))
    words = [
        verdict(result({**SERVED, "ttft_ms": each}, wobble=10.0), before, of=of).word
        for each in (60.0, 80.0)
    ]
    assert words == [SAME, SLOWER]


@pytest.mark.parametrize(
    ("metric", "before", "now", "word"),
    [
        (Metric("registers"), 40, 40, SAME),
        (Metric("registers"), 40, 41, SLOWER),
        (Metric("wide_loads", better="higher"), 8, 4, SLOWER),
        (Metric("wide_loads", better="higher"), 4, 8, FASTER),
        (Metric("reduces", better="equal"), 2, 3, SLOWER),
        (Metric("reduces", better="equal"), 3, 2, SLOWER),
        (Metric("instructions", threshold=0.01), 2072, 2080, SAME),
        (Metric("instructions", threshold=0.01), 2072, 2180, SLOWER),
        (Metric("peak_bytes"), 1000, 1009, SLOWER),
        (Metric("odd"), 1e-300, 1e308, SLOWER),
        (Metric("odd"), 1e-300, -1e308, FASTER),
    ],
)
def test_words_of_a_count(metric: Metric, before: float, now: float, word: Word) -> None:
    of = variant(None, regime=Regime.EXACT, metrics=(metric, Metric("other")))
    known = entry({}, exact=((metric, before),), regime="exact")
    counted = result({"cycles": 1.0}, 2, exact={metric.name: now})
    found = verdict(counted, known, of=of)
    assert (found.word, found.fails) == (word, word is SLOWER)
    encode(found)
    both = entry({}, exact=((metric, before), (Metric("other"), 1)), regime="exact")
    lost = verdict(result({"cycles": 1.0}, 2, exact={metric.name: before}), both, of=of)
    assert (lost.word, kinds(lost.reasons)) == (UNCLEAR, ["lost"])
    assert verdict(counted, structs.replace(known, regime="paced"), of=of).word is (
        Word.INCOMPARABLE
    )


def test_peak_bytes_may_move_by_a_percent() -> None:
    before = entry(exact=((Metric("peak_bytes", "bytes"), 1000),))
    peaks = (1009, 1011, 900)
    words = [verdict(result(exact={"peak_bytes": peak}), before).word for peak in peaks]
    assert words == [SAME, SLOWER, FASTER]


@pytest.mark.parametrize(
    ("host", "device", "unit", "word", "metric"),
    [
        (1040.0, 251.0, "b", SAME, "device_us"),
        (700.0, 400.0, "b", SLOWER, "device_us"),
        (1400.0, 250.0, "a", SLOWER, "time_us"),
    ],
)
def test_on_another_host_the_devices_own_time_decides(
    host: float, device: float, unit: str, word: Word, metric: str
) -> None:
    before = entry({"time_us": 700.0, "device_us": 250.0}, 6, wobble=10, regime="end_to_end")
    now = result({"time_us": host, "device_us": device}, unit=unit, wobble=10)
    found = verdict(now, before, of=variant(None, regime=Regime.END_TO_END))
    assert (found.word, found.changes[0].metric) == (word, metric)
    assert ("another_host" in kinds(found.reasons)) is (metric == "device_us")


@pytest.mark.parametrize(
    ("clock", "energy", "canary", "word", "kind"),
    [
        (0.0, 0.98, 1980.0, SAME, "detectable"),
        (0.0, 1.06, 1980.0, SLOWER, "more_power"),
        (-0.08, 0.98, 1980.0, SLOWER, "interval"),
        (-0.025, 0.98, 1980.0 * math.exp(-0.025), SAME, "detectable"),
        (0.0, -1.0, 1980.0, UNCLEAR, "unusable"),
    ],
)
def test_words_of_back_to_back_launches(
    clock: float, energy: float, canary: float, word: Word, kind: str
) -> None:
    """The clock is held against a canary's of 1980 MHz in the baseline."""
    against = replace(AGAINST, clocks_before={"a": 1980.0}, clocks_now={"a": canary})
    now = result({**clocks(-clock, clock), "energy_j": energy})
    before = entry({**clocks(), "energy_j": 0.98}, 6, regime="sustained")
    found = verdict(now, before, against, of=variant(regime=Regime.SUSTAINED))
    assert found.word in ({word, UNCLEAR} if clock == -0.08 else {word})
    assert kind in kinds(found.reasons)
    fell = [c for c in found.changes if c.metric == "clock_ratio" and c.low > c.threshold]
    assert bool(fell) is (clock == -0.08)


# Claims.


def claim(by: float, sides: Mapping[str, Result], metric: str = "", **fields: Any) -> ClaimVerdict:
    instance = ClaimInstance(
        id="p:x", pack="p", name="x", faster="f", than="t", by=by, source="s", metric=metric
    )
    (found,) = judge_claims([instance], sides, facts=AGAINST.facts, **fields)
    return found


@pytest.mark.parametrize(
    ("than", "word", "kind"),
    [
        (result({"time_us": 7000.0}), ClaimWord.HELD, "ratio"),
        (result({"time_us": 4200.0}), ClaimWord.BROKEN, "ratio"),
        (result({"time_us": 5600.0}), ClaimWord.UNCLEAR, "ratio"),
        (result({"time_us": math.nan}), ClaimWord.NOT_APPLICABLE, "unusable"),
        (result({"cycles": 1.0}), ClaimWord.NOT_APPLICABLE, "no_samples"),
        (result(status=Status.SKIPPED, reason="needs"), ClaimWord.NOT_APPLICABLE, "unmet"),
        (result(status=Status.WRONG, reason="it is"), ClaimWord.NOT_APPLICABLE, "ended"),
        (None, ClaimWord.NOT_APPLICABLE, "not_in_run"),
    ],
)
def test_claims_are_held_broken_or_unclear_by_their_interval(
    than: Result | None, word: ClaimWord, kind: str
) -> None:
    sides = {"f": result(ALONE), **({"t": than} if than else {})}
    found = claim(4.0, sides)
    assert (found.word, kinds(found.reasons)) == (word, [kind])
    assert found.fails is (word is ClaimWord.BROKEN)
    assert not claim(4.0, sides, policy=Policy(fail_on=("slower",))).fails
    if word is ClaimWord.BROKEN:
        assert found.low is not None
        assert found.high is not None
        assert found.low < 3.0 < found.high
    unmet = claim(4.0, sides, unmet={"p:x": "needs sm_80+"})
    assert (unmet.word, kinds(unmet.reasons)) == (ClaimWord.NOT_APPLICABLE, ["unmet"])


@pytest.mark.parametrize(
    ("now", "word", "ratio"),
    [
        ({"peak_bytes": 250.0}, ClaimWord.HELD, 4.0),
        ({"peak_bytes": 251.0}, ClaimWord.BROKEN, 1000 / 251),
        # One that takes none at all has no ratio, and is the best there is.
        ({"peak_bytes": 0.0}, ClaimWord.HELD, None),
        ({"kernels": 1.0}, ClaimWord.NOT_APPLICABLE, None),
    ],
)
def test_claim_about_a_metric_is_held_or_broken_by_its_value_alone(
    now: Mapping[str, float], word: ClaimWord, ratio: float | None
) -> None:
    sides = {"f": result(exact=now), "t": result(exact={"peak_bytes": 1000.0})}
    found = claim(4.0, sides, "peak_bytes")
    assert (found.word, found.ratio, found.low) == (word, ratio, ratio)
    assert found.fails is (word is ClaimWord.BROKEN)


def test_no_process_at_all_is_no_sample() -> None:
    empty = structs.replace(result(), evidence=(Evidence(slot=0, seed=0),))
    assert kinds(verdict(empty, None).reasons) == ["no_samples"]
    known = entry()
    bare = BaselineMetric(center=1400.0, unit="us")
    found = verdict(result(), structs.replace(known, metrics={"time_us": bare}))
    assert found.word in {SAME, UNCLEAR}
