"""How often the decision errs, by simulated noise of known truth.

Every comparison uses processes that no other side of it uses, default settings and both stages.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from perfsuite.judge.compare import Policy, shift_of
from perfsuite.judge.noise import NoisePrior, Timing, prior_for
from perfsuite.judge.verdict import is_suspect
from perfsuite.model import Regime, Word

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
