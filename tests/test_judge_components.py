"""The components of noise that baselines teach, from made-up processes of known truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from perfsuite.judge.compare import (
    Against,
    Policy,
    Timing,
    between_units,
    priors_of,
    shift_of,
    with_beta,
)
from perfsuite.judge.noise import AWAITED, BY_CLASS, ENERGY_PRIOR, HOST, SERVICE, NoisePrior
from perfsuite.model import BaselineEntry, BaselineMetric, DeviceFacts

MEMORY = BY_CLASS["memory"]
FACTS = DeviceFacts(device="cuda", name="", unit="a", identity={}, clocks=("time_us", "cycles"))
AGAINST = Against(facts=FACTS, slug="nvidia-h200")


def entry(name: str, logs: Sequence[Sequence[float]], work_class: str = "memory") -> BaselineEntry:
    """An entry with these log durations by unit, of 100 us at 1600 MHz."""
    values = {f"u{i}": tuple(100 * math.exp(log) for log in row) for i, row in enumerate(logs)}
    cycles = {unit: tuple(1600 * each for each in row) for unit, row in values.items()}
    metrics = {
        "time_us": BaselineMetric(center=100.0, unit="us", values=values),
        "cycles": BaselineMetric(center=160_000.0, unit="cycles", values=cycles),
    }
    return BaselineEntry(
        variant=name, case_version=1, run="r", metrics=metrics, work_class=work_class
    )


def drawn(
    count: int, *, between: float, unit: float, units: int = 2, spread: float = 0.0
) -> list[BaselineEntry]:
    """Entries of three processes a unit; ``unit`` scatters from entry to entry by ``spread``."""
    rng = np.random.default_rng(3)
    entries = []
    for number in range(count):
        apart = unit * math.exp(rng.normal(0, spread))
        levels = rng.normal(0, apart, (units, 1))
        logs = levels + rng.normal(0, between, (units, 3))
        entries.append(entry(f"p.c[{number}]", logs.tolist()))
    return entries


def test_quiet_class_is_learned_to_be_quiet() -> None:
    learned = priors_of(drawn(60, between=0.0004, unit=0.0005), (), AGAINST)[MEMORY]
    assert learned.between == pytest.approx(0.0004, rel=0.2)
    assert learned.unit == pytest.approx(0.0005, rel=0.35)
    assert learned.unit_spread < MEMORY.unit_spread


def test_heavy_tails_of_a_class_are_learned() -> None:
    learned = priors_of(drawn(80, between=0.0005, unit=0.004, spread=1.2), (), AGAINST)[MEMORY]
    assert learned.unit == pytest.approx(0.004, rel=0.35)
    assert learned.unit_spread > MEMORY.unit_spread


def test_few_entries_of_several_units_teach_nothing_of_units() -> None:
    """They are those whose screen was doubtful: the others were not measured on a second one."""
    learned = priors_of(drawn(19, between=0.0004, unit=0.02), (), AGAINST)[MEMORY]
    assert (learned.unit, learned.unit_spread) == (MEMORY.unit, MEMORY.unit_spread)


def test_entries_of_one_unit_teach_nothing_of_units() -> None:
    learned = priors_of(drawn(40, between=0.0004, unit=0.005, units=1), (), AGAINST)[MEMORY]
    assert (learned.unit, learned.unit_spread) == (MEMORY.unit, MEMORY.unit_spread)
    assert learned.between < MEMORY.between


def test_entry_of_unknown_class_teaches_nothing() -> None:
    nameless = [
        structs.replace(each, work_class="") for each in drawn(5, between=0.001, unit=0.001)
    ]
    assert priors_of(nameless, (), AGAINST) == {}


def test_entry_of_a_regime_of_another_version_teaches_nothing() -> None:
    strange = [
        structs.replace(each, regime="floating") for each in drawn(5, between=0.001, unit=0.001)
    ]
    assert priors_of(strange, (), AGAINST) == {}


def test_classes_of_other_metrics_are_learned_as_well() -> None:
    (plain,) = drawn(1, between=0.001, unit=0.001)
    own = BaselineMetric(center=5.0, unit="ms", values={"u0": (5.0, 5.1), "u1": (5.2, 5.1)})
    served = structs.replace(
        plain, regime="end_to_end", metrics={**plain.metrics, "device_us": own, "ttft_ms": own}
    )
    learned = priors_of([served], (), AGAINST)
    assert {HOST, AWAITED, SERVICE} == set(learned)
    assert learned[SERVICE].between < SERVICE.between


def test_energy_teaches_its_own_prior_and_nothing_of_services() -> None:
    (plain,) = drawn(1, between=0.001, unit=0.001)
    energy = BaselineMetric(center=5.0, unit="J", values={"u0": (5.0, 5.001, 5.002)})
    driven = structs.replace(plain, metrics={**plain.metrics, "energy_j": energy})
    learned = priors_of([driven], (), AGAINST)
    assert {MEMORY, ENERGY_PRIOR} == set(learned)
    assert learned[ENERGY_PRIOR].between < ENERGY_PRIOR.between


@pytest.mark.parametrize("name", ["time_us", "energy_j", "ttft_ms"])
def test_entry_of_unusable_values_teaches_nothing_and_is_no_error(name: str) -> None:
    (plain,) = drawn(1, between=0.001, unit=0.001)
    none = BaselineMetric(center=5.0, unit="", values={"u0": (0.0, 5.0)})
    broken = structs.replace(plain, metrics={**plain.metrics, name: none})
    assert set(priors_of([broken, plain], (), AGAINST)) == {MEMORY}


def test_mean_square_between_units_tells_what_processes_have_of_it() -> None:
    square = between_units([[[0.0, 0.0], [0.02, 0.02]], [[5.0]]], 0.0004)
    assert (square.value, square.degrees, square.noise) == pytest.approx((0.0002, 1.0, 0.0002))
    assert between_units([[[0.0]], [[1.0]]], 0.0004).degrees == 0


def processes(clocks: Sequence[float], beta: float, noise: float) -> list[Timing]:
    """Processes whose log clock moved so; log time follows it by ``beta``."""
    rng = np.random.default_rng(4)
    times = [math.exp(-beta * clock + rng.normal(0, noise)) for clock in clocks]
    pairs = zip(times, clocks, strict=True)
    return [Timing("a", time, time * math.exp(clock)) for time, clock in pairs]


MIXED = BY_CLASS["mixed"]


@pytest.mark.parametrize("beta", [0.1, 0.9, 1.2])
def test_beta_is_learned_where_the_clock_moved(beta: float) -> None:
    learned = with_beta(MIXED, processes([-0.02, -0.02, 0.0, 0.01, 0.02, 0.03], beta, 0.0005))
    assert learned.beta == pytest.approx(beta, abs=0.1)
    assert learned.beta_sd < MIXED.beta_sd / 2


def test_beta_stays_the_prior_where_the_clock_stood_still() -> None:
    """Noise that both clocks share would make it 0.5 whatever the truth."""
    rng = np.random.default_rng(5)
    still = [
        Timing("a", math.exp(rng.normal(0, 0.002)), math.exp(rng.normal(0, 0.002)))
        for _ in range(100)
    ]
    compute = BY_CLASS["compute"]
    assert with_beta(compute, still) == compute
    clocks = np.array([one.y(1.0) - one.y(0.0) for one in still])
    times = np.array([one.y(0.0) for one in still])
    slope = -np.polyfit(clocks, times, 1)[0]
    assert slope == pytest.approx(0.5, abs=0.1)


def test_two_processes_and_one_clock_leave_beta_alone() -> None:
    assert with_beta(MIXED, processes([-0.02, 0.02], 0.9, 0.0005)) == MIXED
    single = [replace(one, cycles=None) for one in processes([-0.02, 0.0, 0.02], 0.9, 0.0005)]
    assert with_beta(MIXED, single) == MIXED


def side(*levels: float, fresh: bool = True, start: int = 0) -> list[Timing]:
    """Three quiet processes on a unit of each level."""
    return [
        Timing(f"u{start + number}", math.exp(level + wobble), math.exp(level + wobble), fresh)
        for number, level in enumerate(levels)
        for wobble in (-0.0003, 0.0, 0.0003)
    ]


def reach(before: Sequence[Timing], now: Sequence[Timing], prior: NoisePrior = MEMORY) -> float:
    low, high = shift_of(before, now, prior=prior, policy=Policy()).interval(0.01)
    return high - low


def test_units_that_agree_narrow_the_interval_of_another() -> None:
    now = side(0.0, start=9)
    spans = [reach(side(*[0.0] * count), now) for count in (1, 2, 3)]
    assert spans[0] > 1.8 * spans[1]
    assert spans[1] > 1.1 * spans[2]


def test_units_that_differ_widen_interval_and_threshold() -> None:
    now = side(0.0, start=9)
    assert reach(side(-0.01, 0.01), now) > 3 * reach(side(0.0, 0.0), now)
    found = shift_of(side(-0.01, 0.01), now, prior=MEMORY, policy=Policy())
    assert found.threshold > 0.01


def test_screen_on_another_unit_widens_the_confirmation_and_never_narrows_it() -> None:
    before, now = side(0.0), side(0.02, start=5)
    alone = reach(before, now)
    agreeing = [*now, *side(0.02, fresh=False, start=7)]
    disagreeing = [*now, *side(-0.01, fresh=False, start=7)]
    assert reach(before, agreeing) == alone
    assert reach(before, disagreeing) > 1.5 * alone


def test_screen_on_the_same_unit_tells_nothing_of_units() -> None:
    before, now = side(0.0), side(0.02, start=5)
    assert reach(before, [*now, *side(-0.01, fresh=False, start=5)]) == reach(before, now)
