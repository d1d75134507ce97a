"""Measures variants on one device or several: fresh processes of a variant that take turns."""

from __future__ import annotations

import hashlib
import random
import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial
from itertools import zip_longest
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Self

from msgspec import Raw
from msgspec.structs import replace

from perfsuite.boundary import NAME_CHARACTERS, CaseError, DeviceError, PerfError, plain
from perfsuite.engine.trace import Anatomy
from perfsuite.model import (
    Arm,
    Block,
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
from perfsuite.workers.messages import STEPS, Done, Job, Message, Progress, read
from perfsuite.workers.process import (
    TAIL_CHARACTERS,
    Code,
    EndedError,
    Site,
    Slot,
    WorkerProcess,
)

QUADS = ("ABBA", "BAAB")
TICK_S = 0.1
# How a step is called where it fails, if not by its name.
PHASES = {"check": "prepare", "describe": "start", "list": "listing the pack"}
# The setting that holds a step's time limit.
LIMITS = {
    "start": "start_limit_s",
    "check": "prepare_limit_s",
    "prepare": "prepare_limit_s",
    "measure": "block_limit_s",
    "finish": "prepare_limit_s",
}
JOIN = "join"
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

Announce = Callable[[str], object]


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

    def start(self, job: Job, *, is_gang: bool = False) -> None:
        """Let all start a variant, as ranks that join each other if they are a gang."""
        if not is_gang:
            self.tell("start", job)
            return
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="perfsuite-gang-")
        place, count = str(Path(self._folder.name, "rendezvous")), len(self.workers)
        each = [replace(job, rank=rank, ranks=count, rendezvous=place) for rank in range(count)]
        self.tell("start", *each)

    def tell(self, step: str, *given: Any) -> None:
        """Ask all for a step, each with its own of what is given, if that is several."""
        self._told_at = time.monotonic()
        for rank, worker in enumerate(self.workers):
            worker.phase = PHASES.get(step, step)
            worker.tell(step, given[rank if len(given) > 1 else 0] if given else None)

    def hear(
        self,
        step: str,
        limit_s: float,
        announce: Announce = _tell_nobody,
        *,
        since: float | None = None,
    ) -> list[Any]:
        """Return what each worker answers, within a time from when it was told, or ``since`` then.

        Raises EndedError for whatever else happens. Only the first one's phases are announced:
        ranks are one measurement.
        """
        answers: dict[int, Any] = {}
        everyone = range(len(self.workers))
        deadline = (self._told_at if since is None else since) + limit_s
        while True:
            wait_for([worker.fileno() for worker in self.workers], TICK_S)
            for rank in everyone:
                match self._said(rank):
                    case Progress(phase=phase):
                        self.workers[rank].phase = plain(phase, most=NAME_CHARACTERS)
                        if rank == 0:
                            announce(self.workers[rank].phase)
                    case Done(step=done, value=value) if done == step:
                        answers[rank] = self._value(rank, step, value)
            silent = [rank for rank in everyone if rank not in answers]
            if not silent:
                return [answers[rank] for rank in everyone]
            if time.monotonic() > deadline:
                raise self._overdue(silent, PHASES.get(step, step), limit_s)
            self._watch()

    def kill(self) -> None:
        """End all at once: what waits for a lost peer does not leave by itself."""
        for worker in self.workers:
            worker.kill()
        self.close()

    def hang_up(self) -> None:
        """Tell all to leave, without waiting."""
        for worker in self.workers:
            worker.hang_up()

    def close(self) -> None:
        """Let all go; they leave side by side."""
        self.hang_up()
        for worker in self.workers:
            worker.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _said(self, rank: int) -> Message | None:
        """Return what a rank has said; raises EndedError, which names the rank at fault.

        That is one that died without a word, else the one heard first.
        """
        try:
            return self.workers[rank].listen()
        except EndedError as ended:
            ended.arm = self.arm
            if len(self.workers) == 1:
                raise
            deaths = self._deaths(rank) if ended.is_told else []
            rank, at_fault = deaths[0] if deaths else (rank, ended)
            reason = f"rank {rank}: {at_fault.reason}"
            raise self._ended(at_fault.status, reason) from at_fault

    def _deaths(self, speaker: int) -> list[tuple[int, EndedError]]:
        time.sleep(DEATH_S)
        found = []
        for rank, worker in enumerate(self.workers):
            try:
                _ = rank == speaker or worker.listen()
            except EndedError as death:
                found += [] if death.is_told else [(rank, death)]
        return found

    def _value(self, rank: int, step: str, value: Raw) -> Any:
        try:
            return read(value, STEPS[step][1])
        except PerfError as error:
            ended = self.workers[rank].garbled(error)
            ended.arm = self.arm
            raise ended from error

    def _overdue(self, silent: Sequence[int], phase: str, limit_s: float) -> EndedError:
        """Say who gave no answer, and where it is; all of them print the stack they hang in."""
        late = [self.workers[rank] for rank in silent]
        unjoined = [rank for rank in silent if self.workers[rank].phase != JOIN]
        is_joining = phase == "start" and len(unjoined) < len(silent)
        blamed = unjoined if is_joining and unjoined else silent
        what = "did not join" if is_joining else "gave no answer"
        doubt = "" if phase == "start" else ": a collective hangs?"
        where = self._whereabouts(blamed, phase)
        reason = f"{rank_words(blamed)} {what} within {limit_s:g} s during {phase}{where}{doubt}"
        if len(self.workers) == 1:
            reason = f"{phase} took longer than its limit of {limit_s:g} s{where}"
        for worker in late:
            worker.abort()
        for worker in late:
            worker.ended(Status.TIMED_OUT, reason)
        return self._ended(Status.TIMED_OUT, reason)

    def _whereabouts(self, ranks: Sequence[int], phase: str) -> str:
        """Say in which phase each rank is, where that tells them apart or tells more."""
        phases = {rank: self.workers[rank].phase for rank in ranks}
        if len(set(phases.values())) > 1:
            return f" ({', '.join(f'rank {rank} in {each}' for rank, each in phases.items())})"
        told = set(phases.values()) - {phase, JOIN}
        return f" (in {told.pop()})" if told else ""

    def _ended(self, status: Status, reason: str) -> EndedError:
        share = TAIL_CHARACTERS // len(self.workers)
        texts = [worker.last_output(share) for worker in self.workers]
        if len(texts) > 1:
            texts = [f"rank {rank}:\n{text}" for rank, text in enumerate(texts) if text]
        return EndedError(status, reason, "\n".join(texts), arm=self.arm)


def rank_words(ranks: Sequence[int]) -> str:
    """Return ranks in words: "rank 1", "ranks 0 and 1", "ranks 0, 1 and 3"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a wave: its number, its slot and its arm."""

    process: int
    slot: int
    arm: Arm = Arm.B


@dataclass(slots=True)
class Wave:
    """Those processes of a variant that are alive at the same time, in the order of their turns.

    With a ``rival``, another variant of its case, each of them measures both in quads. ``arms`` is
    how many arms are measured in turns. ``running`` are its processes, once they are started.
    """

    variant: Variant
    stage: Stage
    seats: tuple[Seat, ...]
    rival: Variant | None = None
    arms: int = 1
    running: list[Ranks] = field(default_factory=list)

    @property
    def memory_bytes(self) -> int:
        """The device memory that one process of it needs."""
        return self.variant.memory_bytes + (self.rival.memory_bytes if self.rival else 0)

    def goes_on(self, before: Wave) -> bool:
        """Say whether the gang of the wave before can be kept: joining takes seconds."""
        return self.variant.is_gang and (_kind(self.variant), self.seats) == (
            _kind(before.variant),
            before.seats,
        )

    def after(self, failed: Arm) -> Wave:
        """Return what is left of the wave when an arm has failed: arm B goes on without A."""
        left = [seat for seat in self.seats if failed is Arm.A and seat.arm is Arm.B]
        return changed(self, seats=tuple(left), running=[])

    def hang_up(self) -> None:
        """Tell its processes to leave, without waiting."""
        for ranks in self.running:
            ranks.hang_up()

    def close(self) -> None:
        """End its processes; they leave side by side."""
        self.hang_up()
        while self.running:
            self.running.pop().close()

    def kill(self) -> None:
        """End its processes at once."""
        while self.running:
            self.running.pop().kill()


def legs(processes: int, seed: str) -> list[Arm]:
    """Return the arms of ``processes`` of each in turns: quads of random order, the last halved."""
    order = random.Random(seed)  # noqa: S311 - an order, not a secret
    quads = "".join(order.choice(QUADS) for _ in range((processes + 1) // 2))
    return [Arm(letter) for letter in quads[: 2 * processes]]


def seats_of_one(processes: int, *, together: int, slots: int) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes`` of the working tree, by wave."""
    numbers = range(processes)
    return [
        tuple(Seat(number, number % slots) for number in numbers[first : first + together])
        for first in range(0, processes, together)
    ]


def seats_of_two(processes: int, *, together: int, slots: int, seed: str) -> list[tuple[Seat, ...]]:
    """Return the seats of ``processes`` of each arm, by wave: pairs, if two fit.

    Both pairs of a quad take the same two slots: what a server hands on to its workers, its
    address space among it, weighs on both arms alike. Each quad takes the next two.
    """
    seats = [
        Seat(number, (2 * (number // 4) + number % 2) % slots, arm)
        for number, arm in enumerate(legs(processes, seed))
    ]
    size = min(together, 2)
    return [tuple(seats[first : first + size]) for first in range(0, len(seats), size)]


def _kind(variant: Variant) -> tuple[object, ...]:
    """Return what variants have in common that are measured together: a gang is kept for them."""
    if not variant.is_gang:
        return (variant.id,)
    return variant.pack, variant.case.name, variant.ranks


def doubted(result: Result) -> Result:
    """Return the result, as disturbed where too many of its samples were voided."""
    blocks = [block for process in result.evidence for block in process.blocks]
    voided = sum(block.voided for block in blocks)
    taken = voided + sum(len(block.time_us) for block in blocks)
    if result.status is not Status.OK or voided <= VOIDED_MOST * taken:
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
    in both arms of the site; none begins when ``is_over`` says so.
    """

    def __init__(self, site: Site, units: Sequence[str] = ()) -> None:
        self.site = site
        self.samplings: dict[str, Sampling] = {}
        self.compared: frozenset[str] = frozenset()
        self.is_over: Callable[[], bool] = bool
        self._units = units
        self._facts: DeviceFacts | None = None
        self._announce: Announce = _tell_nobody
        # The wave at work; the one that was started beside it; the one that leaves beside it.
        self._wave: Wave | None = None
        self._ahead: Wave | None = None
        self._leaving: Wave | None = None
        self._is_stopped = threading.Event()
        refuse_few_files(FILES * site.slots)
        self._slots = [Slot(index, site) for index in range(site.slots)]

    def compare(self, arms: Mapping[Arm, Code]) -> None:
        """Begin anew with the code of these arms, or of none; also where ``stop`` was called."""
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
        return tuple(slot.hello() for slot in self._slots)

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

        ``on_result`` gets each result when its last process is through, that of arm A first;
        ``on_phase`` gets a variant's id and the phase that begins. Gangs are kept for all variants
        of one case and as many ranks. Raises DeviceError when no server can be started any more.
        """
        self._run(self._plan(variants, stage, processes), on_result, on_phase)

    def quads(self, variant: Variant, rival: Variant, *, processes: int) -> list[Result]:
        """Measure two variants of a case in the same processes, their blocks in quads.

        Returns both results, the rival's last: one, if it ended early, none if it was stopped.
        """
        together = self._together(variant.memory_bytes + rival.memory_bytes)
        seats = seats_of_one(processes, together=together, slots=len(self._slots))
        results: list[Result] = []
        waves = deque(Wave(variant, Stage.CONFIRM, each, rival) for each in seats)
        self._run(waves, results.append, _tell_nobody)
        return results

    def tracer(self) -> Tracer:
        """Return what traces variants; nothing is measured meanwhile."""
        return Tracer(self._slots[:1], self.site, self._watch)

    def stop(self) -> None:
        """Make ``measure`` return soon, without a result for the variant in hand; thread-safe."""
        self._is_stopped.set()

    def close(self) -> None:
        """End all servers and workers."""
        for slot in self._slots:
            slot.close()

    def _plan(self, variants: Iterable[Variant], stage: Stage, processes: int) -> deque[Wave]:
        """Return all waves in their order: those of what shares a gang together."""
        groups: dict[tuple[object, ...], list[Variant]] = {}
        for variant in variants:
            groups.setdefault(_kind(variant), []).append(variant)
        waves: deque[Wave] = deque()
        for first, *others in groups.values():
            group = [first, *others]
            arms = 2 if any(variant.id in self.compared for variant in group) else 1
            seed = f"{self.site.settings.seed}/{stage}/{first.id}"
            if first.is_gang:
                order = legs(processes, seed) if arms > 1 else [Arm.B] * processes
                waves += [
                    Wave(variant, stage, (Seat(number, number, arm),), arms=arms)
                    for number, arm in enumerate(order)
                    for variant in group
                    if arm is Arm.B or variant.id in self.compared
                ]
                continue
            together, slots = self._together(first.memory_bytes), len(self._slots)
            seats = (
                seats_of_two(processes, together=together, slots=slots, seed=seed)
                if arms > 1
                else seats_of_one(processes, together=together, slots=slots)
            )
            waves += [Wave(first, stage, each, arms=arms) for each in seats]
        return waves

    def _together(self, each_bytes: int) -> int:
        return len(self._slots) if self._fits(each_bytes) else 1

    def _fits(self, each_bytes: int) -> bool:
        memory_bytes = self.facts().memory_bytes
        return not memory_bytes or each_bytes * len(self._slots) <= DEVICE_SHARE * memory_bytes

    def _run(
        self,
        waves: deque[Wave],
        on_result: Callable[[Result], object],
        on_phase: Callable[[str, str], None],
    ) -> None:
        """Take all waves; hand over the results of each variant when its last one is through."""
        going: dict[str, dict[tuple[str, Arm], Result]] = {}
        try:
            while waves and (going or not self.is_over()):
                wave = waves.popleft()
                name = wave.variant.id
                self._announce = partial(on_phase, name)
                found = going.setdefault(name, {})
                taken = self._taken(wave, waves)
                found |= {key: _added(found.get(key), each) for key, each in taken.items()}
                if all(each.variant.id != name for each in waves):
                    _hand_over(going.pop(name).values(), on_result)
        except StoppedError:
            return
        finally:
            self._see_out()
            self._drop_ahead()
            for wave in waves:
                wave.close()

    def _give_up(self, waves: deque[Wave], failed: Wave, arm: Arm) -> None:
        """Take out what is left of a variant of which a process failed; arm B goes on without A."""
        if arm is Arm.A:
            self._drop_ahead()
        name = failed.variant.id
        left = [each.after(arm) if each.variant.id == name else each for each in (failed, *waves)]
        waves.clear()
        waves.extend(each for each in left if each.seats)

    def _taken(self, wave: Wave, waves: deque[Wave]) -> dict[tuple[str, Arm], Result]:
        """Return what a wave found, by variant and arm, or how it ended.

        It gets one more try if others may be to blame that it failed.
        """
        started, was_kept = time.monotonic(), bool(wave.running)
        following = waves[0] if waves else None
        blank = Result(
            variant=wave.variant.id,
            status=Status.OK,
            stage=wave.stage,
            case_version=wave.variant.case.version,
        )
        found: dict[tuple[str, Arm], Result] = {}
        try:
            try:
                evidence = self._conducted(wave, following)
            except EndedError as ended:
                if wave.variant.is_gang:
                    # An earlier variant may have left something in the gang. A hang had its time.
                    is_suspect = was_kept and ended.status is not Status.TIMED_OUT
                else:
                    # The next variant's workers may have killed the server.
                    is_suspect = ended.is_server_lost and self._drop_ahead()
                    following = None
                if not is_suspect:
                    raise
                evidence = self._conducted(wave, following)
            for (name, arm), each in evidence:
                known = found.get((name, arm), replace(blank, variant=name, arm=arm))
                found[name, arm] = replace(known, evidence=(*known.evidence, each))
        except EndedError as ended:
            bad = replace(blank, arm=ended.arm, status=ended.status)
            bad = replace(bad, reason=ended.reason, output=ended.output)
            found = {(wave.variant.id, ended.arm): bad}
            self._give_up(waves, wave, ended.arm)
        each_s = (time.monotonic() - started) / len(found)
        return {key: replace(result, wall_s=each_s) for key, result in found.items()}

    def _conducted(
        self, wave: Wave, following: Wave | None
    ) -> list[tuple[tuple[str, Arm], Evidence]]:
        """Take a wave's processes from start to finish; return what they found."""
        try:
            self._take(wave)
            self._wave = wave
            self._prepare(wave, following)
            self._announce("measure" if wave.stage is Stage.SCREEN else "confirm")
            is_paired = len({seat.arm for seat in wave.seats}) > 1
            for turn in range(self._rounds(wave)):
                is_backwards = is_paired and turn % 2 == 1
                self._all("measure", wave.running[:: -1 if is_backwards else 1], is_alone=True)
            finished = self._all("finish", wave.running, is_alone=self.site.is_host_measured)
            found = list(self._labelled(wave, finished))
            self._let_go(wave, following)
        except BaseException:
            wave.kill()
            # Whoever is checked next was not counted in when the one before was let go.
            self._see_out()
            raise
        finally:
            self._wave = None
        return found

    def _prepare(self, wave: Wave, following: Wave | None) -> None:
        """Let all start, check, and one after the other calibrate and settle.

        While results are checked nothing is timed: the wave before leaves and the next one starts
        beside that, unless the host is what is measured, or launches are timed to choose a kernel.
        """
        name, is_gang = wave.variant.id, wave.variant.is_gang
        for ranks in wave.running:
            self._hear(ranks, "start")
        self._start_ahead(wave, following)
        is_alone = self.site.is_host_measured or wave.variant.case.tunes
        if is_alone:
            self._see_out()
            self._await_ahead()
        # The first process of each arm checks thoroughly.
        thorough = [seat.process < wave.arms for seat in wave.seats]
        if is_gang:
            # Ranks that part ways show where they are: they are not awaited in between.
            wave.running[0].tell("check", *thorough)
        else:
            self._all("check", wave.running, thorough, is_alone=is_alone)
        self._see_out()
        for ranks in wave.running:
            ranks.tell("prepare", self.samplings.get(name))
            sampling = self._hear(ranks, "prepare")[0]
            if sampling is not None:
                self.samplings.setdefault(name, sampling)
        self._await_ahead()

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
        return ranks.hear(step, getattr(self.site.settings, LIMITS[step]), self._announce)

    def _labelled(
        self, wave: Wave, finished: Sequence[Sequence[tuple[Evidence, ...]]]
    ) -> Iterator[tuple[tuple[str, Arm], Evidence]]:
        """Yield what the processes found, by variant and arm; that of a gang's ranks as one."""
        names = [wave.variant.id, wave.rival.id if wave.rival else ""]
        for seat, ranks in zip(wave.seats, finished, strict=True):
            if wave.variant.is_gang:
                unit = gang_unit(self._units[: len(ranks)])
                try:
                    whole = merged([each for (each,) in ranks], wave.variant.case.metrics)
                except CaseError as error:
                    raise EndedError(Status.ERROR, error.what, arm=seat.arm) from error
                yield (names[0], seat.arm), replace(whole, unit=unit)
                continue
            for name, each in zip(names, ranks[0], strict=False):
                yield (name, seat.arm), replace(each, unit=self.facts().unit)

    def _rounds(self, wave: Wave) -> int:
        # Arms are compared more finely than two runs are, also where no two processes fit at once.
        is_whole = wave.variant.is_gang or wave.arms > 1
        stage = Stage.CONFIRM if is_whole else wave.stage
        is_paced = wave.variant.case.regime is Regime.PACED and (
            is_whole or "cycles" in self.facts().clocks
        )
        return self.site.settings.rounds_of(stage, is_paced=is_paced)

    def _take(self, wave: Wave) -> None:
        """Have a wave's processes start, unless they were started ahead and live."""
        ahead, self._ahead = self._ahead, None
        if ahead is wave and all(w.is_fit for ranks in wave.running for w in ranks.workers):
            return
        if ahead is not None:
            ahead.close()
        self._start(wave)

    def _start(self, wave: Wave) -> None:
        is_gang = wave.variant.is_gang
        try:
            for seat in wave.seats[len(wave.running) :]:
                count = wave.variant.ranks
                slots = self._slots[:count] if is_gang else [self._slots[seat.slot]]
                wave.running.append(Ranks(slots, self._watch, seat.arm))
            for seat, ranks in zip(wave.seats, wave.running, strict=True):
                job = job_of(wave.variant, self.site, stage=wave.stage, seat=seat)
                if wave.rival is not None:
                    sampling = self.samplings.get(wave.rival.id)
                    job = replace(job, rival=wave.rival.axes, rival_sampling=sampling)
                ranks.start(job, is_gang=is_gang)
        except DeviceError:
            wave.close()
            raise

    def _start_ahead(self, wave: Wave, following: Wave | None) -> None:
        """Start the next wave, unless the device's memory or cores are all taken."""
        is_hidden = not (self.site.is_host_measured or wave.variant.is_gang)
        if following is None or not is_hidden:
            return
        if self._fits(wave.memory_bytes) and self._fits(following.memory_bytes):
            self._start(following)
            self._ahead = following

    def _await_ahead(self) -> None:
        """Wait until the next wave's processes have started, for a while."""
        deadline = time.monotonic() + AHEAD_LIMIT_S
        for ranks in self._ahead.running if self._ahead else ():
            for worker in ranks.workers:
                worker.await_news(max(0.0, deadline - time.monotonic()))

    def _drop_ahead(self) -> bool:
        """End the wave that was started ahead; say whether there was one."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
        return ahead is not None

    def _let_go(self, wave: Wave, following: Wave | None) -> None:
        """Tell a wave that has finished to leave, or hand its gang on to the next one.

        It is seen out later if the next one fits beside it: freeing what a process had on a GPU
        takes a while.
        """
        if following is not None and following.goes_on(wave):
            following.running, wave.running = wave.running, []
            return
        self._leaving = wave
        wave.hang_up()
        beside = self._ahead.memory_bytes if self._ahead else 0
        if self._ahead is None or not self._fits(wave.memory_bytes + beside):
            self._see_out()

    def _see_out(self) -> None:
        """Wait until the wave that was told to leave is gone."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.close()

    def _watch(self) -> None:
        if self._is_stopped.is_set():
            raise StoppedError
        for wave in (self._wave, self._ahead):
            for ranks in wave.running if wave else ():
                for worker in ranks.workers:
                    worker.limit(self.site.worker_bytes)


def _added(known: Result | None, taken: Result) -> Result:
    """Return a result with one more wave's evidence, or as what it ended as."""
    if known is None:
        return taken
    evidence = (*known.evidence, *taken.evidence) if taken.status is Status.OK else ()
    return replace(taken, evidence=evidence, wall_s=known.wall_s + taken.wall_s)


def _hand_over(results: Iterable[Result], on_result: Callable[[Result], object]) -> None:
    """Hand over what was found of a variant, arm A first; where B failed, nothing that is good."""
    found = sorted(results, key=lambda each: each.arm)
    if any(each.arm is Arm.B and each.status is not Status.OK for each in found):
        found = [each for each in found if each.status is not Status.OK]
    for each in found:
        on_result(replace(doubted(each), wall_s=round(each.wall_s, 6)))


class Tracer:
    """One worker for one variant after the other of an arm, and another one once it is lost."""

    def __init__(self, slots: Sequence[Slot], site: Site, watch: Callable[[], object]) -> None:
        self._slots, self._site, self._watch = slots, site, watch
        self._worker: Ranks | None = None

    def trace(self, variant: Variant, arm: Arm, *, sets: int) -> Anatomy:
        """Return what a launch is made of, or why that is not known."""
        if self._worker is not None and self._worker.arm is not arm:
            self.close()
        try:
            self._worker = self._worker or Ranks(self._slots, self._watch, arm)
            self._worker.tell("trace", (job_of(variant, self._site, seat=Seat(0, 0, arm)), sets))
            found: Anatomy = self._worker.hear("trace", LIMIT_S)[0]
        except (EndedError, StoppedError, DeviceError) as ended:
            self.close()
            reason = getattr(ended, "reason", "") or str(ended).partition("\n")[0] or "stopped"
            return Anatomy((), reason=f"its tracing ended: {reason}")
        return found

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# What the ranks of a gang measured together is one evidence: the slowest rank counts.

Worst = Callable[[Iterable[float]], float]
NUMBER = re.compile(r"\d[\d.]*")


def merged(ranks: Sequence[Evidence], metrics: Sequence[Metric]) -> Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in metrics}
    errors = [each.error for each in ranks if each.error is not None]
    blocks = zip(*(each.blocks for each in ranks), strict=True)
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max(errors, default=None),
        blocks=tuple(_block(parts, worst) for parts in blocks),
        exact=_worst([each.exact for each in ranks], worst),
        phases_s=_worst([each.phases_s for each in ranks], {}),
        notes=tuple(_notes([each.notes for each in ranks])),
    )


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]


def _block(parts: Sequence[Block], worst: Mapping[str, Worst]) -> Block:
    # The samples of a block are taken together, so that those at one place belong together.
    slowest = [
        max(range(len(parts)), key=times.__getitem__)
        for times in zip(*(part.time_us for part in parts), strict=False)
    ]
    has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
    names = sorted({name for part in parts for name in part.metrics})
    columns = {
        name: [part.metrics[name] for part in parts if name in part.metrics] for name in names
    }
    return replace(
        parts[0],
        time_us=tuple(parts[rank].time_us[place] for place, rank in enumerate(slowest)),
        cycles=tuple(parts[rank].cycles[place] for place, rank in enumerate(slowest))
        if has_cycles
        else (),
        voided=max(part.voided for part in parts),
        metrics={
            name: tuple(map(worst.get(name, max), zip(*columns[name], strict=False)))
            for name in names
        },
    )


def _worst(found: Sequence[Mapping[str, float]], worst: Mapping[str, Worst]) -> dict[str, float]:
    names = dict.fromkeys(name for each in found for name in each)
    return {
        name: worst.get(name, max)(each[name] for each in found if name in each) for name in names
    }


def _notes(found: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield what all ranks note once, with the first one's figures, and the rest by rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        everywhere = len(ranks) == len(found)
        yield note if everywhere else f"rank {', '.join(map(str, ranks))}: {note}"
