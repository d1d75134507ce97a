"""A changed machine told from changed code, from made-up processes of known truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from perfsuite.judge.compare import Against, Policy
from perfsuite.judge.machine import Machine, judge_machine
from perfsuite.judge.verdict import drift_of, judge
from perfsuite.model import (
    BaselineEntry,
    BaselineMetric,
    Block,
    CaseInfo,
    DeviceFacts,
    Evidence,
    Regime,
    Result,
    Run,
    Settings,
    Sku,
    Stage,
    Status,
    Tier,
    Variant,
    Work,
)

WOBBLE = (0.0003, -0.0004, 0.0001, 0.0, -0.0002, 0.0002)
COPY = Work(read_bytes=2.9e9, write_bytes=2.9e9)
FACTS = DeviceFacts(
    device="cuda",
    name="NVIDIA H200",
    unit="aaaa0",
    identity={},
    clocks=("time_us", "cycles"),
)
AGAINST = Against(facts=FACTS, slug="nvidia-h200", source="baseline nvidia-h200")
CASE = CaseInfo(
    pack="p", name="c", doc="", file="", line=1, source="", version=1, regime=Regime.PACED,
    cold=True, needs=(), budgets=(), tags=(), axes=(),
)  # fmt: skip
NAMES = ("p.a[]", "p.b[]", "p.c[]", "p.d[]")
CANARY = "p.copy[]"


def variant(name: str) -> Variant:
    return Variant(id=name, case=CASE, axes={}, tier=Tier.SMOKE, work=COPY)


def result(name: str, shifts: Mapping[str, float], stage: Stage, count: int = 6) -> Result:
    """Return a result whose processes on each unit are moved by a log change."""
    evidence = tuple(
        Evidence(
            slot=slot, seed=slot, unit=unit, blocks=(Block(time_us=(t,) * 3, cycles=(t,) * 3),)
        )
        for unit, shift in shifts.items()
        for slot in range(count)
        for t in [1400 * math.exp(shift + WOBBLE[slot])]
    )
    return Result(variant=name, status=Status.OK, stage=stage, evidence=evidence)


def entry(name: str, units: tuple[str, ...]) -> BaselineEntry:
    values = {unit: tuple(1400 * math.exp(w) for w in WOBBLE) for unit in units}
    metrics = {
        metric: BaselineMetric(center=1400.0, unit=of, values=values)
        for metric, of in (("time_us", "us"), ("cycles", "cycles"))
    }
    counted = {"kernels": BaselineMetric(center=1.0, unit="count")} if name == NAMES[0] else {}
    return BaselineEntry(variant=name, case_version=1, run="r", metrics={**metrics, **counted})


def judged(  # noqa: PLR0913 - a run has that many sides
    moved: Mapping[str, Mapping[str, float]],
    start: Mapping[str, float],
    end: Mapping[str, float] | None = None,
    *,
    policy: Policy | None = None,
    kernels: float = 1.0,
    known: tuple[str, ...] = (),
    screened: Mapping[str, Mapping[str, float]] | None = None,
) -> Machine:
    """Judge variants moved by unit, with a canary moved at the start and at the end.

    The first variant launches so many ``kernels`` where it was one. Entries are of the ``known``
    units, by default of those measured. What was ``screened`` on other units is confirmed here.
    """
    against = replace(AGAINST, policy=policy or Policy())
    variants = [variant(name) for name in moved]
    before = {name: result(name, each, Stage.SCREEN) for name, each in (screened or {}).items()}
    stage = Stage.CONFIRM if screened else Stage.SCREEN
    screens = {name: result(name, shifts, stage) for name, shifts in moved.items()}
    against = replace(against, screened=before)
    first = screens[NAMES[0]]
    counted = tuple(structs.replace(each, exact={"kernels": kernels}) for each in first.evidence)
    screens[NAMES[0]] = structs.replace(first, evidence=counted)
    units = known or tuple(start)
    entries = {name: entry(name, units) for name in (*moved, CANARY)}
    run = Run(
        id="r",
        started="",
        command="",
        sku=Sku(slug="nvidia-h200", name="NVIDIA H200"),
        facts=FACTS,
        settings=Settings(),
        variants=tuple(variants),
        canaries=(variant(CANARY),),
        results=(
            result(CANARY, start, Stage.CANARY_START, 2),
            *before.values(),
            *screens.values(),
            result(CANARY, end or start, Stage.CANARY_END, 2),
        ),
    )
    verdicts = judge(screens, variants=variants, entries=entries, against=against)
    return judge_machine(run, verdicts, entries=entries, against=against)


def on_one(*shifts: float) -> dict[str, dict[str, float]]:
    return {name: {"aaaa0": shift} for name, shift in zip(NAMES, shifts, strict=False)}


def test_variants_and_a_canary_that_moved_alike_are_one_verdict() -> None:
    found = judged(on_one(0.03, 0.03, 0.0), {"aaaa0": 0.03})
    assert found.shift is not None
    assert (found.shift.word.value, found.shift.fails) == ("slower", True)
    assert (found.shift.moved, found.shift.comparable) == (2, 3)
    assert found.shift.reason.startswith("2 of 3 comparable variants are slower on unit aaaa,")
    assert (
        "p.copy[] slower at the start (+3.0 % against baseline nvidia-h200)" in found.shift.reason
    )
    assert [v.word.value for v in found.verdicts] == ["unclear", "unclear", "same"]
    assert not any(v.fails for v in found.verdicts)
    assert found.verdicts[0].reason.startswith("machine-shift: 2 of 3 variants moved alike")


def test_faster_machines_shift_too() -> None:
    found = judged(on_one(-0.03, -0.03, -0.03), {"aaaa0": -0.03})
    assert found.shift is not None
    assert found.shift.word.value == "faster"


def crowd(*shifts: float, unit: str = "cccc0") -> dict[str, dict[str, float]]:
    return {f"{NAMES[0][:-2]}{i}[]" if i else NAMES[0]: {unit: s} for i, s in enumerate(shifts)}


MIXED = (0.03, 0.03, 0.03, -0.03, -0.03, *[0.0] * 15)


def test_many_that_moved_either_way_on_a_card_never_seen_are_the_card() -> None:
    found = judged(crowd(*MIXED), {"cccc0": 0.0}, known=("aaaa0", "bbbb0"))
    assert found.shift is not None
    assert (found.shift.word.value, found.shift.moved, found.shift.fails) == ("slower", 3, True)
    assert "unit cccc, which the baseline has never seen" in found.shift.reason
    assert "2 of 20 comparable variants are faster" in found.shift.reason
    assert [v.word.value for v in found.verdicts[:6]] == [*["unclear"] * 5, "same"]
    assert "only one card says so" in found.verdicts[0].reason


def test_as_many_on_a_card_that_the_baseline_knows_are_the_code() -> None:
    found = judged(crowd(*MIXED), {"cccc0": 0.0}, known=("cccc0", "bbbb0"))
    assert found.shift is None
    assert [v.word.value for v in found.verdicts[:4]] == [*["slower"] * 3, "faster"]


def test_what_a_card_that_the_baseline_knows_found_first_is_the_code() -> None:
    moved = crowd(*[0.03] * 5, *[0.0] * 15)
    at_home = {name: {"aaaa0": each["cccc0"]} for name, each in moved.items()}
    found = judged(moved, {"cccc0": 0.0}, known=("aaaa0", "bbbb0"), screened=at_home)
    assert found.shift is None
    assert {v.word.value for v in found.verdicts[:5]} == {"slower"}


def test_an_unknown_unit_is_no_card_never_seen() -> None:
    for unit, known in (("", "aaaa0"), ("aaaa0", "")):
        found = judged(crowd(*MIXED, unit=unit), {unit: 0.0}, known=(known,))
        assert found.shift is None


def test_few_on_a_card_never_seen_shift_nothing() -> None:
    found = judged(crowd(*MIXED[:2], *MIXED[5:]), {"cccc0": 0.0}, known=("aaaa0", "bbbb0"))
    assert found.shift is None
    assert [v.word.value for v in found.verdicts[:3]] == ["unclear", "unclear", "same"]


def test_variants_that_moved_alone_are_the_code() -> None:
    found = judged(on_one(0.03, 0.03, 0.03), {"aaaa0": 0.0})
    assert found.shift is None
    assert [v.word.value for v in found.verdicts] == ["slower"] * 3
    assert found.notes == ()


def test_a_canary_that_moved_alone_is_a_note() -> None:
    found = judged(on_one(0.0, 0.0, 0.03), {"aaaa0": 0.03})
    assert found.shift is None
    assert [v.word.value for v in found.verdicts] == ["same", "same", "slower"]
    assert found.notes[0].startswith("canary p.copy[] slower at the start (+3.0 %")


def test_a_canary_that_moved_the_other_way_explains_nothing() -> None:
    assert judged(on_one(0.03, 0.03, 0.03), {"aaaa0": -0.03}).shift is None


def test_two_variants_are_no_pattern() -> None:
    assert judged(on_one(0.03, 0.03), {"aaaa0": 0.03}).shift is None


def test_a_minority_is_no_pattern() -> None:
    assert judged(on_one(0.03, 0.0, 0.0), {"aaaa0": 0.03}).shift is None


def test_each_unit_is_its_own_machine() -> None:
    on_b = {f"{name}b": {"bbbb0": 0.03} for name in NAMES}
    found = judged({**on_one(0.03, 0.03, 0.03), **on_b}, {"aaaa0": 0.0, "bbbb0": 0.03})
    assert found.shift is not None
    assert found.shift.units == ("bbbb0",)
    assert [v.word.value for v in found.verdicts] == ["slower"] * 3 + ["unclear"] * 4


def test_units_that_shifted_the_other_way_are_put_off_as_well() -> None:
    faster = {f"{name}b": {"bbbb0": -0.03} for name in NAMES}
    found = judged({**on_one(0.03, 0.03, 0.03), **faster}, {"aaaa0": 0.03, "bbbb0": -0.03})
    assert found.shift is not None
    assert (found.shift.word.value, found.shift.moved) == ("faster", 4)
    assert "3 of 3 comparable variants are slower on unit aaaa" in found.shift.reason
    assert len(found.shift.variants) == 7
    assert {v.word.value for v in found.verdicts} == {"unclear"}
    assert not any(v.fails for v in found.verdicts)


def test_drift_inside_the_run_is_told() -> None:
    found = judged(on_one(0.0, 0.0, 0.0), {"aaaa0": 0.0}, {"aaaa0": 0.02})
    drift = "canary p.copy[] drifted by +2.0 % from start to end on unit aaaa"
    assert drift in found.notes


def test_what_has_no_noise_is_slower_on_any_machine() -> None:
    found = judged(on_one(0.03, 0.03, 0.03), {"aaaa0": 0.03}, kernels=2.0)
    assert found.shift is not None
    assert [v.word.value for v in found.verdicts] == ["slower", "unclear", "unclear"]
    assert found.verdicts[0].fails


def test_policy_says_whether_a_shift_fails() -> None:
    policy = Policy(fail_on=("slower", "unclear"))
    found = judged(on_one(0.03, 0.03, 0.03), {"aaaa0": 0.03}, policy=policy)
    assert found.shift is not None
    assert not found.shift.fails
    assert all(v.fails for v in found.verdicts)


def test_a_canary_of_an_entry_that_cannot_be_compared_says_nothing() -> None:
    start, end = (result(CANARY, {"aaaa0": each}, Stage.CANARY_END) for each in (0.0, 0.02))
    known = entry(CANARY, ("aaaa0",))
    for one in (structs.replace(known, regime="floating"), structs.replace(known, metrics={})):
        assert drift_of(variant(CANARY), start, end, entry=one, against=AGAINST) is None
