"""A cluster, the jobs that come to it and what is told of their schedule.

Whole numbers only, the same on every machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfsuite_scheduling import congruence

RACKS, NODES_PER_RACK, GPUS_PER_NODE = 4, 4, 8
NODES = RACKS * NODES_PER_RACK
GPUS = NODES * GPUS_PER_NODE
# Work done in a minute: a job inside one node does 100 parts, one that communicates between the
# nodes of a rack or between racks fewer. The numbers define the case; they were not measured.
INSIDE, IN_RACK, ACROSS = 100, 85, 60
# What a preempted job does again: it goes back to its last checkpoint, of every 30 minutes of work.
CHECKPOINT = 30 * INSIDE
URGENT_SHARE = 8
_SIZES = (1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Job:
    """A job: when it comes (minutes), how many GPUs it takes, its work (parts), and its urgency."""

    number: int
    arrival: int
    gpus: int
    parts: int
    is_urgent: bool


def draw_jobs(count: int, load_percent: int) -> tuple[Job, ...]:
    """Return jobs that, all inside nodes, would keep that share of the cluster's GPUs busy.

    One in eight is urgent: at most 8 GPUs, and short.
    """
    numbers = [value >> 8 for value in congruence.keys(4 * count)]
    shapes = []
    for place in range(count):
        size, length, kind, gap = numbers[4 * place : 4 * place + 4]
        is_urgent = kind % URGENT_SHARE == 0
        gpus = min(8, _SIZES[size % len(_SIZES)]) if is_urgent else _SIZES[size % len(_SIZES)]
        minutes = 10 + length % (50 if is_urgent else 50 << (length >> 8) % 4)
        shapes.append((gpus, minutes, is_urgent, gap % 1000))
    demand = sum(gpus * minutes for gpus, minutes, *_ in shapes)
    span = demand * 100 // (GPUS * load_percent)
    scale = sum(gap for *_, gap in shapes)
    jobs, passed = [], 0
    for number, (gpus, minutes, is_urgent, gap) in enumerate(shapes):
        jobs.append(Job(number, passed * span // scale, gpus, minutes * INSIDE, is_urgent))
        passed += gap
    return tuple(jobs)


def rate_of(nodes: frozenset[int] | set[int]) -> int:
    """Return the parts a minute of a job on these nodes."""
    if len(nodes) == 1:
        return INSIDE
    return IN_RACK if len({node // NODES_PER_RACK for node in nodes}) == 1 else ACROSS


@dataclass(slots=True)
class Tally:
    """Counts of a simulation: GPU-minutes stranded, GPU-parts redone, first starts by job."""

    jobs: Sequence[Job]
    stranded: int = 0
    redone: int = 0
    starts: dict[int, int] = field(default_factory=dict)

    def started(self, job: Job, now: int) -> None:
        """Note that a job has begun; what counts is the first time."""
        self.starts.setdefault(job.number, now)

    def metrics(self, end: int) -> dict[str, float]:
        """Return the metrics of a schedule that ended then."""
        waits = sorted(self.starts[job.number] - job.arrival for job in self.jobs)
        urgent = [self.starts[job.number] - job.arrival for job in self.jobs if job.is_urgent]
        asked = sum(job.gpus * job.parts for job in self.jobs)
        return {
            "goodput_percent": 100 * asked / (GPUS * INSIDE * end),
            "wait_min_mean": sum(waits) / len(waits),
            "wait_min_p99": float(waits[math.ceil(0.99 * len(waits)) - 1]),
            "urgent_wait_min_mean": sum(urgent) / len(urgent),
            "stranded_percent": 100 * self.stranded / (GPUS * end),
            "redone_gpu_min": self.redone / INSIDE,
        }
