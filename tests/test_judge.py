"""Each word with its reasons, and a changed machine, from made-up processes of known truth."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from judge_data import (
    COPY,
    FACTS,
    HOST,
    SETTINGS,
    clocks,
    entry,
    facts,
    kinds,
    result,
    run_of,
    variant,
    verdict,
)
from msgspec.structs import replace

from perfsuite import model
from perfsuite.judge import compare
from perfsuite.judge.compare import limits_of
from perfsuite.judge.noise import canary_clocks
from perfsuite.judge.rule import Looks, needs_pairs, steps_left
from perfsuite.judge.verdict import judge, judge_claims
from perfsuite.model import (
    METRICS,
    Budget,
    ClaimWord,
    Confirmation,
    Expected,
    Metric,
    Policy,
    Regime,
    Result,
    Sampling,
    Settings,
    Side,
    Stage,
    Status,
    VariantRun,
    Word,
    because,
)
from perfsuite.run.expected import beside
from perfsuite.store.files import encode

SLOWER, SAME, UNCLEAR, FASTER = Word.SLOWER, Word.SAME, Word.UNCLEAR, Word.FASTER
NEW, INCOMPARABLE = Word.NEW, Word.INCOMPARABLE
ALONE = {"time_us": 1400.0}
LAUNCHES = Metric("launches")
TTFT, RATE = Metric("ttft_ms", "ms"), Metric("goodput_rps", "requests/s", "higher")
SERVED = {"time_us": 1e6, "ttft_ms": 40.0, "goodput_rps": 20.0}
AWAITED = {"time_us": 700.0, "device_us": 250.0}
POWERED = {**clocks(), "energy_j": 0.98}
Spec = dict[str, Any]


def awaited(time: float, device: float, unit: str = "a", pairs: int = 0) -> tuple[Spec, Spec, Spec]:
    alike = {"count": pairs or 6, "wobble": 10}
    now = {"levels": {"time_us": time, "device_us": device}, "unit": unit, **alike}
    before = {"levels": AWAITED, "regime": "end_to_end", "units": "ac", **alike}
    return now, before, {"of": variant(None, regime=Regime.END_TO_END), "in_turns": pairs > 0}


def served(now: Spec, metrics: tuple[Metric, ...] = (TTFT, RATE)) -> tuple[Spec, Spec, Spec]:
    before = {"levels": SERVED, "count": 6, "wobble": 10, "regime": "end_to_end"}
    levels = {name: level for name, level in {**SERVED, **now}.items() if level is not None}
    of = variant(None, regime=Regime.END_TO_END, metrics=metrics)
    return {"levels": levels, "wobble": 10}, before, {"of": of}


def sustained(clock: float, energy: float, canary: float = 0.0) -> tuple[Spec, Spec, Spec]:
    """The clock is held against a canary's of 1980 MHz in the baseline."""
    now = {"levels": {**clocks(-clock, clock), "energy_j": energy}}
    before = {"levels": POWERED, "count": 6, "regime": "sustained"}
    return now, before, {"canary": canary, "of": variant(regime=Regime.SUSTAINED)}


def counted(metric: Metric, before: float, now: float | None) -> tuple[Spec, Spec, Spec]:
    known = {"levels": {}, "exact": {metric: before, Metric("other"): 1}, "regime": "exact"}
    exact = {"other": 1.0} if now is None else {"other": 1.0, metric.name: now}
    of = variant(None, regime=Regime.EXACT, metrics=(metric, Metric("other")))
    return {"levels": {"cycles": 1.0}, "count": 2, "exact": exact}, known, {"of": of}


def budget(metric: str, most: float) -> Spec:
    return {"of": variant(budgets=(Budget(metric, most, "must fit"), Budget("unknown", 0, "")))}


WORDS: list[tuple[Spec, Spec | None, Spec, Word, str]] = [
    ({}, {}, {}, SAME, "time interval within processes"),
    ({"levels": ALONE}, {}, {}, SAME, "interval within processes"),
    ({"levels": clocks(0.01)}, {}, {}, SLOWER, "time interval processes"),
    ({"levels": clocks(-0.03)}, {}, {}, FASTER, "time interval processes"),
    ({"levels": clocks(0.02, -0.02)}, {}, {}, SAME, "code_is_same"),
    ({"levels": clocks(0.0, 0.02)}, {}, {}, SLOWER, "clocks interval"),
    ({"levels": clocks(0.05, -0.05)}, {}, {}, UNCLEAR, "clock_lost detectable"),
    # Clocks that disagree on the direction; memory-bound code does not follow the SM clock.
    ({"levels": clocks(0.02, -0.04)}, {}, {}, UNCLEAR, "clock_lost"),
    ({"levels": clocks(0.0, -0.02)}, {}, {"of": variant(COPY)}, SAME, "interval"),
    # In turns time counts beside the code.
    ({"levels": clocks(0.02, -0.02)}, {"count": 6}, {"in_turns": True}, SLOWER,
     "code_is_same interval"),
    # Numbers of other cards say at best *same*, and never within less than half a percent.
    ({"unit": "b"}, {}, {}, SAME, "within processes_elsewhere"),
    *(({"unit": "b", "levels": clocks(0.25)}, {"count": 6, "units": units}, {}, UNCLEAR,
       "interval other_cards detectable") for units in ("a", "acd")),
    ({"unit": "b", "levels": clocks(0.05)}, {"count": 6, "units": "ab"}, {}, SLOWER, "interval"),
    # Processes that stand apart on one side, and on the other.
    ({"levels": clocks(0.01), "count": 3, "strays": {0: 0.03, 1: -0.03}}, {}, {}, UNCLEAR,
     "detectable processes"),
    ({}, {"count": 3, "strays": {0: -0.035, 1: -0.035}}, {}, UNCLEAR, "detectable"),
    # A host's time is not judged against a stored one, but by pairs; what is counted is.
    ({"levels": {"time_us": 1400.0}}, {}, {"facts": HOST}, UNCLEAR, "stored_time"),
    ({"levels": {"time_us": 5600.0}}, {}, {"facts": HOST}, UNCLEAR, "stored_time"),
    ({"exact": {"launches": 4}}, {"exact": {LAUNCHES: 3}}, {"facts": HOST}, SLOWER, "exact_worse"),
    ({"exact": {"launches": 2}}, {"exact": {LAUNCHES: 3}}, {"facts": HOST}, FASTER, "exact"),
    ({"levels": clocks(0.03)}, {"count": 6}, {"facts": HOST, "in_turns": True}, SAME, "within"),
    ({"levels": clocks(0.25)}, {"count": 6}, {"facts": HOST, "in_turns": True}, SLOWER,
     "interval"),
    # Circumstances that forbid a comparison, or leave nothing to compare with.
    ({}, None, {}, NEW, "no_entry"),
    ({}, {"case_version": 7}, {}, NEW, "version"),
    ({}, {"levels": {}}, {}, NEW, "no_time"),
    ({}, {"regime": "sustained"}, {}, INCOMPARABLE, "regime"),
    ({}, {"state": {"ecc": "off"}}, {}, INCOMPARABLE, "other_kind"),
    ({}, {}, {"why_not": because("other_kind", text="other")}, INCOMPARABLE, "other_kind"),
    # Samples that are none.
    *(({"levels": {"time_us": each}}, {}, {}, UNCLEAR, "unusable")
      for each in (math.nan, math.inf, 0.0, -1.0)),
    ({"levels": {"cycles": 1.0}}, {}, {}, UNCLEAR, "no_samples"),
    ({"count": 0}, None, {}, UNCLEAR, "no_samples"),
    # What has no noise, beside time and alone.
    ({"exact": {"launches": 4}}, {"exact": {LAUNCHES: 3}}, {}, SLOWER, "exact_worse"),
    ({"exact": {"launches": 2}}, {"exact": {LAUNCHES: 3}}, {}, FASTER, "exact"),
    ({"exact": {"launches": 3}}, {"exact": {LAUNCHES: 3}}, {}, SAME, "time interval"),
    ({"levels": clocks(0.02), "exact": {"launches": 2}}, {"exact": {LAUNCHES: 3}}, {}, SLOWER,
     "interval"),
    *(({"exact": {"peak_bytes": now}}, {"exact": {Metric("peak_bytes"): 1000}}, {}, word, told)
      for now, word, told in ((1009, SAME, "time"), (1011, SLOWER, "exact_worse"))),
    (*counted(LAUNCHES, 40, 41), SLOWER, "exact_worse"),
    (*counted(LAUNCHES, 40, None), UNCLEAR, "lost"),
    (*counted(Metric("loads", better="higher"), 8, 4), SLOWER, "exact_worse"),
    (*counted(Metric("loads", better="higher"), 4, 8), FASTER, "exact"),
    (*counted(Metric("reduces", better="equal"), 2, 3), SLOWER, "exact_worse"),
    (*counted(Metric("reduces", better="equal"), 3, 2), SLOWER, "exact_worse"),
    (*counted(Metric("code", threshold=0.01), 2072, 2080), SAME, "counted"),
    (*counted(Metric("code", threshold=0.01), 2072, 2180), SLOWER, "exact_worse"),
    (*counted(Metric("odd"), 1e-300, 1e308), SLOWER, "exact_worse"),
    (*counted(Metric("odd"), 1e-300, -1e308), FASTER, "exact"),
    # A service; a threshold of its metric counts where it is the larger one.
    (*served({"ttft_ms": 60.0}), SLOWER, "interval"),
    (*served({"goodput_rps": 10.0}), SLOWER, "interval"),
    (*served({"goodput_rps": 40.0}), FASTER, "interval"),
    (*served({"ttft_ms": 0.0}), SAME, "not_judged"),
    (*served({"goodput_rps": 0.0}), SLOWER, "exact_worse"),
    (*served({"goodput_rps": None}), UNCLEAR, "lost"),
    (*served({"ttft_ms": 60.0}, (replace(TTFT, threshold=0.6),)), SAME, "interval"),
    (*served({"ttft_ms": 80.0}, (replace(TTFT, threshold=0.6),)), SLOWER, "interval"),
    # On another host the device's own time decides, elsewhere too: so few pairs are not all.
    (*awaited(1040.0, 251.0, "b"), SAME, "another_host"),
    (*awaited(700.0, 400.0, "b"), UNCLEAR, "another_host"),
    (*awaited(1400.0, 250.0), SLOWER, "interval"),
    (*awaited(700.0, 325.0, pairs=3), UNCLEAR, "detectable"),
    (*awaited(700.0, 325.0, pairs=6), SLOWER, "interval"),
    (*awaited(700.0, 255.0, pairs=3), SAME, "within"),
    # Back-to-back launches: energy, and the clock where it fell by more than the canary's.
    (*sustained(0.0, 1.06), SLOWER, "more_power"),
    (*sustained(-0.029, 0.98, 0.02), SLOWER, "lower_clock"),
    (*sustained(-0.02, 0.98, -0.02), SAME, "within"),
    (*sustained(0.0, -1.0), UNCLEAR, "unusable"),
    # An author's limit holds without a baseline.
    *(({"exact": {"peak_bytes": 1e9}}, None, budget(metric, 100.0), Word.OVER_BUDGET,
       "over_budget no_entry") for metric in ("time_us", "cycles", "peak_bytes")),
    ({"exact": {"peak_bytes": 1e9}}, None, budget("peak_bytes", 1e12), NEW, "no_entry"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "regime", "word"),
    [
        (HOST, Regime.PACED, SAME),
        (FACTS, Regime.END_TO_END, SAME),
        (FACTS, Regime.PACED, SLOWER),  # a device's own clock is believed
    ],
)
def test_in_pairs_what_the_host_times_has_its_least_samples_on_both_sides(
    facts: model.DeviceFacts, regime: Regime, word: Word
) -> None:
    one = variant(None, regime=regime)
    quiet = result({"time_us": 1400.0}, variant=one.id, side=Side.A)
    slow = (model.Block(time_us=(1820.0,) * 3),) * 4
    more = tuple(replace(each, blocks=(*each.blocks, *slow)) for each in quiet.evidence)
    disturbed = replace(quiet, side=Side.B, evidence=more)
    held = VariantRun(variant=one, results=(quiet, disturbed))
    (found,) = judge(beside(run_of(held, facts=facts, against=model.Revision("0" * 40, "main"))))
    assert (found.word, found.in_turns) == (word, True)


@pytest.mark.parametrize(("now", "before", "more", "word", "told"), WORDS)
def test_words(now: Spec, before: Spec | None, more: Spec, word: Word, told: str) -> None:
    known = None if before is None else entry(**before)
    found = verdict(result(**now), known, **more)
    assert (found.word, told in " ".join(kinds(found.reasons))) == (word, True)
    is_far = any(change.theta > change.gate for change in found.changes)
    assert found.fails is (word is Word.OVER_BUDGET or (word is SLOWER and is_far))
    for change in found.changes:
        if change.metric == "goodput_rps" and change.degrees:
            assert change.current == pytest.approx(now["levels"]["goodput_rps"], rel=0.02)
    encode(found)


@pytest.mark.parametrize(
    ("better", "before", "now", "theta"),
    [
        ("lower", 40.0, (41.0, 44.0, 42.0), 0.05),
        ("lower", 40.0, (38.0, 36.0), -0.05),
        *(("lower", 40.0, now, None) for now in ((40.0, 41.0), (39.0, 41.0), (39.0, 40.0))),
        ("lower", -4.0, (-3.0,), 0.25),
        ("higher", 0.0, (-3.0,), 3.0),
    ],
)
def test_what_has_no_noise_moved_where_all_processes_say_so(
    better: str, before: float, now: tuple[float, ...], theta: float | None
) -> None:
    metric = Metric("odd", better=better)
    processes = [
        model.Evidence(slot=n, seed=n, exact={"odd": value}) for n, value in enumerate(now)
    ]
    found = verdict(
        replace(result(), evidence=tuple(processes)),
        entry({}, exact={metric: before}, regime="exact"),
        of=variant(None, regime=Regime.EXACT, metrics=(metric,)),
    )
    told = [(change.theta, change.low, change.high) for change in found.changes]
    assert told == ([] if theta is None else [(theta, theta, theta)])


def test_every_metric_has_one_reason_of_its_own() -> None:
    names = ("of", "word", "level", "limit")
    found = verdict(result(clocks(0.02)), entry())
    (said,) = facts(found.reasons, "interval")
    assert [said[name] for name in names] == ["code", "slower", 0.9996, 0.0025]
    assert found.changes[0].theta == pytest.approx(0.0202, abs=1e-3)
    (said,) = facts(verdict(result(ALONE), entry()).reasons, "interval")
    assert [said[name] for name in names] == ["time", "same", 0.95, 0.01]
    both = verdict(result(clocks(0.02, -0.02)), entry(count=6), in_turns=True)
    assert [each["metric"] for each in facts(both.reasons, "interval")] == ["time_us", "elapsed_us"]
    screened = verdict(result(clocks(0.25), stage=Stage.SCREEN), entry(count=6))
    how = [each.confirmation for each in (screened, found, both)]
    assert how == [Confirmation.NONE, Confirmation.FRESH, Confirmation.IN_TURNS]


@pytest.mark.parametrize(("noise", "word"), [("one clock", SLOWER), ("", SAME)])
def test_a_metric_of_the_core_is_judged_where_its_row_names_a_noise(
    monkeypatch: pytest.MonkeyPatch, noise: str, word: Word
) -> None:
    row = model.CoreMetric("requests_rps", "1/s", better="higher", noise=noise)
    monkeypatch.setattr(compare, "METRICS", (*METRICS, row))
    before, now = ({**clocks(), "requests_rps": rate} for rate in (20.0, 10.0))
    found = verdict(result(now), entry(before))
    assert found.word is word
    assert [change.unit for change in found.changes] == (["us", "1/s"] if noise else ["us"])


def test_what_the_rows_name_as_noise_is_known() -> None:
    known = {metric.name: limits_of(metric, FACTS) for metric in METRICS if metric.noise}
    assert {name for name, limits in known.items() if limits is None} == set(model.CLOCKS)


def test_no_word_says_more_than_its_interval() -> None:
    own = verdict(result(), entry(), elsewhere=frozenset("b"))
    other = verdict(result(), entry(), elsewhere=entry().cards)
    elsewhere = verdict(result(unit="b"), entry())
    (told, half, more) = (
        facts(found.reasons, "within")[0]["share"] for found in (own, other, elsewhere)
    )
    assert {found.word for found in (own, other, elsewhere)} == {SAME}
    assert told < 0.005 <= half < more <= own.changes[0].gate
    # Beyond its threshold as a whole, though inside the gate.
    assert verdict(result(clocks(0.006), wobble=0.1), entry(wobble=0.1)).word is not SAME


def test_cards_of_the_board_at_hand_come_before_those_of_another() -> None:
    own = entry(units="b").metrics
    other = entry({name: 1.04 * each.center for name, each in own.items()}, units="c").metrics
    metrics = {
        name: replace(each, values={**each.values, **other[name].values})
        for name, each in own.items()
    }
    known = replace(entry(units="b"), metrics=metrics)
    mixed = verdict(result(), known)
    mate = verdict(result(), known, board_mates=frozenset("b"))
    assert (mixed.word, mate.word) == (UNCLEAR, SAME)


def test_any_number_of_processes_is_judged() -> None:
    for count in range(1, 13):
        words = [verdict(result(clocks(by), count), entry(count=count)).word for by in (0.0, 0.05)]
        assert words == [SAME, SLOWER]


@pytest.mark.parametrize(("theta", "is_wanted"), [(0.003, True), (-0.003, True), (0.002, False)])
def test_what_is_measured_again(theta: float, *, is_wanted: bool) -> None:
    found = verdict(result(clocks(0.05, -0.05)), entry())
    change = replace(found.changes[0], threshold=0.0025, gate=0.01, theta=theta)
    for word, is_asked in ((UNCLEAR, True), (SAME, is_wanted), (SLOWER, True)):
        one = replace(found, word=word, changes=(change,))
        assert needs_pairs(one) is is_asked
    for far, half, steps in ((0, 0.004, 0), (0, 0.006, 1), (0, 0.0085, 2), (0, 1, 3), (1, 1, 1)):
        wide = replace(change, theta=far, low=far - half, high=far + half)
        one = replace(found, word=UNCLEAR, changes=(wide,), in_turns=True)
        assert steps_left(one, 3, Looks(3, 6, 12)) == steps


def test_what_did_not_end_ok_is_not_judged() -> None:
    failed = replace(result(), status=Status.CRASHED)
    one = VariantRun(variant=variant(), expected=Expected(entry=entry()), results=(failed,))
    assert judge(run_of(one)) == ()


def claim(
    by: float,
    sides: Mapping[str, Result | None],
    *,
    settings: Settings = SETTINGS,
    pairs: Mapping[str, Result] | None = None,
    **fields: Any,
) -> model.ClaimVerdict:
    instance = model.ClaimInstance(
        id="p:x", pack="p", name="x", faster="f", than="t", by=by, source="s", **fields
    )
    ones = (
        VariantRun(
            variant=variant(name=name),
            results=tuple(one for one in (each, (pairs or {}).get(name)) if one),
        )
        for name, each in sides.items()
    )
    (found,) = judge_claims(run_of(*ones, instances=(instance,), settings=settings))
    return found


@pytest.mark.parametrize(
    ("than", "word", "kind"),
    [
        (result({"time_us": 7000.0}), ClaimWord.HELD, "ratio"),
        (result({"time_us": 4200.0}), ClaimWord.BROKEN, "ratio"),
        (result({"time_us": 5600.0}), ClaimWord.UNCLEAR, "ratio"),
        (result({"time_us": math.nan}), ClaimWord.NOT_APPLICABLE, "unusable"),
        (result({"cycles": 1.0}), ClaimWord.NOT_APPLICABLE, "no_samples"),
        (result(status=Status.SKIPPED, reason="needs"), ClaimWord.NOT_APPLICABLE, "ended"),
        (result(status=Status.WRONG, reason="it is"), ClaimWord.NOT_APPLICABLE, "ended"),
        (None, ClaimWord.NOT_APPLICABLE, "not_in_run"),
    ],
)
def test_claims_are_held_broken_or_unclear_by_their_interval(
    than: Result | None, word: ClaimWord, kind: str
) -> None:
    sides = {"f": result(ALONE), "t": than}
    found = claim(4.0, sides)
    assert (found.word, kinds(found.reasons)) == (word, [kind])
    assert found.fails is (word is ClaimWord.BROKEN)
    assert (found.low or 0) <= (found.ratio or 0) <= (found.high or 0)
    assert not claim(4.0, sides, settings=Settings(policy=Policy(fail_on=("slower",)))).fails
    assert kinds(claim(4.0, sides, needs=(model.Need("device", "cpu"),)).reasons) == ["unmet"]


def words_by_pairs(ratio: float, count: int) -> Counter[ClaimWord]:
    """Judge so often six pairs of a claim of 2, whose processes scatter by 0.2 %."""
    source = random.Random(7)  # noqa: S311 - made-up samples

    def side(name: str, level: float, side: Side) -> Result:
        strays = {slot: source.gauss(0, 0.002) for slot in range(6)}
        made = result({"time_us": level}, wobble=0, strays=strays, side=side, claim="p:x")
        return replace(made, variant=name)

    sides = {"f": result(ALONE), "t": result({"time_us": 2800.0})}
    found: Counter[ClaimWord] = Counter()
    for _ in range(count):
        pairs = {"f": side("f", 1000.0, Side.B), "t": side("t", 1000.0 * ratio, Side.A)}
        found[claim(2.0, sides, pairs=pairs).word] += 1
    return found


def test_pairs_decide_a_claim_but_where_it_is_on_the_edge() -> None:
    assert words_by_pairs(2.0 * 1.01, 100) == {ClaimWord.HELD: 100}
    assert words_by_pairs(2.0 / 1.01, 100) == {ClaimWord.BROKEN: 100}
    assert words_by_pairs(2.0, 400)[ClaimWord.UNCLEAR] >= 0.94 * 400


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
    found = claim(4.0, sides, metric="peak_bytes")
    assert (found.word, found.ratio, found.low) == (word, ratio, ratio)
    assert found.fails is (word is ClaimWord.BROKEN)


# What canaries say of the clock.


def measured(name: str, moved: Mapping[str, float], stage: Stage, kernels: float = 1.0) -> Result:
    """Processes that are moved on each unit by a log change, at the same clock."""
    each = [
        result(clocks(by), unit=unit, wobble=0.4, exact={"kernels": kernels}).evidence
        for unit, by in moved.items()
    ]
    evidence = tuple(process for processes in each for process in processes)
    return replace(result(variant=name, stage=stage), evidence=evidence)


ONE_WAY, OTHER_WAY = Sampling(45, 45), Sampling(2, 1)


def sampled(ways: list[Sampling | None], levels: Mapping[str, float], **fields: Any) -> Result:
    """Return a result whose processes were sampled in these ways."""
    plain = result(levels, len(ways), **fields)
    evidence = [
        replace(each, backend="graph", launches=way.launches, sets=way.sets) if way else each
        for each, way in zip(plain.evidence, ways, strict=True)
    ]
    return replace(plain, evidence=tuple(evidence))


@pytest.mark.parametrize(
    ("before", "now", "is_other"),
    [
        (ONE_WAY, [ONE_WAY] * 6, False),
        (ONE_WAY, [OTHER_WAY] * 6, True),
        # What files of earlier versions do not say, or say in two ways, is not known.
        (None, [OTHER_WAY] * 6, False),
        (ONE_WAY, [None] * 6, False),
        (ONE_WAY, [OTHER_WAY] * 5 + [ONE_WAY], False),
    ],
)
def test_times_of_two_samplings_are_never_compared(
    before: Sampling | None, now: list[Sampling | None], is_other: object
) -> None:
    for exact, word in ({}, INCOMPARABLE), ({LAUNCHES: 3}, SLOWER):
        told = {metric.name: 4.0 for metric in exact}
        found = verdict(sampled(now, clocks(0.5), exact=told), entry(exact=exact, sampling=before))
        if not is_other:
            assert (found.word, facts(found.reasons, "sampling")) == (SLOWER, [])
            continue
        said = {"before": str(ONE_WAY), "now": str(OTHER_WAY)}
        assert (found.word, facts(found.reasons, "sampling")) == (word, [said])
        assert [each.metric for each in found.changes] == list(told), "no time among them"
        assert found.fails, "what got so slow must not be passed over"


def test_the_canary_of_most_operations_lends_its_clock() -> None:
    works = {"p.copy[]": COPY, "p.gemm[]": model.Work(flops=1e12)}
    canaries = tuple(
        VariantRun(
            variant=variant(work, name),
            expected=Expected(entry=entry(clocks(), 6)),
            results=(measured(name, {"a": 0.0, "b": 0.0}, Stage.CANARY_START),),
        )
        for name, work in works.items()
    )
    for found in canary_clocks(run_of(canaries=canaries)):
        assert found == pytest.approx({"a": 1600.0, "b": 1600.0})
    assert canary_clocks(run_of(canaries=canaries[:1])) == ({}, {})
    lost = replace(result({"time_us": -1.0}), stage=Stage.CANARY_END)
    bad = replace(canaries[1], results=(lost,))
    assert canary_clocks(run_of(canaries=(bad,))) == ({}, {})
