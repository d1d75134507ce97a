"""Made-up nights for the tests of the history."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace
from store_data import UNIT, finished

from perfsuite.model import Run

FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)
COPY = "memory.copy[n=1024]"
SCALE = "memory.scale[n=1024]"


def commit_of(index: int) -> str:
    """Return the commit of a night."""
    return f"{index:012x}".ljust(40, "f")


def night(index: int, times_us: Mapping[str, float] | None = None, *, unit: str = UNIT) -> Run:
    """Return the run of a night; its id and commit tell which."""
    run = finished(dict(times_us or {"copy": 300.0}), unit=unit, run_id=f"night-{index:04}")
    started = (FIRST + timedelta(days=index)).isoformat(timespec="seconds")
    return replace(run, started=started, commit=commit_of(index))


def nights(many: int, *, step: float = 0.0, at: int = 0, noise: float = 0.001) -> list[Run]:
    """Return nights of one variant whose level rises by ``step`` at night ``at``."""
    rng = random.Random(3)  # noqa: S311 - made-up noise
    return [
        night(n, {"copy": 300.0 * (1 + step * (n >= at)) * (1 + rng.gauss(0, noise))})
        for n in range(many)
    ]
