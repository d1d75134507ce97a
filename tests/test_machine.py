"""A changed machine told from changed code, from made-up processes of known truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from judge_data import AGAINST, COPY, FACTS, clocks, entry, facts, kinds, result, variant
from msgspec import structs

from perfsuite.judge.compare import Policy, canary_clocks
from perfsuite.judge.machine import Machine, judge_machine
from perfsuite.judge.verdict import drift_of, judge
from perfsuite.model import (
    BaselineEntry,
    Metric,
    Result,
    Run,
    Settings,
    Sku,
    Stage,
    VariantRun,
    Work,
)

FIRST, CANARY = "p.a0[]", "p.copy[]"
KERNELS = ((Metric("kernels", "count"), 1.0),)
Shifts = Mapping[str, Mapping[str, float]]


def measured(name: str, shifts: Mapping[str, float], stage: Stage, kernels: float = 1.0) -> Result:
    """Processes that are moved on each unit by a log change, at the same clock."""
    each = [
        result(clocks(by), unit=unit, wobble=0.4, exact={"kernels": kernels}).evidence
        for unit, by in shifts.items()
    ]
    evidence = tuple(process for processes in each for process in processes)
    return structs.replace(result(variant=name, stage=stage), evidence=evidence)


def known(name: str, units: str) -> BaselineEntry:
    exact = KERNELS if name == FIRST else ()
    return entry(clocks(), 6, units=units, wobble=0.4, exact=exact, variant=name)


def run_of(results: tuple[Result, ...], canaries: Mapping[str, Work]) -> Run:
    names = dict.fromkeys(each.variant for each in results if not each.stage.is_canary)
    return Run(
        id="r", started="", command="", sku=Sku(slug="nvidia-h200", name="H200"), facts=FACTS,
        settings=Settings(),
        variants=tuple(VariantRun(variant=variant(COPY, name)) for name in names),
        canaries=tuple(VariantRun(variant=variant(each, name)) for name, each in canaries.items()),
    ).having(results=results)  # fmt: skip


def judged(  # noqa: PLR0913 - a run has that many sides
    moved: Shifts,
    start: Mapping[str, float],
    end: Mapping[str, float] | None = None,
    *,
    fail_on: tuple[str, ...] = Policy().fail_on,
    kernels: float = 1.0,
    units: str = "",
    screened: Shifts | None = None,
) -> Machine:
    """Judge variants moved by unit, with a canary moved at the start and at the end.

    The first variant launches so many ``kernels`` where it was one. Entries are of these ``units``,
    by default of those measured. What was ``screened`` on other units is confirmed here.
    """
    before = {name: measured(name, each, Stage.SCREEN) for name, each in (screened or {}).items()}
    stage = Stage.CONFIRM if screened else Stage.SCREEN
    screens = {
        name: measured(name, shifts, stage, kernels if name == FIRST else 1.0)
        for name, shifts in moved.items()
    }
    against = replace(AGAINST, policy=Policy(fail_on=fail_on), screened=before)
    entries = {name: known(name, units or "".join(start)) for name in (*moved, CANARY)}
    canaries = (
        measured(CANARY, start, Stage.CANARY_START),
        measured(CANARY, end or start, Stage.CANARY_END),
    )
    run = run_of((canaries[0], *before.values(), *screens.values(), canaries[1]), {CANARY: COPY})
    verdicts = judge(
        screens, variants=[one.variant for one in run.variants], entries=entries, against=against
    )
    return judge_machine(run, verdicts, entries=entries, against=against)


def on(unit: str, *shifts: float) -> dict[str, dict[str, float]]:
    return {f"p.{unit}{number}[]": {unit: shift} for number, shift in enumerate(shifts)}


def at(unit: str, *shifts: float) -> dict[str, dict[str, float]]:
    """The same variants on another unit."""
    return {name: {unit: by["a"]} for name, by in on("a", *shifts).items()}


MIXED = (0.03, 0.03, 0.03, -0.03, -0.03, *[0.0] * 15)
ALL = {"a": 0.03}


@pytest.mark.parametrize(
    ("moved", "start", "units", "shift", "words"),
    [
        (on("a", 0.03, 0.03, 0.0), ALL, "", ("slower", 2, 3), "unclear unclear same"),
        (on("a", -0.03, -0.03, -0.03), {"a": -0.03}, "", ("faster", 3, 3), "unclear"),
        (on("a", 0.03, 0.03, 0.03), {"a": 0.0}, "", None, "slower slower slower"),
        (on("a", 0.0, 0.0, 0.03), ALL, "", None, "same same slower"),
        (on("a", 0.03, 0.03, 0.03), {"a": -0.03}, "", None, "slower slower slower"),
        # Few are no pattern.
        (on("a", 0.03, 0.03), ALL, "", None, "slower slower"),
        (on("a", 0.03, 0.0, 0.0), ALL, "", None, "slower same same"),
        # Each unit is its own machine.
        (on("a", 0.03, 0.03, 0.03) | on("b", 0.03, 0.03, 0.03), {"a": 0.0, "b": 0.03}, "",
         ("slower", 3, 3), "slower slower slower unclear unclear unclear"),
        (on("a", 0.03, 0.03, 0.03) | on("b", *[-0.03] * 4), {"a": 0.03, "b": -0.03}, "",
         ("faster", 4, 4), "unclear unclear unclear unclear unclear unclear unclear"),
        # A card that the baseline has never seen, one that it knows, and one without a name.
        (at("c", *MIXED), {"c": 0.0}, "ab", ("slower", 3, 20), "unclear " * 5 + "same"),
        (at("c", *MIXED), {"c": 0.0}, "cb", None, "slower slower slower faster"),
        (at("c", *MIXED[:2], *MIXED[5:]), {"c": 0.0}, "ab", None, "unclear unclear same"),
        (at("", *MIXED), {"": 0.0}, "ab", None, ""),
    ],
)  # fmt: skip
def test_shifts(
    moved: Shifts,
    start: Mapping[str, float],
    units: str,
    shift: tuple[str, int, int] | None,
    words: str,
) -> None:
    found = judged(moved, start, units=units)
    one = found.shift
    assert (one and (one.word.value, one.moved, one.comparable)) == shift
    told = [verdict.word.value for verdict in found.verdicts]
    assert told[: len(words.split())] == words.split()
    assert one is None or one.fails
    assert not any(v.fails for v in found.verdicts if v.word.value == "unclear")


def test_reasons_name_units_and_canaries() -> None:
    found = judged(on("a", 0.03, 0.03, 0.0), ALL)
    assert found.shift is not None
    assert kinds(found.shift.reasons) == ["shifted", "canary", "canary"]
    (canary, _) = facts(found.shift.reasons, "canary")
    assert (canary["name"], canary["stage"], canary["unit"]) == (CANARY, "canary-start", "a")
    assert kinds(found.verdicts[0].reasons)[0] == "machine_shift"
    strange = judged(at("c", *MIXED), {"c": 0.0}, units="ab")
    assert strange.shift is not None
    assert kinds(strange.shift.reasons) == ["shifted_card", "shifted_card"]
    assert "one_card" in kinds(strange.verdicts[0].reasons)
    alone = judged(on("a", 0.0, 0.0, 0.0), {"a": 0.0}, {"a": 0.02})
    assert kinds(alone.notes) == ["canary", "drift"]


def test_what_a_card_that_the_baseline_knows_found_first_is_the_code() -> None:
    shifts = [0.03] * 5 + [0.0] * 15
    found = judged(at("c", *shifts), {"c": 0.0}, units="ab", screened=at("a", *shifts))
    assert found.shift is None
    assert {v.word.value for v in found.verdicts[:5]} == {"slower"}


def test_what_has_no_noise_is_slower_on_any_machine() -> None:
    found = judged(on("a", 0.03, 0.03, 0.03), ALL, kernels=2.0)
    assert [v.word.value for v in found.verdicts] == ["slower", "unclear", "unclear"]
    assert found.verdicts[0].fails


def test_policy_says_whether_a_shift_fails() -> None:
    found = judged(on("a", 0.03, 0.03, 0.03), ALL, fail_on=("slower", "unclear"))
    assert found.shift is not None
    assert not found.shift.fails
    assert all(v.fails for v in found.verdicts)


def test_a_canary_of_an_entry_that_cannot_be_compared_says_nothing() -> None:
    start, end = (measured(CANARY, {"a": each}, Stage.CANARY_END) for each in (0.0, 0.02))
    known_one = known(CANARY, "a")
    for one in (
        structs.replace(known_one, regime="floating"),
        structs.replace(known_one, metrics={}),
    ):
        assert drift_of(variant(COPY), start, end, entry=one, against=AGAINST) is None


def test_the_canary_of_most_operations_lends_its_clock() -> None:
    works = {"p.copy[]": COPY, "p.gemm[]": Work(flops=1e12)}
    results = tuple(measured(name, {"a": 0.0, "b": 0.0}, Stage.CANARY_START) for name in works)
    run = run_of(results, works)
    entries = {name: known(name, "a") for name in works}
    both = {"a": 1600.0, "b": 1600.0}
    for found in canary_clocks(run, entries):
        assert found == pytest.approx(both)
    assert canary_clocks(structs.replace(run, canaries=run.canaries[:1]), entries) == ({}, {})
    lost = result({"time_us": -1.0}).evidence
    bad = tuple(structs.replace(each, evidence=lost) for each in results)
    assert canary_clocks(run.having(results=bad), entries) == ({}, {})
