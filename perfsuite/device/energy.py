"""The energy of launches that keep a GPU busy without a gap."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def joules_per_group(
    issue: Callable[[], None], batch: int, *, time_s: float, read: Callable[[], float | None]
) -> float | None:
    """Issue batches back to back for at least ``time_s``; None where ``read`` has no counter.

    A batch is always queued behind the one that runs, so that the GPU never waits for the host.
    """
    torch.cuda.synchronize()
    before, started, count = read(), time.monotonic(), 0
    last: torch.cuda.Event | None = None
    while time.monotonic() - started < time_s:
        for _ in range(batch):
            issue()
        count += batch
        event = torch.cuda.Event()
        event.record()
        if last is not None:
            last.synchronize()
        last = event
    torch.cuda.synchronize()
    after = read()
    return None if before is None or after is None else (after - before) / count
