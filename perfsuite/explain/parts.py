"""What an explanation consists of, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from perfsuite.model import Code, Health, TracedKernel

# A kernel whose time moved by less than both is taken as it was: 30 launches say no more.
LEAST_SHARE, LEAST_US = 0.01, 0.05
# What explains less of a change than this is no cause of it.
LEAST_OF_CHANGE = 0.2
# What is counted is nearly exact: others use L2 and DRAM too, and blocks meet in another order.
LEAST_COUNTED_SHARE, LEAST_COUNTED = 0.02, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A variant before or now, as far as that is known; ``health`` is that of each block."""

    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()
    artefact: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    health: tuple[Health, ...] = ()


class Kind(StrEnum):
    """What became of a kernel."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel before and now; ``share`` is how much it explains of the change, None of none."""

    kind: Kind
    before: TracedKernel | None
    now: TracedKernel | None
    delta_us: float
    share: float | None = None
    code: CodeChange | None = None

    @property
    def counters(self) -> tuple[tuple[str, float, float], ...]:
        """What was counted otherwise before than now, where both were counted."""
        if self.before is None or self.now is None:
            return ()
        old, new = self.before.counters, self.now.counters
        pairs = ((name, old[name], new[name]) for name in new if name in old)
        return tuple(each for each in pairs if _differ(*each[1:]))


@dataclass(frozen=True, slots=True)
class CodeChange:
    """The code of one of our own kernels before and now, and the facts of it that differ."""

    before: Code
    now: Code
    facts: tuple[tuple[str, float, float], ...] = ()

    @property
    def is_same(self) -> bool:
        """Say whether the PTX is the same to the letter."""
        return self.before.ptx == self.now.ptx


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The SM clock's part: relative changes, and in how many blocks it was held back by what.

    ``code`` is what is left of the change of time: the judge's, or that of the SM cycles, which
    says more of work that may depend on the clock by more than its kind does.
    """

    clock: float
    time: float
    code: float
    by_cycles: bool
    us: float
    blocks: int
    reasons: Mapping[str, int]
    before: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a change is made of, what explains most first.

    ``rest_us`` is what the kernels do not explain: gaps between them, and what launching takes.
    ``same_artefact`` is None where the artefact of before or now is not known.
    """

    change_us: float | None = None
    kernels: tuple[KernelChange, ...] = ()
    codes: tuple[CodeChange, ...] = ()
    rest_us: float | None = None
    clock: Clock | None = None
    environment: tuple[tuple[str, str, str], ...] = ()
    same_artefact: bool | None = None

    @property
    def is_clock(self) -> bool:
        """Say whether the SM clock alone explains most of the change."""
        return bool(self.clock and self.change_us and self.clock.us / self.change_us > 1 / 2)

    @property
    def causes(self) -> list[KernelChange]:
        """The kernels that explain a part of the change worth telling, the greatest first.

        Where the clock does, and where none explains any of it, those that came, went or switched.
        """
        moved = [each for each in self.kernels if each.kind is not Kind.SAME]
        found = [each for each in moved if (each.share or 0.0) >= LEAST_OF_CHANGE]
        other = [each for each in moved if each.kind is not Kind.CHANGED]
        return other if self.is_clock or not found else found

    @property
    def is_fine(self) -> bool:
        """Say whether the change is smaller than what a trace can tell."""
        total_us = math.fsum(each.before.total_us for each in self.kernels if each.before)
        least_us = max(LEAST_US, LEAST_SHARE * total_us)
        return bool(self.kernels) and abs(self.change_us or 0.0) < least_us

    @property
    def is_between(self) -> bool:
        """Say whether most of the change lies between the kernels."""
        if self.is_fine or self.is_clock or not self.change_us or self.rest_us is None:
            return False
        return self.rest_us / self.change_us > 1 / 2


def _differ(old: float, new: float) -> bool:
    return abs(new - old) > max(LEAST_COUNTED, LEAST_COUNTED_SHARE * max(old, new))
