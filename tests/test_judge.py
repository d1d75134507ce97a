"""Each verdict with its reason, from made-up processes of known truth."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from perfsuite.judge.claims import judge_claims
from perfsuite.judge.compare import Against, Policy
from perfsuite.judge.verdict import judge, limit, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Block,
    Budget,
    CaseInfo,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Evidence,
    Health,
    Regime,
    Result,
    Stage,
    Status,
    Tier,
    Variant,
    Verdict,
    Word,
    Work,
)

GEMM = Work(flops=2 * 8192**3, rate_dtype="bf16")
COPY = Work(read_bytes=2.9e9, write_bytes=2.9e9)
FACTS = DeviceFacts(
    device="cuda",
    name="NVIDIA H200",
    unit="a",
    identity={},
    state={"ecc": "on"},
    clocks=("time_us", "cycles"),
)
AGAINST = Against(facts=FACTS, slug="nvidia-h200", source="baseline nvidia-h200")
CPU = replace(
    AGAINST, facts=structs.replace(FACTS, device="cpu", clocks=("time_us",)), slug="cpu-x-2c"
)
# Ordinary noise of eight processes, mean 0.
WOBBLE = [0.0004, -0.0007, 0.0002, 0.0009, -0.0008, 0.0001, -0.0003, 0.0002, 0.0006, -0.0006]


def variant(work: Work | None = GEMM, **info: object) -> Variant:
    fields: dict[str, object] = {
        "pack": "p", "name": "c", "doc": "", "file": "", "line": 1, "source": "", "version": 1,
        "regime": Regime.PACED, "cold": True, "needs": (), "budgets": (), "tags": (), "axes": (),
    }  # fmt: skip
    case = CaseInfo(**{**fields, **info})  # type: ignore[arg-type]
    return Variant(id="p.c[]", case=case, axes={}, tier=Tier.SMOKE, work=work)


def processes(
    count: int, *, time: float = 0.0, clock: float = 0.0, strays: Mapping[int, float] | None = None
) -> list[tuple[float, float]]:
    """Time (us) and cycles of processes, moved by these log changes from 1400 us at 1600 MHz."""
    shifts = [time + WOBBLE[i % 10] + (strays or {}).get(i, 0.0) for i in range(count)]
    times = [1400 * math.exp(shift) for shift in shifts]
    return [(t, t * 1600 * math.exp(clock)) for t in times]


def result(
    values: Sequence[tuple[float, float]],
    *,
    unit: str = "a",
    one_clock: bool = False,
    **fields: object,
) -> Result:
    evidence = tuple(
        Evidence(
            slot=slot,
            seed=slot,
            unit=unit,
            blocks=(Block(time_us=(t, t, t), cycles=() if one_clock else (c, c, c)),),
            exact=fields.get("exact", {}),  # type: ignore[arg-type]
        )
        for slot, (t, c) in enumerate(values)
    )
    stage = fields.get("stage", Stage.CONFIRM)
    return Result(variant="p.c[]", status=Status.OK, evidence=evidence, stage=stage)  # type: ignore[arg-type]


def entry(
    values: Sequence[tuple[float, float]], unit: str = "a", **fields: object
) -> BaselineEntry:
    metrics = {
        "time_us": BaselineMetric(
            center=values[0][0], unit="us", values={unit: tuple(t for t, _ in values)}
        ),
        "cycles": BaselineMetric(
            center=values[0][1], unit="cycles", values={unit: tuple(c for _, c in values)}
        ),
        **fields.pop("exact", {}),  # type: ignore[dict-item]
    }
    return BaselineEntry(variant="p.c[]", case_version=1, run="r", metrics=metrics, **fields)  # type: ignore[arg-type]


def verdict(
    now: Result,
    before: BaselineEntry | None,
    *,
    of: Variant | None = None,
    against: Against = AGAINST,
) -> Verdict:
    entries = {"p.c[]": before} if before else {}
    (found,) = judge({"p.c[]": now}, variants=[of or variant()], entries=entries, against=against)
    return found


def test_unchanged_code_is_the_same() -> None:
    found = verdict(result(processes(6)), entry(processes(5)))
    assert found.word is Word.SAME
    assert not found.fails
    assert not wants_confirmation(found)


def test_with_one_clock_the_change_is_called_that_of_time_once() -> None:
    found = verdict(result(processes(6, time=0.02), one_clock=True), entry(processes(5)))
    assert found.reason.startswith("time +2.0 % (99 % interval +1.")
    assert "code" not in found.reason


def test_slower_code_fails_beyond_the_gate_and_says_by_how_much() -> None:
    found = verdict(result(processes(6, time=0.02)), entry(processes(5)))
    assert (found.word, found.fails, found.confirmation) == (Word.SLOWER, True, "fresh processes")
    assert found.changes[0].theta == pytest.approx(0.0202, abs=1e-3)
    assert "time +2.0 %; code +2.0 % (99 % interval +1." in found.reason
    assert "threshold 0.25 %); 6 processes against 5 on the same unit" in found.reason


def test_a_against_b_is_surer_than_two_runs_on_one_unit() -> None:
    arms = replace(AGAINST, arms=frozenset({"p.c[]"}))
    now, before = result(processes(6, time=0.004)), entry(processes(6))
    runs, turns = (verdict(now, before, against=each).changes[0] for each in (AGAINST, arms))
    assert turns.detectable < runs.detectable
    assert turns.theta == runs.theta


def test_a_against_b_judges_time_beside_code() -> None:
    arms = replace(AGAINST, arms=frozenset({"p.c[]"}))
    # The same cycles at a clock that is 2 % lower: same code, slower machine.
    now = result(processes(6, time=0.02, clock=-0.02))
    found = verdict(now, entry(processes(6)), against=arms)
    assert (found.word, found.confirmation) == (Word.SLOWER, "A against B")
    assert "code +0.00 %" in found.reason
    assert "elapsed_us, medians 1400" in found.reason
    assert verdict(now, entry(processes(6))).word is Word.SAME


def test_a_against_b_rarely_calls_unchanged_code_changed() -> None:
    source = random.Random(5)  # noqa: S311 - made-up samples
    arms = replace(AGAINST, arms=frozenset({"p.c[]"}))

    def side() -> list[tuple[float, float]]:
        moves = [(source.gauss(0, 0.0015), source.gauss(0, 0.002)) for _ in range(6)]
        times = [(1400 * math.exp(code - clock), clock) for code, clock in moves]
        return [(time, time * 1600 * math.exp(clock)) for time, clock in times]

    words = Counter(verdict(result(side()), entry(side()), against=arms).word for _ in range(1500))
    assert words[Word.SLOWER] + words[Word.FASTER] <= 3
    assert words[Word.UNCLEAR] <= 0.05 * 1500


def test_slower_inside_the_gate_does_not_fail() -> None:
    found = verdict(result(processes(6, time=0.008)), entry(processes(5)))
    assert (found.word, found.fails) == (Word.SLOWER, False)


@pytest.mark.parametrize(("p_value", "is_wanted"), [(0.05, True), (0.5, False)])
def test_in_brief_only_what_seems_to_have_moved_is_measured_again(
    p_value: float, *, is_wanted: bool
) -> None:
    found = verdict(result(processes(6, time=0.05, clock=-0.05)), entry(processes(5)))
    change = structs.replace(found.changes[0], threshold=0.0025, gate=0.01, p_value=p_value)
    unclear = structs.replace(found, word=Word.UNCLEAR, changes=(change,))
    assert wants_confirmation(unclear)
    assert wants_confirmation(unclear, is_brief=True) is is_wanted
    assert wants_confirmation(structs.replace(unclear, word=Word.SLOWER), is_brief=True)


def test_faster_code_is_faster_and_wants_confirmation_from_a_screen() -> None:
    found = verdict(result(processes(3, time=-0.03), stage=Stage.SCREEN), entry(processes(5)))
    assert (found.word, found.fails, found.confirmation) == (Word.FASTER, False, "")
    assert wants_confirmation(found)


def test_clock_that_moves_alone_leaves_the_code_the_same() -> None:
    found = verdict(result(processes(6, time=0.02, clock=-0.02)), entry(processes(5)))
    assert found.word is Word.SAME
    assert "time +2.0 %, SM clock -2.0 %: the code is the same" in found.reason


def test_slower_code_on_a_faster_clock_is_slower_though_time_stands_still() -> None:
    found = verdict(result(processes(6, time=0.0, clock=0.02)), entry(processes(5)))
    assert found.word is Word.SLOWER
    assert found.changes[0].time_change == pytest.approx(0.0, abs=1e-3)
    assert found.changes[0].theta == pytest.approx(0.02, abs=2e-3)


def test_memory_bound_code_does_not_follow_the_sm_clock() -> None:
    now, copy = result(processes(6, time=0.0, clock=0.02)), variant(COPY)
    assert verdict(now, entry(processes(5)), of=copy).word is Word.SAME


def test_clock_that_moves_too_far_is_unclear() -> None:
    found = verdict(result(processes(6, time=0.05, clock=-0.05)), entry(processes(5)))
    assert found.word is Word.UNCLEAR
    assert "the SM clock moved too far" in found.reason
    assert wants_confirmation(found)


def test_clocks_that_disagree_on_the_direction_are_no_evidence() -> None:
    found = verdict(result(processes(6, time=0.02, clock=-0.04)), entry(processes(5)))
    assert (found.word, found.changes[0].p_value) == (Word.UNCLEAR, 1.0)


def test_change_that_both_clocks_show_is_slower_however_far_the_clock_moved() -> None:
    found = verdict(result(processes(6, time=0.2, clock=-0.05)), entry(processes(5)))
    assert found.word is Word.SLOWER


def test_few_noisy_processes_are_unclear_and_say_what_would_have_been_found() -> None:
    noisy = processes(3, time=0.01, strays={0: 0.03, 1: -0.03})
    found = verdict(result(noisy), entry(processes(3)))
    assert found.word is Word.UNCLEAR
    assert found.changes[0].detectable > 0.02
    assert "on a change would be found" in found.reason


def test_another_unit_widens_the_interval() -> None:
    found, home = (
        verdict(result(processes(6, time=0.008), unit=unit), entry(processes(5))) for unit in "ba"
    )
    assert (found.word, home.word) == (Word.UNCLEAR, Word.SLOWER)
    assert found.changes[0].low < home.changes[0].low
    assert "on another unit" in found.reason


@pytest.mark.parametrize(
    ("screened", "confirmation"),
    [("b", "fresh processes"), ("c", "fresh processes on another GPU"), ("", "fresh processes")],
)
def test_verdict_says_how_it_was_confirmed(screened: str, confirmation: str) -> None:
    results = {"p.c[]": result(processes(3, time=0.25), unit=screened)} if screened else {}
    now = result(processes(6, time=0.25), unit="b")
    found = verdict(now, entry(processes(5)), against=replace(AGAINST, screened=results))
    assert (found.word, found.confirmation) == (Word.SLOWER, confirmation)


def test_units_of_one_run_that_disagree_are_no_evidence() -> None:
    now, before = result(processes(6, time=0.022), unit="b"), entry(processes(5))
    words = []
    for moved in (0.022, -0.008):
        screened = {"p.c[]": result(processes(3, time=moved), unit="c")}
        words.append(verdict(now, before, against=replace(AGAINST, screened=screened)).word)
    assert words == [Word.SLOWER, Word.UNCLEAR]


@pytest.mark.parametrize(
    ("by", "known", "word"),
    [
        (0.05, "a", Word.UNCLEAR),
        (0.25, "a", Word.SLOWER),
        (0.05, "b", Word.SLOWER),
        (0.05, "acd", Word.SLOWER),
    ],
)
def test_one_card_that_the_baseline_has_never_seen_is_not_enough(
    by: float, known: str, word: Word
) -> None:
    before = entry(processes(6))
    metrics = {
        name: structs.replace(metric, values=dict.fromkeys(known, metric.values["a"]))
        for name, metric in before.metrics.items()
    }
    now = result(processes(6, time=by), unit="b")
    found = verdict(now, structs.replace(before, metrics=metrics))
    assert found.word is word
    assert ("only one card says so, unit b," in found.reason) == (word is Word.UNCLEAR)


def test_damaged_screen_does_not_spoil_a_confirmation() -> None:
    screened = {"p.c[]": result([(math.nan, 1.0)], unit="c")}
    found = verdict(
        result(processes(6)), entry(processes(5)), against=replace(AGAINST, screened=screened)
    )
    assert found.word is Word.SAME


@pytest.mark.parametrize("count", [1, 3])
def test_same_and_unclear_say_what_would_have_been_found(count: int) -> None:
    strays = {0: 0.03, 1: -0.03} if count > 1 else {}
    found = verdict(result(processes(count, strays=strays)), entry(processes(3)))
    assert found.word in {Word.SAME, Word.UNCLEAR}
    assert "on a change would be found" in found.reason


def test_common_unit_is_compared_alone() -> None:
    other, mine = processes(3, time=0.3), processes(3)
    both = structs.replace(
        entry(mine),
        metrics={
            name: structs.replace(
                entry(mine).metrics[name],
                values={"a": tuple(v[i] for v in mine), "b": tuple(v[i] for v in other)},
            )
            for i, name in enumerate(("time_us", "cycles"))
        },
    )
    assert verdict(result(processes(3)), both).word is Word.SAME


def test_one_process_in_another_mode_does_not_hide_that_the_rest_is_the_same() -> None:
    found = verdict(result(processes(3, strays={1: -0.09})), entry(processes(5)))
    assert found.word is Word.SAME
    assert "one process stands apart" in found.reason


def test_two_of_three_baseline_processes_in_another_mode_are_no_regression() -> None:
    before = entry(processes(3, strays={0: -0.035, 1: -0.035}))
    assert verdict(result(processes(6)), before).word is Word.UNCLEAR


@pytest.mark.parametrize("count", [*range(1, 13)])
def test_any_number_of_processes_is_judged(count: int) -> None:
    same = verdict(result(processes(count)), entry(processes(count)))
    large = verdict(result(processes(count, time=0.05)), entry(processes(count)))
    assert (same.word, large.word) == (Word.SAME, Word.SLOWER)


def test_short_launch_is_not_slower_by_less_than_the_floor() -> None:
    def short(shift: float) -> list[tuple[float, float]]:
        return [(t / 700, c / 700) for t, c in processes(6, time=shift)]

    found = verdict(result(short(0.012)), entry(short(0.0)), of=variant(None))
    assert found.changes[0].threshold == pytest.approx(0.01, rel=0.01)
    assert found.word is not Word.SLOWER


def test_cpu_is_judged_by_time_with_its_own_gate() -> None:
    drift = result(processes(3, time=0.06), one_clock=True)
    jump = result(processes(6, time=0.30), one_clock=True)
    assert verdict(drift, entry(processes(3)), against=CPU).word is Word.SAME
    found = verdict(jump, entry(processes(3)), against=CPU)
    assert (found.word, found.changes[0].gate) == (Word.SLOWER, 0.2)


def loaded(now: Result, percent: float) -> Result:
    """The same, while others took so much of the device."""
    health = Health(foreign_percent=percent)
    evidence = [
        structs.replace(
            each, blocks=tuple(structs.replace(block, health=health) for block in each.blocks)
        )
        for each in now.evidence
    ]
    return structs.replace(now, evidence=tuple(evidence))


def test_change_that_others_load_may_explain_is_unclear() -> None:
    jump = result(processes(6, time=0.35), one_clock=True)
    before = entry(processes(3))
    for percent, word in ((0.0, Word.SLOWER), (8.0, Word.SLOWER), (40.0, Word.UNCLEAR)):
        found = verdict(loaded(jump, percent), before, against=CPU)
        assert found.word is word
    assert "others took 40 % of the device meanwhile, which may be all of it" in found.reason
    assert not found.fails
    far = loaded(result(processes(6, time=1.2), one_clock=True), 40.0)
    assert verdict(far, before, against=CPU).word is Word.SLOWER


def test_load_is_no_doubt_about_arms_that_took_turns() -> None:
    jump = loaded(result(processes(6, time=0.35), one_clock=True), 40.0)
    turns = replace(CPU, arms=frozenset({"p.c[]"}))
    assert verdict(jump, entry(processes(3)), against=turns).word is Word.SLOWER


@pytest.mark.parametrize("time", [0.35, -0.35])
def test_change_against_what_was_measured_under_load_is_unclear(time: float) -> None:
    now = result(processes(6, time=time), one_clock=True)
    before = entry(processes(3))
    assert verdict(now, before, against=CPU).word in {Word.SLOWER, Word.FASTER}
    found = verdict(now, structs.replace(before, load=0.4), against=CPU)
    assert found.word is Word.UNCLEAR
    assert "others took 40 % of the device when it was measured before" in found.reason


def test_new_variants_say_why() -> None:
    now = result(processes(3))
    assert verdict(now, None).reason == "baseline nvidia-h200 has no entry of it"
    changed = verdict(now, structs.replace(entry(processes(3)), case_version=7))
    assert changed.word is Word.NEW
    assert "version was 7 and is 1" in changed.reason
    bare = structs.replace(entry(processes(3)), metrics={})
    assert verdict(now, bare).reason == "baseline nvidia-h200 has no time of it"


def test_incomparable_says_which_circumstance_differs() -> None:
    now, before = result(processes(3)), entry(processes(3))
    found = [
        verdict(now, structs.replace(before, regime="sustained")),
        verdict(now, structs.replace(before, state={"ecc": "off"})),
        verdict(
            now,
            before,
            against=replace(AGAINST, mismatches={"p.c[]": "sm count was 114 and is 132"}),
        ),
    ]
    assert {item.word for item in found} == {Word.INCOMPARABLE}
    assert [item.reason for item in found] == [
        "regime was sustained and is paced",
        "ecc was off and is on",
        "sm count was 114 and is 132",
    ]


def test_exact_metric_that_grows_is_slower_at_once() -> None:
    was = {"launches": BaselineMetric(center=3, unit="launches")}
    found = verdict(result(processes(6), exact={"launches": 4}), entry(processes(5), exact=was))
    assert (found.word, found.fails) == (Word.SLOWER, True)
    assert found.reason.startswith("launches 3 -> 4 launches (+33.3 % worse)")


def test_exact_metric_that_stands_still_is_no_news() -> None:
    was = {"launches": BaselineMetric(center=3, unit="launches")}
    found = verdict(result(processes(6), exact={"launches": 3}), entry(processes(5), exact=was))
    assert (found.word, len(found.changes)) == (Word.SAME, 1)


def test_peak_bytes_may_move_by_a_percent() -> None:
    before = entry(processes(5), exact={"peak_bytes": BaselineMetric(center=1000, unit="bytes")})
    words = [
        verdict(result(processes(6), exact={"peak_bytes": peak}), before).word
        for peak in (1009, 1011, 900)
    ]
    assert words == [Word.SAME, Word.SLOWER, Word.FASTER]


def test_exact_metric_may_be_better_when_higher() -> None:
    was = {"hits": BaselineMetric(center=10, unit="", better="higher")}
    found = verdict(result(processes(6), exact={"hits": 9}), entry(processes(5), exact=was))
    assert found.word is Word.SLOWER


@pytest.mark.parametrize("metric", ["time_us", "cycles", "peak_bytes"])
def test_budget_holds_without_a_baseline(metric: str) -> None:
    now = result(processes(3), exact={"peak_bytes": 1e9})
    tight = variant(budgets=(Budget(metric, 100.0, "must fit"),))
    found = verdict(now, None, of=tight)
    assert (found.word, found.fails) == (Word.OVER_BUDGET, True)
    assert "its budget is 100 (must fit)" in found.reason
    loose = variant(budgets=(Budget(metric, 1e12, ""), Budget("unknown", 0, "")))
    assert verdict(now, None, of=loose).word is Word.NEW


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_samples_that_are_no_durations_are_refused_with_the_value(bad: float) -> None:
    found = verdict(result([*processes(2), (bad, 1.0)]), entry(processes(3)))
    assert found.word is Word.UNCLEAR
    assert found.reason.startswith("unusable samples: ")
    assert repr(bad) in found.reason


def test_no_samples_at_all_are_unclear() -> None:
    found = verdict(structs.replace(result([]), evidence=(Evidence(slot=0, seed=0),)), None)
    assert (found.word, found.reason) == (Word.UNCLEAR, "no process has samples")


def test_baseline_without_processes_counts_as_one() -> None:
    bare = entry(processes(3))
    bare = structs.replace(
        bare, metrics={n: structs.replace(m, values={}) for n, m in bare.metrics.items()}
    )
    found = verdict(result(processes(6)), bare)
    assert found.word is Word.SAME
    assert "6 processes against 1 on another unit" in found.reason


def test_variant_that_did_not_end_ok_gets_no_verdict() -> None:
    failed = structs.replace(result([]), status=Status.CRASHED)
    assert judge({"p.c[]": failed}, variants=[variant()], entries={}, against=AGAINST) == ()


def test_weak_change_among_many_comparisons_is_unclear() -> None:
    one = variant()
    ids = [f"p.c[n={i}]" for i in range(200)]
    now = {name: result(processes(6, time=0.006 if name == ids[0] else 0.0)) for name in ids}
    entries = {name: entry(processes(5)) for name in ids}
    many = judge(
        now,
        variants=[structs.replace(one, id=name) for name in ids],
        entries=entries,
        against=AGAINST,
    )
    alone = verdict(now[ids[0]], entries[ids[0]])
    assert (alone.word, many[0].word) == (Word.SLOWER, Word.UNCLEAR)
    assert many[0].reason.endswith("one of 200 comparisons, too weak to stand out")


def test_policy_says_what_fails() -> None:
    strict = replace(AGAINST, policy=Policy(fail_on=("new", "unclear")))
    assert verdict(result(processes(3)), None, against=strict).fails
    slow = verdict(result(processes(6, time=0.02)), entry(processes(5)), against=strict)
    assert (slow.word, slow.fails) == (Word.SLOWER, False)


def test_policy_sets_threshold_and_gate() -> None:
    loose = replace(AGAINST, policy=Policy(threshold=0.05, gate=0.1))
    found = verdict(result(processes(6, time=0.02)), entry(processes(5)), against=loose)
    assert found.word is Word.SAME
    assert (found.changes[0].threshold, found.changes[0].gate) == (0.05, 0.1)


@pytest.mark.parametrize(
    "wrong", [{"threshold": -1.0}, {"gate": math.nan}, {"alpha": 0.0}, {"fail_on": ("slow",)}]
)
def test_policy_refuses_what_it_cannot_mean(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Policy"):
        Policy(**wrong)  # type: ignore[arg-type]


def claim(by: float, ratio: float, **fields: object) -> ClaimVerdict:
    instance = ClaimInstance(
        id="p:x", pack="p", name="x", faster="f", than="t", by=by, source="a book"
    )
    slow = result([(t * ratio, c) for t, c in processes(3)])
    sides = {"f": result(processes(3)), "t": slow}
    sides.update(fields.pop("sides", {}))  # type: ignore[call-overload]
    (found,) = judge_claims([instance], sides, facts=FACTS, **fields)  # type: ignore[arg-type]
    return found


def test_claims_are_held_broken_or_unclear_by_their_interval() -> None:
    words = [claim(4.0, ratio).word for ratio in (5.0, 3.0, 4.0)]
    assert words == [ClaimWord.HELD, ClaimWord.BROKEN, ClaimWord.UNCLEAR]
    found = claim(4.0, 3.0)
    assert found.fails
    assert found.low is not None
    assert found.high is not None
    assert found.low < 3.0 < found.high
    assert found.reason.startswith("3x (95 % interval 2.9")


def test_claim_about_a_metric_is_held_or_broken_by_its_value_alone() -> None:
    def judged(by: float, **less: float) -> ClaimVerdict:
        sides = {
            name: structs.replace(
                one, evidence=tuple(structs.replace(each, exact=exact) for each in one.evidence)
            )
            for name, one, exact in (
                ("f", result(processes(3)), less),
                ("t", result(processes(3)), {"peak_bytes": 1000.0}),
            )
        }
        instance = ClaimInstance(
            id="p:x", pack="p", name="x", faster="f", than="t", by=by, source="a book",
            metric="peak_bytes",
        )  # fmt: skip
        (found,) = judge_claims([instance], sides, facts=FACTS)
        return found

    held, broken = judged(4.0, peak_bytes=250.0), judged(4.0, peak_bytes=251.0)
    assert (held.word, held.ratio, held.low, held.fails) == (ClaimWord.HELD, 4.0, 4.0, False)
    assert held.reason == "4x: peak_bytes 1000 -> 250, 4x claimed"
    assert (broken.word, broken.fails) == (ClaimWord.BROKEN, True)
    # One that takes none at all has no ratio, and is the best there is.
    none = judged(4.0, peak_bytes=0.0)
    assert (none.word, none.ratio) == (ClaimWord.HELD, None)
    assert judged(4.0, peak_bytes=1000.0).word is ClaimWord.BROKEN
    absent = judged(4.0, kernels=1.0)
    assert (absent.word, absent.reason) == (ClaimWord.NOT_APPLICABLE, "f has no peak_bytes")


def test_broken_claim_need_not_fail_the_run() -> None:
    assert not claim(4.0, 3.0, policy=Policy(fail_on=("slower",))).fails


def test_claim_without_both_sides_does_not_apply() -> None:
    skipped = structs.replace(result([]), status=Status.SKIPPED, reason="needs sm_100")
    found = claim(4.0, 3.0, sides={"t": skipped})
    assert (found.word, found.ratio) == (ClaimWord.NOT_APPLICABLE, None)
    assert found.reason == "needs sm_100"
    assert claim(4.0, 3.0, unmet={"p:x": "needs sm_80+"}).reason == "needs sm_80+"
    assert "samples" in claim(4.0, 3.0, sides={"t": result([(math.nan, 1.0)])}).reason
    assert claim(4.0, 3.0, sides={"t": result([])}).reason == "a side has no samples"


def test_claim_on_a_variant_that_was_not_selected_does_not_apply() -> None:
    instance = ClaimInstance(id="i", pack="p", name="x", faster="f", than="t", by=2, source="s")
    (found,) = judge_claims([instance], {}, facts=FACTS)
    assert found.reason == "t was not part of the run"


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0025, "0.25 %"), (0.155, "15.5 %"), (0.9996, "100 %"), (132.7, "13270 %")],
)
def test_a_limit_has_three_digits_and_no_power_of_ten(share: float, words: str) -> None:
    assert limit(share) == words
