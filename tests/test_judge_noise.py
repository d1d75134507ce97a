"""What is known of noise, what baselines teach of it, and how often the decision errs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from judge_data import AGAINST
from msgspec import structs

from perfsuite.judge import noise
from perfsuite.judge.compare import (
    Policy,
    Timing,
    between_units,
    priors_of,
    shift_of,
    with_beta,
)
from perfsuite.judge.noise import (
    AWAITED,
    BY_CLASS,
    CPU,
    ENERGY_PRIOR,
    HOST,
    SERVICE,
    NoisePrior,
    prior_for,
)
from perfsuite.model import BaselineEntry, BaselineMetric, Metric, Regime, Word

MEMORY, MIXED, UNKNOWN = BY_CLASS["memory"], BY_CLASS["mixed"], BY_CLASS["unknown"]
NOMINAL = 0.01


@pytest.mark.parametrize(
    ("device", "work_class", "fields", "prior"),
    [
        ("cuda", "compute", {}, BY_CLASS["compute"]),
        ("cuda", "memory", {}, MEMORY),
        ("cuda", "compute", {"regime": Regime.SUSTAINED}, BY_CLASS["compute"]),
        ("cuda", "compute", {"regime": Regime.END_TO_END}, noise.HOST),
        ("cuda", "compute", {"has_cycles": False}, noise.ONE_CLOCK),
        ("cuda", "transfer", {"has_cycles": False}, BY_CLASS["transfer"]),
        ("cuda", "collective", {}, noise.GANG),
        ("cpu", "memory", {"has_cycles": False}, noise.CPU),
        ("cpu", "compute", {"regime": Regime.END_TO_END}, noise.CPU),
        ("cpu", "collective", {}, noise.CPU_GANG),
    ],
)
def test_which_prior(
    device: str, work_class: str, fields: dict[str, object], prior: NoisePrior
) -> None:
    settings = {"regime": Regime.PACED, "time_us": 200.0, "has_cycles": True, **fields}
    assert prior_for(device, work_class, **settings) == prior  # type: ignore[arg-type]
    short = prior_for(device, work_class, **{**settings, "time_us": 5.0})  # type: ignore[arg-type]
    is_noisier = short.between > prior.between and short.unit >= prior.unit
    assert is_noisier is (prior in BY_CLASS.values() and work_class != "transfer")
    assert 2 * prior.threshold <= prior.gate
    assert 0 < prior.run <= prior.unit


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


@pytest.mark.parametrize(
    ("count", "between", "unit", "spread", "units"),
    [(60, 0.0004, 0.0005, 0.0, 2), (80, 0.0005, 0.004, 1.2, 2), (19, 0.0004, 0.02, 0.0, 2),
     (40, 0.0004, 0.005, 0.0, 1)],
)  # fmt: skip
def test_a_class_is_learned(
    count: int, between: float, unit: float, spread: float, units: int
) -> None:
    known = drawn(count, between=between, unit=unit, spread=spread, units=units)
    learned = priors_of(known, (), AGAINST)[MEMORY]
    assert learned.between == pytest.approx(between, rel=0.25)
    if count < 20 or units == 1:
        # Few entries of several units are those whose screen was doubtful.
        assert (learned.unit, learned.unit_spread) == (MEMORY.unit, MEMORY.unit_spread)
    else:
        assert learned.unit == pytest.approx(unit, rel=0.35)
        assert (learned.unit_spread > MEMORY.unit_spread) is bool(spread)


@pytest.mark.parametrize("strange", [{"work_class": ""}, {"regime": "floating"}])
def test_entry_of_unknown_kind_teaches_nothing(strange: dict[str, str]) -> None:
    known = [structs.replace(each, **strange) for each in drawn(5, between=0.001, unit=0.001)]
    assert priors_of(known, (), AGAINST) == {}


@pytest.mark.parametrize(
    ("regime", "names", "taught"),
    [
        ("end_to_end", ("device_us", "ttft_ms"), {HOST, AWAITED, SERVICE}),
        ("paced", ("energy_j",), {MEMORY, ENERGY_PRIOR}),
    ],
)
def test_classes_of_other_metrics_are_learned_as_well(
    regime: str, names: tuple[str, ...], taught: set[NoisePrior]
) -> None:
    (plain,) = drawn(1, between=0.001, unit=0.001)
    own = BaselineMetric(center=5.0, unit="", values={"u0": (5.0, 5.01), "u1": (5.02, 5.01)})
    more = {**plain.metrics, **dict.fromkeys(names, own)}
    learned = priors_of([structs.replace(plain, regime=regime, metrics=more)], (), AGAINST)
    assert learned.keys() == taught
    assert all(learned[each].between < each.between for each in taught - {MEMORY, HOST})


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


@pytest.mark.parametrize("beta", [0.1, 0.9, 1.2])
def test_beta_is_learned_where_the_clock_moved(beta: float) -> None:
    learned = with_beta(MIXED, processes([-0.02, -0.02, 0.0, 0.01, 0.02, 0.03], beta, 0.0005))
    assert learned.beta == pytest.approx(beta, abs=0.1)
    assert learned.beta_sd < MIXED.beta_sd / 2


def test_beta_stays_the_prior_where_the_clock_stood_still() -> None:
    """Noise that both clocks share would make it 0.5 whatever the truth."""
    rng = np.random.default_rng(5)
    draws = np.exp(rng.normal(0, 0.002, (100, 2)))
    still = [Timing("a", float(time), float(cycles)) for time, cycles in draws]
    assert with_beta(BY_CLASS["compute"], still) == BY_CLASS["compute"]


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


def test_units_widen_and_narrow_the_interval() -> None:
    now = side(0.0, start=9)
    spans = [reach(side(*[0.0] * count), now) for count in (1, 2, 3)]
    assert spans[0] > 1.8 * spans[1]
    assert spans[1] > 1.1 * spans[2]
    assert reach(side(-0.01, 0.01), now) > 3 * reach(side(0.0, 0.0), now)
    found = shift_of(side(-0.01, 0.01), now, prior=MEMORY, policy=Policy())
    assert found.threshold > 0.01


def test_a_screen_widens_the_confirmation_and_never_narrows_it() -> None:
    before, now = side(0.0), side(0.02, start=5)
    alone = reach(before, now)
    assert reach(before, [*now, *side(0.02, fresh=False, start=7)]) == alone
    assert reach(before, [*now, *side(-0.01, fresh=False, start=7)]) > 1.5 * alone
    # On the same unit it tells nothing of units.
    assert reach(before, [*now, *side(-0.01, fresh=False, start=5)]) == alone


def error(
    prior: NoisePrior, *, processes: int, units: int = 0, mode: float = 0.0, repeats: int = 1000
) -> float:
    """How often a 99 % interval of unchanged code leaves out 0; no ``units``: one for all.

    Every third process is in a mode of its own, so far away (``mode``).
    """
    rng = np.random.default_rng([processes, units])

    def scattered(center: float, degrees: float) -> float:
        return center * math.sqrt(degrees / rng.chisquare(degrees))

    wrong = 0
    for _ in range(repeats):
        between = scattered(prior.between, prior.degrees)
        level = scattered(prior.run, prior.run_degrees)
        level = prior.unit * math.exp(rng.normal(0, prior.unit_spread)) if units else level
        sides: list[list[Timing]] = []
        for names in (range(max(units, 1)), ["now" if units else 0]):
            sides.append([])
            for name in names:
                logs = rng.normal(0, level) + rng.normal(0, between, processes)
                logs += mode * (rng.random(processes) < 1 / 3)
                sides[-1] += [Timing(f"{name}", math.exp(log)) for log in logs]
        low, high = shift_of(*sides, prior=prior, policy=Policy()).interval(NOMINAL)
        wrong += low > 0 or high < 0
    return wrong / repeats


@pytest.mark.parametrize(
    ("prior", "processes", "units", "mode", "most"),
    [
        *((MEMORY, count, 0, 0.0, 1.6 * NOMINAL) for count in (3, 6, 12)),
        *((UNKNOWN, count, units, 0.0, 1.8 * NOMINAL) for count in (3, 12) for units in (1, 4)),
        # Three processes may all be in one mode by luck, which no interval can know.
        (MEMORY, 3, 0, 0.02, 0.03),
        (MEMORY, 6, 0, 0.02, 0.015),
    ],
)
def test_interval_errs_as_often_as_it_says(
    prior: NoisePrior, processes: int, units: int, mode: float, most: float
) -> None:
    assert error(prior, processes=processes, units=units, mode=mode) <= most


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


@pytest.mark.parametrize("drift", [0.05, 0.16])
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
