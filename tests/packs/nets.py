"""A pack with every way to end; ``speed.py`` beside it says by how much each variant is slower."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import speed  # type: ignore[import-not-found]

import perfsuite
from perfsuite import Budget, Case, Claim, Inspection, Metric, Regime, Scenario, Workload

MICROSECONDS = {
    "steady": 100.0,
    "slow": 100.0,
    "fast": 201.0,
    "hidden": 100.0,
    "small": 100.0,
    "throttled": 100.0,
    "noisy": 100.0,
    "canary": 50.0,
}


def _factor(name: str) -> float:
    return float(speed.FACTORS.get(name, speed.FACTORS.get("all", 1.0)))


def _workload(ctx: Any, time_us: float, *, wrong: bool = False, **more: Any) -> Workload:
    def double(values: list[float]) -> list[float]:
        ctx.run_kernel("double", time_us)
        return [(5 if wrong else 2) * value for value in values]

    return Workload(
        fn=double,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
        **more,
    )


@perfsuite.case(
    smoke={"impl": list(MICROSECONDS)}, source="made up", canary={"fake": {"impl": "canary"}}
)
def double(ctx: Any, impl: str) -> Workload:
    """Double eight numbers."""
    level = random.Random(ctx.seed).gauss(1, 0.03) if impl == "noisy" else 1.0  # noqa: S311
    if impl == "throttled" and "throttled" in speed.FACTORS:
        ctx.throttle(1840.0, "sw_power_cap")
        return _workload(ctx, MICROSECONDS[impl])
    return _workload(ctx, MICROSECONDS[impl] * level * _factor(impl))


@perfsuite.case(
    smoke={"n": [1]}, source="made up", budgets=[Budget("time_us", 150, "half of the ceiling")]
)
def budgeted(ctx: Any, n: int) -> Workload:
    """Stay below 150 microseconds."""
    return _workload(ctx, 100.0 * _factor("budgeted"))


@perfsuite.case(
    smoke={"n": [1, 2]},
    source="made up",
    regime=Regime.EXACT,
    metrics=[
        Metric("bytes", "B"),
        Metric("share", better="higher"),
        Metric("kernels", better="equal"),
    ],
)
def counted(ctx: Any, n: int) -> Inspection:
    """Count, and time nothing."""
    bytes_ = 1000.0 * n * _factor(f"bytes{n}")
    return Inspection(read=lambda: {"bytes": bytes_, "share": _factor("share") / 2, "kernels": 3.0})


@perfsuite.case(smoke={"n": [1]}, source="made up", metrics=[Metric("launches")])
def mixed(ctx: Any, n: int) -> Workload:
    """Count and time."""
    return _workload(ctx, 80.0, exact=lambda: {"launches": 2.0 * _factor("launches")})


@perfsuite.case(smoke={"n": [1]}, source="made up", regime=Regime.SUSTAINED)
def sustained(ctx: Any, n: int) -> Workload:
    """Take long enough to get warm."""
    return _workload(ctx, 5000.0 * _factor("sustained"))


@perfsuite.case(smoke={"n": [1]}, source="made up", regime=Regime.END_TO_END)
def awaited(ctx: Any, n: int) -> Workload:
    """Be launched and awaited by the host."""
    return _workload(ctx, 300.0 * _factor("awaited"))


@perfsuite.case(
    smoke={"n": [1]},
    source="made up",
    regime=Regime.END_TO_END,
    metrics=[Metric("ttft_ms", "ms"), Metric("tokens_s", "1/s", better="higher")],
)
def served(ctx: Any, n: int) -> Scenario:
    """Answer requests, a little unlike each other."""
    # A play is timed by the host: by the virtual clock here, as everything else.
    time.perf_counter = lambda: ctx.owner.now_us / 1e6

    def play(seed: int) -> tuple[list[float], dict[str, float]]:
        near = random.Random(seed).gauss(1, 0.01)  # noqa: S311
        ctx.spend(1000.0 * near)
        return [float(seed)], {"ttft_ms": 5 * near * _factor("ttft"), "tokens_s": 900 / near}

    return Scenario(
        play=play, reference=lambda seed: [float(seed)], wrong=lambda seed: [seed + 1.0]
    )


@perfsuite.case(smoke={"how": ["wrong", "error", "crash"]}, source="made up")
def ends(ctx: Any, how: str) -> Workload:
    """End badly."""
    if how == "error":
        raise ValueError("told to fail")
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return _workload(ctx, 100.0, wrong=True)


@perfsuite.case(smoke={"n": [1]}, source="made up", needs=[perfsuite.cuda()])
def elsewhere(ctx: Any, n: int) -> Workload:
    """Need what is not here."""
    return _workload(ctx, 100.0)


@perfsuite.case(smoke={"ranks": [2]}, source="made up", ranks="ranks")
def together(ctx: Any, ranks: int) -> Workload:
    """Take a little longer on each further rank."""
    return _workload(ctx, (120.0 + ctx.rank) * _factor("together"))


@perfsuite.case(smoke={"n": [1, 2]}, source="made up")
def interrupted(ctx: Any, n: int) -> Workload:
    """Interrupt the session once, if a file asks for it."""
    asked = Path("interrupt")
    # Its processes may ask at once: the one that removes the file does it.
    with suppress(FileNotFoundError):
        session = asked.read_text("ascii") if n == 2 else ""
        if session:
            asked.unlink()
            os.kill(int(session), signal.SIGINT)
            signal.pause()
    return _workload(ctx, 100.0 * _factor("interrupted"))


def _claim(name: str, faster: str, than: str, by: float) -> Claim:
    return Claim(
        name=name,
        case="double",
        faster={"impl": faster},
        than={"impl": than},
        by=by,
        source="made up",
    )


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case | Claim]:
    """Return the pack's cases and claims."""
    return [
        double, budgeted, counted, mixed, sustained, awaited, served, ends, elsewhere, together,
        interrupted,
        _claim("held", "slow", "fast", 1.5),
        _claim("broken", "slow", "fast", 3.0),
        _claim("close", "steady", "fast", 2.0),
        _claim("open", "steady", "small", 1.0),
        Claim(name="fewer", case="counted", by=2.0, source="made up", metric="bytes",
              faster={"n": 1}, than={"n": 2}),
    ]  # fmt: skip
