"""Watches how much of the time a GPU is busy, from outside the processes that use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

from perfsuite.files import Closable

if TYPE_CHECKING:
    from perfsuite.device.nvml import Nvml

# NVML's utilisation is that of a window of 0.17 s or more.
POLL_S = 0.2


class Meter(Closable):
    """Polls the utilisation of a GPU; of what is none it says nothing."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Nvml | None = None
        if uuid:
            from perfsuite.device.nvml import Nvml

            self._nvml = Nvml(uuid)

    def over(self, act: Callable[[], None]) -> float | None:
        """Do something; return the GPU's mean utilisation meanwhile, a share of 1."""
        if self._nvml is None:
            act()
            return None
        nvml, done, polls = self._nvml, threading.Event(), [0.0]

        def poll() -> None:
            while not done.wait(POLL_S):
                polls.append(nvml.foreign_percent() / 100)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            act()
        finally:
            done.set()
            thread.join()
        return round(fmean(polls[1:] or polls), 4)

    def close(self) -> None:
        """Let go of the GPU."""
        if self._nvml is not None:
            self._nvml.close()
