"""Requests that arrive at a server, drawn so that every machine draws the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

# Each factor of a length lies in [1, 1 + _SPREAD) or is the inverse of one. The logarithm of a
# product of 12 of them is nearly normal, with a standard deviation of about 1.
_FACTORS = 12
_SPREAD = 0.6


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its number, when it arrives, and its tokens going in and coming out."""

    index: int
    arrival_us: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if self.arrival_us < 0 or self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"{self!r}: give an arrival >= 0 and at least one token each way")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: their median, and the limits they are cut at."""

    median: int
    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.median <= self.most:
            raise ValueError(f"{self!r}: give 1 <= least <= median <= most")


@dataclass(frozen=True, slots=True)
class Demand:
    """What a trace holds: so many requests in a window, in whole ticks, and their lengths."""

    requests: int
    window_us: int
    prompt: Lengths
    output: Lengths
    tick_us: int = 1

    def __post_init__(self) -> None:
        if self.requests < 0 or self.window_us < 0 or self.tick_us < 1:
            raise ValueError(f"{self!r}: give requests and a window >= 0 and a tick >= 1")


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
        Request(
            index,
            tick * demand.tick_us,
            _draw_length(demand.prompt, rng),
            _draw_length(demand.output, rng),
        )
        for index, tick in enumerate(arrivals)
    )


def draw_prompts(trace: Sequence[Request], vocab: int, seed: int) -> list[list[int]]:
    """Return each request's prompt: uniform tokens in [0, vocab)."""
    rng = random.Random(seed)  # noqa: S311 - as above
    return [[int(rng.random() * vocab) for _ in range(item.prompt_tokens)] for item in trace]


def _draw_length(lengths: Lengths, rng: random.Random) -> int:
    value = float(lengths.median)
    for _ in range(_FACTORS):
        factor = 1 + _SPREAD * rng.random()
        value = value * factor if rng.random() < 0.5 else value / factor  # noqa: PLR2004 - a coin
    return min(lengths.most, max(lengths.least, int(value)))
