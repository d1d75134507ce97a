"""A pack whose variants are measured by several ranks, well and in each way that can go wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Case, Metric, Workload

RANKS = [1, 2, 3]


def _note(ctx: Any) -> None:
    """Leave one line per builder call in a file of this process, if a folder is named."""
    if folder := os.environ.get("PERFSUITE_TEST_TRACE"):
        with Path(folder, f"{os.getpid()}-{ctx.rank}").open("a", encoding="ascii") as file:
            file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "") + "\n")


@perfsuite.case(
    smoke={"ranks": RANKS, "n": [16, 64, 256]},
    source="made up",
    ranks="ranks",
    metrics=[Metric("places", better="equal")],
)
def reduce(ctx: Any, ranks: int, n: int) -> Workload:
    """Sum what all ranks have."""
    import torch.distributed as dist

    _note(ctx)

    def fn(x: Any, total: Any) -> None:
        total.copy_(x).mul_(ctx.rank + 1)
        dist.all_reduce(total)

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, _: x.double() * sum(range(1, ranks + 1)),
        wrong=lambda x, total: total.copy_(x).neg_(),
        exact=lambda: {"places": ctx.rank + 1.0},
    )


def _raise() -> None:
    raise ValueError("rank one is in a bad mood")


def _end_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def _leak() -> None:
    held = []
    while True:
        held.append(bytearray(b"x" * (4 << 20)))
        time.sleep(0.01)  # slow enough to be seen growing


MISDEEDS: dict[str, Callable[[], object]] = {
    "leave": lambda: os._exit(3),
    "raise": _raise,
    "end_server": _end_server,
    "leak": _leak,
}


@perfsuite.case(
    smoke={"ranks": [2, 3], "how": [*MISDEEDS, "skip", "wrong", "fine"]},
    source="made up",
    ranks="ranks",
)
def fail(ctx: Any, ranks: int, how: str) -> Workload:
    """Let rank 1 do this instead of taking part in the second sum of ones."""
    calls = 0

    def act() -> bool:
        nonlocal calls
        calls += 1
        is_guilty = ctx.rank == 1 and calls > 1
        if is_guilty and how in MISDEEDS:
            MISDEEDS[how]()
        return is_guilty and how == "skip"

    def triple(values: list[float]) -> list[float]:
        ctx.spend(50)
        act()
        return [(2 if how == "wrong" and ctx.rank == 1 else 3) * value for value in values]

    def total(x: Any) -> Any:
        import torch
        import torch.distributed as dist

        total = torch.ones(4, device=ctx.place)
        if act():
            total *= ranks  # right, but alone: the others wait for ever
        else:
            dist.all_reduce(total)
        return total + 0 * x

    is_fake = ctx.device == "fake"
    return Workload(
        fn=triple if is_fake else total,
        make_inputs=lambda rng: (rng.randn(8 if is_fake else 4),),
        reference=lambda x: [3 * value for value in x] if is_fake else 0 * x.double() + ranks,
        wrong=lambda x: [-value for value in x] if is_fake else 0 * x,
    )


@perfsuite.case(smoke={"ranks": [2, 3], "us": [100]}, source="made up", ranks="ranks")
def lag(ctx: Any, ranks: int, us: int) -> Workload:
    """Take longer on each further rank of the fake device."""
    _note(ctx)

    def fn(values: list[float]) -> list[float]:
        ctx.spend(us * (ctx.rank + 1))
        return [2 * value for value in values]

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's cases."""
    return [reduce, fail, lag]
