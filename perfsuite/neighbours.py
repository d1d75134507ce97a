"""Other pytest plugins beside --perf: whose options are refused, and whose tests are left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfsuite.errors import UsageError

if TYPE_CHECKING:
    import pytest

# The fixture that pytest-benchmark and pytest-codspeed share, and what is done with its results.
BENCHMARK = "benchmark"
RESULTS = ("json", "save", "autosave", "compare", "histogram")


@dataclass(frozen=True, slots=True)
class Refused:
    """An option that would have perf items run elsewhere, again, or not at all."""

    option: str
    told: str
    why: str
    remedy: str


REFUSED = (
    Refused(
        *("numprocesses", "xdist's -n"),
        why="measurements would disturb each other",
        remedy="leave -n out, or add -n 0; perfsuite drives all GPUs of this machine itself",
    ),
    Refused(
        *("tx", "xdist's --tx"),
        why="measurements would disturb each other",
        remedy="leave --tx out; perfsuite drives all GPUs of this machine itself",
    ),
    Refused(
        *("looponfail", "xdist's --looponfail"),
        why="what failed would be measured again until it passes",
        remedy="leave it out; --lf runs what failed once more",
    ),
    Refused(
        *("codspeed", "--codspeed"),
        why="it would deselect every variant",
        remedy="run them one after the other",
    ),
    Refused(
        *("benchmark_only", "--benchmark-only"),
        why="it would skip every variant",
        remedy="leave it out; each report has a benchmark.json in pytest-benchmark's format",
    ),
    Refused(
        *("reruns", "--reruns"),
        why="a repeated test would turn a slowdown into a pass",
        remedy="leave --reruns out, or add --reruns 0; perfsuite confirms changes in fresh "
        "processes",
    ),
)


def refuse_neighbours(config: pytest.Config) -> None:
    """Raise a ``UsageError`` for an option of another plugin that does not go with --perf."""
    for each in REFUSED:
        if config.getoption(each.option, default=None):
            raise UsageError(f"--perf cannot run with {each.told}: {each.why}", remedy=each.remedy)


def silence_benchmark(config: pytest.Config) -> list[str]:
    """Take back what pytest-benchmark is to do with results: without any it would only warn."""
    asked = [name for name in RESULTS if config.getoption(f"benchmark_{name}", default=None)]
    for name in asked:
        setattr(config.option, f"benchmark_{name}", None)
    return asked


def benchmarks_left_out(silenced: Iterable[str], left_out: Iterable[pytest.Item]) -> str:
    """Say that pytest-benchmark's tests do not run, where somebody could expect them to."""
    options = "".join(f" and --benchmark-{name}" for name in silenced)
    if options or any(BENCHMARK in getattr(item, "fixturenames", ()) for item in left_out):
        return f"perfsuite: benchmark tests{options} are left out; run them without --perf"
    return ""
