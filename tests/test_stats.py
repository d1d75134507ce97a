"""Estimates from made-up numbers of known truth."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from perfsuite import stats
from perfsuite.stats import Difference, Variance

PRIOR = Variance(0.0015**2, 6)
STRAYED = [0.0, -0.09, 0.001, -0.001, -0.0901]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([[1.0], [2.0], [9.0]], 3.5),
        ([[4.0]], 4.0),
        ([[], [3.0]], 3.0),
        # Slow samples and one bad block count for little.
        ([[10.0, 10.0, 99.0], [10.1] * 3, [10.2, 10.2, 50.0], [14.0] * 3], 10.15),
    ],
)
def test_a_process_is_estimated_by_the_middles_of_its_blocks(
    blocks: list[list[float]], expected: float
) -> None:
    assert stats.estimate(blocks) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_estimate_without_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"values|median"):
        stats.estimate([values])


def test_variances_are_pooled_and_moderated_by_their_degrees_of_freedom() -> None:
    assert stats.pooled([[1.0, 3.0], [101.0, 103.0]]) == Variance(2.0, 2.0)
    assert stats.pooled([[1.0], [7.0]]) == Variance(0.0, 0.0)
    assert stats.moderated(Variance(4.0, 2), Variance(1.0, 6)) == Variance(1.75, 8)
    assert stats.moderated(Variance(0.0, 0), Variance(4.0, 6)) == Variance(4.0, 6)
    # What noise explains is no variance.
    assert stats.moderated(Variance(6.0, 2, noise=2.0), Variance(1.0, 6)) == Variance(1.75, 8)
    assert stats.moderated(Variance(2.0, 2, noise=3.0), Variance(4.0, 6)) == Variance(3.0, 8)
    # Between groups: what values in them have of it is noise.
    square = stats.between([[[0.0, 0.0], [0.02, 0.02]], [[5.0]]], 0.0004)
    assert (square.value, square.degrees, square.noise) == pytest.approx((0.0002, 1.0, 0.0002))
    assert stats.between([[[0.0]], [[1.0]]], 0.0004).degrees == 0


def test_main_mode_leaves_out_strays_that_could_hide_each_other_and_no_ordinary_noise() -> None:
    assert stats.main_mode(STRAYED, PRIOR) == [0.0, 0.001, -0.001]
    assert stats.main_mode([0.0, -0.09], PRIOR) == [0.0, -0.09]
    rnd = random.Random(4)  # noqa: S311 - simulated noise
    rows = [[rnd.gauss(0, 0.0015) for _ in range(6)] for _ in range(500)]
    kept = [len(stats.main_mode(row, PRIOR)) for row in rows]
    assert kept.count(6) >= 495


def difference(theta: float, error: float, degrees: float) -> Difference:
    return Difference(theta, (Variance(error**2, degrees),))


@pytest.mark.parametrize("degrees", [(12, 6), (1.5, 8), (2, 2)])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_interval_of_a_sum_errs_no_more_than_it_says(
    degrees: tuple[float, float], ratio: float
) -> None:
    drawn = np.random.default_rng(2)
    errors = drawn.standard_t(degrees[0], 200_000) + ratio * drawn.standard_t(degrees[1], 200_000)
    parts = (Variance(1.0, degrees[0]), Variance(ratio**2, degrees[1]))
    error = (np.abs(errors) > Difference(0.0, parts).interval(0.01)[1]).mean()
    assert 0.006 <= error <= 0.0115


def test_p_value_interval_and_detectable_change_agree() -> None:
    low, _ = difference(0.02, 0.004, 9).interval(0.01)
    assert difference(0.02, 0.004, 9).p_beyond(low) == pytest.approx(0.005)
    assert difference(-0.02, 0.004, 9).p_beyond(low) == pytest.approx(0.005)
    less, more = difference(0.01, 0.004, 9).p_beyond(0.02), difference(0.03, 0.004, 9)
    assert less == pytest.approx(1 - more.p_beyond(0.02))
    # A change that is called detectable is found nine times of ten.
    found = difference(0.0, 0.001, 1e6).detectable(0.0025, 0.01)
    assert found == pytest.approx(0.0025 + (2.5758 + 1.2816) * 0.001, rel=1e-3)
    assert Difference(0.0, (Variance(1.0, 4), Variance(1.0, 4))).degrees == 8.0
    assert Difference(0.0, (Variance(1.0, math.inf),)).degrees == math.inf


@pytest.mark.parametrize(
    ("center", "degrees", "own", "noise"),
    [(1e-3, 2.0, 1, 1e-7), (5e-3, 4.0, 2, 0.0), (3e-4, 2.0, 3, 1e-8)],
)
def test_variances_of_a_class_are_learned(
    center: float, degrees: float, own: int, noise: float
) -> None:
    drawn = np.random.default_rng(1)
    variances = center**2 * degrees / drawn.chisquare(degrees, 150)
    squares = (variances + noise) * drawn.chisquare(own, 150) / own
    found = stats.learned(
        [Variance(float(each), own, noise) for each in squares], Variance(1e-6, 3)
    )
    assert math.sqrt(found.value) == pytest.approx(center, rel=0.35)
    assert found.degrees == pytest.approx(degrees, rel=0.4)


def test_little_is_learned_from_one_variance_and_nothing_from_none() -> None:
    prior = Variance(1e-6, 3.0)
    assert stats.learned([], prior) == prior
    odd = stats.learned([Variance(1e-4, 1)], prior)
    assert 1e-6 < odd.value < 8e-6
    assert 1.5 < odd.degrees < 3
    assert 0 < stats.learned([Variance(0.0, 600)] * 3, prior).value <= 1e-6


@pytest.mark.parametrize("degrees", [5, 600])
@pytest.mark.parametrize("factor", [0.1, 1, 10])
def test_a_class_is_learned_from_squares_of_many_degrees(degrees: float, factor: float) -> None:
    """Their likelihood is too small, or too large, for a float."""
    squares = [Variance((0.001 * factor) ** 2, degrees)] * 30
    found = math.sqrt(stats.learned(squares, Variance(0.001**2, 6)).value)
    middle, _ = stats.scattered(squares, 0.001, 0.5)
    assert [found, middle] == pytest.approx([0.001 * factor] * 2, rel=0.2)


def test_rank_interval_is_that_of_the_exact_test_and_covers_a_skewed_distribution() -> None:
    before, now = [0.0, 0.1, 0.2, 0.3, 0.4], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert stats.rank_interval(before, now, 0.01) == pytest.approx((0.7, 1.4), abs=0.11)
    # All 30 differences: p = 2 / 462.
    assert stats.rank_interval(before, now, 0.0044) == pytest.approx((0.6, 1.5))
    assert stats.rank_interval(before[:3], now, 0.01) is None
    drawn = np.random.default_rng(6)
    hits = 0
    for _ in range(2000):
        sides = drawn.exponential(1.0, 5).tolist(), (drawn.exponential(1.0, 6) + 0.5).tolist()
        low, high = stats.rank_interval(*sides, 0.05) or (0.0, 0.0)
        hits += low <= 0.5 <= high
    assert 0.945 <= hits / 2000 <= 0.99


def test_the_least_sample_is_of_all_blocks_and_finite() -> None:
    assert stats.least([[3.0, 2.0], [], [2.5]]) == 2.0
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            stats.least([[1.0], [bad]])
