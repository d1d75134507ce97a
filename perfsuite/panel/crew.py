"""The workers that measure one variant together: each does a step, then the next one does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.model import Sampling
from perfsuite.panel.job import Turn, job_of
from perfsuite.panel.legs import Wave
from perfsuite.panel.process import Wait, WorkerProcess
from perfsuite.panel.site import Site
from perfsuite.panel.slot import Slot


class Crew:
    """The running workers of one wave."""

    def __init__(
        self, wave: Wave, slots: Sequence[Slot], site: Site, samplings: Mapping[str, Sampling]
    ) -> None:
        self.wave = wave
        rival = None
        if wave.rival is not None:
            rival = wire.Rival(wave.rival.axes, samplings.get(wave.rival.id))
        self.workers: list[WorkerProcess] = []
        try:
            for seat in wave.seats:
                worker = slots[seat.slot].fork()
                self.workers.append(worker)
                worker.arm = seat.arm
                turn = Turn(wave.variant, wave.stage, seat.process, seat.arm)
                worker.tell(wire.Start(job_of(turn, seat.slot, site, rival)))
        except DeviceError:
            self.close()
            raise

    @property
    def is_stale(self) -> bool:
        """Say whether a worker or its server died, which may be another variant's doing."""
        return not all(worker.is_fit for worker in self.workers)

    def hear_ready(self, wait: Wait) -> None:
        """Wait until all have started; the time limit counts from each one's start."""
        for worker in self.workers:
            worker.hear(wire.Ready, wait, since=worker.started)

    def check(self, thorough: int, wait: Wait, *, is_alone: bool) -> None:
        """Let all check their results; the first ``thorough`` processes do it thoroughly."""
        asked = [wire.Check(seat.process < thorough) for seat in self.wave.seats]
        self._all(asked, wire.Checked, wait, is_alone=is_alone)

    def measure(self, wait: Wait, *, is_backwards: bool) -> None:
        """Let one worker after the other take a block of samples."""
        for worker in reversed(self.workers) if is_backwards else self.workers:
            worker.tell(wire.Measure())
            worker.hear(wire.Measured, wait)

    def finish(self, wait: Wait, *, is_alone: bool) -> list[wire.Finished]:
        """Let all check their results once more, and return what each has to say."""
        asked = [wire.Finish() for _ in self.workers]
        return self._all(asked, wire.Finished, wait, is_alone=is_alone)

    def _all(
        self,
        requests: Sequence[wire.Message],
        kind: type[wire.Reply],
        wait: Wait,
        *,
        is_alone: bool,
    ) -> list[wire.Reply]:
        """Let all do what is not timed, one after the other if each is to be alone with that.

        Raises EndedError for the first that has failed.
        """
        pairs = list(zip(self.workers, requests, strict=True))
        answers: list[wire.Reply] = []
        started = time.monotonic()
        for worker, request in pairs:
            worker.tell(request)
            if is_alone:
                answers.append(worker.hear(kind, wait))
        return answers or [worker.hear(kind, wait, since=started) for worker in self.workers]

    def await_news(self, limit_s: float) -> None:
        """Wait until every worker has said something, but not longer than this."""
        deadline = time.monotonic() + limit_s
        for worker in self.workers:
            worker.await_news(max(0.0, deadline - time.monotonic()))

    def hang_up(self) -> None:
        """Tell the workers to leave, without waiting."""
        for worker in self.workers:
            worker.hang_up()

    def close(self) -> None:
        """End the workers; they leave side by side."""
        self.hang_up()
        for worker in self.workers:
            worker.close()
