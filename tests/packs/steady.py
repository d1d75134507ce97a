"""A pack of well-behaved variants for the fake device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Case, Workload


def _workload(ctx: Any, time_us: float) -> Workload:
    def double(values: list[float]) -> list[float]:
        ctx.spend(time_us)
        return [2 * value for value in values]

    return Workload(
        fn=double,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )


@perfsuite.case(smoke={"n": [100, 200, 400]}, source="made up for tests")
def double(ctx: Any, n: int) -> Workload:
    """Double eight numbers in n microseconds."""
    return _workload(ctx, n)


@perfsuite.case(smoke={"n": [100]}, source="made up for tests")
def traced(ctx: Any, n: int) -> Workload:
    """Leave the process id of the worker in a folder if one is named, one file each."""
    if folder := os.environ.get("PERFSUITE_TEST_TRACE"):
        Path(folder, str(os.getpid())).touch()
    return _workload(ctx, n)


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's cases."""
    return [double, traced]
