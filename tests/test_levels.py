"""Where the level of a series shifts: made-up series, recorded ones, and what otava says."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from perfsuite.history.store import shifts

DATA = Path(__file__).parent / "data"
NOISE = 0.003


def indexes(values: list[float]) -> list[int]:
    return [shift.place for shift in shifts(values)]


def noise_of(rng: np.random.Generator, many: int) -> np.ndarray:
    return rng.normal(4.6, NOISE, many)


@pytest.mark.parametrize("many", [12, 30, 90, 365])
def test_noise_alone_shifts_in_fewer_than_one_series_in_a_hundred(many: int) -> None:
    rng = np.random.default_rng(7)
    found = sum(bool(shifts(noise_of(rng, many).tolist())) for _ in range(300))
    assert found <= 3


def test_noise_with_heavy_tails_and_strays_seldom_shifts() -> None:
    rng = np.random.default_rng(8)
    found = 0
    for _ in range(200):
        values = rng.standard_t(3, 90) * NOISE
        values[rng.integers(90)] += 0.1
        found += bool(shifts(values.tolist()))
    assert found <= 6


@pytest.mark.parametrize(("many", "after", "least"), [(30, 3, 0.8), (90, 10, 0.9), (365, 5, 0.9)])
def test_a_step_of_four_deviations_is_found_where_it_is(
    many: int, after: int, least: float
) -> None:
    rng = np.random.default_rng(9)
    hits = 0
    for _ in range(100):
        values = noise_of(rng, many)
        values[many - after :] += 4 * NOISE
        hits += indexes(values.tolist()) == [many - after]
    assert hits >= 100 * least


def test_size_and_certainty_of_a_shift_are_told() -> None:
    values = noise_of(np.random.default_rng(1), 60)
    values[40:] -= math.log(1.05)
    (shift,) = shifts(values.tolist())
    assert shift.place == 40
    assert shift.size == pytest.approx(-math.log(1.05), abs=NOISE)
    assert shift.p_value < 1e-9


def test_up_and_down_again_are_two_shifts() -> None:
    values = noise_of(np.random.default_rng(2), 80)
    values[30:45] += 0.03
    assert indexes(values.tolist()) == [30, 45]


@pytest.mark.parametrize("strays", [1, 2])
def test_fewer_than_three_nights_are_no_level(strays: int) -> None:
    values = noise_of(np.random.default_rng(3), 40)
    values[20 : 20 + strays] += 0.2
    assert indexes(values.tolist()) == []


def test_values_without_noise_shift_where_they_change() -> None:
    assert indexes([math.log(64.0)] * 10) == []
    assert indexes([math.log(64.0)] * 7 + [math.log(72.0)] * 3) == [7]


def test_what_is_smaller_than_any_threshold_is_no_news() -> None:
    values = np.random.default_rng(4).normal(0, 0.0001, 200)
    values[100:] += 0.001
    assert indexes(values.tolist()) == []


@pytest.mark.parametrize("many", [0, 1, 5])
def test_few_values_have_one_level(many: int) -> None:
    assert shifts([1.0, 9.0, 1.0, 9.0, 1.0][:many]) == ()


def recorded() -> dict[str, list[float]]:
    """Return series of recorded processes on four H200s, with a real change of the kernel."""
    found = {}
    for kernel, entry in json.loads((DATA / "h200.json").read_text(encoding="utf-8")).items():
        for mode, arms in entry["series"].items():
            units = sorted(arms["A"])
            for clock in arms["A"][units[0]]:
                a, b = ({unit: arms[arm][unit][clock] for unit in units} for arm in "AB")
                name = f"{kernel} {mode} {clock}: "
                both = [value for arm in (a, b) for unit in units for value in arm[unit]]
                found[f"{name}A then B, four units"] = both
                one = units[0]
                found[f"{name}A then B then A, one unit"] = a[one][:8] + b[one] + a[one][8:]
    return found


# Where otava says something else: it misses the change of the kernel (at 28, 7, 8 and 21, 52),
# places it late, or calls the last value alone a level; of do_bench neither is right.
OTHERWISE = {
    "attention back_to_back time_us: A then B, four units": [13, 52],
    "copy_1gib back_to_back cycles: A then B then A, one unit": [8, 21],
    "fma_10us paced cycles: A then B, four units": [28],
    "fma_10us paced time_us: A then B, four units": [26],
    "fma_5us paced cycles: A then B, four units": [28],
    "fma_5us paced cycles: A then B then A, one unit": [7],
    "fma_5us paced time_us: A then B, four units": [28],
    "gemm_4096 paced time_us: A then B then A, one unit": [],
    "gemm_4096 back_to_back cycles: A then B then A, one unit": [8, 21],
    "gemm_4096 do_bench time_us: A then B, four units": [59],
}


def test_recorded_series_shift_where_otava_says_so_or_better() -> None:
    told = json.loads((DATA / "otava.json").read_text(encoding="utf-8"))
    ours = {name: indexes(list(map(math.log, each))) for name, each in recorded().items()}
    assert ours.keys() == told.keys()
    assert len(told) == 80
    assert {name: found for name, found in ours.items() if found != told[name]} == OTHERWISE


def test_a_year_of_nights_takes_less_than_fifty_milliseconds() -> None:
    values = noise_of(np.random.default_rng(5), 365)
    values[100:] += 0.01
    values[200:] -= 0.02
    series = values.tolist()
    shifts(series)  # imports
    started = time.process_time()
    for _ in range(10):
        shifts(series)
    assert (time.process_time() - started) / 10 < 0.05  # 0.0008 s on one core
