"""The processes of one gang: told at once, awaited together, and ended as one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait as wait_for
from pathlib import Path

from perfsuite import wire
from perfsuite.errors import DeviceError
from perfsuite.model import Status
from perfsuite.panel.ending import TAIL_CHARACTERS, EndedError
from perfsuite.panel.process import TICK_S, Wait, WorkerProcess
from perfsuite.panel.slot import Slot

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

    def start(self, job: wire.Job, wait: Wait) -> None:
        """Let all ranks join, or start another variant; raises EndedError."""
        place = str(Path(self._folder.name, "rendezvous"))
        ranks = len(self.workers)
        jobs = [replace(job, rank=r, ranks=ranks, rendezvous=place) for r in range(ranks)]
        since = self.workers[0].started if self.is_fresh else time.monotonic()
        self.is_fresh = False
        self._tell([wire.Start(job) for job in jobs], wait)
        self._hear(wire.Ready, wait, since)

    def ask(
        self, steps: Sequence[wire.Message], kind: type[wire.Reply], wait: Wait
    ) -> list[wire.Reply]:
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

    def _tell(self, requests: Sequence[wire.Message], wait: Wait) -> None:
        for worker, request in zip(self.workers, requests, strict=True):
            worker.begin(wait)
            worker.tell(request)

    def _hear(self, kind: type[wire.Reply], wait: Wait, since: float) -> list[wire.Reply]:
        answers: dict[int, wire.Reply] = {}
        # Only one rank's phases are told to others: the gang is one measurement.
        quiet = replace(wait, announce=_tell_nobody)
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

    def _listen(self, rank: int, kind: type[wire.Reply], wait: Wait) -> wire.Reply | None:
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
            self.workers[rank].listen(wire.Failed, wait, 0)
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


def _tell_nobody(_phase: str) -> None: ...
