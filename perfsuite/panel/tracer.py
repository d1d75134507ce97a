"""Has variants traced in a worker that measures nothing: a profiler's process is no evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.model import Arm, Stage, Variant
from perfsuite.panel.ending import EndedError, StoppedError
from perfsuite.panel.job import Turn, job_of
from perfsuite.panel.process import Wait, WorkerProcess
from perfsuite.panel.site import Site
from perfsuite.panel.slot import Slot

# CUPTI starts in 4 s (H200), and a case may compile for a while.
LIMIT_S = 60.0


@dataclass(slots=True)
class Tracer:
    """One worker for one variant after the other of an arm, and another one once it is lost."""

    slot: Slot
    site: Site
    wait: Callable[[str, float], Wait]
    _worker: WorkerProcess | None = None

    def trace(self, variant: Variant, arm: Arm, *, sets: int) -> wire.Traced:
        """Return what a launch is made of, or why that is not known."""
        if self._worker is not None and self._worker.arm is not arm:
            self.close()
        job = job_of(Turn(variant, Stage.SCREEN, 0, arm), self.slot.index, self.site)
        try:
            if self._worker is None:
                self._worker = self.slot.fork()
                self._worker.arm = arm
            self._worker.tell(wire.TraceOne(job, sets))
            return self._worker.hear(wire.Traced, self.wait("trace", LIMIT_S))
        except (EndedError, StoppedError, DeviceError) as ended:
            self.close()
            reason = getattr(ended, "reason", "") or str(ended).partition("\n")[0] or "stopped"
            return wire.Traced((), reason=f"its tracing ended: {reason}")

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
