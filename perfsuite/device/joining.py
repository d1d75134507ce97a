"""Tells work that a launch leaves behind on other streams from a device that is slow to answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from perfsuite.stats import is_greater

# A synchronisation takes longer after a long wait (H200: 45 us after 6 ms, 120 after 40 ms).
SLACK_S, SLACK_SHARE = 50e-6, 0.005
TRIES = 30
# Of calling what is late by chance left behind.
MOST_CHANCE = 1e-3


def joins_streams(
    launch: Callable[[], object],
    spin: Callable[[float], object],
    *,
    wait_stream: Callable[[], object],
    wait_device: Callable[[], object],
    agree: Callable[[float], float],
) -> bool:
    """Compare waiting for the measuring stream with waiting for the whole device.

    The host may be late for other reasons, work left behind is late every time. Some devices are
    slow to say that nothing is left, and so they are after a ``spin`` of as many microseconds,
    which leaves nothing: where all waits after launches are long, they are held against waits
    after spins, by their ranks. Ranks that did not ``agree`` would launch unequally often.
    """

    def late(issue: Callable[[], object]) -> tuple[float, float]:
        wait_device()
        begun = time.perf_counter()
        issue()
        wait_stream()
        ended = time.perf_counter()
        wait_device()
        return time.perf_counter() - ended, ended - begun

    after_launch: list[float] = []
    after_spin: list[float] = []
    for _ in range(TRIES):
        left_s, took_s = late(launch)
        after_launch.append(left_s - SLACK_S - SLACK_SHARE * took_s)
        if agree(after_launch[-1]) < 0:
            return True
        after_spin.append(late(partial(spin, 1e6 * took_s))[0])
    return agree(float(is_greater(after_launch, after_spin, MOST_CHANCE))) == 0.0
