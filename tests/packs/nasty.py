"""A pack whose variants fail in each way that a run has to survive."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Case, Workload


def _double(values: list[float]) -> list[float]:
    return [2 * value for value in values]


def _workload(fn: Callable[..., Any], reference: Callable[..., Any] = _double) -> Workload:
    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=reference,
        wrong=lambda values: [-value for value in values],
    )


def _segfault(_values: list[float]) -> list[float]:
    print("about to read address zero")  # noqa: T201 - what the report is to show
    ctypes.string_at(0)
    return []


def _hang(_values: list[float]) -> list[float]:
    ctypes.CDLL(None).pause()  # in C, where no Python exception arrives
    return []


def _raise(_values: list[float]) -> list[float]:
    raise ValueError("the kernel is\nin a bad mood")


def _end_siblings(values: list[float]) -> list[float]:
    server = os.getppid()
    children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
    for pid in {int(child) for child in children} - {os.getpid()}:
        os.kill(pid, signal.SIGKILL)
    return _double(values)


FUNCTIONS: dict[str, Callable[[list[float]], Any]] = {
    "segfault": _segfault,
    "hang": _hang,
    "raise": _raise,
    "end_siblings": _end_siblings,
    "wrong": lambda values: [3 * value for value in values],
}


@perfsuite.case(smoke={"how": list(FUNCTIONS)}, source="made up for tests")
def fail(ctx: Any, how: str) -> Workload:
    """End in this way at the first launch."""
    del ctx
    return _workload(FUNCTIONS[how])


@perfsuite.case(smoke={"how": ["wrong", "off"]}, source="made up for tests")
def odd_one(ctx: Any, how: str) -> Workload:
    """Return something else in the workers of one server, wrong or a little off."""
    folder = Path(os.environ["PERFSUITE_TEST_TRACE"])
    is_odd = (folder / f"odd {os.getppid()}").exists()

    def reference(values: list[float]) -> list[float]:
        (folder / f"reference {how} {os.getppid()} {ctx.seed}").touch()
        return _double(values)

    by = {"wrong": 1.5, "off": 1 + 1e-9}[how] if is_odd else 1.0
    return _workload(lambda values: [by * value for value in _double(values)], reference)


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's cases."""
    return [fail, odd_one]
