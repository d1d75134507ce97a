"""What is known of noise, what baselines teach of it, and how often the decision errs."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from judge_data import GROUNDS, variant
from msgspec import structs

from perfsuite.judge.compare import Shift, is_one_level, level_changes, shift_of
from perfsuite.judge.noise import CPU_PRIORS, PRIORS, NoisePrior, Timing, prior_for
from perfsuite.judge.verdict import is_suspect
from perfsuite.model import BaselineEntry, BaselineMetric, Change, Metric, Regime, Word

MEMORY, UNKNOWN = PRIORS["memory"], PRIORS["unknown"]
NOMINAL = 0.01


@pytest.mark.parametrize(
    ("device", "work_class", "fields", "prior"),
    [
        ("cuda", "compute", {}, PRIORS["compute"]),
        ("cuda", "memory", {}, MEMORY),
        ("cuda", "compute", {"regime": Regime.SUSTAINED}, PRIORS["compute"]),
        ("cuda", "compute", {"regime": Regime.END_TO_END}, PRIORS["host"]),
        ("cuda", "compute", {"has_cycles": False}, PRIORS["one clock"]),
        ("cuda", "transfer", {"has_cycles": False}, PRIORS["transfer"]),
        ("cuda", "collective", {}, PRIORS["collective"]),
        ("cpu", "memory", {"has_cycles": False}, CPU_PRIORS[""]),
        ("cpu", "compute", {"regime": Regime.END_TO_END}, CPU_PRIORS[""]),
        ("cpu", "collective", {}, CPU_PRIORS["collective"]),
    ],
)
def test_which_prior(
    device: str, work_class: str, fields: dict[str, Any], prior: NoisePrior
) -> None:
    settings = {"regime": Regime.PACED, "time_us": 200.0, "has_cycles": True, **fields}
    assert prior_for(device, work_class, **settings) == prior
    short = prior_for(device, work_class, **{**settings, "time_us": 5.0})
    is_noisier = short.between > prior.between and short.unit >= prior.unit
    assert is_noisier is (prior in (PRIORS["compute"], MEMORY))
    assert 2 * prior.threshold <= prior.gate
    assert 0 < prior.run <= prior.unit


def drawn(
    count: int, *, between: float, unit: float, units: int = 2, spread: float = 0.0
) -> list[BaselineEntry]:
    """Entries of three processes a unit; ``unit`` scatters from entry to entry by ``spread``."""
    rng = np.random.default_rng(3)
    entries = []
    for number in range(count):
        apart = unit * math.exp(rng.normal(0, spread))
        logs = rng.normal(0, apart, (units, 1)) + rng.normal(0, between, (units, 3))
        values = {f"u{i}": tuple(100 * math.exp(log) for log in row) for i, row in enumerate(logs)}
        cycles = {unit: tuple(1600 * each for each in row) for unit, row in values.items()}
        metrics = {
            "time_us": BaselineMetric(center=100.0, unit="us", values=values),
            "cycles": BaselineMetric(center=160_000.0, unit="cycles", values=cycles),
        }
        one = BaselineEntry(variant=f"p.c[{number}]", case_version=1, run="r", metrics=metrics)
        entries.append(structs.replace(one, work_class="memory"))
    return entries


def learned(*entries: BaselineEntry) -> Any:
    return GROUNDS.learned(entries, ()).priors


@pytest.mark.parametrize(
    ("count", "between", "unit", "spread", "units"),
    [(60, 0.0004, 0.0005, 0.0, 2), (80, 0.0005, 0.004, 1.2, 2), (19, 0.0004, 0.02, 0.0, 2),
     (40, 0.0004, 0.005, 0.0, 1)],
)  # fmt: skip
def test_a_class_is_learned(
    count: int, between: float, unit: float, spread: float, units: int
) -> None:
    known = drawn(count, between=between, unit=unit, spread=spread, units=units)
    found = learned(*known)[MEMORY]
    assert found.between == pytest.approx(between, rel=0.25)
    if count < 20 or units == 1:
        # Few entries of several units are those whose screen was doubtful.
        assert (found.unit, found.unit_spread) == (MEMORY.unit, MEMORY.unit_spread)
    else:
        assert found.unit == pytest.approx(unit, rel=0.35)
        assert (found.unit_spread > MEMORY.unit_spread) is bool(spread)


GOOD = {"u0": (5.0, 5.01, 5.02), "u1": (5.02, 5.01, 5.0)}


@pytest.mark.parametrize(
    ("fields", "metrics", "taught"),
    [
        ({"work_class": ""}, {}, []),
        ({"regime": "floating"}, {}, []),
        ({}, {}, ["memory"]),
        ({}, {"time_us": {}}, []),
        ({}, {"energy_j": GOOD}, ["memory", "energy"]),
        ({"regime": "end_to_end"}, {"device_us": GOOD, "ttft_ms": GOOD},
         ["host", "awaited", "service"]),
    ],
)  # fmt: skip
def test_what_an_entry_teaches(fields: Any, metrics: Any, taught: list[str]) -> None:
    (plain,) = drawn(1, between=0.001, unit=0.001)
    more = {
        name: BaselineMetric(center=5.0 if v else 0.0, unit="", values=v)
        for name, v in metrics.items()
    }
    found = learned(structs.replace(plain, metrics={**plain.metrics, **more}, **fields))
    assert found.keys() == {PRIORS[name] for name in taught}
    assert all(new.between < old.between for old, new in found.items() if old != MEMORY)


def compared(
    before: Sequence[Timing], now: Sequence[Timing], prior: NoisePrior = MEMORY, **more: Any
) -> Shift:
    return shift_of(before, now, prior=prior, grounds=GROUNDS, **more)


@pytest.mark.parametrize("beta", [0.1, 0.9, 1.2])
def test_beta_is_learned_where_the_clock_moved(beta: float) -> None:
    rng = np.random.default_rng(4)

    def side(*logs: float) -> list[Timing]:
        times = [math.exp(-beta * log + rng.normal(0, 0.0005)) for log in logs]
        return [Timing("a", t, t * math.exp(log)) for t, log in zip(times, logs, strict=True)]

    moved, still = (-0.02, -0.02, 0.0, 0.01, 0.02, 0.03), (0.0, 0.0)
    assert compared(side(*moved), side(0.0), UNKNOWN).strict.beta == pytest.approx(beta, abs=0.1)
    for known in (side(*still), side(-0.02, 0.02), side(0.0, 0.001, 0.002)):
        assert compared(known, side(0.0), UNKNOWN).strict.beta == UNKNOWN.beta
    single = [replace(one, cycles=None) for one in side(*moved)]
    assert compared(single, side(0.0), UNKNOWN).strict.beta == 0


def side(*levels: float, fresh: bool = True, start: int = 0) -> list[Timing]:
    """Three quiet processes on a unit of each level."""
    return [
        Timing(f"u{start + number}", math.exp(level + wobble), math.exp(level + wobble), fresh)
        for number, level in enumerate(levels)
        for wobble in (-0.0003, 0.0, 0.0003)
    ]


def width(before: Sequence[Timing], now: Sequence[Timing]) -> float:
    found = compared(before, now).strict
    return found.high - found.low


def test_units_and_screens_widen_and_narrow_the_interval() -> None:
    now = side(0.0, start=9)
    spans = [width(side(*[0.0] * count), now) for count in (1, 2, 3)]
    assert spans[0] > 1.8 * spans[1]
    assert spans[1] > 1.1 * spans[2]
    assert width(side(-0.01, 0.01), now) > 3 * width(side(0.0, 0.0), now)
    assert compared(side(-0.01, 0.01), now).strict.threshold > 0.01
    before, now = side(0.0), side(0.02, start=5)
    alone = width(before, now)
    assert width(before, [*now, *side(0.02, fresh=False, start=7)]) == pytest.approx(alone)
    assert width(before, [*now, *side(-0.01, fresh=False, start=7)]) > 1.5 * alone
    # On the same unit it tells nothing of units.
    assert width(before, [*now, *side(-0.01, fresh=False, start=5)]) == alone


@pytest.mark.parametrize(
    ("prior", "processes", "units", "mode", "most"),
    [
        (MEMORY, 3, 0, 0.0, 1.6 * NOMINAL),
        (MEMORY, 12, 0, 0.0, 1.6 * NOMINAL),
        (UNKNOWN, 3, 1, 0.0, 1.8 * NOMINAL),
        (UNKNOWN, 12, 4, 0.0, 1.8 * NOMINAL),
        # Three processes may all be in one mode by luck, which no interval can know.
        (MEMORY, 3, 0, 0.02, 0.03),
        (MEMORY, 6, 0, 0.02, 0.015),
    ],
)
def test_interval_errs_as_often_as_it_says(
    prior: NoisePrior, processes: int, units: int, mode: float, most: float
) -> None:
    """How often a 99 % interval of unchanged code leaves out 0; no ``units``: one for all.

    Every third process is in a mode of its own, so far away (``mode``).
    """
    rng = np.random.default_rng([processes, units])
    wrong = 0
    for _ in range(1000):
        between = prior.between * math.sqrt(prior.degrees / rng.chisquare(prior.degrees))
        level = prior.run * math.sqrt(prior.run_degrees / rng.chisquare(prior.run_degrees))
        level = prior.unit * math.exp(rng.normal(0, prior.unit_spread)) if units else level
        sides: list[list[Timing]] = []
        for names in (range(max(units, 1)), ["now" if units else 0]):
            sides.append([])
            for name in names:
                logs = rng.normal(0, level) + rng.normal(0, between, processes)
                logs += mode * (rng.random(processes) < 1 / 3)
                sides[-1] += [Timing(f"{name}", math.exp(log)) for log in logs]
        found = compared(sides[0], sides[1], prior).strict
        wrong += found.low > 0 or found.high < 0
    assert wrong / 1000 <= most


def test_quantiles_decide_where_enough_processes_tell_of_a_distribution() -> None:
    rng = np.random.default_rng(7)
    before, now = (
        [Timing("a", float(each)) for each in level * rng.exponential(0.1, 8) + level]
        for level in (40.0, 80.0)
    )
    metric = Metric("ttft_ms_p99", "ms")
    assert compared(before, now, PRIORS["service"], metric=metric).word is Word.SLOWER
    for count, is_ranked in ((8, True), (3, False)):
        own, as_time = (
            compared(before[:count], now, PRIORS["service"], metric=each).strict
            for each in (metric, Metric("elapsed_us", "us"))
        )
        assert (own.low != as_time.low) is is_ranked


# An entry against several nights.

RUN, BETWEEN = 0.0004, 0.001  # what the prior says of unknown kernels, about
TRIALS = 200
OF = variant(None)


def night(
    rng: np.random.Generator, level: float, *, run: float = RUN, unit: str = "a", **exact: float
) -> BaselineEntry:
    """One night's three processes, which share the night's level."""
    own = level * math.exp(rng.normal(0, run))
    times = tuple(own * math.exp(rng.normal(0, BETWEEN)) for _ in range(3))
    cycles = tuple(1980 * time for time in times)
    metrics = {
        "time_us": BaselineMetric(center=fmean(times), unit="us", values={unit: times}),
        "cycles": BaselineMetric(center=fmean(cycles), unit="cycles", values={unit: cycles}),
        **{name: BaselineMetric(center=each, unit="count") for name, each in exact.items()},
    }
    return BaselineEntry(variant=OF.id, case_version=1, run="r", metrics=metrics)


def change_of(rng: np.random.Generator, level: float, nights: int, run: float = RUN) -> Change:
    before, now = night(rng, 100.0, run=run), [night(rng, level, run=run) for _ in range(nights)]
    (found,) = level_changes(OF, before, now, GROUNDS)
    return found


@pytest.mark.parametrize(("level", "nights"), [(100.0, 5), (101.0, 5), (99.0, 1)])
def test_intervals_of_nights_hold_the_truth(level: float, nights: int) -> None:
    rng = np.random.default_rng(7)
    found = [change_of(rng, level, nights) for _ in range(TRIALS)]
    truth = level / 100 - 1
    # Of 99 % intervals; they are wider than need be.
    assert sum(not each.low <= truth <= each.high for each in found) <= 0.02 * TRIALS
    assert fmean(each.theta for each in found) == pytest.approx(truth, abs=2e-4)


def test_nights_that_scatter_more_than_is_usual_widen_the_interval() -> None:
    rng = np.random.default_rng(8)
    found = [change_of(rng, 100.0, 5, run=0.004) for _ in range(TRIALS)]
    # Fifteen processes taken for independent ones would call a change in half of these.
    assert sum(each.low > 0 or each.high < 0 for each in found) <= 0.06 * TRIALS
    calm = [change_of(rng, 100.0, 5) for _ in range(50)]
    wide, usual = (fmean(each.high - each.low for each in some) for some in (found, calm))
    assert wide > 1.5 * usual


def test_a_unit_counts_as_much_as_any_other_however_many_nights_it_had() -> None:
    rng = np.random.default_rng(10)
    values = {"a": (100.0, 100.01, 99.99), "b": (102.0, 102.01, 101.99)}
    time = BaselineMetric(center=101.0, unit="us", values=values)
    old = BaselineEntry(variant=OF.id, case_version=1, run="r", metrics={"time_us": time})
    # The slower card has most of the nights.
    nights = [night(rng, 100.0)] + [night(rng, 102.0, unit="b") for _ in range(4)]
    (found,) = level_changes(OF, old, nights, GROUNDS)
    assert found.theta == pytest.approx(0, abs=0.0012)


def test_nights_of_one_level_are_told_from_those_of_another() -> None:
    rng = np.random.default_rng(11)
    level = [night(rng, 100.0) for _ in range(4)]
    assert is_one_level(OF, night(rng, 100.0), level, GROUNDS)
    assert not is_one_level(OF, night(rng, 102.0), level, GROUNDS)
    old = night(rng, 100.0, registers=32)
    counted = [night(rng, 100.0, registers=40) for _ in range(4)]
    assert not is_one_level(OF, old, counted, GROUNDS)
    assert [each.theta for each in level_changes(OF, old, counted, GROUNDS)[1:]] == [0.25]
    # What has no noise changes where all nights agree.
    assert len(level_changes(OF, old, [*counted, old], GROUNDS)) == 1


# How often a run errs: each comparison uses processes that no other side of it uses, default
# settings and both stages.

SCREEN, CONFIRM = 3, 6
Words = Counter[str]


def decide(
    before: Sequence[Timing], screen: Sequence[Timing], confirm: Sequence[Timing], prior: NoisePrior
) -> str:
    """What a run says: the screen's word if it is plainly same, else that of fresh processes."""
    stale = [replace(one, is_fresh=False) for one in screen]
    for now in (screen, [*confirm, *stale]):
        shift = shift_of(before, now, prior=prior, grounds=GROUNDS)
        if shift.word is Word.SAME and not is_suspect(shift.lenient):
            break
    return shift.word.value


@dataclass
class World:
    """Noise to draw processes from; ``truth`` multiplies the prior's spreads, log-normal ``odd``.

    ``clock`` is the spread of the SM clock between units, ``stray`` the share of processes whose
    graph has a node gap 0.35 us shorter. The baseline has ``units``; screen and confirmation run on
    one more each. How far a variant's units differ scatters as the prior says.
    """

    work_class: str
    device: str = "cuda"
    regime: Regime = Regime.PACED
    time_us: float = 200.0
    is_cross: bool = True
    units: int = 1
    processes: int = 5
    truth: float = 1.0
    odd: float = 0.5
    clock: float = 0.006
    stray: float = 0.0
    seed: int = 1

    def words(self, count: int, *, change: float = 0.0) -> Words:
        """Count what is said of this many variants whose code changed by ``change`` (log)."""
        rnd = random.Random(f"{self.seed} {change}")  # noqa: S311 - simulated noise
        return Counter(self.word(rnd, change) for _ in range(count))

    def word(self, rnd: random.Random, change: float) -> str:
        """Draw one variant and say what is said of it."""
        has_cycles = self.device != "cpu"
        prior = prior_for(
            self.device,
            self.work_class,
            regime=self.regime,
            time_us=self.time_us,
            has_cycles=has_cycles,
        )
        # The root mean square over variants stays the prior's.
        spread = self.truth * prior.between * math.exp(rnd.gauss(0, self.odd) - self.odd**2)
        beta = prior.beta + rnd.gauss(0, prior.beta_sd)
        apart = prior.unit * math.exp(rnd.gauss(0, prior.unit_spread))

        def side(change: float, unit: str) -> Callable[[int], list[Timing]]:
            level = change + rnd.gauss(0, self.truth * (apart if self.is_cross else prior.run))
            clock = rnd.gauss(0, self.clock if self.is_cross else 0.002)

            def one() -> Timing:
                y = level + rnd.gauss(0, spread)
                y -= 0.35 / self.time_us if rnd.random() < self.stray else 0.0
                cycles = self.time_us * 1600 * math.exp(y + (1 - beta) * clock)
                time = self.time_us * math.exp(y - beta * clock)
                return Timing(unit, time, cycles if has_cycles else None)

            return lambda count: [one() for _ in range(count)]

        before = [one for unit in range(self.units) for one in side(0.0, f"{unit}")(self.processes)]
        screen = side(change, "b" if self.is_cross else "0")
        confirm = side(change, "c") if self.is_cross else screen
        return decide(before, screen(SCREEN), confirm(CONFIRM), prior)


def share(words: Words, *names: str) -> float:
    return sum(words[name] for name in names) / words.total()


CPU = World("unknown", device="cpu", is_cross=False, processes=3)
HOST = World("unknown", regime=Regime.END_TO_END, is_cross=False, processes=3)
ALONE = World("compute", is_cross=False, processes=3)
NODE_GAP = World("compute", time_us=10.0, stray=0.125, clock=0.003)


@pytest.mark.parametrize(
    ("world", "moved", "unclear"),
    [
        (World("compute", processes=3), 0.002, 0.05),
        (World("memory", processes=3), 0.002, 0.08),
        (World("memory", units=3, processes=3), 0.002, 0.03),
        (ALONE, 0.001, 0.01),
        # Processes with another node gap do not make a regression.
        (replace(NODE_GAP, processes=3), 0.005, 0.12),
        (HOST, 0.002, 0.03),
        (CPU, 0.003, 0.067),
        # More noise than expected is mostly unclear, and so are awaited launches of another host.
        (World("compute", truth=2.0), 0.02, 1.0),
        (World("unknown", regime=Regime.END_TO_END), 0.001, 1.0),
    ],
)
def test_what_is_unchanged_is_same(world: World, moved: float, unclear: float) -> None:
    words = world.words(500)
    assert share(words, "slower", "faster") <= moved
    assert share(words, "unclear") <= unclear
    assert unclear < 1.0 or share(words, "unclear") > 5 * share(words, "slower", "faster")


@pytest.mark.parametrize(
    ("world", "change", "power"),
    [
        (World("compute", is_cross=False), 0.01, 0.93),
        (World("compute", processes=3), 0.02, 0.9),
        # One unit may be one of the few that differ by a percent.
        (World("memory", processes=3), 0.02, 0.85),
        (World("memory", units=3, processes=3), 0.01, 0.8),
        (HOST, math.log(1.5), 0.85),
        (CPU, math.log(1.3), 0.8),
    ],
)
def test_what_changed_is_found(world: World, change: float, power: float) -> None:
    assert share(world.words(200, change=change), "slower") >= power
    if world.is_cross:
        assert share(world.words(200, change=-change), "faster") >= power


@pytest.mark.parametrize("work_class", ["compute", "memory"])
def test_change_of_the_gate_is_seldom_called_same(work_class: str) -> None:
    assert share(World(work_class).words(300, change=0.01), "same") <= 0.17


def test_false_verdicts_balance() -> None:
    words = replace(CPU, truth=2.0, processes=5).words(500)
    slower, faster = words["slower"], words["faster"]
    assert abs(slower - faster) <= 4 * math.sqrt(slower + faster + 1)
