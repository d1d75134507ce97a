"""Measures variants on one device or several: fresh processes of a variant that take turns."""

from __future__ import annotations

import hashlib
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial
from itertools import zip_longest
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfsuite.boundary import CaseError, DeviceError
from perfsuite.engine.trace import Anatomy
from perfsuite.model import (
    Arm,
    DeviceFacts,
    Evidence,
    Metric,
    Regime,
    Result,
    Sampling,
    Stage,
    Status,
    Variant,
)
from perfsuite.store.files import Closable, refuse_few_files
from perfsuite.workers.messages import Job
from perfsuite.workers.process import (
    GRACE_S,
    PHASES,
    TAIL_CHARACTERS,
    Code,
    EndedError,
    Site,
    Slot,
    WorkerProcess,
    resident_bytes,
)

# Two orders in which sides alternate, so that what drifts weighs on both alike.
ORDERS = ("ABBA", "BAAB")
TICK_S = 0.1
# The setting that holds a step's time limit, if not that of preparing.
LIMITS = {"start": "start_limit_s", "measure": "block_limit_s"}
# A rank that fails because a peer died may be heard first: the death shows this much later.
DEATH_S = 0.2
# How long blocks wait for the next workers to have started, which would disturb them.
AHEAD_LIMIT_S = 2.0
# CUPTI starts in 4 s (H200), and a case may compile for a while.
LIMIT_S = 60.0
# The share of the device's memory that the workers measuring together may use.
DEVICE_SHARE = 0.9
# Of a device that spoils more of all samples than this, the others cannot be trusted either.
VOIDED_MOST = 0.2
# What a slot has open at most: its server, workers of three waves, and its share of the run.
FILES = 9


class StoppedError(Exception):
    """The panel was told to stop in the middle of a variant."""


def _tell_nobody(*_words: str) -> None: ...


class Ranks:
    """The workers of one process of a variant: one, or one for each of its ranks.

    All are told at once and awaited together; the first that fails is the end of all. ``watch`` is
    called while they are awaited, and may raise. Raises DeviceError where none can be forked.
    """

    def __init__(
        self, slots: Sequence[Slot], watch: Callable[[], object], arm: Arm = Arm.B
    ) -> None:
        self.arm = arm
        self.workers: list[WorkerProcess] = []
        self._watch = watch
        self._told_at = 0.0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            for slot in slots:
                self.workers.append(slot.fork())
        except DeviceError:
            self.close()
            raise

    def start(self, job: Job, *, is_gang: bool) -> None:
        """Let all start a variant, as ranks that join each other if they are a gang."""
        if is_gang:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="perfsuite-gang-")
            place = str(Path(self._folder.name, "rendezvous"))
            job = replace(job, ranks=len(self.workers), rendezvous=place)
        self.tell("start", *(replace(job, rank=rank) for rank in range(len(self.workers))))

    def tell(self, step: str, *given: Any) -> None:
        """Ask all for a step, each with its own of what is given, if that is several."""
        self._told_at = time.monotonic()
        for rank, worker in enumerate(self.workers):
            worker.tell(step, given[rank % len(given)] if given else None)

    def hear(
        self, step: str, limit_s: float, announce: Callable[[str], object] = _tell_nobody
    ) -> list[Any]:
        """Return what each worker answers, within a time from when it was told.

        Raises EndedError for whatever else happens. Only the first one's phases are announced:
        ranks are one measurement.
        """
        while True:
            wait([worker.fileno() for worker in self.workers], TICK_S)
            for rank, worker in enumerate(self.workers):
                before = worker.phase
                try:
                    worker.listen()
                except EndedError as ended:
                    raise self._blamed(rank, ended) from ended
                if rank == 0 and worker.phase != before:
                    announce(worker.phase)
            late = [worker for worker in self.workers if step not in worker.answers]
            if not late:
                return [worker.answers[step] for worker in self.workers]
            if time.monotonic() > self._told_at + limit_s:
                raise self._overdue(late, PHASES.get(step, step), limit_s)
            self._watch()

    def hang_up(self) -> None:
        """Tell all to leave, without waiting."""
        for worker in self.workers:
            worker.channel.close()

    def close(self, grace_s: float = GRACE_S) -> None:
        """Let all go; they leave side by side. What waits for a lost peer does not by itself."""
        self.hang_up()
        for worker in self.workers:
            worker.close(grace_s)
        if self._folder is not None:
            self._folder.cleanup()

    def _blamed(self, rank: int, ended: EndedError) -> EndedError:
        """Return how all ended: as a rank that died without a word, else as the one heard first."""
        ended.arm = self.arm
        if len(self.workers) == 1:
            return ended
        time.sleep(DEATH_S)
        for other, worker in enumerate(self.workers) if ended.is_told else ():
            try:
                if other != rank:
                    worker.listen()
            except EndedError as death:
                if not death.is_told:
                    rank, ended = other, death
                    break
        return self._ended(ended.status, f"rank {rank}: {ended.reason}")

    def _overdue(self, late: Sequence[WorkerProcess], phase: str, limit_s: float) -> EndedError:
        """Say who gave no answer, and where it is; all of them print the stack they hang in."""
        places = [f"rank {self.workers.index(each)} in {each.phase}" for each in late]
        if len(self.workers) == 1:
            places = [f"in {each.phase}" for each in late if each.phase != phase]
        where = f" ({', '.join(places)})" if places else ""
        for worker in late:
            worker.signal(signal.SIGABRT)
        for worker in late:
            worker.ended(Status.TIMED_OUT)
        reason = f"{phase} took longer than its limit of {limit_s:g} s{where}"
        return self._ended(Status.TIMED_OUT, reason)

    def _ended(self, status: Status, reason: str) -> EndedError:
        share = TAIL_CHARACTERS // len(self.workers)
        texts = [worker.last_output(share) for worker in self.workers]
        if len(texts) > 1:
            texts = [f"rank {rank}:\n{text}" for rank, text in enumerate(texts) if text]
        return EndedError(status, reason, "\n".join(texts), arm=self.arm)


NUMBER = re.compile(r"\d[\d.]*")


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a variant: its number, its slot and its side."""

    process: int
    slot: int
    arm: Arm = Arm.B


def seats_of(
    processes: int, *, together: int, slots: int, seed: str = ""
) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes``, by wave; with a seed, as many of each of both sides.

    Sides alternate in an order that the seed chooses, in pairs if two fit. Both pairs of four take
    the same two slots: what a server hands on to its workers, its address space among it, weighs on
    both sides alike. The next four take the next two.
    """
    seats = [Seat(number, number % slots) for number in range(processes)]
    if seed:
        together = min(together, 2)
        chosen = random.Random(seed)  # noqa: S311 - an order, not a secret
        sides = "".join(chosen.choice(ORDERS) for _ in range((processes + 1) // 2))
        seats = [
            Seat(number, (2 * (number // 4) + number % 2) % slots, Arm(side))
            for number, side in enumerate(sides[: 2 * processes])
        ]
    return [tuple(seats[first : first + together]) for first in range(0, len(seats), together)]


@dataclass(slots=True, eq=False)
class Work:
    """What is to be measured of one variant in one stage, and what was found.

    With a ``rival``, another variant of its case, each process measures both in turns. ``waves``
    are still to come; what shares its gang is measured on so many
    ``sides``. ``found`` has the evidence by variant and side, ``failed`` how a side ended.
    """

    variant: Variant
    stage: Stage
    is_compared: bool = False
    rival: Variant | None = None
    waves: int = 0
    sides: int = 1
    wall_s: float = 0.0
    found: dict[tuple[str, Arm], list[Evidence]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[Arm, EndedError] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int:
        """The device memory that one process of it needs."""
        return self.variant.memory_bytes + (self.rival.memory_bytes if self.rival else 0)

    @property
    def kind(self) -> tuple[object, ...]:
        """What works have in common that are measured together: a gang is kept for them."""
        variant = self.variant
        return (variant.pack, variant.case.name, variant.ranks) if variant.is_gang else (self,)

    def hand_over(self, on_result: Callable[[Result], object]) -> None:
        """Hand over what was found, side A first; where B failed, nothing that is good."""
        blank = Result(
            variant=self.variant.id,
            status=Status.OK,
            stage=self.stage,
            case_version=self.variant.case.version,
            wall_s=round(self.wall_s / max(1, len(self.found)), 6),
        )
        results = [
            replace(blank, arm=arm, status=each.status, reason=each.reason, output=each.output)
            for arm, each in self.failed.items()
        ]
        for (name, arm), evidence in self.found.items():
            if arm not in self.failed and Arm.B not in self.failed:
                good = replace(blank, variant=name, arm=arm, evidence=tuple(evidence))
                results.append(doubted(good))
        for result in sorted(results, key=lambda each: each.arm):
            on_result(result)


@dataclass(slots=True, eq=False)
class Wave:
    """Those processes of a work that are alive at the same time, in the order of their turns."""

    work: Work
    planned: tuple[Seat, ...]
    running: list[Ranks] = field(default_factory=list)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats that are still to be taken: side B goes on without A, A not without B."""
        failed = self.work.failed
        return () if Arm.B in failed else tuple(s for s in self.planned if s.arm not in failed)

    def goes_on(self, before: Wave) -> bool:
        """Say whether the gang of the wave before can be kept: joining takes seconds."""
        return self.work.variant.is_gang and (self.work.kind, self.seats) == (
            before.work.kind,
            before.seats,
        )

    def hang_up(self) -> None:
        """Tell its processes to leave, without waiting."""
        for ranks in self.running:
            ranks.hang_up()

    def close(self, grace_s: float = GRACE_S) -> None:
        """End its processes; they leave side by side."""
        self.hang_up()
        while self.running:
            self.running.pop().close(grace_s)


def doubted(result: Result) -> Result:
    """Return the result, as disturbed where too many of its samples were voided."""
    blocks = [block for process in result.evidence for block in process.blocks]
    voided = sum(block.voided for block in blocks)
    taken = voided + sum(len(block.time_us) for block in blocks)
    if voided <= VOIDED_MOST * taken:
        return result
    notes = [note for process in result.evidence for note in process.notes if "voided" in note]
    reason = f"{voided} of {taken} samples voided ({notes[0] if notes else 'they have no time'})"
    return replace(result, status=Status.DISTURBED, reason=reason)


def job_of(
    variant: Variant, site: Site, *, stage: Stage = Stage.SCREEN, seat: Seat = Seat(0, 0)
) -> Job:
    """Return the job of one process of a variant."""
    code = site.code(seat.arm)
    # From names only: a variant measured alone gets the seeds it has in the whole suite.
    text = f"{site.settings.seed}/{stage}/{variant.id}/{seat.process}"
    return Job(
        pack=variant.pack,
        origin=code.origins[variant.pack],
        case=variant.case.name,
        axes=variant.axes,
        device=site.device,
        accelerator=site.accelerator,
        settings=site.settings,
        seed=int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()),
        slot=seat.slot,
        kernels=code.kernels,
        tree=code.tree,
    )


class Panel(Closable):
    """The servers of one device, or of the ranks of gangs; from one thread at a time.

    Only ``stop`` may be called from another thread. ``units`` are the ranks' units, by rank, where
    gangs are measured. ``samplings`` says how variants are to be sampled; what a first process
    chooses is added, so that all others sample alike. Variants in ``compared`` (ids) are measured
    on both sides of the site; none begins when ``is_over`` says so.
    """

    def __init__(self, site: Site, units: Sequence[str] = ()) -> None:
        self.site = site
        self.samplings: dict[str, Sampling] = {}
        self.compared: frozenset[str] = frozenset()
        self.is_over: Callable[[], bool] = bool
        self._units = units
        self._facts: DeviceFacts | None = None
        self._announce: Callable[[str], object] = _tell_nobody
        # The wave at work and the one that starts beside it; the one that leaves beside it.
        self._alive: list[Wave] = []
        self._leaving: Wave | None = None
        self._tracing: Ranks | None = None
        self._is_stopped = threading.Event()
        refuse_few_files(FILES * site.slots)
        self._slots = [Slot(index, site) for index in range(site.slots)]

    def compare(self, arms: Mapping[Arm, Code]) -> None:
        """Begin anew with the code of these sides, or of none; also where ``stop`` was called."""
        self.site, self.compared = changed(self.site, arms=arms), frozenset()
        self._is_stopped.clear()

    def facts(self) -> DeviceFacts:
        """Describe the device, as one of its workers sees it; raises DeviceError."""
        if self._facts is None:
            worker = Ranks(self._slots[:1], bool)
            try:
                worker.tell("describe", (self.site.device, self.site.accelerator))
                (self._facts,) = worker.hear("describe", self.site.settings.start_limit_s)
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
        return tuple(slot.await_up() for slot in self._slots)

    def measure(
        self,
        variants: Iterable[Variant],
        stage: Stage,
        *,
        processes: int,
        on_result: Callable[[Result], object],
        on_phase: Callable[[str, str], None] = _tell_nobody,
    ) -> None:
        """Measure each variant in fresh processes, whatever becomes of the others.

        ``on_result`` gets each result when its last process is through, that of side A first;
        ``on_phase`` gets a variant's id and the phase that begins. Gangs are kept for all variants
        of one case and as many ranks. Raises DeviceError when no server can be started any more.
        """
        works = [Work(each, stage, each.id in self.compared) for each in variants]
        self._run(works, processes, on_result, on_phase)

    def quads(self, variant: Variant, rival: Variant, *, processes: int) -> list[Result]:
        """Measure two variants of a case in the same processes, their blocks in turns.

        Returns both results, the rival's last: one, if it ended early, none if it was stopped.
        """
        results: list[Result] = []
        work = Work(variant, Stage.CONFIRM, rival=rival)
        self._run([work], processes, results.append, _tell_nobody)
        return results

    def trace(self, variant: Variant, arm: Arm, *, sets: int) -> Anatomy:
        """Return what a launch of a variant is made of, or why that is not known.

        One worker traces the variants of a side, one after the other, until something else is
        asked for; another one does if it is lost.
        """
        if variant.is_gang:
            return Anatomy((), reason="ranks are not traced")
        try:
            if self._tracing is None or self._tracing.arm is not arm:
                self.end_tracing()
                self._tracing = Ranks(self._slots[:1], self._watch, arm)
            self._tracing.tell("trace", (job_of(variant, self.site, seat=Seat(0, 0, arm)), sets))
            found: Anatomy = self._tracing.hear("trace", LIMIT_S)[0]
        except (EndedError, StoppedError, DeviceError) as ended:
            self.end_tracing()
            reason = getattr(ended, "reason", "") or str(ended).partition("\n")[0] or "stopped"
            return Anatomy((), reason=f"its tracing ended: {reason}")
        return found

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for the variant in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers."""
        self.end_tracing()
        for slot in self._slots:
            slot.close()

    def end_tracing(self) -> None:
        """End the worker that traces."""
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            tracing.close()

    def _run(
        self,
        works: Iterable[Work],
        processes: int,
        on_result: Callable[[Result], object],
        on_phase: Callable[[str, str], None],
    ) -> None:
        """Take all waves; hand over the results of each work when its last one is through."""
        self.end_tracing()
        waves = deque(self._planned(works, processes))
        going: set[Work] = set()
        try:
            while waves and (going or not self.is_over()):
                wave = waves.popleft()
                going.add(wave.work)
                self._announce = partial(on_phase, wave.work.variant.id)
                started = time.monotonic()
                if wave.seats:
                    self._take(wave, next((each for each in waves if each.seats), None))
                wave.work.wall_s += time.monotonic() - started
                wave.work.waves -= 1
                if not wave.work.waves:
                    going.remove(wave.work)
                    wave.work.hand_over(on_result)
        except StoppedError:
            pass
        finally:
            self._see_out()
            for wave in waves:
                wave.close()

    def _planned(self, works: Iterable[Work], processes: int) -> Iterator[Wave]:
        """Yield all waves in their order: those of what shares a gang together."""
        groups: dict[tuple[object, ...], list[Work]] = {}
        for work in works:
            groups.setdefault(work.kind, []).append(work)
        for group in groups.values():
            variant, stage = group[0].variant, group[0].stage
            slots = len(self._slots)
            is_alone = variant.is_gang or not self._fits(Wave(group[0], ()))
            is_compared = any(work.is_compared for work in group)
            seats = seats_of(
                processes,
                together=1 if is_alone else slots,
                slots=sys.maxsize if variant.is_gang else slots,
                seed=f"{self.site.settings.seed}/{stage}/{variant.id}" if is_compared else "",
            )
            waves = [
                Wave(work, each)
                for each in seats
                for work in group
                if work.is_compared or not is_compared or each[0].arm is Arm.B
            ]
            for wave in waves:
                wave.work.waves += 1
                wave.work.sides = 2 if is_compared else 1
            yield from waves

    def _fits(self, *waves: Wave) -> bool:
        """Say whether the device has memory for processes of these in all slots at once."""
        memory_bytes = self.facts().memory_bytes
        taken_bytes = sum(wave.work.memory_bytes for wave in waves) * len(self._slots)
        return not memory_bytes or taken_bytes <= DEVICE_SHARE * memory_bytes

    def _take(self, wave: Wave, following: Wave | None) -> None:
        """Take a wave, and note what it found or how it ended.

        It gets one more try, with nothing beside it, where others may be to blame.
        """
        work = wave.work
        was_kept = work.variant.is_gang and bool(wave.running)
        try:
            try:
                self._conduct(wave, following)
            except EndedError as ended:
                # An earlier variant may have left something in the gang, the next one's workers may
                # have ended the server. A hang had its time.
                is_beside = bool(following and following.running)
                is_suspect = was_kept or (ended.is_server_lost and is_beside)
                if not is_suspect or ended.status is Status.TIMED_OUT:
                    raise
                if following:
                    following.close()
                self._conduct(wave, None)
        except EndedError as ended:
            work.failed[ended.arm] = ended
            if following and following.work is work:
                following.close()
            if wave.seats:
                self._take(wave, following)

    def _conduct(self, wave: Wave, following: Wave | None) -> None:
        """Take a wave's processes from start to finish."""
        work, running, is_host = wave.work, wave.running, self.site.is_host_measured
        self._alive = [wave, following] if following else [wave]
        try:
            self._start(wave)
            self._prepare(wave, following)
            self._announce("measure" if work.stage is Stage.SCREEN else "confirm")
            for turn in range(self._rounds(work)):
                is_backwards = work.is_compared and turn % 2 == 1
                self._all("measure", running[:: -1 if is_backwards else 1], is_alone=True)
            finished = self._all("finish", running, is_alone=is_host)
            for seat, answers in zip(wave.seats, finished, strict=True):
                self._note(work, seat.arm, answers)
        except BaseException:
            wave.close(0.0)
            # Whoever is checked next was not counted in when the one before was let go.
            self._see_out()
            raise
        finally:
            self._alive = []
        if following and following.goes_on(wave):
            following.running, wave.running = running, []
            return
        # Freeing what a process had on a GPU takes a while: it leaves beside the next one's check.
        wave.hang_up()
        self._leaving = wave
        if not (following and following.running and self._fits(wave, following)):
            self._see_out()

    def _prepare(self, wave: Wave, following: Wave | None) -> None:
        """Let all check, and one after the other calibrate and settle.

        While results are checked nothing is timed: the wave before leaves and the next one starts
        beside that, unless the host is what is measured, or launches are timed to choose a kernel.
        """
        work, running, is_host = wave.work, wave.running, self.site.is_host_measured
        for ranks in running:
            self._hear(ranks, "start")
        is_hidden = not (is_host or work.variant.is_gang)
        if following and is_hidden and self._fits(wave) and self._fits(following):
            self._start(following)
        is_alone = is_host or work.variant.case.tunes
        if is_alone:
            self._see_out()
            self._await_started(following)
        # The first process of each side checks thoroughly.
        thorough = [seat.process < work.sides for seat in wave.seats]
        if work.variant.is_gang:
            # Ranks that part ways show where they are: they are not awaited in between.
            running[0].tell("check", *thorough)
        else:
            self._all("check", running, thorough, is_alone=is_alone)
        self._see_out()
        for ranks in running:
            ranks.tell("prepare", self.samplings.get(work.variant.id))
            sampling = self._hear(ranks, "prepare")[0]
            if sampling is not None:
                self.samplings.setdefault(work.variant.id, sampling)
        self._await_started(following)

    def _start(self, wave: Wave) -> None:
        """Have a wave's processes start, unless they were started ahead and live."""
        work, is_gang = wave.work, wave.work.variant.is_gang
        if wave.running and not is_gang:
            if all(resident_bytes(w.pid) for ranks in wave.running for w in ranks.workers):
                return
            wave.close()
        try:
            for seat in wave.seats[len(wave.running) :]:
                slots = self._slots[: work.variant.ranks] if is_gang else [self._slots[seat.slot]]
                wave.running.append(Ranks(slots, self._watch, seat.arm))
        except DeviceError:
            wave.close()
            raise
        for seat, ranks in zip(wave.seats, wave.running, strict=True):
            job = job_of(work.variant, self.site, stage=work.stage, seat=seat)
            if work.rival is not None:
                sampling = self.samplings.get(work.rival.id)
                job = replace(job, rival=work.rival.axes, rival_sampling=sampling)
            ranks.start(job, is_gang=is_gang)

    def _await_started(self, wave: Wave | None) -> None:
        """Wait until the processes that were started ahead have started, for a while."""
        deadline = time.monotonic() + AHEAD_LIMIT_S
        for ranks in wave.running if wave else ():
            for worker in ranks.workers:
                wait([worker.fileno()], max(0.0, deadline - time.monotonic()))

    def _all(
        self, step: str, running: Sequence[Ranks], given: Sequence[Any] = (), *, is_alone: bool
    ) -> list[list[Any]]:
        """Let all do a step, one after the other if each is to be alone with that."""
        answers = []
        for ranks, value in zip_longest(running, given):
            ranks.tell(step, value)
            if is_alone:
                answers.append(self._hear(ranks, step))
        return answers or [self._hear(ranks, step) for ranks in running]

    def _hear(self, ranks: Ranks, step: str) -> list[Any]:
        return ranks.hear(
            step, getattr(self.site.settings, LIMITS.get(step, "prepare_limit_s")), self._announce
        )

    def _rounds(self, work: Work) -> int:
        # Sides are compared more finely than two runs are, also where no two processes fit at once.
        is_whole = work.variant.is_gang or work.is_compared
        is_timed = is_whole or "cycles" in self.facts().clocks
        is_paced = is_timed and work.variant.case.regime is Regime.PACED
        stage = Stage.CONFIRM if is_whole else work.stage
        return self.site.settings.rounds_of(stage, is_paced=is_paced)

    def _note(self, work: Work, arm: Arm, answers: Sequence[tuple[Evidence, ...]]) -> None:
        """Note what one process found, or all ranks of it, of a variant and of its rival."""
        units = self._units or [self.facts().unit]
        names = [work.variant.id, work.rival.id if work.rival else ""]
        for name, parts in zip(names, zip(*answers, strict=True), strict=False):
            try:
                whole = merged(parts, work.variant.case.metrics)
            except CaseError as error:
                raise EndedError(Status.ERROR, error.what, arm=arm) from error
            unit = gang_unit(units[: len(parts)])
            work.found[name, arm].append(replace(whole, unit=unit))

    def _see_out(self) -> None:
        """Wait until the wave that was told to leave is gone."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.close()

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        for wave in self._alive:
            for ranks in wave.running:
                for worker in ranks.workers:
                    worker.limit(self.site.worker_bytes)


# What the ranks of a gang measured together is one evidence: the slowest rank counts.


def merged(ranks: Sequence[Evidence], metrics: Sequence[Metric]) -> Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    if len(ranks) == 1:
        return first
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in metrics}
    exact = _by_name(each.exact for each in ranks)
    phases_s = _by_name(each.phases_s for each in ranks)
    blocks = []
    for parts in zip(*(each.blocks for each in ranks), strict=True):
        # The samples of a block are taken together, so that those at one place belong together.
        has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
        samples = [zip(part.time_us, part.cycles or part.time_us, strict=False) for part in parts]
        slowest = [max(each) for each in zip(*samples, strict=False)]
        metrics_of = _by_name(part.metrics for part in parts)
        blocks.append(
            replace(
                parts[0],
                time_us=tuple(time_us for time_us, _ in slowest),
                cycles=tuple(cycles for _, cycles in slowest) if has_cycles else (),
                voided=max(part.voided for part in parts),
                metrics={
                    name: tuple(map(worst.get(name, max), zip(*columns, strict=False)))
                    for name, columns in metrics_of.items()
                },
            )
        )
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max((each.error for each in ranks if each.error is not None), default=None),
        blocks=tuple(blocks),
        exact={name: worst.get(name, max)(values) for name, values in exact.items()},
        phases_s={name: max(values) for name, values in phases_s.items()},
        notes=tuple(_notes_of([each.notes for each in ranks])),
    )


def _notes_of(found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the notes of ranks: those that differ in figures alone once, others with their rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        yield note if len(ranks) == len(found) else f"rank {', '.join(map(str, ranks))}: {note}"


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = defaultdict(list)
    for each in found:
        for name, value in each.items():
            values[name].append(value)
    return values


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]
