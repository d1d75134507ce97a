"""Estimates from made-up numbers of known truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from perfsuite import stats
from perfsuite.stats import Variance


@pytest.mark.parametrize("made", [stats.estimate, stats.least])
@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_estimate_without_finite_values(
    made: Callable[[list[list[float]]], float], values: list[float]
) -> None:
    with pytest.raises(ValueError, match=r"values|median|empty"):
        made([values])


def test_variances_are_pooled_by_their_degrees_of_freedom() -> None:
    assert stats.pooled([[1.0, 3.0], [101.0, 103.0]]) == Variance(2.0, 2.0)
    assert stats.pooled([[1.0], [7.0]]) == Variance(0.0, 0.0)
