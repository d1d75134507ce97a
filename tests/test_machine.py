"""A changed machine told from changed code, from made-up processes of known truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judge_data import COPY, GROUNDS, clocks, entry, facts, kinds, result, run_of, variant
from msgspec import structs

from perfsuite.judge.compare import Policy
from perfsuite.judge.machine import Machine, judge_machine
from perfsuite.judge.noise import canary_clocks
from perfsuite.judge.verdict import judge
from perfsuite.model import Expected, Metric, Result, Stage, VariantRun, Work

FIRST, CANARY = "p.a0[]", "p.copy[]"
KERNELS = {Metric("kernels", "count"): 1.0}
Moves = Mapping[str, Mapping[str, float]]


def measured(name: str, moved: Mapping[str, float], stage: Stage, kernels: float = 1.0) -> Result:
    """Processes that are moved on each unit by a log change, at the same clock."""
    each = [
        result(clocks(by), unit=unit, wobble=0.4, exact={"kernels": kernels}).evidence
        for unit, by in moved.items()
    ]
    evidence = tuple(process for processes in each for process in processes)
    return structs.replace(result(variant=name, stage=stage), evidence=evidence)


def judged(moved: Moves, start: Mapping[str, float], units: str = "", **more: Any) -> Machine:
    """Judge variants moved by unit, with a canary moved at the start and at the ``end``.

    The first variant launches so many ``kernels`` where it was one. Entries are of these ``units``,
    by default of those measured. What was ``screened`` on other units is confirmed here. ``known``
    are fields of the canary's entry.
    """
    screened, kernels = more.get("screened", {}), more.get("kernels", 1.0)
    stage = Stage.CONFIRM if screened else Stage.SCREEN
    policy = Policy(fail_on=more.get("fail_on", Policy().fail_on))

    def held(name: str, work: Work = COPY, **known: Any) -> VariantRun:
        exact = KERNELS if name == FIRST else {}
        before = entry(
            clocks(), 6, units=units or "".join(start), wobble=0.4, variant=name, exact=exact
        )
        expected = Expected(entry=structs.replace(before, **known))
        return VariantRun(variant=variant(work, name), expected=expected)

    run = run_of(*map(held, moved), canaries=(held(CANARY, **more.get("known", {})),)).having(
        results=[
            measured(CANARY, start, Stage.CANARY_START),
            *(measured(name, each, Stage.SCREEN) for name, each in screened.items()),
            *(
                measured(name, by, stage, kernels if name == FIRST else 1.0)
                for name, by in moved.items()
            ),
            measured(CANARY, more.get("end", start), Stage.CANARY_END),
        ]
    )
    verdicts = judge(run, stage, policy=policy)
    return judge_machine(run, verdicts, replace(GROUNDS, policy=policy))


def on(unit: str, *moves: float) -> dict[str, dict[str, float]]:
    return {f"p.{unit}{number}[]": {unit: by} for number, by in enumerate(moves)}


def at(unit: str, *moves: float) -> dict[str, dict[str, float]]:
    """The same variants on another unit."""
    return {name: {unit: by["a"]} for name, by in on("a", *moves).items()}


MIXED = (0.03, 0.03, 0.03, -0.03, -0.03, *[0.0] * 15)
CODE = (*[0.03] * 5, *[0.0] * 15)
ALL = {"a": 0.03}


@pytest.mark.parametrize(
    ("moved", "start", "more", "shift", "words"),
    [
        (on("a", 0.03, 0.03, 0.0), ALL, {}, ("slower", 2, 3), "unclear unclear same"),
        (on("a", -0.03, -0.03, -0.03), {"a": -0.03}, {}, ("faster", 3, 3), "unclear"),
        (on("a", 0.03, 0.03, 0.03), {"a": 0.0}, {}, None, "slower slower slower"),
        (on("a", 0.0, 0.0, 0.03), ALL, {}, None, "same same slower"),
        (on("a", 0.03, 0.03, 0.03), {"a": -0.03}, {}, None, "slower slower slower"),
        # Few are no pattern.
        (on("a", 0.03, 0.03), ALL, {}, None, "slower slower"),
        (on("a", 0.03, 0.0, 0.0), ALL, {}, None, "slower same same"),
        # Each unit is its own machine.
        (on("a", 0.03, 0.03, 0.03) | on("b", 0.03, 0.03, 0.03), {"a": 0.0, "b": 0.03}, {},
         ("slower", 3, 3), "slower slower slower unclear unclear unclear"),
        (on("a", 0.03, 0.03, 0.03) | on("b", *[-0.03] * 4), {"a": 0.03, "b": -0.03}, {},
         ("faster", 4, 4), "unclear unclear unclear unclear unclear unclear unclear"),
        # What has no noise is slower on any machine.
        (on("a", 0.03, 0.03, 0.03), ALL, {"kernels": 2.0}, ("slower", 3, 3),
         "slower unclear unclear"),
        # A card that the baseline has never seen, one that it knows, and one without a name.
        (at("c", *MIXED), {"c": 0.0}, {"units": "ab"}, ("slower", 3, 20), "unclear " * 5 + "same"),
        (at("c", *MIXED), {"c": 0.0}, {"units": "cb"}, None, "slower slower slower faster"),
        (at("c", *MIXED[:2], *MIXED[5:]), {"c": 0.0}, {"units": "ab"}, None,
         "unclear unclear same"),
        (at("", *MIXED), {"": 0.0}, {"units": "ab"}, None, ""),
        # What a card that the baseline knows found first is the code.
        (at("c", *CODE), {"c": 0.0}, {"units": "ab", "screened": at("a", *CODE)}, None,
         "slower " * 5 + "same"),
    ],
)  # fmt: skip
def test_shifts(
    moved: Moves, start: Mapping[str, float], more: Any, shift: tuple[Any, ...], words: str
) -> None:
    found = judged(moved, start, **more)
    one = found.shift
    assert (one and (one.word.value, one.moved, one.comparable)) == shift
    told = [verdict.word.value for verdict in found.verdicts]
    assert told[: len(words.split())] == words.split()
    assert one is None or one.fails
    assert not any(v.fails for v in found.verdicts if v.word.value == "unclear")
    assert found.verdicts[0].fails or "kernels" not in more


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


@pytest.mark.parametrize(
    ("known", "notes"),
    [({}, ["canary", "drift"]), ({"regime": "floating"}, []), ({"metrics": {}}, [])],
)
def test_canaries_that_moved_alone_are_noted(known: dict[str, Any], notes: list[str]) -> None:
    found = judged(on("a", 0.0, 0.0, 0.0), {"a": 0.0}, end={"a": 0.02}, known=known)
    assert kinds(found.notes) == notes


def test_policy_says_whether_a_shift_fails() -> None:
    found = judged(on("a", 0.03, 0.03, 0.03), ALL, fail_on=("slower", "unclear"))
    assert found.shift is not None
    assert not found.shift.fails
    assert all(v.fails for v in found.verdicts)


def test_the_canary_of_most_operations_lends_its_clock() -> None:
    works = {"p.copy[]": COPY, "p.gemm[]": Work(flops=1e12)}
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
    lost = structs.replace(result({"time_us": -1.0}), stage=Stage.CANARY_END)
    bad = structs.replace(canaries[1], results=(lost,))
    assert canary_clocks(run_of(canaries=(bad,))) == ({}, {})
