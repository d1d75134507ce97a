"""What a change of time is made of: kernels matched before and now, their code, the clock."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from perfsuite.model import Change, Code, TracedKernel
from perfsuite.report.data import Side

# A kernel whose time moved by less than both is taken as it was: 30 launches say no more.
LEAST_SHARE, LEAST_US = 0.01, 0.05
# What explains less of a change than this is no cause of it.
LEAST_OF_CHANGE = 0.2
# What is counted is nearly exact: others use L2 and DRAM too, and blocks meet in another order.
LEAST_COUNTED_SHARE, LEAST_COUNTED = 0.02, 1000
# The SM clock moves by a little all the time; this much is worth a sentence.
LEAST_CLOCK = 0.005
# Of work that depends on the clock by less, as many cycles as before are a coincidence.
LEAST_BETA = 0.25
# What of a kernel's code tells most; other facts come after these.
_TELLING = ("registers", "spill_bytes", "tensor_core_ops", "tma_ops", "global_load_width")
# What a library's kernel is for, by its name: the first that fits.
_ROLES = {
    "attention": r"attention|flash|fmha|sdpa",
    "convolution": r"conv|wgrad|dgrad|winograd",
    "matrix product": r"gemm|gemv|nvjet|cutlass|cublas|xmma|mm$|mma|matmul",
    "softmax": r"softmax",
    "normalisation": r"norm",
    "collective": r"nccl",
    "copy": r"copy|memcpy|memset|fill",
    "reduction": r"reduce",
    "elementwise": r"elementwise|pointwise|triton_poi",
}


class Kind(StrEnum):
    """What became of a kernel."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"


class CodeChange(Struct, frozen=True):
    """The code of one of our own kernels before and now, and the facts of it that differ."""

    before: Code
    now: Code
    facts: tuple[tuple[str, float, float], ...]

    @property
    def is_same(self) -> bool:
        """Say whether the PTX is the same to the letter."""
        return self.before.ptx == self.now.ptx


class KernelChange(Struct, frozen=True):
    """A kernel before and now; ``share`` is how much it explains of the change, None of none."""

    kind: Kind
    before: TracedKernel | None
    now: TracedKernel | None
    delta_us: float
    share: float | None = None
    code: CodeChange | None = None

    @property
    def counters(self) -> list[tuple[str, float, float]]:
        """What was counted otherwise before than now, where both were counted."""
        old, new = (side.counters if side else {} for side in (self.before, self.now))
        pairs = [(name, old[name], new[name]) for name in new if name in old]
        return [
            (name, was, now)
            for name, was, now in pairs
            if abs(now - was) > max(LEAST_COUNTED, LEAST_COUNTED_SHARE * max(was, now))
        ]


class Clock(Struct, frozen=True, kw_only=True):
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


class Explanation(Struct, frozen=True, kw_only=True):
    """What a change is made of, what explains most first.

    ``rest_us`` is what the kernels do not explain: gaps between them, and what launching takes.
    ``same_artefact`` is None where the artefact of before or now is not known.
    """

    change_us: float | None
    kernels: tuple[KernelChange, ...]
    codes: tuple[CodeChange, ...]
    rest_us: float | None
    clock: Clock | None
    environment: tuple[tuple[str, str, str], ...]
    same_artefact: bool | None

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


def explain(change: Change | None, before: Side, now: Side) -> Explanation:
    """Return what the change of a variant's time is made of."""
    change_us = change.current - change.baseline if change else None
    codes = tuple(_codes(before.codes, now.codes))
    kernels: list[KernelChange] = []
    for each in _matched(before, now) if before.kernels and now.kernels else ():
        names = {kernel.function for kernel in (each.before, each.now) if kernel}
        code = next((one for one in codes if one.now.function in names), None)
        share = each.delta_us / change_us if change_us else None
        kernels.append(replace(each, share=share, code=code))
    kernels.sort(key=lambda each: -abs(each.delta_us))
    explained_us = math.fsum(each.delta_us for each in kernels)
    known = bool(before.artefact and now.artefact)
    return Explanation(
        change_us=change_us,
        kernels=tuple(kernels),
        codes=codes,
        rest_us=change_us - explained_us if kernels and change_us is not None else None,
        clock=_clock(change, before, now) if change else None,
        environment=tuple(
            (name, before.environment[name], value)
            for name, value in sorted(now.environment.items())
            if before.environment.get(name, value) != value
        ),
        same_artefact=before.artefact == now.artefact if known else None,
    )


def role_of(kernel: TracedKernel) -> str:
    """Return what a kernel is for, as far as its name says so."""
    name = kernel.name.lower()
    return next((role for role, words in _ROLES.items() if re.search(words, name)), "")


def _matched(before: Side, now: Side) -> Iterator[KernelChange]:
    """Pair kernels by name and shape, then by name alone, then by role; the rest came or went."""
    left, right = list(before.kernels), list(now.kernels)
    for key in (_shape, lambda kernel: kernel.name):
        for old, new in list(_paired(left, right, key)):
            delta_us = new.total_us - old.total_us
            moved = abs(delta_us) > max(LEAST_US, LEAST_SHARE * old.total_us)
            is_same = not moved and new.count == old.count and _shape(new) == _shape(old)
            yield KernelChange(Kind.SAME if is_same else Kind.CHANGED, old, new, delta_us)
    lone = len(left) == len(right) == 1
    for old, new in list(_paired(left, right, lambda kernel: lone or role_of(kernel))):
        yield KernelChange(Kind.REPLACED, old, new, new.total_us - old.total_us)
    yield from (KernelChange(Kind.REMOVED, old, None, -old.total_us) for old in left)
    yield from (KernelChange(Kind.ADDED, None, new, new.total_us) for new in right)


def _shape(kernel: TracedKernel) -> object:
    return (kernel.name, kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes)


def _paired(
    left: list[TracedKernel], right: list[TracedKernel], key: Callable[[TracedKernel], object]
) -> Iterator[tuple[TracedKernel, TracedKernel]]:
    """Take pairs of the same key out of both lists, the longest first."""
    for old in sorted(left, key=lambda kernel: -kernel.total_us):
        found = [new for new in right if key(old) and key(new) == key(old)]
        if found:
            new = min(found, key=lambda kernel: abs(kernel.total_us - old.total_us))
            left.remove(old)
            right.remove(new)
            yield old, new


def _codes(before: Sequence[Code], now: Sequence[Code]) -> Iterator[CodeChange]:
    old = {code.name: code for code in before}
    for code in now:
        if code.name in old:
            was, facts = old[code.name].facts, code.facts
            names = sorted({**was, **facts}, key=lambda name: name not in _TELLING)
            moved = ((name, was.get(name, 0.0), facts.get(name, 0.0)) for name in names)
            # Where one side could not be read nothing is known to differ.
            differing = tuple(each for each in moved if was and facts and each[1] != each[2])
            yield CodeChange(old[code.name], code, differing)


def _clock(change: Change, before: Side, now: Side) -> Clock | None:
    """Return the clock's part where it moved, or where it is held back as it was not before."""
    held, was = (Counter(r for h in side.health for r in h.reasons) for side in (now, before))
    moved = abs(math.expm1(change.clock_change)) >= LEAST_CLOCK
    if not moved and not (before.health and held.keys() - was.keys()):
        return None
    time = math.expm1(change.time_change)
    cycles = math.expm1(change.time_change + change.clock_change)
    by_cycles = change.beta >= LEAST_BETA and abs(cycles) < abs(change.theta) / 2
    own = cycles if by_cycles else change.theta
    return Clock(
        clock=math.expm1(change.clock_change),
        time=time,
        code=own,
        by_cycles=by_cycles,
        us=change.baseline * (time - own) if moved else 0.0,
        blocks=len(now.health),
        reasons=held,
    )
