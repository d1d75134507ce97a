"""Which jobs of a cluster run where: first come first served, packed by topology, preemptive."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfsuite import Inspection, Metric, Regime, case
from perfsuite_scheduling.cluster_jobs import (
    CHECKPOINT,
    GPUS,
    GPUS_PER_NODE,
    NODES,
    NODES_PER_RACK,
    Job,
    Tally,
    draw_jobs,
    rate_of,
)
from perfsuite_scheduling.cluster_ticks import tick_through

JOBS = 300


@case(
    smoke={"load": 95, "impl": ["fifo", "packed"]},
    nightly={"load": [70, 95], "impl": ["fifo", "packed", "preemptive"]},
    regime=Regime.EXACT,
    metrics=[
        Metric("goodput_percent", "%", "higher"),
        Metric("wait_min_mean", "min"),
        Metric("wait_min_p99", "min"),
        Metric("urgent_wait_min_mean", "min"),
        Metric("stranded_percent", "%"),
        Metric("redone_gpu_min", "GPU min"),
    ],
    tags=["scheduling", "cluster"],
    source="gang scheduling and topology: AI Systems Performance Engineering, chapters 2 and 9; "
    "bin packing: Kubernetes, NodeResourcesFit, LeastAllocated and MostAllocated",
)
def cluster_scheduler(ctx: Any, load: int, impl: str) -> Inspection:
    """Schedule 300 jobs of 1 to 32 GPUs on 4 racks of 4 nodes of 8 GPUs, on a virtual clock.

    A job's GPUs start together; between nodes of a rack it does 85 % of its work, between racks
    60 %. ``fifo`` spreads a job over the emptiest nodes, as a scheduler does that balances nodes
    and knows no topology. ``packed`` takes the fullest node that has room, else the fullest rack.
    ``preemptive`` packs, and lets urgent jobs take the place of those that began last, which go
    back to a checkpoint of every 30 minutes. Who is first in the queue is never overtaken but by
    urgent ones. Goodput is the work that was asked for, against what all GPUs could have done until
    the last job's end; stranded GPUs are free while a job waits. Times are whole minutes, so every
    metric is exact. The reference is a second simulation, minute by minute; the control forgets
    that crossing nodes costs.
    """
    del ctx
    jobs = draw_jobs(JOBS, load)
    return Inspection(
        read=lambda: simulate(jobs, impl),
        reference=lambda: tick_through(jobs, impl),
        wrong=lambda: simulate(jobs, impl, rate=lambda nodes: rate_of({0})),
    )


def simulate(
    jobs: Sequence[Job], impl: str, *, rate: Callable[[frozenset[int]], int] = rate_of
) -> dict[str, float]:
    """Return the metrics of a policy, from event to event."""
    cluster = Cluster(impl, rate, Tally(jobs))
    coming = list(reversed(jobs))
    now = 0
    while coming or cluster.queue or cluster.running:
        events = [run.end for run in cluster.running] + [job.arrival for job in coming[-1:]]
        if cluster.queue:
            cluster.tally.stranded += sum(cluster.free) * (min(events) - now)
        now = min(events)
        for run in [run for run in cluster.running if run.end <= now]:
            cluster.leave(run)
        while coming and coming[-1].arrival <= now:
            job = coming.pop()
            cluster.queue.append(Run(job, job.parts))
        cluster.start_jobs(now)
    return cluster.tally.metrics(now)


@dataclass(slots=True)
class Run:
    """A job, the parts of its work that are left, and its nodes since ``begun`` if it runs."""

    job: Job
    left: int
    rate: int = 0
    begun: int = 0
    places: Counter[int] = field(default_factory=Counter)

    @property
    def end(self) -> int:
        """The minute at which it will be done."""
        return self.begun + math.ceil(self.left / self.rate)


@dataclass(slots=True)
class Cluster:
    """Free GPUs by node, who runs and who waits."""

    impl: str
    rate: Callable[[frozenset[int]], int]
    tally: Tally
    free: list[int] = field(default_factory=lambda: [GPUS_PER_NODE] * NODES)
    running: list[Run] = field(default_factory=list)
    queue: list[Run] = field(default_factory=list)

    def start_jobs(self, now: int) -> None:
        """Start from the queue's head until one does not fit."""
        urgent_first = self.impl == "preemptive"
        place = _spread if self.impl == "fifo" else _pack
        while self.queue:
            self.queue.sort(
                key=lambda w: (urgent_first and not w.job.is_urgent, w.job.arrival, w.job.number)
            )
            head = self.queue[0]
            if sum(self.free) < head.job.gpus and urgent_first and head.job.is_urgent:
                self._preempt(head.job.gpus, now)
            if sum(self.free) < head.job.gpus:
                return
            self.queue.remove(head)
            head.places, head.begun = place(self.free, head.job.gpus), now
            head.rate = self.rate(frozenset(head.places))
            for node, count in head.places.items():
                self.free[node] -= count
            self.running.append(head)
            self.tally.started(head.job, now)

    def leave(self, run: Run) -> None:
        """Free a job's GPUs."""
        self.running.remove(run)
        for node, count in run.places.items():
            self.free[node] += count

    def _preempt(self, wanted: int, now: int) -> None:
        """Stop jobs that are not urgent, the last begun first, if that makes room."""
        victims = [run for run in self.running if not run.job.is_urgent]
        if sum(self.free) + sum(run.job.gpus for run in victims) < wanted:
            return
        victims.sort(key=lambda run: (run.begun, run.job.number))
        while sum(self.free) < wanted:
            run = victims.pop()
            self.leave(run)
            done = run.job.parts - run.left + (now - run.begun) * run.rate
            self.tally.redone += done % CHECKPOINT * run.job.gpus
            run.left = run.job.parts - done + done % CHECKPOINT
            self.queue.append(run)


def _spread(free: Sequence[int], wanted: int) -> Counter[int]:
    """Give each GPU from the node that has the most left."""
    left, places = list(free), Counter[int]()
    for _ in range(wanted):
        node = max(range(NODES), key=lambda each: (left[each], -each))
        left[node] -= 1
        places[node] += 1
    return places


def _pack(free: Sequence[int], wanted: int) -> Counter[int]:
    """Take the fullest node with room, else the fullest rack, else what there is."""
    fitting = [node for node in range(NODES) if free[node] >= wanted]
    if fitting:
        return Counter({min(fitting, key=lambda node: (free[node], node)): wanted})
    racks = [range(first, first + NODES_PER_RACK) for first in range(0, NODES, NODES_PER_RACK)]
    room = [(sum(free[node] for node in rack), rack[0], rack) for rack in racks]
    nodes = min((each for each in room if each[0] >= wanted), default=(GPUS, 0, range(NODES)))[2]
    places = Counter[int]()
    for node in sorted(nodes, key=lambda node: (-free[node], node)):
        places[node] = min(free[node], wanted - places.total())
    return +places
