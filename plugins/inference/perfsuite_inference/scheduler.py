"""Which requests a server's next step works on: static, continuous and chunked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perfsuite_inference.trace import Request


class Clock(Protocol):
    """Time in whole microseconds since the trace began."""

    def now_us(self) -> int:
        """Return the time."""

    def wait_until(self, time_us: int) -> None:
        """Return at this time, or at once if it has passed."""


@dataclass(slots=True)
class Seat:
    """A request in its slot: how much of its prompt was read, and how many tokens came out."""

    request: Request
    slot: int
    prefilled: int = 0
    produced: int = 0

    @property
    def is_read(self) -> bool:
        """Say whether the whole prompt was read."""
        return self.prefilled == self.request.prompt_tokens

    @property
    def is_done(self) -> bool:
        """Say whether all tokens came out."""
        return self.produced == self.request.output_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """So many tokens of a seat's prompt, from ``start`` on, to be read in one step."""

    seat: Seat
    start: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one step works on; ``rows`` are computed, of which those in ``decode`` are of use.

    The step that reads the last piece of a prompt brings its first token.
    """

    prefill: tuple[Piece, ...] = ()
    decode: tuple[Seat, ...] = ()
    rows: int = 0

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to do."""
        return not self.prefill and not self.decode


class Backend(Protocol):
    """What carries out a step."""

    def run(self, step: Step) -> None:
        """Return when the step's tokens are there."""


@dataclass(slots=True)
class Floor:
    """The slots of a server, and the requests that wait for one, the oldest first."""

    slots: int
    now_us: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    seats: list[Seat] = field(default_factory=list)

    def admit(self) -> list[Seat]:
        """Give free slots, the lowest first, to those who have waited longest."""
        taken = {seat.slot for seat in self.seats}
        free = [slot for slot in range(self.slots) if slot not in taken]
        seats = [Seat(self.waiting.popleft(), slot) for slot in free[: len(self.waiting)]]
        self.seats += seats
        return seats

    def dismiss(self) -> None:
        """Take the slots of requests that are done."""
        self.seats = [seat for seat in self.seats if not seat.is_done]


class Policy(Protocol):
    """Decides on the next step, and moves requests to slots and out of them."""

    def plan(self, floor: Floor) -> Step:
        """Return the next step; an empty one if it is better to wait."""

    def wake_us(self, floor: Floor) -> int | None:
        """Return when ``plan`` is to be asked again even if nothing arrives."""


@dataclass(frozen=True, slots=True)
class Static:
    """A batch begins when it is full or its oldest has waited too long, and ends as one.

    Rows that are done are computed on until the batch's longest request ends, and their slots
    stay empty: request-level batching, as a loop around ``generate`` does it.
    """

    timeout_us: int

    def plan(self, floor: Floor) -> Step:
        """Return a step of the batch, or the first one of the next batch."""
        live = [seat for seat in floor.seats if not seat.is_done]
        if live:
            return Step(decode=tuple(live), rows=len(floor.seats))
        floor.seats.clear()
        wake_us = self.wake_us(floor)
        is_full = len(floor.waiting) >= floor.slots
        if not is_full and (wake_us is None or floor.now_us < wake_us):
            return Step()
        return Step(prefill=_whole(floor.admit()))

    def wake_us(self, floor: Floor) -> int | None:
        """Return when the oldest request will have waited too long."""
        return floor.waiting[0].arrival_us + self.timeout_us if floor.waiting else None


@dataclass(frozen=True, slots=True)
class Continuous:
    """A slot is free for the next request at the step after its last token.

    Prompts go first: a step reads those of all who were just admitted, else every slot decodes.
    Source: iteration-level scheduling, Yu et al., Orca, OSDI 2022.
    """

    def plan(self, floor: Floor) -> Step:
        """Return a step that reads prompts, else one that decodes."""
        floor.dismiss()
        admitted = floor.admit()
        if admitted:
            return Step(prefill=_whole(admitted))
        return Step(decode=tuple(floor.seats), rows=len(floor.seats))

    def wake_us(self, floor: Floor) -> None:
        """Return nothing: it never waits for more requests."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """As ``Continuous``, but every step decodes, and reads prompts with what tokens are left.

    ``budget`` is how many tokens a step may have in all; a long prompt is read in pieces, so that
    it never holds up the others' tokens by more than that. Source: stall-free batching, Agrawal et
    al., Sarathi-Serve, OSDI 2024.
    """

    budget: int

    def plan(self, floor: Floor) -> Step:
        """Return a step that decodes all and reads what it can."""
        if self.budget <= floor.slots:
            raise ValueError(
                f"a budget of {self.budget} tokens leaves none for prompts beside "
                f"{floor.slots} slots; give more"
            )
        floor.dismiss()
        floor.admit()
        decode = tuple(seat for seat in floor.seats if seat.is_read)
        left, pieces = self.budget - len(decode), []
        for seat in floor.seats:
            tokens = min(left, seat.request.prompt_tokens - seat.prefilled)
            if tokens:
                pieces.append(Piece(seat, seat.prefilled, tokens))
                left -= tokens
        return Step(tuple(pieces), decode, rows=len(decode))

    def wake_us(self, floor: Floor) -> None:
        """Return nothing: it never waits for more requests."""


@dataclass(slots=True)
class Served:
    """What became of a request: when it got its slot, and when each of its tokens was there."""

    request: Request
    admitted_us: int = -1
    tokens_us: list[int] = field(default_factory=list)


def serve(
    trace: Sequence[Request], policy: Policy, backend: Backend, clock: Clock, *, slots: int
) -> tuple[Served, ...]:
    """Serve all requests; return what became of each, in the trace's order.

    The clock must stand at 0 or later; nothing is admitted before it arrives. Raises ``ValueError``
    for fewer than one slot, ``RuntimeError`` if the policy waits with nothing to wait for.
    """
    if slots < 1:
        raise ValueError(f"a server with {slots!r} slots serves nobody; give at least 1")
    served = {request.index: Served(request) for request in trace}
    coming = deque(sorted(trace, key=lambda request: (request.arrival_us, request.index)))
    floor = Floor(slots)
    while coming or floor.waiting or not all(seat.is_done for seat in floor.seats):
        floor.now_us = clock.now_us()
        while coming and coming[0].arrival_us <= floor.now_us:
            floor.waiting.append(coming.popleft())
        step = policy.plan(floor)
        if step.is_empty:
            clock.wait_until(_next_us(coming, policy.wake_us(floor)))
            continue
        for piece in step.prefill:
            if not piece.start:
                served[piece.seat.request.index].admitted_us = floor.now_us
        backend.run(step)
        end_us = clock.now_us()
        for seat in _advance(step):
            served[seat.request.index].tokens_us.append(end_us)
    return tuple(served.values())


def _next_us(coming: deque[Request], wake_us: int | None) -> int:
    times = [coming[0].arrival_us] if coming else []
    times += [] if wake_us is None else [wake_us]
    if not times:
        raise RuntimeError("the policy waits, but no request is to come; let it plan a step")
    return min(times)


def _advance(step: Step) -> Iterable[Seat]:
    """Note what a step did, and return the seats that got a token."""
    for piece in step.prefill:
        piece.seat.prefilled += piece.tokens
    first = [piece.seat for piece in step.prefill if piece.seat.is_read]
    for seat in (*first, *step.decode):
        seat.produced += 1
        yield seat


def _whole(seats: Iterable[Seat]) -> tuple[Piece, ...]:
    return tuple(Piece(seat, 0, seat.request.prompt_tokens) for seat in seats)
