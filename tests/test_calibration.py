"""How often the decision errs: simulated noise of known truth, and four H200s that were recorded.

Every comparison uses processes that no other side of it uses, default settings and both stages.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfsuite.judge.compare import Policy, shift_of
from perfsuite.judge.noise import NoisePrior, Timing, prior_for
from perfsuite.judge.peaks import peaks_of, work_class
from perfsuite.judge.verdict import is_suspect
from perfsuite.model import Regime, Word, Work

RECORDED = json.loads(Path(__file__).with_name("data").joinpath("h200.json").read_text())
H200 = peaks_of("nvidia-h200")
POLICY = Policy()
SCREEN, CONFIRM = 3, 6
Words = Counter[str]


def decide(
    before: Sequence[Timing], screen: Sequence[Timing], confirm: Sequence[Timing], prior: NoisePrior
) -> str:
    """What a run says: the screen's word if it is plainly same, else that of fresh processes."""
    stale = [replace(one, is_fresh=False) for one in screen]
    for now in (screen, [*confirm, *stale]):
        shift = shift_of(before, now, prior=prior, policy=POLICY)
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
        prior = prior_for(
            self.device,
            self.work_class,
            regime=self.regime,
            time_us=self.time_us,
            has_cycles=self.device != "cpu",
        )
        # The root mean square over variants stays the prior's.
        spread = self.truth * prior.between * math.exp(rnd.gauss(0, self.odd) - self.odd**2)
        beta = prior.beta + rnd.gauss(0, prior.beta_sd)
        draw = self.source(rnd, prior, spread, beta)
        before = [one for unit in range(self.units) for one in draw(0.0, f"{unit}")(self.processes)]
        screen = draw(change, "b" if self.is_cross else "0")
        confirm = draw(change, "c") if self.is_cross else screen
        return decide(before, screen(SCREEN), confirm(CONFIRM), prior)

    def source(
        self, rnd: random.Random, prior: NoisePrior, spread: float, beta: float
    ) -> Callable[[float, str], Callable[[int], list[Timing]]]:
        """Return what makes a side of given change and unit, from which processes are taken."""
        apart = prior.unit * math.exp(rnd.gauss(0, prior.unit_spread))

        def side(change: float, unit: str) -> Callable[[int], list[Timing]]:
            level = rnd.gauss(0, self.truth * (apart if self.is_cross else prior.run))
            clock = rnd.gauss(0, self.clock if self.is_cross else 0.002)

            def take(count: int) -> list[Timing]:
                return [one(level + change + rnd.gauss(0, spread), clock) for _ in range(count)]

            def one(y: float, clock: float) -> Timing:
                gap = 0.35 / self.time_us if rnd.random() < self.stray else 0.0
                cycles = self.time_us * 1600 * math.exp(y - gap + (1 - beta) * clock)
                time = self.time_us * math.exp(y - gap - beta * clock)
                return Timing(unit, time, None if self.device == "cpu" else cycles)

            return take

        return side


def share(words: Words, *names: str) -> float:
    return sum(words[name] for name in names) / words.total()


CPU = World("unknown", device="cpu", is_cross=False, processes=3)
HOST = World("unknown", regime=Regime.END_TO_END, is_cross=False, processes=3)
ALONE = World("compute", is_cross=False, processes=3)
NODE_GAP = World("compute", time_us=10.0, stray=0.125, clock=0.003)


@pytest.mark.parametrize(
    ("world", "count", "moved", "unclear"),
    [
        (World("compute", processes=3), 1500, 0.002, 0.05),
        (World("memory", processes=3), 1500, 0.002, 0.08),
        (World("unknown", processes=3), 1500, 0.002, 0.05),
        (World("memory", units=3, processes=3), 1500, 0.002, 0.03),
        (ALONE, 1000, 0.001, 0.01),
        (replace(ALONE, work_class="memory"), 1000, 0.001, 0.01),
        (replace(ALONE, work_class="mixed"), 1000, 0.001, 0.01),
        (replace(ALONE, work_class="unknown"), 1000, 0.001, 0.01),
        # Processes with another node gap do not make a regression.
        (replace(NODE_GAP, processes=3), 1500, 0.005, 0.12),
        (replace(NODE_GAP, processes=5), 1500, 0.003, 0.12),
        (replace(NODE_GAP, processes=9), 1500, 0.003, 0.12),
        (HOST, 1000, 0.002, 0.03),
        (CPU, 2000, 0.003, 0.067),
    ],
)
def test_what_is_unchanged_is_same(world: World, count: int, moved: float, unclear: float) -> None:
    words = world.words(count)
    assert share(words, "slower", "faster") <= moved
    assert share(words, "unclear") <= unclear


@pytest.mark.parametrize(
    ("world", "change", "power"),
    [
        (World("compute", is_cross=False), 0.01, 0.93),
        (World("compute", is_cross=False), 0.02, 0.99),
        (World("compute", processes=3), 0.02, 0.9),
        (World("compute", units=3, processes=3), 0.01, 0.4),
        # One unit may be one of the few that differ by a percent.
        (World("memory", processes=3), 0.02, 0.85),
        (World("memory", units=3, processes=3), 0.01, 0.8),
        (World("unknown", units=3, processes=3), 0.02, 0.75),
        (HOST, math.log(1.5), 0.85),
        (CPU, math.log(1.3), 0.8),
        (CPU, math.log(1.5), 0.99),
    ],
)
def test_what_changed_is_found(world: World, change: float, power: float) -> None:
    assert share(world.words(300, change=change), "slower") >= power
    if world.is_cross:
        assert share(world.words(300, change=-change), "faster") >= power


def test_change_of_the_gate_is_seldom_called_same() -> None:
    assert share(World("compute").words(500, change=0.01), "same") <= 0.17
    assert share(World("memory").words(500, change=0.01), "same") <= 0.17


@pytest.mark.parametrize(("truth", "limit"), [(1.5, 0.005), (2.0, 0.02)])
def test_more_noise_than_expected_is_mostly_unclear(truth: float, limit: float) -> None:
    words = World("compute", truth=truth).words(1000)
    assert share(words, "slower", "faster") <= limit
    assert words["unclear"] > 5 * (words["slower"] + words["faster"])


def test_awaited_launches_of_another_host_are_unclear_rather_than_slower() -> None:
    words = World("unknown", regime=Regime.END_TO_END).words(1000)
    assert share(words, "slower", "faster") <= 0.001
    assert share(words, "unclear") > 0.2


def test_false_verdicts_balance() -> None:
    words = replace(CPU, truth=2.0, processes=5).words(1000)
    slower, faster = words["slower"], words["faster"]
    assert abs(slower - faster) <= 4 * math.sqrt(slower + faster + 1)


def recorded(kernel: str, arm: str, unit: str, series: str) -> list[Timing]:
    values = RECORDED[kernel]["series"][series][arm][unit]
    pairs = zip(values["time_us"], values["cycles"], strict=True)
    return [Timing(unit, time, cycles) for time, cycles in pairs]


def replay(
    kernel: str, arm: str, *, series: str = "paced", count: int = 100, known: int = 1
) -> Words:
    """Compare processes of arm A on each of ``known`` units with nine of ``arm`` elsewhere.

    Screen and confirmation run on different units where the four suffice.
    """
    rnd = random.Random(f"{kernel} {arm}")  # noqa: S311 - simulated noise
    units = sorted(RECORDED[kernel]["series"][series]["A"])
    words: Words = Counter()
    for _ in range(count):
        order = rnd.sample(units, len(units))
        each = 5 if known == 1 else 3
        rows = [recorded(kernel, "A", unit, series) for unit in order[:known]]
        before = [one for row in rows for one in rnd.sample(row, each)]
        screen = rnd.sample(recorded(kernel, arm, order[known], series), SCREEN + 3)
        others = recorded(kernel, arm, order[-1], series)
        is_same_unit = order[known] == order[-1]
        confirm = screen[SCREEN:] if is_same_unit else rnd.sample(others, CONFIRM)
        time_us = before[0].time_us
        prior = prior_for(
            "cuda",
            work_class(Work(**RECORDED[kernel]["work"]), H200, time_us),
            regime=Regime.PACED,
            time_us=time_us,
            has_cycles=True,
        )
        words[decide(before, screen[:SCREEN], confirm, prior)] += 1
    return words


KERNELS = [name for name in RECORDED if name != "fma_14us_single"]


CAPPED = ["attention", "copy_1gib", "fma_80us", "gemm_4096", "gemm_8192"]


@pytest.mark.parametrize(
    ("kernel", "series", "unclear"),
    [(name, "paced", 0.15 if name == "gemm_1024" else 0.02) for name in KERNELS]
    + [(name, "back_to_back", 0.08) for name in CAPPED],
)
def test_recorded_kernels_unchanged_on_another_unit(
    kernel: str, series: str, unclear: float
) -> None:
    words = replay(kernel, "A", series=series)
    assert share(words, "slower", "faster") == 0
    assert share(words, "unclear") <= unclear


@pytest.mark.parametrize(
    ("kernel", "known", "power"),
    [
        ("attention", 1, 1.0),
        ("gemm_4096", 1, 0.5),
        ("copy_1gib", 2, 0.8),
        ("gemm_4096", 2, 0.9),
        ("copy_1gib", 3, 1.0),
        ("gemm_4096", 3, 0.97),
        ("fma_80us", 3, 0.3),
    ],
)
def test_recorded_changes_are_found_on_another_unit(kernel: str, known: int, power: float) -> None:
    words = replay(kernel, "B", known=known)
    assert share(words, "slower") >= power
    assert words["faster"] == 0


def test_recorded_single_launches_with_noise_beyond_the_prior_give_no_verdict() -> None:
    words = replay("fma_14us_single", "A")
    assert share(words, "slower", "faster") <= 0.01


def test_recorded_change_below_the_gate_is_found_on_the_same_unit() -> None:
    rnd = random.Random(5)  # noqa: S311 - simulated noise
    prior = prior_for("cuda", "compute", regime=Regime.PACED, time_us=1373.0, has_cycles=True)
    words: Words = Counter()
    for unit in ("unit0", "unit1", "unit2", "unit3") * 25:
        before = rnd.sample(recorded("gemm_8192", "A", unit, "paced"), 5)
        now = rnd.sample(recorded("gemm_8192", "B", unit, "paced"), SCREEN + CONFIRM)
        words[decide(before, now[:SCREEN], now[SCREEN:], prior)] += 1
    assert share(words, "slower") >= 0.99
