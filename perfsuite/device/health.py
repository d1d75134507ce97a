"""Reads a GPU's health ten times a second beside what is measured on it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from perfsuite.model import Health

PERIOD_S = 0.1


class HealthWatch:
    """A thread that reads while ``watching``; ``read`` must be callable from two threads.

    Its first reading comes a period late, when the launches of a block have been issued: until
    then the host must not be held up.
    """

    def __init__(self, read: Callable[[], Health]) -> None:
        self._read = read
        self._seen: list[Health] = []
        self._armed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """Start anew: what was seen is of the last block."""
        self._seen = []

    def note(self) -> None:
        """Read in the calling thread, between two samples."""
        self._seen.append(self._read())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let the thread read meanwhile."""
        self._armed.set()
        try:
            yield
        finally:
            self._armed.clear()

    def health(self) -> Health:
        """Return all readings since ``forget`` as one."""
        return together(self._seen)

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._armed.set()
        self._thread.join()

    def _go(self) -> None:
        while self._armed.wait() and not self._closed.wait(PERIOD_S):
            if self._armed.is_set():
                self.note()


def together(seen: Sequence[Health]) -> Health:
    """Return readings as one: mean power, the worst of the rest, every reason."""

    def known(name: str) -> list[float]:
        return [value for each in seen if (value := getattr(each, name)) is not None]

    power = known("power_w")
    return replace(
        Health(),
        power_w=statistics.fmean(power) if power else None,
        temperature_c=max(known("temperature_c"), default=None),
        sm_clock_mhz=min(known("sm_clock_mhz"), default=None),
        reasons=tuple(dict.fromkeys(reason for each in seen for reason in each.reasons)),
        foreign_percent=max(known("foreign_percent"), default=None),
    )
