"""The cluster again, minute by minute and GPU by GPU: the reference of ``cluster_scheduler``."""

from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite_scheduling.cluster_jobs import (
    CHECKPOINT,
    GPUS,
    GPUS_PER_NODE,
    NODES_PER_RACK,
    Job,
    Tally,
    rate_of,
)

IDLE = -1


@dataclass(slots=True)
class State:
    """A job's fate: the work that is left, since when it runs, or that it has not come yet."""

    job: Job
    left: int
    phase: str = "coming"
    begun: int = 0


class Board:
    """One slot a GPU, which holds a job's number or nothing."""

    def __init__(self, jobs: Sequence[Job], impl: str) -> None:
        self.states = [State(job, job.parts) for job in jobs]
        self.slots = [IDLE] * GPUS
        self.impl = impl
        self.tally = Tally(jobs)

    def minute(self, now: int) -> bool:
        """Let one minute pass; say whether there was anything left to do."""
        for state in self.states:
            if state.phase == "running" and state.left <= 0:
                self._vacate(state, "done")
            elif state.phase == "coming" and state.job.arrival <= now:
                state.phase = "waiting"
        while (head := self._head()) and self._admit(head, now):
            pass
        if self._head():
            self.tally.stranded += self.slots.count(IDLE)
        for state in self.states:
            if state.phase == "running":
                number = state.job.number
                nodes = {p // GPUS_PER_NODE for p in range(GPUS) if self.slots[p] == number}
                state.left -= rate_of(nodes)
        return any(state.phase != "done" for state in self.states)

    def _head(self) -> State | None:
        waiting = [state for state in self.states if state.phase == "waiting"]
        urgent = [state for state in waiting if state.job.is_urgent]
        first = urgent if urgent and self.impl == "preemptive" else waiting
        return min(first, key=lambda s: (s.job.arrival, s.job.number), default=None)

    def _admit(self, head: State, now: int) -> bool:
        """Start the job if there is room, or if room can be made."""
        if self.impl == "preemptive" and head.job.is_urgent:
            self._make_room(head.job.gpus)
        if self.slots.count(IDLE) < head.job.gpus:
            return False
        if self.impl == "fifo":
            for _ in range(head.job.gpus):
                self.slots[max(self._idle(range(GPUS)), key=self._room)] = head.job.number
        else:
            for place in self._packed(head.job.gpus):
                self.slots[place] = head.job.number
        head.phase, head.begun = "running", now
        self.tally.started(head.job, now)
        return True

    def _packed(self, wanted: int) -> list[int]:
        """Return idle slots of the fullest node, rack or cluster that has as many."""
        for size in (GPUS_PER_NODE, GPUS_PER_NODE * NODES_PER_RACK, GPUS):
            groups = [self._idle(range(first, first + size)) for first in range(0, GPUS, size)]
            fitting = [group for group in groups if len(group) >= wanted]
            if fitting:
                fullest = min(fitting, key=len)
                return sorted(fullest, key=lambda place: -self._room(place))[:wanted]
        return []

    def _make_room(self, wanted: int) -> None:
        """Vacate the slots of jobs that are not urgent, the last begun first, if that is enough."""
        running = [state for state in self.states if state.phase == "running"]
        movable = [state for state in running if not state.job.is_urgent]
        within_reach = self.slots.count(IDLE) + sum(state.job.gpus for state in movable)
        while within_reach >= wanted > self.slots.count(IDLE):
            last = max(movable, key=lambda state: (state.begun, state.job.number))
            movable.remove(last)
            self._vacate(last, "waiting")
            done = last.job.parts - last.left
            self.tally.redone += done % CHECKPOINT * last.job.gpus
            last.left += done % CHECKPOINT

    def _vacate(self, state: State, phase: str) -> None:
        state.phase = phase
        self.slots = [IDLE if each == state.job.number else each for each in self.slots]

    def _idle(self, places: range) -> list[int]:
        return [place for place in places if self.slots[place] == IDLE]

    def _room(self, place: int) -> int:
        """Return how many slots of the place's node are idle."""
        first = place - place % GPUS_PER_NODE
        return self.slots[first : first + GPUS_PER_NODE].count(IDLE)


def tick_through(jobs: Sequence[Job], impl: str) -> dict[str, float]:
    """Return the metrics of a policy."""
    board = Board(jobs, impl)
    now = 0
    while board.minute(now):
        now += 1
    return board.tally.metrics(now)
