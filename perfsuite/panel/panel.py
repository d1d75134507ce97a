"""Measures variants on one device: fresh workers in several slots that take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Self

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.model import DeviceFacts, Evidence, Result, Sampling, Stage, Status, Variant
from perfsuite.panel.crew import Crew, Wave
from perfsuite.panel.ending import EndedError, doubted
from perfsuite.panel.process import Wait
from perfsuite.panel.site import Site
from perfsuite.panel.slot import Slot

# The share of the device's memory that the workers measuring together may use.
DEVICE_SHARE = 0.9
# How long blocks wait for the next workers to have started, which would disturb them.
AHEAD_LIMIT_S = 2.0


class StoppedError(Exception):
    """The panel was told to stop in the middle of a variant."""


def _tell_nobody(*_words: str) -> None: ...


class Panel:
    """The K slots of one device; use it as a context manager, from one thread at a time.

    Only ``stop`` may be called from another thread. ``samplings`` says how variants are to be
    sampled; what a first process chooses is added, so that all others sample alike.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.samplings: dict[str, Sampling] = {}
        self._worker_bytes = site.worker_bytes
        self._facts: DeviceFacts | None = None
        self._crew: Crew | None = None
        self._ahead: Crew | None = None
        self._is_stopped = threading.Event()
        self._slots = [Slot(index, site) for index in range(site.slots)]

    def facts(self) -> DeviceFacts:
        """Describe the device, as one of its workers sees it; raises DeviceError."""
        if self._facts is None:
            worker = self._slots[0].fork()
            try:
                worker.tell(wire.Describe(self.site.device))
                wait = self._wait("start", self.site.settings.start_limit_s)
                self._facts = worker.hear(wire.Described, wait).facts
            except EndedError as ended:
                raise DeviceError(
                    f"device {self.site.device!r} cannot be described: {ended.reason}",
                    where=" ".join(gpu.uuid for gpu in self.site.gpus) or "this machine",
                    remedy="run `perfsuite doctor`, which says what is missing",
                ) from ended
            finally:
                worker.close()
        return self._facts

    def ping(self) -> tuple[int, ...]:
        """Return the servers' process ids once all answer; raises DeviceError if one ends first."""
        return tuple(slot.hello() for slot in self._slots)

    def measure(
        self,
        variants: Iterable[Variant],
        stage: Stage,
        *,
        processes: int,
        on_result: Callable[[Result], None],
        on_phase: Callable[[str, str], None] = _tell_nobody,
    ) -> None:
        """Measure each variant in fresh processes, whatever becomes of the others.

        ``on_result`` gets each result before the next variant's turn, ``on_phase`` a variant's id
        and the phase that begins. Raises DeviceError when no server can be started any more.
        """
        queue = [self._waves(variant, stage, processes) for variant in variants]
        try:
            for waves, following in zip(queue, [*queue[1:], ()], strict=False):
                on_result(self._result(waves, following, partial(on_phase, waves[0].variant.id)))
        except StoppedError:
            return
        finally:
            self._drop_ahead()

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for the variant in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers."""
        for slot in self._slots:
            slot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _waves(self, variant: Variant, stage: Stage, processes: int) -> Sequence[Wave]:
        together = len(self._slots) if self._fits(variant) else 1
        numbers = range(processes)
        return [
            Wave(variant, stage, tuple(numbers[first : first + together]))
            for first in range(0, processes, together)
        ]

    def _fits(self, variant: Variant) -> bool:
        memory_bytes = self.facts().memory_bytes
        needed = variant.memory_bytes * len(self._slots)
        return not memory_bytes or needed <= DEVICE_SHARE * memory_bytes

    def _result(
        self, waves: Sequence[Wave], following: Sequence[Wave], announce: Callable[[str], None]
    ) -> Result:
        started = time.monotonic()
        variant, stage = waves[0].variant, waves[0].stage
        result = Result(
            variant=variant.id, status=Status.OK, stage=stage, case_version=variant.case.version
        )
        try:
            evidence = self._evidence(waves, following, announce)
            result = doubted(replace(result, evidence=evidence))
        except EndedError as ended:
            result = replace(result, status=ended.status, reason=ended.reason, output=ended.output)
        return replace(result, wall_s=round(time.monotonic() - started, 6))

    def _evidence(
        self, waves: Sequence[Wave], following: Sequence[Wave], announce: Callable[[str], None]
    ) -> tuple[Evidence, ...]:
        evidence: list[Evidence] = []
        try:
            for wave, ahead in zip_longest(waves, [*waves[1:], *following[:1]]):
                evidence += self._conduct(wave, ahead, announce)
        except EndedError as ended:
            # The next variant's workers may have killed the server: this one gets a fair try.
            if following and ended.is_server_lost and self._drop_ahead():
                return self._evidence(waves, (), announce)
            raise
        return tuple(evidence)

    def _conduct(
        self, wave: Wave, ahead: Wave | None, announce: Callable[[str], None]
    ) -> list[Evidence]:
        settings = self.site.settings
        begin = partial(self._wait, announce=announce)
        self._crew = crew = self._take(wave)
        try:
            crew.hear_ready(begin("start", settings.start_limit_s))
            self._start_ahead(ahead)
            wait = begin("prepare", settings.prepare_limit_s)
            self._prepare(crew, wait)
            self._await_ahead()
            announce("measure" if wave.stage is Stage.SCREEN else "confirm")
            wait = begin("measure", settings.block_limit_s)
            for _ in range(0 if settings.check_only else settings.rounds):
                list(crew.each(wire.Measure(), wire.Measured, wait))
            wait = begin("finish", settings.block_limit_s)
            finished = [each.evidence for each in crew.each(wire.Finish(), wire.Finished, wait)]
        finally:
            self._crew = None
            crew.close()
        return [replace(each, unit=self.facts().unit) for each in finished]

    def _prepare(self, crew: Crew, wait: Wait) -> None:
        name = crew.wave.variant.id
        for process, worker in zip(crew.wave.processes, crew.workers, strict=True):
            worker.tell(wire.Prepare(self.samplings.get(name), is_thorough=process == 0))
            sampling = worker.hear(wire.Prepared, wait).sampling
            if sampling is not None:
                self.samplings.setdefault(name, sampling)

    def _take(self, wave: Wave) -> Crew:
        crew, self._ahead = self._ahead, None
        if crew is not None and crew.wave == wave and not crew.is_stale:
            return crew
        if crew is not None:
            crew.close()
        return Crew(wave, self._slots, self.site)

    def _start_ahead(self, wave: Wave | None) -> None:
        """Hide the start of the next workers, unless the device's memory or cores are all taken."""
        if wave is None or self.site.is_host_measured or self._ahead is not None:
            return
        if self._crew and self._fits(self._crew.wave.variant) and self._fits(wave.variant):
            self._ahead = Crew(wave, self._slots, self.site)

    def _await_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.await_news(AHEAD_LIMIT_S)

    def _drop_ahead(self) -> bool:
        crew, self._ahead = self._ahead, None
        if crew is not None:
            crew.close()
        return crew is not None

    def _wait(
        self, phase: str, limit_s: float, announce: Callable[[str], None] = _tell_nobody
    ) -> Wait:
        return Wait(phase=phase, limit_s=limit_s, watch=self._watch, announce=announce)

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        for crew in (self._crew, self._ahead):
            for worker in crew.workers if crew else ():
                worker.limit(self._worker_bytes)
