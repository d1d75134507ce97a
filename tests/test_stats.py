"""Estimates from made-up numbers of known truth."""

from __future__ import annotations

import math

import pytest

from perfsuite import stats
from perfsuite.stats import Variance


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_estimate_without_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"values|median"):
        stats.estimate([values])


def test_variances_are_pooled_by_their_degrees_of_freedom() -> None:
    assert stats.pooled([[1.0, 3.0], [101.0, 103.0]]) == Variance(2.0, 2.0)
    assert stats.pooled([[1.0], [7.0]]) == Variance(0.0, 0.0)
    # Student's t of 4 degrees.
    assert Variance(4.0, 4).reach(0.975) == pytest.approx(2 * 2.776, abs=0.001)


def test_the_least_sample_is_of_all_blocks_and_finite() -> None:
    assert stats.least([[3.0, 2.0], [], [2.5]]) == 2.0
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            stats.least([[1.0], [bad]])
