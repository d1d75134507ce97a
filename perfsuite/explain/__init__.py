"""Finds what a change of time is made of: kernels, their code, the clock, the environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfsuite.explain.matching import matched, role_of
from perfsuite.explain.parts import Clock, CodeChange, Explanation, KernelChange, Kind, Side
from perfsuite.model import Change, Code

__all__ = [
    "Clock",
    "CodeChange",
    "Explanation",
    "KernelChange",
    "Kind",
    "Side",
    "explain",
    "role_of",
]

# What of a kernel's code tells most; other facts come after these.
_TELLING = ("registers", "spill_bytes", "tensor_core_ops", "tma_ops", "global_load_width")
# The SM clock moves by a little all the time; this much is worth a sentence.
LEAST_CLOCK = 0.005
# Of work that depends on the clock by less, as many cycles as before are a coincidence.
LEAST_BETA = 0.25


def explain(change: Change | None, before: Side, now: Side) -> Explanation:
    """Return what the change of a variant's time is made of."""
    change_us = change.current - change.baseline if change else None
    codes = tuple(_codes(before.codes, now.codes))
    kernels: list[KernelChange] = []
    if before.kernels and now.kernels:
        kernels = [_shared(each, change_us, codes) for each in matched(before, now)]
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


def _shared(
    each: KernelChange, change_us: float | None, codes: Sequence[CodeChange]
) -> KernelChange:
    names = {kernel.function for kernel in (each.before, each.now) if kernel}
    code = next((one for one in codes if one.now.function in names), None)
    return replace(each, share=each.delta_us / change_us if change_us else None, code=code)


def _codes(before: Sequence[Code], now: Sequence[Code]) -> Iterator[CodeChange]:
    old = {code.name: code for code in before}
    for code in now:
        if code.name in old:
            facts, was = code.facts, old[code.name].facts
            moved = [
                (name, was.get(name, 0.0), facts.get(name, 0.0))
                for name in _telling_first({**was, **facts})
            ]
            known = moved if was and facts else []
            differing = tuple(each for each in known if each[1] != each[2])
            yield CodeChange(old[code.name], code, differing)


def _telling_first(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: name not in _TELLING)


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
        before=was,
    )
