"""When launches count as settled: what agrees, what only scatters, what drifts."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from perfsuite.engine.steadiness import AGREEING, SCATTERING, SCATTERING_LONG, Groups

TOLERANCE = 0.002
# As many groups as fit the time limit on a GPU.
MOST = 280
SEEDS = range(25)


def settled_at(
    level: Callable[[int], float], noise: float, seed: int, *, row: int = SCATTERING
) -> int:
    """Return after how many groups of four samples a level with noise is steady, MOST if never.

    Without a tolerance, that three of them agree by luck is left out.
    """
    draw = random.Random(seed)  # noqa: S311 - noise, not secrets
    groups = Groups(0.0, row=row)
    for index in range(MOST):
        samples = [level(index) * (1 + draw.gauss(0, noise)) for _ in range(4)]
        groups.add(statistics.median(samples))
        if groups.are_steady:
            return index + 1
    return MOST


def steady(*levels: float) -> bool:
    groups = Groups(TOLERANCE)
    for level in levels:
        groups.add(level)
    return groups.are_steady


def test_groups_that_agree_are_steady_at_once() -> None:
    assert steady(2.0, 1.0, 1.001, 1.0)
    assert not steady(2.0, 1.0, 1.001)
    assert not steady(1.0, 1.0)


@pytest.mark.parametrize("row", [SCATTERING, SCATTERING_LONG])
@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_what_scatters_about_one_level_settles_soon(noise: float, row: int) -> None:
    found = sorted(settled_at(lambda index: 1.0, noise, seed, row=row) for seed in SEEDS)
    assert found[0] >= row
    assert found[len(found) // 2] <= row + 1
    assert found[-1] <= 2.5 * row


@pytest.mark.parametrize(("row", "noise"), [(SCATTERING, 0.02), (SCATTERING_LONG, 0.005)])
@pytest.mark.parametrize("pace", [-0.01, 0.01])
def test_a_drift_does_not_settle(pace: float, noise: float, row: int) -> None:
    def level(index: int) -> float:
        return math.exp(pace * index)

    assert all(settled_at(level, noise, seed, row=row) == MOST for seed in SEEDS)


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
    groups = Groups(TOLERANCE)
    groups.add(1.0)
    assert groups.why_not(3.0) == "did not settle within 3 s (only 1 of 3 groups fitted)"
    for level in (1.0, 1.0, 1.02, 1.0)[-AGREEING:]:
        groups.add(level)
    assert groups.why_not(3.0) == "did not settle within 3 s (last 3 groups differ by 2.00%)"
