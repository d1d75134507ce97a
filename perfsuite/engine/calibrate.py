"""How a variant is sampled: launches of a sample, samples of a block, pace, when it is warm."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfsuite.boundary import CaseError, DisturbedError
from perfsuite.devices.protocol import Device, Group, Sample, sampled
from perfsuite.engine.check import SEEDS, Given, given
from perfsuite.model import MOST_SETS, Regime, Sampling, Work, Workload, built_in, is_host_timed

if TYPE_CHECKING:
    from perfsuite.engine.measure import Session

# A working set this many times the last-level cache makes each launch find its inputs cold.
COLD_CACHES = 3
# Sizes that depend on the seed may ask for some more input sets than the process before had. What
# its sets held still makes inputs cold if two caches' worth lies between two uses of one.
STILL_COLD = 1.5
# Samples longer than this buy nothing: coldness then comes from a flush instead of more sets.
LONGEST_SAMPLE_US = 20_000.0
# Heat, not time, is what the spin is for. Compute-heavy kernels reach the power cap and need four
# times their own length to stay below it; the ratio is fixed by the variant's work, not by what
# was seen, because a ratio that flips between runs would compare two regimes with each other.
PACE_COMPUTE = 4.0
PACE_MEMORY = 1.0
# Operations per byte above which a kernel is compute-heavy on any GPU of the last ten years.
COMPUTE_HEAVY = 50.0
# How long a block may be. By a clock on the device itself samples of milliseconds scatter little,
# so that fewer will do (H200, over 2 ms: sd 0.05 % in the middle of 477 blocks of 54 variants).
BLOCK_US, OWN_CLOCK_BLOCK_US, HOST_BLOCK_US = 150_000.0, 60_000.0, 20_000.0
# Of samples so long that a block holds no more, three: each is itself the mean of a long time.
FEWEST_SAMPLES = 3
# What the host times has its least sample for its time, so that sides A and B need many, in turns,
# in the same seconds: a block is short, and no more are taken than fill this, but for the fewest.
HOST_US, FEWEST_BLOCKS = 150_000.0, 9
# Launches of a group by which one is estimated: alone, then as many as a sample will have, at most.
ESTIMATE_LAUNCHES = (1, 32)
# A known sampling is kept up to this length of a sample: launches that follow each other closely
# overlap, so their number is part of what is timed. Three samples of a block with their spin take
# 15 s then, a quarter of a block's limit.
LONGEST_KEPT_US = 1e6
ESTIMATE_SAMPLES = 3
ESTIMATE_SPIN_US = 200.0
# The device's own time stands beside the host's, which is what is judged: a few will do.
BESIDE_SAMPLES = 5
SHORTEST_US = 0.05
ISSUE_MARGIN = 1.3
# So many groups of samples in a row within the tolerance are steady.
AGREEING = 3
# Launches that scatter by themselves (blocks that race for work, a host that is late) agree so
# closely by luck alone, after seconds. They are steady when a row of this many shows no drift: the
# means of its halves differ by no more than their standard error. Halves of a straight line are
# six errors apart. As simulated, a decay hidden in 1 % of noise is left no earlier for it where a
# group is of four samples. Of single long ones that scatter by 1 %, one of 50 groups is left with 6
# of its 10 % to come (4 of 10 without this); by 0.5 %, with 3.
SCATTERING = 16
MOST_ERRORS = 1.0
SETTLE_SAMPLES = 4
# Host time jitters more than a GPU's, and so do collectives (2 ranks, H200: half of all never came
# within 0.2 %): waiting for steadier ones would never end.
LOOSE_TOLERANCE = 0.02
# A power cap takes a tenth of a second to pull the clock down (H200): until well after that,
# launches without a gap look steadier than they will be.
SUSTAINED_US = 1e6
STEADY, UNSTEADY, LATE = 0.0, 1.0, 2.0


@dataclass(slots=True)
class Plan:
    """How a group is sampled; ``sets`` are the input sets that its launches rotate over.

    ``pace`` is the spin as a multiple of the sample, where that is what decides. ``beside`` is how
    the device's own time is told where the host's is judged. ``blocks`` are enough, and
    ``launched`` counts.
    """

    device: Device
    group: Group
    regime: Regime
    samples: int
    spin_us: float
    flush: bool = False
    sets: tuple[Given, ...] = ()
    pace: float = 0.0
    beside: Plan | None = None
    blocks: float = math.inf
    launched: int = 0

    @property
    def last(self) -> Given:
        """The input set that the last launch of the group has."""
        return self.sets[(self.group.launches - 1) % len(self.sets)]

    def sample(self, count: int) -> list[Sample]:
        """Time the group so often."""
        self.launched += count * self.group.launches
        conditions = {"regime": self.regime, "spin_us": self.spin_us, "flush": self.flush}
        return sampled(self.device, self.group, count, **conditions)


def planned(session: Session, workload: Workload, known: Sampling | None) -> Plan:
    """Return how to sample, as ``known`` says unless that cannot be.

    Raises CaseError when a launch leaves streams running.
    """
    device, regime = session.device, session.case.regime
    sample_us, most = session.settings.sample_us, session.settings.samples

    def inputs(index: int, *, is_kept: bool) -> Given:
        return given(device, workload, session.seed * SEEDS + index, is_kept=is_kept)

    def grouped(launches: int, backend: str = "") -> Group:
        # A single launch needs no graph, whose copy nodes may take other paths.
        usual = "graph" if workload.captures and launches > 1 else "loop"
        usual = "host" if regime is Regime.END_TO_END else usual
        arguments = [each.arguments for each in sets]
        return device.group(workload.fn, arguments, launches, backend=backend or usual)

    sets = [inputs(0, is_kept=True)]
    # Of a launch whose result matched, another process knows what it does.
    if session.work is None and (flops := session.checked.flops) is not None:
        read = device.bytes_of(sets[0].arguments) - device.bytes_of(sets[0].outputs)
        found = Work(read, session.checked.written, flops, workload.rate_dtype)
        session.work = session.told["work"] = found
    launch_us = _launch_us(device, regime, grouped, sample_us)

    launches, count, flush = _rotation(session, workload, known, sets[0], launch_us)
    if flush and launches > 1:
        session.notes.append(f"only the first of {launches} launches of a sample is cold")
    last = (launches - 1) % count
    sets += [inputs(index, is_kept=index == last) for index in range(1, count)]

    group = grouped(launches)
    if not device.joins_streams(group):
        raise CaseError(
            "a launch returns before all its streams have joined the measuring stream",
            remedy="make the measuring stream wait for every stream the launch uses",
        )
    sample_us = launch_us * launches
    pace, spin_us = _spin(session, group, sample_us)
    has_own_clock = device.has_cycles and regime is not Regime.END_TO_END
    by_host = is_host_timed(device.name, regime)
    block_us = OWN_CLOCK_BLOCK_US if has_own_clock else HOST_BLOCK_US if by_host else BLOCK_US
    samples = _fitting(block_us, sample_us + spin_us, most=most, by_host=by_host)
    plan = Plan(device, group, regime, samples, spin_us, flush, tuple(sets), pace)
    if by_host:
        plan.blocks = max(FEWEST_BLOCKS, HOST_US // (samples * sample_us))
    if device.has_cycles and not has_own_clock:
        own = grouped(launches, "loop")
        own_spin_us = ISSUE_MARGIN * _issue_us(device, own)
        few = _fitting(HOST_BLOCK_US, sample_us + own_spin_us, most=BESIDE_SAMPLES, by_host=by_host)
        plan.beside = Plan(device, own, Regime.PACED, few, own_spin_us, flush)
    return plan


def _rotation(
    session: Session, workload: Workload, known: Sampling | None, first: Given, launch_us: float
) -> tuple[int, int, bool]:
    """Return launches of a sample, the input sets they rotate over, and whether to flush a cache.

    As ``known`` says; without it as many input sets as are cold, and launches for a sample of the
    length asked for or more. Notes why what is known cannot be kept.
    """
    device, is_cold = session.device, session.case.cold
    cold = 1
    if is_cold and workload.rotates:
        size = max(1, device.bytes_of(first.arguments))
        cold = min(MOST_SETS, max(1, math.ceil(COLD_CACHES * device.cache_bytes / size)))
    rotated = count = int(device.agree(cold))
    fewest = max(1, math.ceil(session.settings.sample_us / launch_us))
    if rotated > fewest and rotated * launch_us > LONGEST_SAMPLE_US:
        count = 1
    launches = count * math.ceil(fewest / count)
    if known:
        sample_us = known.launches * launch_us
        if known.sets < rotated <= STILL_COLD * known.sets:
            rotated = known.sets
        if known.sets > 1 and (known.sets < rotated or not (is_cold and workload.rotates)):
            why = "its inputs are cold in another way now"
        elif known.launches > 1 and sample_us > LONGEST_KEPT_US:
            why = f"a sample would take {sample_us / 1e6:.3g} s"
        else:
            why, launches, count = "", known.launches, known.sets
        session.notes += [f"not sampled as before ({known}): {why}"] if why else []
    return launches, count, is_cold and (not workload.rotates or count < rotated)


def _spin(session: Session, group: Group, sample_us: float) -> tuple[float, float]:
    """Return what multiple of the sample the spin before it is, and the spin in microseconds."""
    case = session.case
    if case.regime is not Regime.PACED or built_in(session.device.name).is_host:
        return 0.0, 0.0
    work = session.work
    is_light = work and work.bytes and work.flops <= COMPUTE_HEAVY * work.bytes
    pace = PACE_MEMORY if is_light else PACE_COMPUTE
    if group.backend != "loop":
        return pace, pace * sample_us
    # The spin must outlast the host's issuing of the loop, or launch overhead is timed.
    return pace, max(pace * sample_us, ISSUE_MARGIN * _issue_us(session.device, group))


def _launch_us(
    device: Device, regime: Regime, grouped: Callable[[int], Group], sample_us: float
) -> float:
    """Estimate one launch: alone first, then in a longer group when it is short."""
    launch_us = SHORTEST_US
    for most in ESTIMATE_LAUNCHES:
        # A graph of many more launches than will be sampled takes long to make, and to start.
        launches = min(most, math.ceil(sample_us / launch_us))
        group = grouped(launches)
        spin_us = ESTIMATE_SPIN_US
        if group.backend == "loop":
            # What the host takes to issue many kernels one by one is no part of the estimate, or
            # short launches of many kernels would be sampled alone.
            spin_us = max(spin_us, ISSUE_MARGIN * _issue_us(device, group))
        samples = Plan(device, group, regime, ESTIMATE_SAMPLES, spin_us).sample(ESTIMATE_SAMPLES)
        # The least: a first launch may still compile or load, and be no measure of the rest.
        times = [s.time_us for s in samples if math.isfinite(s.time_us)]
        if not times:
            raise DisturbedError("no sample of the first launches has a time")
        launch_us = device.agree(max(min(times) / launches, SHORTEST_US))
        if launch_us > sample_us / 5:
            break
    return launch_us


def _issue_us(device: Device, group: Group) -> float:
    device.synchronize()
    started = time.perf_counter()
    group()
    issued = time.perf_counter() - started
    device.synchronize()
    return device.agree(issued * 1e6)


def _fitting(block_us: float, sample_us: float, *, most: int, by_host: bool) -> int:
    """Return how many samples a block holds."""
    return max(1 if by_host else FEWEST_SAMPLES, min(most, int(block_us / sample_us)))


def settle(session: Session, plan: Plan) -> bool:
    """Launch until groups are steady, or the time is over; say which."""
    device, is_sustained = session.device, plan.regime is Regime.SUSTAINED
    limit_s = min(session.settings.settle_s, device.settle_s)
    deadline = time.monotonic() + limit_s
    tolerance = device.settle_tolerance
    if plan.group.backend == "host" or session.case.ranks:
        tolerance = max(tolerance, LOOSE_TOLERANCE)
    # Of long samples a group needs fewer: each is itself the mean of a long time.
    count = max(1, SETTLE_SAMPLES * plan.samples // session.settings.samples)
    # The clock must not move any more where it is what was waited for.
    has_clock = is_sustained and device.has_cycles
    levels: list[float] = []
    left_us = SUSTAINED_US if is_sustained else 0.0
    while True:
        samples = [s for s in plan.sample(count) if 0 < s.time_us < math.inf]
        left_us -= sum(s.time_us for s in samples)
        if samples:  # a level that is no number would spoil the whole row
            each = (s.cycles / s.time_us if has_clock else s.time_us for s in samples)
            levels.append(statistics.median(each))
        state = STEADY if is_steady(levels, tolerance) and not left_us > 0 else UNSTEADY
        if state and time.monotonic() > deadline:
            state = LATE
        state = device.agree(state)
        if state == LATE:
            last = " ".join(f"{level:.4g}" for level in levels[-AGREEING:])
            session.notes.append(f"did not settle within {limit_s:g} s (at last: {last})")
        if state != UNSTEADY:
            return state == STEADY


def is_steady(levels: Sequence[float], tolerance: float) -> bool:
    """Say whether the last groups of samples agree, or scatter without a drift, by their levels."""
    last = levels[-AGREEING:]
    if len(last) == AGREEING and max(last) - min(last) <= tolerance * min(last):
        return True
    if len(levels) < SCATTERING:
        return False
    half = SCATTERING // 2
    early, late = levels[-SCATTERING:-half], levels[-half:]
    apart = abs(statistics.fmean(late) - statistics.fmean(early))
    error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / half)
    return apart <= MOST_ERRORS * error
