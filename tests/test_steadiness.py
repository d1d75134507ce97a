"""When launches count as settled: what agrees, what only scatters, what drifts."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from perfsuite.engine.calibrate import SCATTERING, is_steady, unsteady_note

TOLERANCE = 0.002
# As many groups as fit the time limit on a GPU.
MOST = 280
SEEDS = range(25)


def settled_at(level: Callable[[int], float], noise: float, seed: int, *, samples: int = 4) -> int:
    """Return after how many groups of samples a level with noise is steady, MOST if never.

    Without a tolerance, that three of them agree by luck is left out.
    """
    draw = random.Random(seed)  # noqa: S311 - noise, not secrets
    levels: list[float] = []
    for index in range(MOST):
        drawn = [level(index) * (1 + draw.gauss(0, noise)) for _ in range(samples)]
        levels.append(statistics.median(drawn))
        if is_steady(levels, 0.0):
            return index + 1
    return MOST


def steady(*levels: float) -> bool:
    return is_steady(levels, TOLERANCE)


def test_groups_that_agree_are_steady_at_once() -> None:
    assert steady(2.0, 1.0, 1.001, 1.0)
    assert not steady(2.0, 1.0, 1.001)
    assert not steady(1.0, 1.0)


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_what_scatters_about_one_level_settles_soon(noise: float, samples: int) -> None:
    found = sorted(settled_at(lambda index: 1.0, noise, seed, samples=samples) for seed in SEEDS)
    assert found[0] >= SCATTERING
    assert found[len(found) // 2] <= SCATTERING + 1
    assert found[-1] <= 2.5 * SCATTERING


@pytest.mark.parametrize(("samples", "noise"), [(4, 0.02), (1, 0.01)])
@pytest.mark.parametrize("pace", [-0.01, 0.01])
def test_a_drift_does_not_settle(pace: float, noise: float, samples: int) -> None:
    def level(index: int) -> float:
        return math.exp(pace * index)

    assert all(settled_at(level, noise, seed, samples=samples) == MOST for seed in SEEDS)


def test_single_samples_that_scatter_hide_no_long_decay() -> None:
    def level(index: int) -> float:
        return 1 + 0.1 * math.exp(-index / 50)

    left = sorted(level(settled_at(level, 0.005, seed, samples=1)) - 1 for seed in SEEDS)
    assert left[len(left) // 2] < 0.04


def test_a_drift_of_noise_alone_is_no_reason_to_wait() -> None:
    assert not steady(*(1.0 + 0.01 * index for index in range(SCATTERING)))
    assert steady(*(1.0 + 0.01 * (index % 2) for index in range(SCATTERING)))


def test_a_warm_up_is_over_before_what_scatters_is_steady() -> None:
    def level(index: int) -> float:
        return 1 + 0.1 * math.exp(-index / 5)

    left = sorted(level(settled_at(level, 0.03, seed)) - 1 for seed in SEEDS)
    # Of 10 %, less than the error of a block of 16 such samples.
    assert left[int(0.9 * len(left))] < 0.03 / math.sqrt(16)


def test_groups_that_lost_their_times_are_not_steady() -> None:
    for lost in (math.inf, math.nan):
        assert not steady(*[1.0, lost, 1.1] * SCATTERING)


def test_a_step_is_outlasted() -> None:
    def level(index: int) -> float:
        return 1.1 if index < SCATTERING - 4 else 1.0

    assert all(settled_at(level, 0.01, seed) > SCATTERING + 1 for seed in SEEDS)


def test_the_reason_names_the_last_groups() -> None:
    for levels, why in (
        ([1.0], "only 1 of 3 groups fitted"),
        ([1.0, 1.0, 1.0, 1.02, 1.0], "last 3 groups differ by 2.00%"),
    ):
        assert unsteady_note(levels, 3.0) == f"did not settle within 3 s ({why})"
