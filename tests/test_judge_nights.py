"""An entry against several nights: levels with noise of known truth."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest
from store_data import FACTS, OTHER_UNIT, SKU, UNIT, variant

from perfsuite.judge.compare import Against
from perfsuite.model import BaselineEntry, BaselineMetric, Change
from perfsuite.run.accept import is_one_level, level_changes

COPY = variant("copy", 1024)
AGAINST = Against(facts=FACTS, slug=SKU.slug)
# What the class's prior says of memory-bound kernels, about.
RUN, BETWEEN = 0.0004, 0.001
TRIALS = 300


def entry(
    rng: np.random.Generator, level: float, *, run: float = RUN, unit: str = UNIT, **exact: float
) -> BaselineEntry:
    """One night's three processes, which share the night's level."""
    night = level * math.exp(rng.normal(0, run))
    times = tuple(night * math.exp(rng.normal(0, BETWEEN)) for _ in range(3))
    values = {
        "time_us": BaselineMetric(center=fmean(times), unit="us", values={unit: times}),
        "cycles": BaselineMetric(
            center=1980 * fmean(times),
            unit="cycles",
            values={unit: tuple(1980 * time for time in times)},
        ),
    }
    counted = {name: BaselineMetric(center=each, unit="count") for name, each in exact.items()}
    return BaselineEntry(variant=COPY.id, case_version=1, run="r", metrics={**values, **counted})


def change_of(rng: np.random.Generator, level: float, nights: int, run: float = RUN) -> Change:
    old = entry(rng, 100.0, run=run)
    found = level_changes(COPY, old, [entry(rng, level, run=run) for _ in range(nights)], AGAINST)
    assert [each.metric for each in found] == ["time_us"]
    return found[0]


@pytest.mark.parametrize(("level", "nights"), [(100.0, 5), (101.0, 5), (99.0, 1)])
def test_intervals_hold_the_truth(level: float, nights: int) -> None:
    rng = np.random.default_rng(7)
    found = [change_of(rng, level, nights) for _ in range(TRIALS)]
    truth = level / 100 - 1
    missed = sum(not each.low <= truth <= each.high for each in found)
    assert missed <= 0.02 * TRIALS  # of 99 % intervals; they are wider than need be
    assert fmean(each.theta for each in found) == pytest.approx(truth, abs=1e-4)


def test_nights_that_scatter_more_than_is_usual_widen_the_interval() -> None:
    rng = np.random.default_rng(8)
    found = [change_of(rng, 100.0, 5, run=0.004) for _ in range(TRIALS)]
    wrong = sum(each.low > 0 or each.high < 0 for each in found)
    # Fifteen processes taken for independent ones would call a change in half of these.
    assert wrong <= 0.06 * TRIALS
    calm = fmean(each.high - each.low for each in (change_of(rng, 100.0, 5) for _ in range(50)))
    assert fmean(each.high - each.low for each in found) > 1.5 * calm


def test_a_unit_counts_as_much_as_any_other_however_many_nights_it_had() -> None:
    rng = np.random.default_rng(10)
    slow = 1.02  # this card is slower, and has most of the nights
    values = {UNIT: (100.0, 100.01, 99.99), OTHER_UNIT: (102.0, 102.01, 101.99)}
    time = BaselineMetric(center=101.0, unit="us", values=values)
    old = BaselineEntry(variant=COPY.id, case_version=1, run="r", metrics={"time_us": time})
    nights = [entry(rng, 100.0)] + [entry(rng, 100 * slow, unit=OTHER_UNIT) for _ in range(4)]
    (found,) = level_changes(COPY, old, nights, AGAINST)
    assert found.theta == pytest.approx(0, abs=0.0012)


def test_nights_of_one_level_are_told_from_those_of_another() -> None:
    rng = np.random.default_rng(11)
    level = [entry(rng, 100.0) for _ in range(4)]
    assert is_one_level(COPY, entry(rng, 100.0), level, AGAINST)
    assert not is_one_level(COPY, entry(rng, 102.0), level, AGAINST)
    counted = [entry(rng, 100.0, registers=32) for _ in range(4)]
    assert not is_one_level(COPY, entry(rng, 100.0, registers=40), counted, AGAINST)


def test_what_has_no_noise_changes_where_all_nights_agree() -> None:
    rng = np.random.default_rng(12)
    old = entry(rng, 100.0, registers=32)
    for counts, expected in (((40, 40), [0.25]), ((40, 32), [])):
        nights = [entry(rng, 100.0, registers=count) for count in counts]
        found = level_changes(COPY, old, nights, AGAINST)
        assert [each.theta for each in found[1:]] == expected
