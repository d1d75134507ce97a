"""Tells work that a launch leaves behind on other streams from a device that is slow to answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# A synchronisation takes longer after a long wait (H200: 45 us after 6 ms, 120 after 40 ms).
SLACK_S, SLACK_SHARE = 50e-6, 0.005
TRIES = 20


def joins_streams(
    launch: Callable[[], object],
    spin: Callable[[float], object],
    *,
    wait_stream: Callable[[], object],
    wait_device: Callable[[], object],
    agree: Callable[[float], float],
) -> bool:
    """Compare waiting for the measuring stream with waiting for the whole device.

    The host may be late for other reasons, work left behind is late every time. Where the device
    is slow to say that nothing is left, for as long as other processes open contexts on it, it is
    so after a ``spin`` of as many microseconds too, which leaves nothing: what counts is how much
    later it is after the launch. Ranks that did not ``agree`` would launch unequally often.
    """

    def late(issue: Callable[[], object]) -> tuple[float, float]:
        wait_device()
        begun = time.perf_counter()
        issue()
        wait_stream()
        ended = time.perf_counter()
        wait_device()
        return time.perf_counter() - ended, ended - begun

    for _ in range(TRIES):
        left_s, took_s = late(launch)
        slack_s = SLACK_S + SLACK_SHARE * took_s
        if agree(left_s - slack_s) < 0:
            return True
        spun_s, _ = late(partial(spin, 1e6 * took_s))
        if agree(left_s - spun_s - slack_s) < 0:
            return True
    return False
