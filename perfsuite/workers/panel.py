"""Measures variants on one device or several: fresh processes of a variant that take turns."""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import cached_property, partial
from itertools import zip_longest
from multiprocessing.connection import wait
from typing import Any

from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import CaseError, DeviceError
from perfsuite.engine.check import Checked
from perfsuite.engine.trace import Anatomy
from perfsuite.stats import grouped
from perfsuite.store.files import Closable
from perfsuite.workers import process
from perfsuite.workers.messages import Job
from perfsuite.workers.process import EndedError, Process, Setup, Slot

# Two orders in which sides alternate, so that what drifts weighs on both alike.
ORDERS = ("ABBA", "BAAB")
# The setting that holds a step's time limit, if not that of preparing.
LIMITS = {"start": "start_limit_s", "measure": "block_limit_s"}
# How long blocks wait for the next workers to have started, which would disturb them.
AHEAD_LIMIT_S = 2.0
# CUPTI starts in 4 s (H200), and a case may compile for a while.
LIMIT_S = 60.0
# The share of the device's memory that the workers measuring together may use.
DEVICE_SHARE = 0.9
# What a process of a variant may hold that says nothing of it; cases say what holds more.
UNSAID_BYTES = 2 << 30
# Of a device that spoils more of all samples than this, the others cannot be trusted either.
VOIDED_MOST = 0.2


class StoppedError(Exception):
    """The panel was told to stop in the middle of a variant."""


# The processes that take a step as one: one process, or all ranks of a gang.
Crew = Sequence[Process]


def _tell_nobody(_variant: str, _phase: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a variant: its number, its slot and its side."""

    process: int
    slot: int
    side: model.Side = model.Side.B


def seats_of(
    processes: int, *, together: int, slots: int, seed: str = "", first: int = 0
) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes``, by wave; with a seed, as many of each of both sides.

    Numbers go on from the ``first``.

    Sides alternate in an order that the seed chooses, in pairs if two fit. Both pairs of four take
    the same two slots: what a server hands on to its workers, its address space among it, weighs on
    both sides alike. The next four take the next two.
    """
    seats = [Seat(first + number, number % slots) for number in range(processes)]
    if seed:
        together = min(together, 2)
        chosen = random.Random(f"{seed}{first or ''}")  # noqa: S311 - an order, not a secret
        sides = "".join(chosen.choice(ORDERS) for _ in range((processes + 1) // 2))
        seats = [
            Seat(first + number, (2 * (number // 4) + number % 2) % slots, model.Side(side))
            for number, side in enumerate(sides[: 2 * processes])
        ]
    return [tuple(seats[first : first + together]) for first in range(0, len(seats), together)]


@dataclass(slots=True, eq=False)
class Work:
    """What is to be measured of one variant in one stage, and what was found.

    In pairs the ``rival`` is side A: the same variant of other code, or another one. ``waves`` are
    still to come; what shares its gang is measured on so many ``sides``. ``found`` has the evidence
    by side, ``failed`` how a side ended.
    """

    variant: model.Variant
    stage: model.Stage
    rival: model.Variant | None
    waves: int = 0
    sides: int = 1
    wall_s: float = 0.0
    found: dict[model.Side, list[model.Evidence]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[model.Side, EndedError] = field(default_factory=dict)

    def of(self, side: model.Side) -> model.Variant:
        """Return what the processes of a side build."""
        return self.rival if self.rival and side is model.Side.A else self.variant

    @property
    def is_lost(self) -> bool:
        """Say whether nothing is left to find: other code goes without side A, no claim does."""
        is_claim = self.rival is not None and self.rival != self.variant
        return model.Side.B in self.failed or (is_claim and bool(self.failed))

    @property
    def memory_bytes(self) -> int:
        """The device memory that one process of it needs."""
        return max(self.of(side).memory_bytes for side in model.Side)

    @property
    def kind(self) -> tuple[object, ...]:
        """What works have in common that are measured together: a gang is kept for them."""
        variant = self.variant
        return (variant.pack, variant.case.name, variant.ranks) if variant.is_gang else (self,)

    def hand_over(self, on_result: Callable[[model.Result], object]) -> None:
        """Hand over what was found, side A first; of what is lost, nothing that is good."""
        for side in sorted({*self.found, *self.failed}):
            built, end = self.of(side), self.failed.get(side)
            result = model.Result(
                variant=built.id,
                case_version=built.case.version,
                status=end.status if end else model.Status.OK,
                stage=self.stage,
                side=side,
                wall_s=round(self.wall_s / max(1, len(self.found)), 6),
            )
            if end:
                on_result(replace(result, reason=end.reason, output=end.output))
            elif not self.is_lost:
                on_result(doubted(replace(result, evidence=tuple(self.found[side]))))


@dataclass(slots=True, eq=False)
class Wave:
    """Those processes of a work that are alive at the same time, in the order of their turns."""

    work: Work
    planned: tuple[Seat, ...]
    workers: list[Process] = field(default_factory=list)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats that are still to be taken: none of a side that failed, or of what is lost."""
        failed = set(model.Side) if self.work.is_lost else self.work.failed
        return tuple(seat for seat in self.planned if seat.side not in failed)

    @property
    def crews(self) -> list[list[Process]]:
        """The workers of each seat: all, if they are the ranks of a gang."""
        return [self.workers] if self.work.variant.is_gang else [[each] for each in self.workers]

    def close(self, grace_s: float = process.GRACE_S) -> None:
        """End its workers; they leave side by side."""
        for worker in self.workers:
            worker.channel.close()
        while self.workers:
            self.workers.pop().close(grace_s)


def doubted(result: model.Result) -> model.Result:
    """Return the result, as disturbed where too many samples were voided, or its processes differ.

    Those that were not sampled alike took times of two kinds.
    """
    if len(ways := {str(each.sampling) for each in result.evidence}) > 1:
        reason = f"its processes were not sampled alike: {', '.join(sorted(ways))}"
        return replace(result, status=model.Status.DISTURBED, reason=reason)
    blocks = [block for each in result.evidence for block in each.blocks]
    voided = sum(block.voided for block in blocks)
    taken = voided + sum(len(block.time_us) for block in blocks)
    if voided <= VOIDED_MOST * taken:
        return result
    notes = [note for each in result.evidence for note in each.notes if "voided" in note]
    reason = f"{voided} of {taken} samples voided ({notes[0] if notes else 'they have no time'})"
    return replace(result, status=model.Status.DISTURBED, reason=reason)


def job_of(
    variant: model.Variant, setup: Setup, seat: Seat, stage: model.Stage = model.Stage.SCREEN
) -> Job:
    """Return the job of one process of a variant."""
    code = setup.code(seat.side)
    # From names only: a variant measured alone gets the seeds it has in the whole suite.
    whole = f"{setup.settings.seed}/{variant.id}"
    own = f"{setup.settings.seed}/{stage}/{variant.id}/{seat.process}"
    return Job(
        pack=variant.pack,
        origin=code.origins[variant.pack],
        case=variant.case.name,
        axes=variant.axes,
        device=setup.device,
        accelerator=setup.accelerator,
        settings=setup.settings,
        seed=_seed(own),
        check_seed=_seed(whole),
        slot=seat.slot,
        kernels=code.kernels,
        tree=code.tree,
    )


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())


class Panel(Closable):
    """The servers of one device, or of the ranks of gangs; from one thread at a time.

    Only ``stop`` may be called from another thread. ``units`` are the ranks' units, by rank, where
    gangs are measured. ``samplings`` says how variants are to be sampled; what a process chooses is
    kept, so that all others sample alike.
    Variants whose ids are in ``compared`` are measured in pairs with what that names as side A, of
    the setup's code for it; ``begun`` has how many processes of a variant's stage there are
    already. None begins when ``is_over`` says so.
    """

    def __init__(self, setup: Setup, units: Sequence[str] = ()) -> None:
        self.setup = setup
        self.samplings: dict[str, model.Sampling] = {}
        self.compared: Mapping[str, model.Variant] = {}
        self.begun: Mapping[str, int] = {}
        self.is_over: Callable[[], bool] = bool
        self._units = units
        self._on_phase: Callable[[str, str], object] = _tell_nobody
        # The wave at work and the one that starts beside it; the one that leaves beside it.
        self._alive: list[Wave] = []
        # What the first process of a side found of the variant when it checked.
        self._checked: dict[tuple[object, ...], Checked] = {}
        self._leaving: Wave | None = None
        self._tracing: Process | None = None
        self._is_stopped = threading.Event()
        with ExitStack() as stack:
            self.slots = [stack.enter_context(Slot(index, setup)) for index in range(setup.slots)]
            stack.pop_all()
        # Of side A, where its environment is another.
        self._elsewhere: list[Slot] = []
        self._folder = tempfile.TemporaryDirectory(prefix="perfsuite-")

    def compare(self, sides: process.Sides) -> None:
        """Begin anew with the code of these sides, or of none; also where ``stop`` was called."""
        self.setup, self.compared = changed(self.setup, sides=sides), {}
        self._checked.clear()
        self._is_stopped.clear()
        self.end_tracing()
        while self._elsewhere:
            self._elsewhere.pop().close()

    def slots_of(self, side: model.Side) -> list[Slot]:
        """Return the slots that fork the workers of a side; raises DeviceError."""
        if (python := self.setup.code(side).python) and not self._elsewhere:
            self._elsewhere = [Slot(i, self.setup, python) for i in range(self.setup.slots)]
        return self._elsewhere if python else self.slots

    @cached_property
    def facts(self) -> model.DeviceFacts:
        """The device, as one of its workers sees it; raises DeviceError."""
        return self.facts_in(self.slots[0])

    def facts_in(self, slot: Slot) -> model.DeviceFacts:
        """Return the device as a worker of a slot sees it; raises DeviceError."""
        setup = self.setup
        with slot.fork() as worker:
            try:
                asked, limit_s = (setup.device, setup.accelerator), setup.settings.start_limit_s
                facts: model.DeviceFacts = worker.do("describe", limit_s, asked)
            except EndedError as ended:
                what = f"device {setup.device!r} cannot be described: {ended.reason}"
                where = slot.python or " ".join(gpu.uuid for gpu in setup.gpus) or "this machine"
                raise DeviceError(what, where=where, remedy=slot.remedy) from ended
        return facts

    def measure(
        self,
        variants: Iterable[model.Variant],
        stage: model.Stage,
        *,
        processes: int,
        on_result: Callable[[model.Result], object],
        on_phase: Callable[[str, str], None] = _tell_nobody,
    ) -> None:
        """Measure each variant in fresh processes, whatever becomes of the others.

        ``on_result`` gets each result when its last process is through, that of side A first;
        ``on_phase`` gets a variant's id and the phase that begins. Gangs are kept for all variants
        of one case and as many ranks. Raises DeviceError when no server can be started any more.
        """
        self.end_tracing()
        self._on_phase = on_phase
        works = [Work(each, stage, self.compared.get(each.id)) for each in variants]
        waves = deque(self._planned(works, processes))
        going: set[Work] = set()
        try:
            while waves and (going or not self.is_over()):
                wave = waves.popleft()
                work = wave.work
                going.add(work)
                started = time.monotonic()
                if wave.seats:
                    self._take(wave, next((each for each in waves if each.seats), None))
                work.wall_s += time.monotonic() - started
                work.waves -= 1
                if not work.waves:
                    going.remove(work)
                    work.hand_over(on_result)
        except StoppedError:
            pass
        finally:
            self._see_out()
            for wave in waves:
                wave.close()

    def trace(self, variant: model.Variant, side: model.Side, *, sets: int) -> Anatomy:
        """Return what a launch of a variant is made of, or why that is not known.

        One worker traces the variants of a side, one after the other, until something else is
        asked for; another one does if it is lost.
        """
        if variant.is_gang:
            return Anatomy((), reason="ranks are not traced")
        try:
            if self._tracing is None or self._tracing.side is not side:
                self.end_tracing()
                self._tracing = self.slots_of(side)[0].fork()
                self._tracing.side = side
            self._tracing.tell("trace", (job_of(variant, self.setup, Seat(0, 0, side)), sets))
            found: Anatomy = process.hear([self._tracing], "trace", LIMIT_S, self._watch)[0]
        except (EndedError, StoppedError, DeviceError) as ended:
            self.end_tracing()
            reason = getattr(ended, "reason", "") or str(ended).partition("\n")[0] or "stopped"
            return Anatomy((), reason=f"its tracing ended: {reason}")
        return found

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for the variant in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers; servers leave side by side."""
        self.end_tracing()
        for slot in (*self.slots, *self._elsewhere):
            slot.server.channel.close()
        for slot in (*self.slots, *self._elsewhere):
            slot.close()
        self._folder.cleanup()

    def end_tracing(self) -> None:
        """End the worker that traces."""
        if self._tracing is not None:
            self._tracing.close()
        self._tracing = None

    def _planned(self, works: Iterable[Work], processes: int) -> Iterator[Wave]:
        """Yield all waves in their order: those of what shares a gang together."""
        slots = len(self.slots)
        for group in grouped(works, lambda work: work.kind).values():
            variant, stage = group[0].variant, group[0].stage
            is_alone = variant.is_gang or not self._fits(Wave(group[0], ()))
            is_compared = any(work.rival is not None for work in group)
            seats = seats_of(
                processes,
                together=1 if is_alone else slots,
                slots=sys.maxsize if variant.is_gang else slots,
                seed=f"{self.setup.settings.seed}/{stage}/{variant.id}" if is_compared else "",
                first=self.begun.get(variant.id, 0),
            )
            waves = [
                Wave(work, each)
                for each in seats
                for work in group
                if work.rival is not None or not is_compared or each[0].side is model.Side.B
            ]
            for wave in waves:
                wave.work.waves += 1
                wave.work.sides = 2 if is_compared else 1
            yield from waves

    def _fits(self, *waves: Wave) -> bool:
        """Say whether the device has memory for processes of these in all slots at once."""
        memory_bytes, unsaid = self.facts.memory_bytes, 0 if self.facts.is_host else UNSAID_BYTES
        taken = sum(max(unsaid, wave.work.memory_bytes) for wave in waves) * len(self.slots)
        return not memory_bytes or taken <= DEVICE_SHARE * memory_bytes

    def _take(self, wave: Wave, following: Wave | None) -> None:
        """Take a wave, and note what it found or how it ended.

        It gets one more try, with nothing beside it, where others may be to blame.
        """
        work, was_kept = wave.work, bool(wave.workers) and wave.work.variant.is_gang
        try:
            try:
                self._conduct(wave, following)
            except EndedError as ended:
                # An earlier variant may have left something in the gang, the next one's workers may
                # have ended the server. A hang had its time.
                is_beside = bool(following and following.workers)
                is_suspect = was_kept or (ended.is_server_lost and is_beside)
                if not is_suspect or ended.status is model.Status.TIMED_OUT:
                    raise
                if following:
                    following.close()
                self._conduct(wave, None)
        except EndedError as ended:
            work.failed[ended.process.side] = ended
            if following and following.work is work:
                following.close()
            if wave.seats:
                self._take(wave, following)

    def _conduct(self, wave: Wave, following: Wave | None) -> None:
        """Take a wave's processes from start to finish."""
        work, is_gang = wave.work, wave.work.variant.is_gang
        self._alive = [wave, following] if following else [wave]
        try:
            self._start(wave)
            self._prepare(wave, following)
            is_screen = work.stage is model.Stage.SCREEN
            self._on_phase(work.variant.id, "measure" if is_screen else "confirm")
            for turn in range(self._rounds(work)):
                is_backwards = work.rival is not None and turn % 2 == 1
                self._all("measure", wave.crews[:: -1 if is_backwards else 1], is_alone=True)
            finished = self._all("finish", wave.crews, is_alone=False)
            for crew, answers in zip(wave.crews, finished, strict=True):
                self._note(work, crew, answers)
        except BaseException:
            wave.close(0.0)
            # Whoever is checked next was not counted in when the one before was let go.
            self._see_out()
            raise
        finally:
            self._alive = []
        # Joining takes seconds: a gang is kept for what is measured by the same.
        is_kept = following and (following.work.kind, following.seats) == (work.kind, wave.seats)
        if following and is_kept and is_gang:
            following.workers, wave.workers = wave.workers, []
            return
        # Freeing what a process had on a GPU takes a while: it leaves beside the next one's check.
        for worker in wave.workers:
            worker.channel.close()
        self._leaving = wave
        if not (following and following.workers and self._fits(wave, following)):
            self._see_out()

    def _prepare(self, wave: Wave, following: Wave | None) -> None:
        """Let all check, and one after the other calibrate and settle.

        While results are checked nothing is timed: the wave before leaves and the next one starts
        beside that, unless the host is what is measured, or launches are timed to choose a kernel.
        """
        work, is_host, is_gang = wave.work, self.facts.is_host, wave.work.variant.is_gang
        for crew in wave.crews:
            self._hear(crew, "start")
        if following and not (is_host or is_gang) and self._fits(wave) and self._fits(following):
            self._start(following)
        tunes = any(work.of(seat.side).case.tunes for seat in wave.seats)
        if is_host or tunes:
            self._see_out()
            self._await_started(following)
        # The first process of each side checks thoroughly.
        thorough = [seat.process < work.sides for seat in wave.seats]
        if is_gang:
            # Ranks that part ways show where they are: they are not awaited in between.
            for worker in wave.workers:
                worker.tell("check", thorough[0])
        else:
            checked = self._all("check", wave.crews, thorough, is_alone=tunes)
            # What the others have as a result is held against what the first of their side has.
            others, known = [], []
            for crew, is_first, (found,) in zip(wave.crews, thorough, checked, strict=True):
                side = crew[0].side
                key = (self.setup.settings.seed, work.of(side).id, side)
                if is_first:
                    self._checked[key] = found
                else:
                    others.append(crew)
                    known.append(self._checked.get(key))
            self._all("match", others, known, is_alone=tunes)
        self._see_out()
        for crew in wave.crews:
            name = work.of(crew[0].side).id
            given = [self.samplings.get(name)]
            ((sampling, *_),) = self._all("prepare", [crew], given, is_alone=True)
            if sampling is not None:
                self.samplings[name] = sampling
        self._await_started(following)

    def _start(self, wave: Wave) -> None:
        """Have a wave's processes start, unless they were started ahead and live."""
        work, variant, is_gang = wave.work, wave.work.variant, wave.work.variant.is_gang
        if wave.workers and not is_gang:
            if all(process.resident_bytes(worker.pid) for worker in wave.workers):
                return
            wave.close()
        for seat in () if wave.workers else wave.seats:
            slots = self.slots_of(seat.side)
            for slot in slots[: variant.ranks] if is_gang else [slots[seat.slot]]:
                wave.workers.append(slot.fork())
                wave.workers[-1].side = seat.side
        ranks, place = variant.ranks if is_gang else 0, f"{self._folder.name}/{uuid.uuid4().hex}"
        for seat, crew in zip(wave.seats, wave.crews, strict=True):
            job = job_of(work.of(seat.side), self.setup, seat, work.stage)
            # Ranks are one measurement: the first one's phases are its.
            crew[0].on_phase = partial(self._on_phase, variant.id)
            for rank, worker in enumerate(crew):
                worker.tell("start", replace(job, rank=rank, ranks=ranks, rendezvous=place))

    def _await_started(self, wave: Wave | None) -> None:
        """Wait until the processes that were started ahead have started, for a while."""
        deadline = time.monotonic() + AHEAD_LIMIT_S
        for worker in wave.workers if wave else ():
            wait([worker.channel.fileno()], max(0.0, deadline - time.monotonic()))

    def _all(
        self, step: str, crews: Sequence[Crew], given: Sequence[Any] = (), *, is_alone: bool
    ) -> list[list[Any]]:
        """Let all do a step, one after the other if each is to be alone with that."""
        answers = []
        for crew, value in zip_longest(crews, given):
            for worker in crew:
                worker.tell(step, value)
            if is_alone:
                answers.append(self._hear(crew, step))
        return answers or [self._hear(crew, step) for crew in crews]

    def _hear(self, crew: Crew, step: str) -> list[Any]:
        limit_s = getattr(self.setup.settings, LIMITS.get(step, "prepare_limit_s"))
        return process.hear(crew, step, limit_s, self._watch)

    def _rounds(self, work: Work) -> int:
        # Sides are compared more finely than two runs are, also where no two processes fit at once.
        is_paired = work.rival is not None
        is_paced = work.variant.case.regime is model.Regime.PACED and "cycles" in self.facts.clocks
        stage = model.Stage.CONFIRM if is_paired or work.variant.is_gang else work.stage
        # Alone, a CPU's time decides nothing.
        has_many = is_paired or not self.facts.is_host
        by_host = has_many and model.is_host_timed(self.setup.device, work.variant.case.regime)
        return self.setup.settings.rounds_of(stage, is_paced=is_paced, by_host=by_host)

    def _note(self, work: Work, crew: Crew, parts: Sequence[model.Evidence]) -> None:
        """Note what one process found, or all ranks of it."""
        units, side = self._units or [self.facts.unit], crew[0].side
        try:
            whole = process.merged(parts, work.of(side).case.metrics)
        except CaseError as error:
            raise EndedError(crew[0], model.Status.ERROR, error.what) from error
        unit = process.gang_unit(units[: len(parts)])
        work.found[side].append(replace(whole, unit=unit))

    def _see_out(self) -> None:
        """Wait until the wave that was told to leave is gone."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.close()

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        for wave in self._alive:
            for worker in wave.workers:
                worker.limit(self.setup.worker_bytes)
