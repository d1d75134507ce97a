"""A pack with hooks in pytest's own process, in the module listening_controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import perfsuite
from perfsuite import Case, Workload


@perfsuite.case(axes={"n": [100, 200]}, source="made up for tests")
def double(ctx: Any, n: int) -> Workload:
    """Double eight numbers in n microseconds."""

    def fn(values: list[float]) -> list[float]:
        ctx.spend(n)
        return [2 * value for value in values]

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's case."""
    return [double]


@perfsuite.hookimpl
def perf_controller() -> str:
    """Return the module of the hooks for pytest's process."""
    return "listening_controller"
