"""A mini server: the requests, which of them its next step works on, and what that is worth.

Time to first token (TTFT) is from a request's arrival to its first token. Time per output token
(TPOT) is (last - first) / (tokens - 1) of a request; one of a single token has none. Inter-token
latency (ITL) is each gap between two tokens of a request. Goodput counts requests within both
limits per second. Names and definitions are those of ``vllm bench serve``. Rates and the makespan
count from the trace's time 0 to the last token. Times are whole microseconds since the trace began.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

# Each factor of a length lies in [1, 1 + _SPREAD) or is the inverse of one. The logarithm of a
# product of 12 of them is nearly normal, with a standard deviation of about 1.
_FACTORS = 12
_SPREAD = 0.6


# Requests that arrive at a server, drawn so that every machine draws the same.


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its number, when it arrives, and its tokens going in and coming out."""

    index: int
    arrival_us: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: their median, and the limits they are cut at."""

    median: int
    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        """Return one."""
        value = float(self.median)
        for _ in range(_FACTORS):
            factor = 1 + _SPREAD * rng.random()
            value = value * factor if rng.random() < 0.5 else value / factor  # noqa: PLR2004 - a coin
        return min(self.most, max(self.least, int(value)))


@dataclass(frozen=True, slots=True)
class Demand:
    """What a trace holds: so many requests in a window, in whole ticks, and their lengths."""

    requests: int
    window_us: int
    prompt: Lengths
    output: Lengths
    tick_us: int = 1


def draw_trace(demand: Demand, seed: int) -> tuple[Request, ...]:
    """Return the requests in the order of their arrival; the first has number 0.

    Arrivals are those of a Poisson process with ``requests`` arrivals in the window: given their
    number, they are independent and uniform over it. Nothing but ``random()``, sums, products and
    quotients is used: these are rounded alike everywhere, a library's logarithm is not.
    """
    rng = random.Random(seed)  # noqa: S311 - a trace, not a secret
    ticks = demand.window_us // demand.tick_us
    arrivals = sorted(int(rng.random() * ticks) for _ in range(demand.requests))
    return tuple(
        Request(index, tick * demand.tick_us, demand.prompt.draw(rng), demand.output.draw(rng))
        for index, tick in enumerate(arrivals)
    )


def draw_prompts(trace: Sequence[Request], vocab: int, seed: int) -> list[list[int]]:
    """Return each request's prompt: uniform tokens in [0, vocab)."""
    rng = random.Random(seed)  # noqa: S311 - as above
    return [[int(rng.random() * vocab) for _ in range(item.prompt_tokens)] for item in trace]


# Which of them a step works on: static, continuous and chunked.


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


class RealClock:
    """The host's clock, from its making on."""

    def __init__(self) -> None:
        self._begun_ns = time.perf_counter_ns()

    def now_us(self) -> int:
        """Return the time."""
        return (time.perf_counter_ns() - self._begun_ns) // 1000

    def wait_until(self, time_us: int) -> None:
        """Sleep until this time, unless it has passed."""
        while (left_us := time_us - self.now_us()) > 0:
            time.sleep(left_us / 1e6)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a step takes: a fixed part, and something for each token and row, in microseconds.

    The fixed part stands for reading the weights. A step that reads prompts and decodes as well
    pays the larger one once.
    """

    prefill_us: int
    token_us: int
    decode_us: int
    row_us: int


@dataclass(slots=True)
class CostModel:
    """A virtual clock, and a backend that lets as much time pass on it as the costs say."""

    costs: Costs
    time_us: int = 0

    def now_us(self) -> int:
        """Return the time."""
        return self.time_us

    def wait_until(self, time_us: int) -> None:
        """Jump to this time, unless it has passed."""
        self.time_us = max(self.time_us, time_us)

    def run(self, step: Step) -> None:
        """Let the step's time pass."""
        fixed_us = self.costs.prefill_us if step.prefill else 0
        if step.decode:
            fixed_us = max(fixed_us, self.costs.decode_us)
        tokens = sum(piece.tokens for piece in step.prefill)
        self.time_us += fixed_us + self.costs.token_us * tokens + self.costs.row_us * step.rows


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
class Chunked(Continuous):
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


Policy = Static | Continuous


@dataclass(slots=True)
class Served:
    """What became of a request: when it got its slot, and when each of its tokens was there."""

    request: Request
    admitted_us: int = -1
    tokens_us: list[int] = field(default_factory=list)


def serve(
    trace: Sequence[Request],
    policy: Policy,
    backend: Backend,
    clock: RealClock | CostModel,
    *,
    slots: int,
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


# What a served trace is worth.


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take at most, the limit itself included."""

    ttft_us: int
    tpot_us: int

    def hold(self, served: Served) -> bool:
        """Say whether a request kept both; one of a single token keeps the second."""
        first, last = served.tokens_us[0], served.tokens_us[-1]
        gaps = len(served.tokens_us) - 1
        in_time = first - served.request.arrival_us <= self.ttft_us
        return in_time and last - first <= self.tpot_us * gaps


# Llama-2-70B interactive in MLPerf Inference v5.0.
INTERACTIVE = Limits(ttft_us=450_000, tpot_us=40_000)


def summarise(served: Sequence[Served], limits: Limits = INTERACTIVE) -> dict[str, float]:
    """Return the metrics of a trace; 0 where there is nothing to take one of."""
    makespan_us = max((item.tokens_us[-1] for item in served), default=0)
    per_s = Fraction(1_000_000, makespan_us or 1)
    gaps = [[b - a for a, b in pairwise(item.tokens_us)] for item in served]
    times_us = {
        "ttft": [Fraction(item.tokens_us[0] - item.request.arrival_us) for item in served],
        "tpot": [Fraction(sum(own), len(own)) for own in gaps if own],
        "itl": [Fraction(gap) for own in gaps for gap in own],
    }
    tokens = sum(len(item.tokens_us) for item in served)
    return {
        **{
            f"{name}_ms_p{percent}": float(quantile(values, percent) / 1000)
            for name, values in times_us.items()
            for percent in (50, 99)
        },
        "goodput_rps": float(sum(limits.hold(item) for item in served) * per_s),
        "tokens_per_s": float(tokens * per_s),
        "makespan_ms": makespan_us / 1000,
        "tokens": float(tokens),
    }


def quantile(values: Iterable[Fraction], percent: int) -> Fraction:
    """Return the nearest rank: the least value that ``percent`` of all do not exceed; 0 of none.

    It is one of the values, never between two, so that it is exact.
    """
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else Fraction(0)
