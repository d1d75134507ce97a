"""A quick look: how long a call takes in this very process, without a verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TIME_LIMIT_S = 0.5
MOST_LAUNCHES = 1000


@dataclass(frozen=True, slots=True)
class Look:
    """Host times of one call: the median, and the middle half around it."""

    name: str
    launches: int
    median_us: float
    low_us: float
    high_us: float

    def line(self) -> str:
        """Return the look as one line of the summary."""
        return (
            f"{self.median_us:12.2f} us  ({self.low_us:.2f} to {self.high_us:.2f},"
            f" {self.launches} launches)  {self.name}"
        )


def take_look(
    name: str, call: Callable[[], Any], *, time_limit_s: float = TIME_LIMIT_S
) -> tuple[Look, Any]:
    """Call until the time is up; return the look and what the first call, a warm-up, returned."""
    result = call()
    times_us: list[float] = []
    end = time.perf_counter() + time_limit_s
    while not times_us or (len(times_us) < MOST_LAUNCHES and time.perf_counter() < end):
        start = time.perf_counter_ns()
        call()
        times_us.append((time.perf_counter_ns() - start) / 1e3)
    low, _, high = statistics.quantiles(times_us * 2, n=4, method="inclusive")
    return Look(name, len(times_us), statistics.median(times_us), low, high), result
