"""The host's cores: how long a call took on one, what others took, and how slow they are."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")
WAITING = PROC / "thread-self/schedstat"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The kernel counts in ticks of 10 ms: a shorter time has no share worth telling.
LEAST_S = 0.1
# user, nice, system, irq, softirq and steal of a line of /proc/stat (proc_stat(5)).
BUSY = (1, 2, 3, 6, 7, 8)
# Seconds up to a moment: by the clock, of all processes on our cores, and of our own.
Spent = tuple[float, float, float]


class Load:
    """The cores this process may use, ``used`` of them by what is measured."""

    def __init__(self, cores: frozenset[int], used: int) -> None:
        self._cores = cores
        self._used = used

    def now(self) -> Spent | None:
        """Return what has been spent so far, None where the kernel does not tell."""
        try:
            # A worker's parent is its server, whose parent is the controller: all of it is ours.
            root = int(_stat(os.getppid())[1]) or os.getpid()
            ticks = 0
            for line in (PROC / "stat").read_text(encoding="ascii").splitlines():
                name, *_ = words = line.split()
                if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cores:
                    ticks += sum(int(words[place]) for place in BUSY)
            return time.monotonic(), ticks / TICKS_PER_S, _tree_s(root)
        except (OSError, ValueError, IndexError):
            return None

    def foreign_percent(self, start: Spent | None, end: Spent | None) -> float | None:
        """Return what others took beyond the cores left free, in percent of those used."""
        if start is None or end is None or end[0] - start[0] < LEAST_S:
            return None
        took_s, busy_s, own_s = (after - before for before, after in zip(start, end, strict=True))
        foreign = max(0.0, busy_s - max(0.0, own_s)) / took_s
        free = max(0, len(self._cores) - self._used)
        return 100 * max(0.0, foreign - free) / self._used


def _tree_s(root: int) -> float:
    """Return the CPU seconds of a process, its children, and those it has waited for."""
    ticks, left = 0, [root]
    while left:
        pid = left.pop()
        try:
            ticks += sum(map(int, _stat(pid)[11:15]))  # utime, stime, cutime, cstime
            for task in (PROC / str(pid) / "task").iterdir():
                left += map(int, (task / "children").read_text(encoding="ascii").split())
        except FileNotFoundError:  # it ended a moment ago; its parent has its time
            continue
    return ticks / TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """Return a process's fields from its state on: the name before may hold anything."""
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def waited_ns() -> int:
    """Return how long this thread has waited for a core (proc_pid_schedstat(5)), 0 if not told."""
    try:
        return int(WAITING.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def own_ns(act: Callable[[], object]) -> int:
    """Return how long a call took, less what this thread waited for a core meanwhile.

    A wait between a stamp and the reading beside it is no part of the time: what the readings took
    is the most that it can have been.
    """
    opened, waited = time.perf_counter_ns(), waited_ns()
    start = time.perf_counter_ns()
    act()
    end = time.perf_counter_ns()
    waited, closed = waited_ns() - waited, time.perf_counter_ns()
    beside = (start - opened) + (closed - end)
    return end - start - max(0, waited - beside)


# How much slower this core is than it has been: what shares it need not be visible here.
#
# A virtual machine's core may be one of two hardware threads whose other is another machine's. On
# such a host short Python loops, small FMA chains and whole launches took 1.4 to 1.9 times as long
# for tenths of a second or seconds at a time, with no steal and no load in /proc/stat.

# Integer work with branches and lookups, which a second thread on the core slows as it does most
# code; about 0.1 ms. The least of three leaves interruptions out.
_TEXT = bytes((i * i * 7 + i // 3) % 251 for i in range(1 << 14))
_READINGS = 3


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


SPEED = Speed(lambda: own_ns(lambda: zlib.compress(_TEXT, 6)))
