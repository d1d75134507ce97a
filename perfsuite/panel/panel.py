"""Measures variants on one device: fresh workers in several slots that take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.files import Closable
from perfsuite.model import Arm, DeviceFacts, Evidence, Regime, Result, Sampling, Stage, Variant
from perfsuite.panel.crew import Crew
from perfsuite.panel.ending import EndedError, StoppedError, doubted
from perfsuite.panel.legs import Wave, alone, blank_of, results_of, seats_of_one, seats_of_two
from perfsuite.panel.process import Wait
from perfsuite.panel.relay import Relay
from perfsuite.panel.site import Code, Site
from perfsuite.panel.slot import slots_of
from perfsuite.panel.tracer import Tracer

# The share of the device's memory that the workers measuring together may use.
DEVICE_SHARE = 0.9


def _tell_nobody(*_words: str) -> None: ...


class Panel(Closable):
    """The K slots of one device; use it as a context manager, from one thread at a time.

    Only ``stop`` may be called from another thread. ``samplings`` says how variants are to be
    sampled; what a first process chooses is added, so that all others sample alike. Variants in
    ``compared`` (ids) are measured in both arms of the site; none begins when ``is_over`` says so.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.samplings: dict[str, Sampling] = {}
        self.compared: frozenset[str] = frozenset()
        self.is_over: Callable[[], bool] = bool
        self._worker_bytes = site.worker_bytes
        self._facts: DeviceFacts | None = None
        self._crew: Crew | None = None
        self._is_stopped = threading.Event()
        self._slots = slots_of(site)
        self._relay = Relay(self._started, fits=self._fits, is_hidden=not site.is_host_measured)

    def compare(self, arms: Mapping[Arm, Code]) -> None:
        """Begin anew with the code of these arms, or of none; also where ``stop`` was called."""
        self.site, self.compared = replace(self.site, arms=arms), frozenset()
        self._is_stopped.clear()

    def facts(self) -> DeviceFacts:
        """Describe the device, as one of its workers sees it; raises DeviceError."""
        if self._facts is None:
            worker = self._slots[0].fork()
            try:
                worker.tell(wire.Describe(self.site.device, self.site.accelerator))
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

        ``on_result`` gets each result before the next variant's turn, that of arm A first;
        ``on_phase`` gets a variant's id and the phase that begins. Raises DeviceError when no
        server can be started any more.
        """
        queue = [self._waves(variant, stage, processes) for variant in variants]
        try:
            for waves, following in zip(queue, [*queue[1:], ()], strict=False):
                if self.is_over():
                    return
                announce = partial(on_phase, waves[0].variant.id)
                for result in self._results(waves, following, announce):
                    on_result(result)
        except StoppedError:
            return
        finally:
            self._relay.see_out()
            self._relay.drop_ahead()

    def quads(self, variant: Variant, rival: Variant, *, processes: int) -> list[Result]:
        """Measure two variants of a case in the same processes, their blocks in quads.

        Returns both results, the rival's last: one, if it ended early, none if it was stopped.
        """
        together = self._together(variant.memory_bytes + rival.memory_bytes)
        seats = seats_of_one(processes, together=together, slots=len(self._slots))
        waves = [Wave(variant, Stage.CONFIRM, each, rival) for each in seats]
        try:
            return self._results(waves, (), _tell_nobody)
        except StoppedError:
            return []
        finally:
            self._relay.drop_ahead()

    def tracer(self) -> Tracer:
        """Return what traces variants; nothing is measured meanwhile."""
        return Tracer(self._slots[0], self.site, self._wait)

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for the variant in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers."""
        for slot in self._slots:
            slot.close()

    def _started(self, wave: Wave) -> Crew:
        return Crew(wave, self._slots, self.site, self.samplings)

    def _waves(self, variant: Variant, stage: Stage, processes: int) -> Sequence[Wave]:
        together, slots = self._together(variant.memory_bytes), len(self._slots)
        if variant.id in self.compared:
            seed = f"{self.site.settings.seed}/{stage}/{variant.id}"
            seats = seats_of_two(processes, together=together, slots=slots, seed=seed)
        else:
            seats = seats_of_one(processes, together=together, slots=slots)
        return [Wave(variant, stage, each) for each in seats]

    def _together(self, each_bytes: int) -> int:
        return len(self._slots) if self._fits(each_bytes) else 1

    def _fits(self, each_bytes: int) -> bool:
        memory_bytes = self.facts().memory_bytes
        return not memory_bytes or each_bytes * len(self._slots) <= DEVICE_SHARE * memory_bytes

    def _results(
        self, waves: Sequence[Wave], following: Sequence[Wave], announce: Callable[[str], None]
    ) -> list[Result]:
        """Return the results of all arms; without arm A where that ended early."""
        started = time.monotonic()
        rest: list[Result] = []
        try:
            evidence = self._evidence(waves, following, announce)
            found = [doubted(result) for result in results_of(waves, evidence)]
        except EndedError as ended:
            result = blank_of(waves[0], ended.arm)
            result = replace(result, status=ended.status, reason=ended.reason, output=ended.output)
            found = [result]
            if ended.arm is Arm.A:
                rest = self._results(alone(waves), following, announce)
        each_s = round((time.monotonic() - started) / len(found), 6)
        return [*(replace(result, wall_s=each_s) for result in found), *rest]

    def _evidence(
        self, waves: Sequence[Wave], following: Sequence[Wave], announce: Callable[[str], None]
    ) -> tuple[Evidence, ...]:
        evidence: list[Evidence] = []
        try:
            for wave, ahead in zip_longest(waves, [*waves[1:], *following[:1]]):
                evidence += self._conduct(wave, ahead, announce)
        except EndedError as ended:
            # The next variant's workers may have killed the server: this one gets a fair try.
            if following and ended.is_server_lost and self._relay.drop_ahead():
                return self._evidence(waves, (), announce)
            raise
        return tuple(evidence)

    def _conduct(
        self, wave: Wave, ahead: Wave | None, announce: Callable[[str], None]
    ) -> list[Evidence]:
        settings = self.site.settings
        begin = partial(self._wait, announce=announce)
        self._crew = crew = self._relay.take(wave)
        try:
            crew.hear_ready(begin("start", settings.start_limit_s))
            self._relay.start_ahead(wave, ahead)
            wait = begin("prepare", settings.prepare_limit_s)
            self._prepare(crew, wait)
            self._relay.await_ahead()
            announce("measure" if wave.stage is Stage.SCREEN else "confirm")
            wait = begin("measure", settings.block_limit_s)
            for turn in range(self._rounds(wave)):
                is_backwards = wave.is_paired and turn % 2 == 1
                crew.measure(wait, is_backwards=is_backwards)
            wait = begin("finish", settings.prepare_limit_s)
            finished = crew.finish(wait, is_alone=self.site.is_host_measured)
            self._relay.let_go(crew)
        except BaseException:
            crew.close()
            # Whoever is checked next was not counted in when the one before was let go.
            self._relay.see_out()
            raise
        finally:
            self._crew = None
        found = chain.from_iterable((each.evidence, each.rival) for each in finished)
        return [replace(each, unit=self.facts().unit) for each in found if each is not None]

    def _rounds(self, wave: Wave) -> int:
        # Arms are compared more finely than two runs are, also where no two processes fit at once.
        stage = Stage.CONFIRM if wave.variant.id in self.compared else wave.stage
        is_paced = wave.variant.case.regime is Regime.PACED and "cycles" in self.facts().clocks
        return self.site.settings.rounds_of(stage, is_paced=is_paced)

    def _prepare(self, crew: Crew, wait: Wait) -> None:
        name = crew.wave.variant.id
        # The first two are of both arms, of which each has its own code to check.
        thorough = 2 if name in self.compared else 1
        # While results are checked nothing is timed, unless launches are, to choose a kernel.
        is_alone = self.site.is_host_measured or crew.wave.variant.case.tunes
        if is_alone:
            self._relay.see_out()
            self._relay.await_ahead()
        crew.check(thorough, wait, is_alone=is_alone)
        self._relay.see_out()
        for worker in crew.workers:
            worker.tell(wire.Prepare(self.samplings.get(name)))
            sampling = worker.hear(wire.Prepared, wait).sampling
            if sampling is not None:
                self.samplings.setdefault(name, sampling)

    def _wait(
        self, phase: str, limit_s: float, announce: Callable[[str], None] = _tell_nobody
    ) -> Wait:
        return Wait(phase=phase, limit_s=limit_s, watch=self._watch, announce=announce)

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        for crew in (self._crew, self._relay.ahead):
            for worker in crew.workers if crew else ():
                worker.limit(self._worker_bytes)
