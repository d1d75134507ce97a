"""The workers that measure one variant together: each does a step, then the next one does."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.model import Stage, Variant
from perfsuite.panel.job import Turn, job_of
from perfsuite.panel.process import Wait, WorkerProcess
from perfsuite.panel.site import Site
from perfsuite.panel.slot import Slot


@dataclass(frozen=True, slots=True)
class Wave:
    """Those processes of a variant, by number, that are alive at the same time."""

    variant: Variant
    stage: Stage
    processes: tuple[int, ...]


class Crew:
    """The running workers of one wave."""

    def __init__(self, wave: Wave, slots: Sequence[Slot], site: Site) -> None:
        self.wave = wave
        self.workers: list[WorkerProcess] = []
        try:
            for process in wave.processes:
                slot = slots[process % len(slots)]
                self.workers.append(slot.fork())
                self.workers[-1].tell(
                    wire.Start(job_of(Turn(wave.variant, wave.stage, process), slot.index, site))
                )
        except DeviceError:
            self.close()
            raise

    @property
    def is_stale(self) -> bool:
        """Say whether it lost a worker to a server's death that may be another variant's doing."""
        return any(worker.is_orphan for worker in self.workers)

    def hear_ready(self, wait: Wait) -> None:
        """Wait until all have started; the time limit counts from each one's start."""
        for worker in self.workers:
            worker.hear(wire.Ready, wait, since=worker.started)

    def each(
        self, request: wire.Message, kind: type[wire.Reply], wait: Wait
    ) -> Iterator[wire.Reply]:
        """Let one worker after the other do the same step; yields their answers."""
        for worker in self.workers:
            worker.tell(request)
            yield worker.hear(kind, wait)

    def await_news(self, limit_s: float) -> None:
        """Wait until every worker has said something, but not longer than this."""
        deadline = time.monotonic() + limit_s
        for worker in self.workers:
            worker.await_news(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """End the workers; they leave side by side."""
        for worker in self.workers:
            worker.hang_up()
        for worker in self.workers:
            worker.close()
