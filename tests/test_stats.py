"""Estimates from made-up numbers of known truth."""

from __future__ import annotations

import math
import random
import sys

import numpy as np
import pytest

from perfsuite import stats
from perfsuite.stats import Difference, MeanSquare, Variance

PRIOR = Variance(0.0015**2, 6)


def test_hodges_lehmann_is_the_median_of_pairwise_means() -> None:
    assert stats.hodges_lehmann([1.0, 2.0, 9.0]) == 3.5
    assert stats.hodges_lehmann([4.0]) == 4.0


def test_estimate_ignores_slow_samples_and_one_bad_block() -> None:
    blocks = [[10.0, 10.0, 99.0], [10.1, 10.1, 10.1], [10.2, 10.2, 50.0], [14.0, 14.0, 14.0]]
    assert stats.estimate(blocks) == pytest.approx(10.15, abs=0.1)


def test_estimate_passes_over_empty_blocks() -> None:
    assert stats.estimate([[], [3.0]]) == 3.0


def test_components_find_the_spreads_they_were_made_with() -> None:
    rnd = random.Random(1)  # noqa: S311 - simulated noise
    processes = [
        [[100 * math.exp(level + rnd.gauss(0, 0.01)) for _ in range(40)] for level in [level] * 3]
        for level in [rnd.gauss(0, 0.05) for _ in range(200)]
    ]
    found = stats.components(processes)
    assert found.center == pytest.approx(100, rel=0.02)
    assert found.within == pytest.approx(0.01, rel=0.05)
    assert found.between == pytest.approx(0.05, rel=0.15)


def test_one_process_has_no_spread_between() -> None:
    found = stats.components([[[5.0, 5.0]]])
    assert found.center == pytest.approx(5.0)
    assert found.within == found.between == 0.0


def test_pooled_variance_takes_each_group_about_its_own_mean() -> None:
    found = stats.pooled([[1.0, 3.0], [101.0, 103.0]])
    assert found.degrees == 2.0
    assert found.value == pytest.approx(2.0)
    assert stats.pooled([[1.0], [7.0]]) == Variance(0.0, 0.0)


def test_moderated_variance_is_weighted_by_degrees_of_freedom() -> None:
    assert stats.moderated(Variance(4.0, 2), Variance(1.0, 6)) == Variance(1.75, 8)


def test_prior_alone_stands_for_a_sample_of_one() -> None:
    found = stats.moderated(Variance(0.0, 0), PRIOR)
    assert found.degrees == 6
    assert found.value == pytest.approx(PRIOR.value)


def difference(theta: float, error: float, degrees: float) -> Difference:
    return Difference(theta, (Variance(error**2, degrees),))


def test_degrees_of_the_whole_lie_between_the_smallest_part_and_their_sum() -> None:
    assert Difference(0.0, (Variance(1.0, 4), Variance(1.0, 4))).degrees == 8.0
    assert Difference(0.0, (Variance(1.0, math.inf),)).degrees == math.inf


@pytest.mark.parametrize("degrees", [(12, 6), (3, 8), (1.5, 8), (2, 2)])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_interval_of_a_sum_errs_no_more_than_it_says(
    degrees: tuple[float, float], ratio: float
) -> None:
    drawn = np.random.default_rng(2)
    errors = drawn.standard_t(degrees[0], 200_000) + ratio * drawn.standard_t(degrees[1], 200_000)
    parts = (Variance(1.0, degrees[0]), Variance(ratio**2, degrees[1]))
    error = (np.abs(errors) > Difference(0.0, parts).reach(0.995)).mean()
    assert 0.006 <= error <= 0.0115


def test_interval_covers_as_often_as_it_says() -> None:
    rnd = random.Random(2)  # noqa: S311 - simulated noise
    hits = 0
    for _ in range(2000):
        values = [rnd.gauss(0, 1) for _ in range(5)]
        error = stats.spread(values) / math.sqrt(5)
        low, high = difference(sum(values) / 5, error, 4).interval(0.05)
        hits += low < 0 < high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_p_value_and_interval_agree_at_the_threshold() -> None:
    low, _ = difference(0.02, 0.004, 9).interval(0.01)
    assert difference(0.02, 0.004, 9).p_beyond(low) == pytest.approx(0.005)
    assert difference(-0.02, 0.004, 9).p_beyond(low) == pytest.approx(0.005)
    assert difference(0.01, 0.004, 9).p_beyond(0.02) == pytest.approx(
        1 - difference(0.03, 0.004, 9).p_beyond(0.02)
    )


def test_detectable_change_is_found_nine_times_in_ten() -> None:
    rnd = random.Random(3)  # noqa: S311 - simulated noise
    change = difference(0.0, 0.001, 1e6).detectable(0.0025, 0.01)
    found = sum(
        difference(rnd.gauss(change, 0.001), 0.001, 1e6).interval(0.01)[0] > 0.0025
        for _ in range(3000)
    )
    assert found / 3000 == pytest.approx(0.9, abs=0.02)


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
        [MeanSquare(float(each), own, noise) for each in squares], Variance(1e-6, 3.0)
    )
    assert math.sqrt(found.value) == pytest.approx(center, rel=0.35)
    assert found.degrees == pytest.approx(degrees, rel=0.4)


def test_little_is_learned_from_one_variance_and_nothing_from_none() -> None:
    prior = Variance(1e-6, 3.0)
    assert stats.learned([], prior) == prior
    odd = stats.learned([MeanSquare(1e-4, 1)], prior)
    assert 1e-6 < odd.value < 8e-6
    assert 1.5 < odd.degrees < 3


def test_variance_that_noise_explains_is_none() -> None:
    assert MeanSquare(2.0, 3, noise=3.0).variance == Variance(0.0, 3)
    assert MeanSquare(5.0, 3, noise=3.0).variance == Variance(2.0, 3)


def test_main_mode_leaves_out_two_strays_that_could_hide_each_other() -> None:
    values = [0.0, -0.09, 0.001, -0.001, -0.0901]
    assert stats.main_mode(values, prior=PRIOR, most=2) == [0.0, 0.001, -0.001]


def test_main_mode_keeps_no_less_than_it_must() -> None:
    values = [0.0, -0.09, 0.001, -0.001, -0.0901]
    assert len(stats.main_mode(values, prior=PRIOR, most=1)) >= 4
    assert stats.main_mode(values, prior=PRIOR, most=0) == pytest.approx(values)


def test_main_mode_keeps_ordinary_noise_whole() -> None:
    rnd = random.Random(4)  # noqa: S311 - simulated noise
    rows = [[rnd.gauss(0, 0.0015) for _ in range(6)] for _ in range(500)]
    kept = [len(stats.main_mode(row, prior=PRIOR, most=2)) for row in rows]
    assert kept.count(6) >= 495


def test_false_discovery_rate_follows_benjamini_and_hochberg() -> None:
    assert stats.accepted([0.01, 0.02, 0.03, 0.9], 0.05) == [True, True, True, False]
    assert stats.accepted([0.04, 0.9, 0.9, 0.9], 0.05) == [False] * 4
    assert stats.accepted([], 0.05) == []


def test_what_nothing_stands_out_of_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert stats.accepted([0.06, 0.9], 0.05) == [False, False]
    with pytest.raises(ImportError):
        stats.accepted([0.04, 0.9], 0.05)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_estimate_without_finite_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="values"):
        stats.hodges_lehmann(values)


def test_components_refuse_a_duration_of_zero() -> None:
    with pytest.raises(ValueError, match=r"positive, not 0\.0"):
        stats.components([[[1.0, 0.0]]])


@pytest.mark.parametrize(("before", "now"), [(5, 6), (8, 6), (3, 9)])
def test_rank_interval_covers_a_skewed_distribution(before: int, now: int) -> None:
    drawn = np.random.default_rng(6)
    hits = 0
    for _ in range(3000):
        sides = drawn.exponential(1.0, before), drawn.exponential(1.0, now) + 0.5
        found = stats.rank_interval(sides[0].tolist(), sides[1].tolist(), 0.05)
        assert found is not None
        hits += found[0] <= 0.5 <= found[1]
    assert 0.945 <= hits / 3000 <= 0.99


def test_rank_interval_is_that_of_the_exact_test() -> None:
    before, now = [0.0, 0.1, 0.2, 0.3, 0.4], [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert stats.rank_interval(before, now, 0.01) == pytest.approx((0.7, 1.4), abs=0.11)
    found = stats.rank_interval(before, now, 0.0044)
    assert found == pytest.approx((0.6, 1.5))  # all 30 differences: p = 2 / 462


def test_few_values_have_no_rank_interval() -> None:
    assert stats.rank_interval([0.0, 0.1, 0.2], [1.0] * 6, 0.01) is None


@pytest.mark.parametrize("degrees", [5, 20, 60, 600])
@pytest.mark.parametrize("factor", [0.1, 0.3, 1, 3, 10])
def test_a_class_is_learned_from_squares_of_many_degrees(degrees: float, factor: float) -> None:
    """Their likelihood is too small, or too large, for a float."""
    squares = [stats.MeanSquare((0.001 * factor) ** 2, degrees)] * 30
    found = stats.learned(squares, stats.Variance(0.001**2, 6))
    assert math.sqrt(found.value) == pytest.approx(0.001 * factor, rel=0.2)
    middle = stats.scattered(squares, stats.Scatter(0.001, 0.5)).middle
    assert middle == pytest.approx(0.001 * factor, rel=0.2)


def test_squares_of_nothing_are_no_error() -> None:
    found = stats.learned([stats.MeanSquare(0.0, 600)] * 3, stats.Variance(1e-6, 6))
    assert 0 < found.value <= 1e-6
