"""pytest-benchmark: its files made of our runs, and our clocks as its timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from perfsuite.hooks import hookimpl

if TYPE_CHECKING:
    from perfsuite.report.data import RunView


@hookimpl
def perf_files() -> Mapping[str, Callable[[RunView], str]]:
    """Return what makes ``benchmark.json``."""
    from perfsuite.interop.benchmark import benchmark_json

    return {"benchmark.json": benchmark_json}


@hookimpl
def perf_testing() -> Mapping[str, object]:
    """Return the clock."""
    from perfsuite.interop.benchmark import DeviceClock

    return {"DeviceClock": DeviceClock}
