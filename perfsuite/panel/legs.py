"""Orders the processes of a variant, of one arm or of two in turns, and sorts what they found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfsuite.model import Arm, Evidence, Result, Stage, Status, Variant

QUADS = ("ABBA", "BAAB")


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a wave: its number, its slot and its arm."""

    process: int
    slot: int
    arm: Arm = Arm.B


@dataclass(frozen=True, slots=True)
class Wave:
    """Those processes of a variant that are alive at the same time, in the order of their turns.

    With a ``rival``, another variant of its case, each of them measures both in quads.
    """

    variant: Variant
    stage: Stage
    seats: tuple[Seat, ...]
    rival: Variant | None = None

    @property
    def memory_bytes(self) -> int:
        """The device memory that one process of it needs."""
        return self.variant.memory_bytes + (self.rival.memory_bytes if self.rival else 0)

    @property
    def is_paired(self) -> bool:
        """Say whether processes of both arms are in it."""
        return len({seat.arm for seat in self.seats}) > 1


def legs(processes: int, seed: str) -> list[Arm]:
    """Return the arms of ``processes`` of each in turns: quads of random order, the last halved."""
    order = random.Random(seed)  # noqa: S311 - an order, not a secret
    quads = "".join(order.choice(QUADS) for _ in range((processes + 1) // 2))
    return [Arm(letter) for letter in quads[: 2 * processes]]


def seats_of_one(processes: int, *, together: int, slots: int) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes`` of the working tree, by wave."""
    numbers = range(processes)
    return [
        tuple(Seat(number, number % slots) for number in numbers[first : first + together])
        for first in range(0, processes, together)
    ]


def seats_of_two(processes: int, *, together: int, slots: int, seed: str) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes`` of each arm, by wave: pairs, if two fit.

    Both pairs of a quad take the same two slots: what a server hands on to its workers, its
    address space among it, weighs on both arms alike. Each quad takes the next two.
    """
    seats = [
        Seat(number, (2 * (number // 4) + number % 2) % slots, arm)
        for number, arm in enumerate(legs(processes, seed))
    ]
    size = min(together, 2)
    return [tuple(seats[first : first + size]) for first in range(0, len(seats), size)]


def results_of(waves: Sequence[Wave], evidence: Sequence[Evidence]) -> list[Result]:
    """Return the result of each arm, A first, or of a variant and its rival.

    ``evidence`` is in the order of the seats, a rival's after that of its process's own.
    """
    first, rival = blank_of(waves[0], Arm.B), waves[0].rival
    if rival is not None:
        own = replace(first, evidence=tuple(evidence[::2]))
        return [own, replace(first, variant=rival.id, evidence=tuple(evidence[1::2]))]
    pairs = list(zip([seat.arm for wave in waves for seat in wave.seats], evidence, strict=True))
    return [
        replace(first, arm=arm, evidence=tuple(each for of, each in pairs if of is arm))
        for arm in sorted({arm for arm, _ in pairs})
    ]


def alone(waves: Sequence[Wave]) -> list[Wave]:
    """Return the waves without the processes of arm A."""
    kept = [(wave, tuple(seat for seat in wave.seats if seat.arm is Arm.B)) for wave in waves]
    return [replace(wave, seats=seats) for wave, seats in kept if seats]


def blank_of(wave: Wave, arm: Arm) -> Result:
    """Return the result of an arm that has no evidence yet."""
    return Result(
        variant=wave.variant.id,
        status=Status.OK,
        stage=wave.stage,
        case_version=wave.variant.case.version,
        arm=arm,
    )
