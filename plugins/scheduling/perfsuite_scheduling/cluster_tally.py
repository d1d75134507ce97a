"""What is told of a cluster's schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from perfsuite_scheduling.cluster_jobs import GPUS, INSIDE, Job


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
