"""Nominal against actual error of the decision, from simulated processes of known truth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from perfsuite.judge.compare import Policy, Timing, shift_of
from perfsuite.judge.noise import BY_CLASS, CPU, SERVICE, NoisePrior
from perfsuite.model import Metric, Word

MEMORY, UNKNOWN = BY_CLASS["memory"], BY_CLASS["unknown"]
NOMINAL = 0.01
REPEATS = 1500
Draw = Callable[[np.random.Generator, float, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def normal(
    rng: np.random.Generator, spread: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return rng.normal(0, spread, count)


def bimodal(
    rng: np.random.Generator, spread: float, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Every third process is in a mode of its own, 2 % away."""
    return rng.normal(0, spread, count) + 0.02 * (rng.random(count) < 1 / 3)


def scattered(rng: np.random.Generator, center: float, degrees: float) -> float:
    """A standard deviation of a class of this centre, as Smyth's prior has it."""
    return center * math.sqrt(degrees / rng.chisquare(degrees))


def error(
    prior: NoisePrior,
    *,
    processes: int,
    units: int = 0,
    draw: Draw = normal,
    repeats: int = REPEATS,
) -> float:
    """How often a 99 % interval of unchanged code leaves out 0; no ``units``: one for all."""
    rng = np.random.default_rng([processes, units])
    wrong = 0
    for _ in range(repeats):
        between = scattered(rng, prior.between, prior.degrees)
        level = (
            prior.unit * math.exp(rng.normal(0, prior.unit_spread))
            if units
            else scattered(rng, prior.run, prior.run_degrees)
        )
        sides: list[list[Timing]] = []
        for names in (range(max(units, 1)), ["now" if units else 0]):
            sides.append([])
            for name in names:
                logs = rng.normal(0, level) + draw(rng, between, processes)
                sides[-1] += [Timing(f"{name}", math.exp(log)) for log in logs]
        low, high = shift_of(*sides, prior=prior, policy=Policy()).interval(NOMINAL)
        wrong += low > 0 or high < 0
    return wrong / repeats


@pytest.mark.parametrize("processes", [3, 4, 6, 9, 12])
def test_interval_on_one_unit_errs_as_often_as_it_says(processes: int) -> None:
    assert 0.0 <= error(MEMORY, processes=processes) <= 1.6 * NOMINAL


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("processes", [3, 6, 12])
def test_interval_on_another_unit_errs_as_often_as_it_says(processes: int, units: int) -> None:
    found = error(UNKNOWN, processes=processes, units=units, repeats=1000)
    assert found <= 1.8 * NOMINAL


@pytest.mark.parametrize(("processes", "limit"), [(3, 0.03), (6, 0.015), (12, 0.015)])
def test_modes_of_processes_make_no_change(processes: int, limit: float) -> None:
    """Three processes may all be in one mode by luck, which no interval can know."""
    assert error(MEMORY, processes=processes, draw=bimodal) <= limit


def words(count: int, *, drift: float, change: float = 0.0, processes: int = 3) -> Counter[Word]:
    """What is said of CPU code whose processes drift by ``drift`` (range) around a run's level."""
    rng = np.random.default_rng([count, processes])
    found: Counter[Word] = Counter()
    for _ in range(count):
        levels = rng.normal([0.0, math.log1p(change)], CPU.run)

        def take(level: float, number: int) -> list[Timing]:
            logs = level + drift * rng.uniform(-0.5, 0.5, number)
            return [Timing("a", math.exp(log)) for log in logs]

        before = take(levels[0], processes)
        for number in (processes, 2 * processes):
            shift = shift_of(before, take(levels[1], number), prior=CPU, policy=Policy())
            word = shift.word(Policy())
            if word is Word.SAME:
                break
        found[word] += 1
    return found


@pytest.mark.parametrize("drift", [0.05, 0.10, 0.16])
def test_drifting_cpu_cries_no_wolf_and_finds_a_third_more(drift: float) -> None:
    unchanged = words(1000, drift=drift)
    assert unchanged[Word.SLOWER] + unchanged[Word.FASTER] <= 10
    assert unchanged[Word.UNCLEAR] <= 200
    assert words(300, drift=drift, change=0.3)[Word.SLOWER] >= 240


def test_quantiles_decide_where_enough_processes_tell_of_a_distribution() -> None:
    rng = np.random.default_rng(7)
    sides = [
        [Timing("a", float(each)) for each in level * rng.exponential(0.1, 8) + level]
        for level in (40.0, 80.0)
    ]
    metric = Metric("ttft_ms_p99", "ms")
    shift = shift_of(*sides, prior=SERVICE, policy=Policy(), metric=metric)
    assert shift.interval(0.01) != replace(shift, values=None).interval(0.01)
    assert shift.word(Policy()) is Word.SLOWER
    few = shift_of(sides[0][:3], sides[1], prior=SERVICE, policy=Policy(), metric=metric)
    assert few.interval(0.01) == replace(few, values=None).interval(0.01)
