"""Measures variants that several ranks run together: fresh gangs, kept from size to size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from perfsuite import wire
from perfsuite.errors import CaseError
from perfsuite.files import Closable
from perfsuite.model import Arm, Evidence, Result, Sampling, Stage, Status, Variant
from perfsuite.panel.ending import EndedError, StoppedError, doubted
from perfsuite.panel.job import Turn, job_of
from perfsuite.panel.legs import Wave, blank_of, legs
from perfsuite.panel.merge import gang_unit, merged
from perfsuite.panel.process import Wait
from perfsuite.panel.ranks import Ranks
from perfsuite.panel.site import Site
from perfsuite.panel.slot import slots_of


def _tell_nobody(*_words: str) -> None: ...


class GangPanel(Closable):
    """A server for each rank; use it as a context manager, from one thread at a time.

    ``units`` are the ranks' units, by rank; ``samplings`` and ``compared`` are as a panel's. Only
    ``stop`` may be called from another thread.
    """

    def __init__(self, site: Site, units: Sequence[str]) -> None:
        self.site = site
        self.samplings: dict[str, Sampling] = {}
        self.compared: frozenset[str] = frozenset()
        self.is_over: Callable[[], bool] = bool
        self._units = units
        self._ranks: Ranks | None = None
        self._is_stopped = threading.Event()
        self._slots = slots_of(site)

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
        """Measure each variant by ``processes`` gangs, whatever becomes of the others.

        Variants of one case and as many ranks share the gangs, because joining takes seconds;
        each is handed over when its last gang is through with it. Raises DeviceError when no
        server can be started any more.
        """
        try:
            for group in _groups(variants):
                if self.is_over():
                    return
                for result in self._results(group, stage, processes, on_phase):
                    on_result(result)
        except StoppedError:
            return
        finally:
            self._dismiss()

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for what is in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers."""
        self._dismiss()
        for slot in self._slots:
            slot.close()

    def _results(
        self,
        variants: Sequence[Variant],
        stage: Stage,
        processes: int,
        on_phase: Callable[[str, str], None],
    ) -> Iterator[Result]:
        arms = [Arm.B] * processes
        if any(variant.id in self.compared for variant in variants):
            arms = legs(processes, f"{self.site.settings.seed}/{stage}/{variants[0].id}")
        going = {
            (variant.id, arm): blank_of(Wave(variant, stage, ()), arm)
            for variant in variants
            for arm in (Arm if variant.id in self.compared else (Arm.B,))
        }
        for process, arm in enumerate(arms):
            is_last = arm not in arms[process + 1 :]
            for variant in [v for v in variants if (v.id, arm) in going]:
                key, turn = (variant.id, arm), Turn(variant, stage, process, arm)
                going[key] = self._taken(going[key], turn, partial(on_phase, variant.id))
                if is_last or going[key].status is not Status.OK:
                    yield doubted(going.pop(key))
            self._dismiss()

    def _taken(self, result: Result, turn: Turn, announce: Callable[[str], None]) -> Result:
        """Return the result with one more process's evidence, or as what it ended as."""
        started = time.monotonic()
        try:
            evidence = (*result.evidence, self._evidence(turn, announce))
            result = replace(result, evidence=evidence)
        except EndedError as e:
            result = replace(result, status=e.status, reason=e.reason, output=e.output, evidence=())
        except CaseError as error:
            result = replace(result, status=Status.ERROR, reason=error.what, evidence=())
        return replace(result, wall_s=round(result.wall_s + time.monotonic() - started, 6))

    def _evidence(self, turn: Turn, announce: Callable[[str], None]) -> Evidence:
        is_kept = self._ranks is not None
        try:
            return self._conducted(turn, announce)
        except EndedError as ended:
            # A hang has taken its time limit already.
            if not is_kept or ended.status is Status.TIMED_OUT:
                raise
        # What an earlier variant left in the gang may be to blame: this one gets a fair try.
        return self._conducted(turn, announce)

    def _conducted(self, turn: Turn, announce: Callable[[str], None]) -> Evidence:
        settings = self.site.settings
        begin = partial(Wait, watch=self._watch, announce=announce)
        self._watch()
        count = turn.variant.ranks
        ranks = self._ranks = self._ranks or Ranks(self._slots[:count])
        try:
            job = job_of(turn, turn.process, self.site)
            ranks.start(job, begin(phase="start", limit_s=settings.start_limit_s))
            wait = begin(phase="prepare", limit_s=settings.prepare_limit_s)
            sampling = self.samplings.get(turn.variant.id)
            # With two arms the first two gangs are of both.
            is_thorough = turn.process < (2 if self.compared else 1)
            steps = (wire.Check(is_thorough), wire.Prepare(sampling))
            chosen = ranks.ask(steps, wire.Prepared, wait)[0].sampling
            if chosen is not None:
                self.samplings.setdefault(turn.variant.id, chosen)
            announce("measure" if turn.stage is Stage.SCREEN else "confirm")
            wait = begin(phase="measure", limit_s=settings.block_limit_s)
            for _ in range(0 if settings.check_only else settings.rounds):
                ranks.ask([wire.Measure()], wire.Measured, wait)
            wait = begin(phase="finish", limit_s=settings.prepare_limit_s)
            finished = ranks.ask([wire.Finish()], wire.Finished, wait)
        except BaseException:
            self._ranks = None
            ranks.kill()
            raise
        evidence = merged([each.evidence for each in finished], turn.variant.case.metrics)
        return replace(evidence, unit=gang_unit(self._units[:count]))

    def _dismiss(self) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        if self._ranks is not None:
            self._ranks.limit(self.site.worker_bytes)


def _groups(variants: Iterable[Variant]) -> Iterator[list[Variant]]:
    """Yield the variants that a gang can be kept for, in the order of each group's first."""
    queue = list(variants)
    first: dict[tuple[str, str, int], int] = {}
    for place, variant in enumerate(queue):
        first.setdefault(_kind(variant), place)
    ordered = sorted(queue, key=lambda variant: first[_kind(variant)])
    for _, group in groupby(ordered, key=_kind):
        yield list(group)


def _kind(variant: Variant) -> tuple[str, str, int]:
    return variant.pack, variant.case.name, variant.ranks
