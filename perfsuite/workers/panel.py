"""The processes of a variant, in turns: on one device, or on several as ranks."""

from __future__ import annotations

import hashlib
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, zip_longest
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Self

from msgspec import structs

from perfsuite.boundary import CaseError, DeviceError
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
from perfsuite.store.files import Closable
from perfsuite.workers.messages import (
    Check,
    Checked,
    Describe,
    Described,
    Failed,
    Finish,
    Finished,
    Job,
    Measure,
    Measured,
    Message,
    Prepare,
    Prepared,
    Ready,
    Reply,
    Rival,
    Start,
    Traced,
    TraceOne,
)
from perfsuite.workers.process import (
    TAIL_CHARACTERS,
    TICK_S,
    Code,
    EndedError,
    Site,
    Slot,
    StoppedError,
    Turn,
    Wait,
    WorkerProcess,
    doubted,
    job_of,
    slots_of,
)

# Orders the processes of a variant, of one arm or of two in turns, and sorts what they found.


QUADS = ("ABBA", "BAAB")


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of a wave: its number, its slot and its arm."""

    process: int
    slot: int
    arm: Arm = Arm.B


@dataclass(frozen=True, slots=True)
class Wave:
    """Those processes of a variant that are alive at the same time, in the order of their turns.

    With a ``rival``, another variant of its case, each of them measures both in quads.
    """

    variant: Variant
    stage: Stage
    seats: tuple[Seat, ...]
    rival: Variant | None = None

    @property
    def memory_bytes(self) -> int:
        """The device memory that one process of it needs."""
        return self.variant.memory_bytes + (self.rival.memory_bytes if self.rival else 0)

    @property
    def is_paired(self) -> bool:
        """Say whether processes of both arms are in it."""
        return len({seat.arm for seat in self.seats}) > 1


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


def results_of(waves: Sequence[Wave], evidence: Sequence[Evidence]) -> list[Result]:
    """Return the result of each arm, A first, or of a variant and its rival.

    ``evidence`` is in the order of the seats, a rival's after that of its process's own.
    """
    first, rival = blank_of(waves[0], Arm.B), waves[0].rival
    if rival is not None:
        own = structs.replace(first, evidence=tuple(evidence[::2]))
        return [own, structs.replace(first, variant=rival.id, evidence=tuple(evidence[1::2]))]
    pairs = list(zip([seat.arm for wave in waves for seat in wave.seats], evidence, strict=True))
    return [
        structs.replace(first, arm=arm, evidence=tuple(each for of, each in pairs if of is arm))
        for arm in sorted({arm for arm, _ in pairs})
    ]


def alone(waves: Sequence[Wave]) -> list[Wave]:
    """Return the waves without the processes of arm A."""
    kept = [(wave, tuple(seat for seat in wave.seats if seat.arm is Arm.B)) for wave in waves]
    return [replace(wave, seats=seats) for wave, seats in kept if seats]


def blank_of(wave: Wave, arm: Arm) -> Result:
    """Return the result of an arm that has no evidence yet."""
    return Result(
        variant=wave.variant.id,
        status=Status.OK,
        stage=wave.stage,
        case_version=wave.variant.case.version,
        arm=arm,
    )


# The workers that measure one variant together: each does a step, then the next one does.


class Crew:
    """The running workers of one wave."""

    def __init__(
        self, wave: Wave, slots: Sequence[Slot], site: Site, samplings: Mapping[str, Sampling]
    ) -> None:
        self.wave = wave
        rival = None
        if wave.rival is not None:
            rival = Rival(wave.rival.axes, samplings.get(wave.rival.id))
        self.workers: list[WorkerProcess] = []
        try:
            for seat in wave.seats:
                worker = slots[seat.slot].fork()
                self.workers.append(worker)
                worker.arm = seat.arm
                turn = Turn(wave.variant, wave.stage, seat.process, seat.arm)
                worker.tell(Start(job_of(turn, seat.slot, site, rival)))
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
            worker.hear(Ready, wait, since=worker.started)

    def check(self, thorough: int, wait: Wait, *, is_alone: bool) -> None:
        """Let all check their results; the first ``thorough`` processes do it thoroughly."""
        asked = [Check(seat.process < thorough) for seat in self.wave.seats]
        self._all(asked, Checked, wait, is_alone=is_alone)

    def measure(self, wait: Wait, *, is_backwards: bool) -> None:
        """Let one worker after the other take a block of samples."""
        for worker in reversed(self.workers) if is_backwards else self.workers:
            worker.tell(Measure())
            worker.hear(Measured, wait)

    def finish(self, wait: Wait, *, is_alone: bool) -> list[Finished]:
        """Let all check their results once more, and return what each has to say."""
        asked = [Finish() for _ in self.workers]
        return self._all(asked, Finished, wait, is_alone=is_alone)

    def _all(
        self,
        requests: Sequence[Message],
        kind: type[Reply],
        wait: Wait,
        *,
        is_alone: bool,
    ) -> list[Reply]:
        """Let all do what is not timed, one after the other if each is to be alone with that.

        Raises EndedError for the first that has failed.
        """
        pairs = list(zip(self.workers, requests, strict=True))
        answers: list[Reply] = []
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


# The crews before and after the one at work: the last leaves and the next starts beside it.


# How long blocks wait for the next workers to have started, which would disturb them.
AHEAD_LIMIT_S = 2.0


class Relay:
    """Hides starts and ends of workers behind checks, which are not timed.

    ``start`` makes a crew; ``fits`` says whether the processes of all slots can hold so many bytes
    each. Nothing is hidden where the host is what is measured.
    """

    def __init__(
        self, start: Callable[[Wave], Crew], *, fits: Callable[[int], bool], is_hidden: bool
    ) -> None:
        self.ahead: Crew | None = None
        self._leaving: Crew | None = None
        self._start = start
        self._fits = fits
        self._is_hidden = is_hidden

    def take(self, wave: Wave) -> Crew:
        """Return the crew of a wave: the one that was started ahead, or a new one."""
        crew, self.ahead = self.ahead, None
        if crew is not None and crew.wave == wave and not crew.is_stale:
            return crew
        if crew is not None:
            crew.close()
        return self._start(wave)

    def start_ahead(self, now: Wave, following: Wave | None) -> None:
        """Start the next crew, unless the device's memory or cores are all taken."""
        if following is None or not self._is_hidden or self.ahead is not None:
            return
        if self._fits(now.memory_bytes) and self._fits(following.memory_bytes):
            self.ahead = self._start(following)

    def await_ahead(self) -> None:
        """Wait until the next crew has started, for a while."""
        if self.ahead is not None:
            self.ahead.await_news(AHEAD_LIMIT_S)

    def let_go(self, crew: Crew) -> None:
        """Tell a crew that has finished to leave; seen out later if the next one fits beside it.

        Freeing what a process had on a GPU takes a while.
        """
        self._leaving = crew
        crew.hang_up()
        beside = self.ahead.wave.memory_bytes if self.ahead else 0
        if self.ahead is None or not self._fits(crew.wave.memory_bytes + beside):
            self.see_out()

    def see_out(self) -> None:
        """Wait until the crew that was told to leave is gone."""
        crew, self._leaving = self._leaving, None
        if crew is not None:
            crew.close()

    def drop_ahead(self) -> bool:
        """End the crew that was started ahead; say whether there was one."""
        crew, self.ahead = self.ahead, None
        if crew is not None:
            crew.close()
        return crew is not None


# Has variants traced in a worker that measures nothing: a profiler's process is no evidence.


# CUPTI starts in 4 s (H200), and a case may compile for a while.
LIMIT_S = 60.0


@dataclass(slots=True)
class Tracer:
    """One worker for one variant after the other of an arm, and another one once it is lost."""

    slot: Slot
    site: Site
    wait: Callable[[str, float], Wait]
    _worker: WorkerProcess | None = None

    def trace(self, variant: Variant, arm: Arm, *, sets: int) -> Traced:
        """Return what a launch is made of, or why that is not known."""
        if self._worker is not None and self._worker.arm is not arm:
            self.close()
        job = job_of(Turn(variant, Stage.SCREEN, 0, arm), self.slot.index, self.site)
        try:
            if self._worker is None:
                self._worker = self.slot.fork()
                self._worker.arm = arm
            self._worker.tell(TraceOne(job, sets))
            return self._worker.hear(Traced, self.wait("trace", LIMIT_S))
        except (EndedError, StoppedError, DeviceError) as ended:
            self.close()
            reason = getattr(ended, "reason", "") or str(ended).partition("\n")[0] or "stopped"
            return Traced((), reason=f"its tracing ended: {reason}")

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Measures variants on one device: fresh workers in several slots that take turns.


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
                worker.tell(Describe(self.site.device, self.site.accelerator))
                wait = self._wait("start", self.site.settings.start_limit_s)
                self._facts = worker.hear(Described, wait).facts
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
            result = structs.replace(
                result, status=ended.status, reason=ended.reason, output=ended.output
            )
            found = [result]
            if ended.arm is Arm.A:
                rest = self._results(alone(waves), following, announce)
        each_s = round((time.monotonic() - started) / len(found), 6)
        return [*(structs.replace(result, wall_s=each_s) for result in found), *rest]

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
        return [structs.replace(each, unit=self.facts().unit) for each in found if each is not None]

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
            worker.tell(Prepare(self.samplings.get(name)))
            sampling = worker.hear(Prepared, wait).sampling
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


# Makes one evidence of what the ranks of a gang measured together: the slowest rank counts.


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
    return structs.replace(
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
    return structs.replace(
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


# The processes of one gang: told at once, awaited together, and ended as one.


# A rank that fails because a peer died may be heard first: the death shows this much later.
DEATH_S = 0.2
JOIN = "join"


class Ranks:
    """One process for each slot; the first that fails is the end of all."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.workers: list[WorkerProcess] = []
        self.is_fresh = True
        self._folder = tempfile.TemporaryDirectory(prefix="perfsuite-gang-")
        try:
            for slot in slots:
                self.workers.append(slot.fork())
        except DeviceError:
            self.close()
            raise

    def start(self, job: Job, wait: Wait) -> None:
        """Let all ranks join, or start another variant; raises EndedError."""
        place = str(Path(self._folder.name, "rendezvous"))
        ranks = len(self.workers)
        jobs = [replace(job, rank=r, ranks=ranks, rendezvous=place) for r in range(ranks)]
        since = self.workers[0].started if self.is_fresh else time.monotonic()
        self.is_fresh = False
        self._tell([Start(job) for job in jobs], wait)
        self._hear(Ready, wait, since)

    def ask(self, steps: Sequence[Message], kind: type[Reply], wait: Wait) -> list[Reply]:
        """Let all ranks do the same at once; return their last answers, or raise EndedError."""
        for step in steps:
            self._tell([step] * len(self.workers), wait)
        return self._hear(kind, wait, time.monotonic())

    def limit(self, memory_bytes: int) -> None:
        """Kill a rank that holds more host memory than this."""
        for worker in self.workers:
            worker.limit(memory_bytes)

    def kill(self) -> None:
        """End all at once: what waits for a lost peer does not leave by itself."""
        for worker in self.workers:
            worker.kill()
        self.close()

    def close(self) -> None:
        """Let all ranks go; they leave side by side."""
        for worker in self.workers:
            worker.hang_up()
        for worker in self.workers:
            worker.close()
        self._folder.cleanup()

    def _tell(self, requests: Sequence[Message], wait: Wait) -> None:
        for worker, request in zip(self.workers, requests, strict=True):
            worker.begin(wait)
            worker.tell(request)

    def _hear(self, kind: type[Reply], wait: Wait, since: float) -> list[Reply]:
        answers: dict[int, Reply] = {}
        # Only one rank's phases are told to others: the gang is one measurement.
        quiet = replace(wait, announce=_tell_nobody_ranks)
        while len(answers) < len(self.workers):
            wait_for([worker.fileno() for worker in self.workers], TICK_S)
            for rank in range(len(self.workers)):
                answer = self._listen(rank, kind, quiet if rank else wait)
                if answer is not None:
                    answers[rank] = answer
            silent = [rank for rank in range(len(self.workers)) if rank not in answers]
            if silent and time.monotonic() > since + wait.limit_s:
                raise self._overdue(silent, wait)
            wait.watch()
        return [answers[rank] for rank in sorted(answers)]

    def _listen(self, rank: int, kind: type[Reply], wait: Wait) -> Reply | None:
        try:
            return self.workers[rank].listen(kind, wait, 0)
        except EndedError as ended:
            raise self._blamed(rank, ended, wait) from ended

    def _blamed(self, rank: int, ended: EndedError, wait: Wait) -> EndedError:
        """Name the rank at fault: one that died without a word, else the one heard first."""
        if ended.is_told:
            time.sleep(DEATH_S)
            others = [other for other in range(len(self.workers)) if other != rank]
            deaths = [(other, self._death(other, wait)) for other in others]
            rank, ended = next(((r, e) for r, e in deaths if e is not None), (rank, ended))
        return self._ended(ended.status, f"rank {rank}: {ended.reason}")

    def _death(self, rank: int, wait: Wait) -> EndedError | None:
        try:
            self.workers[rank].listen(Failed, wait, 0)
        except EndedError as ended:
            return None if ended.is_told else ended
        return None

    def _overdue(self, silent: Sequence[int], wait: Wait) -> EndedError:
        late = [rank for rank in silent if self.workers[rank].phase != JOIN]
        is_joining = wait.phase == "start" and len(late) < len(silent)
        blamed = (late or silent) if is_joining else silent
        what = "did not join" if is_joining else "gave no answer"
        inner = self._phases(blamed, wait)
        doubt = "" if wait.phase == "start" else ": a collective hangs?"
        for rank in silent:
            self.workers[rank].abort()
        for rank in silent:
            self.workers[rank].end()
        return self._ended(
            Status.TIMED_OUT,
            f"{rank_words(blamed)} {what} within {wait.limit_s:g} s during {wait.phase}"
            f"{inner}{doubt}",
        )

    def _phases(self, blamed: Sequence[int], wait: Wait) -> str:
        """Say in which phase each rank is, where that tells them apart or tells more."""
        phases = {rank: self.workers[rank].phase for rank in blamed}
        told = {rank: phase for rank, phase in phases.items() if phase not in {wait.phase, JOIN}}
        if len(set(phases.values())) > 1:
            return f" ({', '.join(f'rank {rank} in {phase}' for rank, phase in phases.items())})"
        return f" (in {', '.join(sorted(set(told.values())))})" if told else ""

    def _ended(self, status: Status, reason: str) -> EndedError:
        share = TAIL_CHARACTERS // len(self.workers)
        outputs = [(rank, worker.last_output(share)) for rank, worker in enumerate(self.workers)]
        told = [f"rank {rank}:\n{text}" for rank, text in outputs if text]
        return EndedError(status, reason, "\n".join(told))


def rank_words(ranks: Sequence[int]) -> str:
    """Return ranks in words: "rank 1", "ranks 0 and 1", "ranks 0, 1 and 3"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _tell_nobody_ranks(_phase: str) -> None: ...


# Measures variants that several ranks run together: fresh gangs, kept from size to size.


def _tell_nobody_gang(*_words: str) -> None: ...


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
        on_phase: Callable[[str, str], None] = _tell_nobody_gang,
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
            result = structs.replace(result, evidence=evidence)
        except EndedError as e:
            result = structs.replace(
                result, status=e.status, reason=e.reason, output=e.output, evidence=()
            )
        except CaseError as error:
            result = structs.replace(result, status=Status.ERROR, reason=error.what, evidence=())
        return structs.replace(result, wall_s=round(result.wall_s + time.monotonic() - started, 6))

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
            steps = (Check(is_thorough), Prepare(sampling))
            chosen = ranks.ask(steps, Prepared, wait)[0].sampling
            if chosen is not None:
                self.samplings.setdefault(turn.variant.id, chosen)
            announce("measure" if turn.stage is Stage.SCREEN else "confirm")
            wait = begin(phase="measure", limit_s=settings.block_limit_s)
            for _ in range(0 if settings.check_only else settings.rounds):
                ranks.ask([Measure()], Measured, wait)
            wait = begin(phase="finish", limit_s=settings.prepare_limit_s)
            finished = ranks.ask([Finish()], Finished, wait)
        except BaseException:
            self._ranks = None
            ranks.kill()
            raise
        evidence = merged([each.evidence for each in finished], turn.variant.case.metrics)
        return structs.replace(evidence, unit=gang_unit(self._units[:count]))

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
