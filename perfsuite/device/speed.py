"""Tells how much slower this core is than it has been: what shares it need not be visible here.

A virtual machine's core may be one of two hardware threads whose other is another machine's. On
such a host short Python loops, small FMA chains and whole launches took 1.4 to 1.9 times as long
for tenths of a second or seconds at a time, with no steal and no load in /proc/stat.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from perfsuite.device.load import own_ns

# Integer work with branches and lookups, which a second thread on the core slows as it does most
# code; about 0.1 ms. The least of three leaves interruptions out.
_TEXT = bytes((i * i * 7 + i // 3) % 251 for i in range(1 << 14))
_READINGS = 3
# Quiet readings differ by 6 %, those beside something by 30 to 50 %.
SLOWED_MOST = 0.2


class Speed:
    """A fixed piece of work, timed by ``read_ns``, against the fastest it was in this process.

    A server's workers inherit its own fastest reading when they are forked.
    """

    def __init__(self, read_ns: Callable[[], int]) -> None:
        self._read_ns = read_ns
        self._fastest_ns = float("inf")

    def slowed(self) -> float:
        """Return how much longer the work takes than at its fastest, as a share of that."""
        now_ns = min(self._read_ns() for _ in range(_READINGS))
        if now_ns <= 0:  # a workload stopped the clock: its samples have no time either
            return 0.0
        self._fastest_ns = min(self._fastest_ns, now_ns)
        return now_ns / self._fastest_ns - 1


def _reading_ns() -> int:
    return own_ns(lambda: zlib.compress(_TEXT, 6))


SPEED = Speed(_reading_ns)
