"""A mini server: the requests, which of them its next step works on, and what that is worth.

Time to first token (TTFT) is from a request's arrival to its first token. Time per output token
(TPOT) is (last - first) / (tokens - 1) of a request; one of a single token has none. Inter-token
latency (ITL) is each gap between two tokens of a request. Goodput counts requests within both
limits per second. Names and definitions are those of ``vllm bench serve``. Rates and the makespan
count from the trace's time 0 to the last token. Times are whole microseconds since the trace began.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
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


# The server: what it is told, what its step works on, and who carries that out.


@dataclass(frozen=True, slots=True)
class Rules:
    """What the server is told, what its steps take, and what a request may take at most.

    A batch of ``plan_static`` waits for ``timeout_us``, a step of ``plan_chunked`` may have
    ``budget`` tokens. A step takes ``fixed_us``, which stands for reading the weights, and
    ``token_us`` for each token read and row decoded; all are whole ticks. A request that takes a
    limit itself has kept it.
    """

    slots: int
    timeout_us: int
    budget: int
    fixed_us: int
    token_us: int
    tick_us: int
    # Llama-2-70B interactive in MLPerf Inference v5.0.
    ttft_us: int = 450_000
    tpot_us: int = 40_000


@dataclass(slots=True)
class Seat:
    """A request in its slot: how much of its prompt was read, and when each token was there."""

    request: Request
    slot: int
    admitted_us: int
    read: int = 0
    tokens_us: list[int] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        """Say whether the whole prompt was read."""
        return self.read == self.request.prompt_tokens

    @property
    def is_done(self) -> bool:
        """Say whether all tokens came out."""
        return len(self.tokens_us) == self.request.output_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What one step works on: prompts, each with the tokens that are read of it, and decoded seats.

    ``rows`` are computed, of which those in ``decode`` are of use. The step that reads the last of
    a prompt brings its first token.
    """

    prefill: Sequence[tuple[Seat, int]] = ()
    decode: Sequence[Seat] = ()
    rows: int = 0


class Backend(Protocol):
    """Carries out steps, and has the clock that tells when their tokens are there."""

    def now_us(self) -> int:
        """Return the time."""

    def wait_until(self, time_us: int) -> None:
        """Return at this time, at once if it has passed."""

    def run(self, step: Step) -> None:
        """Return when the step's tokens are there."""


@dataclass(slots=True)
class Virtual:
    """A backend that lets as much time pass on a virtual clock as the rules say."""

    rules: Rules
    time_us: int = 0

    def now_us(self) -> int:
        """Return the time."""
        return self.time_us

    def wait_until(self, time_us: int) -> None:
        """Jump to this time, unless it has passed."""
        self.time_us = max(self.time_us, time_us)

    def run(self, step: Step) -> None:
        """Let the step's time pass."""
        tokens = sum(tokens for _, tokens in step.prefill)
        self.time_us += self.rules.fixed_us + self.rules.token_us * (tokens + step.rows)


@dataclass(slots=True)
class Floor:
    """The requests to come and those that wait for a slot, the oldest first, and who has one.

    ``served`` are all who ever had one, in the order of their arrival.
    """

    rules: Rules
    coming: deque[Request]
    now_us: int = 0
    waiting: deque[Request] = field(default_factory=deque)
    seats: list[Seat] = field(default_factory=list)
    served: list[Seat] = field(default_factory=list)

    @property
    def live(self) -> list[Seat]:
        """The seats of requests that are not done."""
        return [seat for seat in self.seats if not seat.is_done]

    @property
    def wake_us(self) -> int:
        """When the next request arrives, or the oldest that waits has waited too long."""
        times = [request.arrival_us + self.rules.timeout_us for request in self.waiting]
        return min(times + [request.arrival_us for request in self.coming])

    def arrive(self, now_us: int) -> None:
        """Let those wait who are here by now."""
        self.now_us = now_us
        while self.coming and self.coming[0].arrival_us <= now_us:
            self.waiting.append(self.coming.popleft())

    def admit(self) -> list[Seat]:
        """Give the slots of requests that are done, the lowest first, to who waited longest."""
        self.seats = self.live
        taken = {seat.slot for seat in self.seats}
        free = [slot for slot in range(self.rules.slots) if slot not in taken]
        waiting = free[: len(self.waiting)]
        admitted = [Seat(self.waiting.popleft(), slot, self.now_us) for slot in waiting]
        self.seats += admitted
        self.served += admitted
        return admitted


# Which requests a step works on.


def plan_static(floor: Floor) -> Step:
    """Plan batches that begin when full, or when the oldest waited too long, and end as one.

    Rows that are done are computed on until the batch's longest request ends, and their slots
    stay empty: request-level batching, as a loop around ``generate`` does it.
    """
    if floor.live:
        return Step(decode=floor.live, rows=len(floor.seats))
    oldest_us = floor.waiting[0].arrival_us if floor.waiting else floor.now_us
    is_late = floor.now_us >= oldest_us + floor.rules.timeout_us
    if len(floor.waiting) < floor.rules.slots and not is_late:
        return Step()
    return Step(prefill=_whole(floor.admit()))


def plan_continuous(floor: Floor) -> Step:
    """Plan steps that give a slot to the next request at the step after its last token.

    Prompts go first: a step reads those of all who were just admitted, else every slot decodes.
    Source: iteration-level scheduling, Yu et al., Orca, OSDI 2022.
    """
    admitted = floor.admit()
    if admitted:
        return Step(prefill=_whole(admitted))
    return Step(decode=floor.seats, rows=len(floor.seats))


def plan_chunked(floor: Floor) -> Step:
    """Plan as ``plan_continuous``, but decode in every step and read prompts with what is left.

    A step has a budget of tokens in all; a long prompt is read in pieces, so that it never holds up
    the others' tokens by more than that. Source: stall-free batching, Agrawal et al.,
    Sarathi-Serve, OSDI 2024.
    """
    floor.admit()
    decode = [seat for seat in floor.seats if seat.is_read]
    left, pieces = floor.rules.budget - len(decode), []
    for seat in floor.seats:
        tokens = min(left, seat.request.prompt_tokens - seat.read)
        if tokens:
            pieces.append((seat, tokens))
            left -= tokens
    return Step(pieces, decode, rows=len(decode))


def _whole(seats: Iterable[Seat]) -> list[tuple[Seat, int]]:
    return [(seat, seat.request.prompt_tokens) for seat in seats]


Plan = Callable[[Floor], Step]
PLANS: dict[str, Plan] = {
    "static": plan_static,
    "continuous": plan_continuous,
    "chunked": plan_chunked,
}


def serve(trace: Sequence[Request], plan: Plan, backend: Backend, rules: Rules) -> list[Seat]:
    """Serve all requests; return what became of each, in the trace's order.

    The clock must stand at 0 or later; nothing is admitted before it arrives.
    """
    floor = Floor(rules, deque(trace))
    while floor.coming or floor.waiting or floor.live:
        floor.arrive(backend.now_us())
        step = plan(floor)
        if not step.prefill and not step.decode:
            backend.wait_until(floor.wake_us)
            continue
        backend.run(step)
        for seat, tokens in step.prefill:
            seat.read += tokens
        first = [seat for seat, _ in step.prefill if seat.is_read]
        end_us = backend.now_us()
        for seat in (*first, *step.decode):
            seat.tokens_us.append(end_us)
    return floor.served


# What a served trace is worth.


def summarise(served: Sequence[Seat], rules: Rules) -> dict[str, float]:
    """Return the metrics of a trace."""
    makespan_us = max(seat.tokens_us[-1] for seat in served)
    per_s = Fraction(1_000_000, makespan_us)
    gaps = [[b - a for a, b in pairwise(seat.tokens_us)] for seat in served]
    waits = [seat.tokens_us[0] - seat.request.arrival_us for seat in served]
    times_us: dict[str, list[Fraction]] = {
        "ttft": [Fraction(wait) for wait in waits],
        "tpot": [Fraction(sum(own), len(own)) for own in gaps if own],
        "itl": [Fraction(gap) for own in gaps for gap in own],
    }
    good = sum(
        wait <= rules.ttft_us and sum(own) <= rules.tpot_us * len(own)
        for wait, own in zip(waits, gaps, strict=True)
    )
    tokens = sum(len(seat.tokens_us) for seat in served)
    return {
        **{
            f"{name}_ms_p{percent}": float(quantile(values, percent) / 1000)
            for name, values in times_us.items()
            for percent in (50, 99)
        },
        "goodput_rps": float(good * per_s),
        "tokens_per_s": float(tokens * per_s),
        "makespan_ms": makespan_us / 1000,
        "tokens": float(tokens),
    }


def quantile(values: Iterable[Fraction], percent: int) -> Fraction:
    """Return the nearest rank: the least value that ``percent`` of all do not exceed.

    It is one of the values, never between two, so that it is exact.
    """
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1]
