"""Finds how a variant is to be sampled: input sets, launches per sample, spin, samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.boundary import CaseError, DisturbedError
from perfsuite.devices.protocol import Device, Group, sampled
from perfsuite.engine.check import SEEDS, Given, given, last_of
from perfsuite.model import MOST_SETS, Axes, Case, Regime, Sampling, Settings, Workload

# A working set this many times the last-level cache makes each launch find its inputs cold.
COLD_CACHES = 3
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
BLOCK_US, OWN_CLOCK_BLOCK_US = 150_000.0, 60_000.0
# Of samples so long that a block holds no more, three: each is itself the mean of a long time.
FEWEST_SAMPLES = 3
# Launches of a group by which one is estimated: alone, then as many as a sample will have, at most.
ESTIMATE_LAUNCHES = (1, 32)
# How far a sample may be from the wanted length before another process's sampling is not taken
# over: launches that follow each other closely overlap, so their number is part of what is timed.
MOST_STRETCH = 4.0
ESTIMATE_SAMPLES = 3
ESTIMATE_SPIN_US = 200.0
# The device's own time stands beside the host's, which is what is judged: a few will do.
BESIDE_SAMPLES = 5
SHORTEST_US = 0.05
ISSUE_MARGIN = 1.3


@dataclass(frozen=True, slots=True)
class Plan:
    """How a group is sampled; ``spin_us`` before each sample is ``pace`` times its length.

    ``sets`` are the input sets that launches rotate over. ``beside`` is how the device's own time
    is told where the host's is judged.
    """

    group: Group
    samples: int
    spin_us: float
    flush: bool
    pace: float = 0.0
    sets: tuple[Given, ...] = ()
    notes: tuple[str, ...] = ()
    beside: Plan | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Calibrates one variant on one device."""

    device: Device
    case: Case
    axes: Axes
    settings: Settings
    seed: int
    workload: Workload

    def plan(self, known: Sampling | None = None) -> Plan:
        """Return the plan, with the ``known`` sampling where samples are not far too long by it.

        Raises CaseError when a launch leaves streams running.
        """
        device, case, workload = self.device, self.case, self.workload
        sets = [self._inputs(0, is_kept=True)]
        launch_us = self._launch_us(sets)

        # As many input sets as are cold, and launches for a sample of the wanted length or more.
        cold = 1
        if case.cold and workload.rotates:
            size = max(1, device.bytes_of(sets[0].arguments))
            cold = min(MOST_SETS, max(1, math.ceil(COLD_CACHES * device.cache_bytes / size)))
        rotated = wanted = int(device.agree(cold))
        fewest = max(1, math.ceil(self.settings.sample_us / launch_us))
        if rotated > fewest and rotated * launch_us > LONGEST_SAMPLE_US:
            wanted = 1
        launches = wanted * math.ceil(fewest / wanted)
        is_near = known and 1 / MOST_STRETCH <= known.launches / launches <= MOST_STRETCH
        if known and is_near and known.sets in {1, rotated}:
            launches, wanted = known.launches, known.sets
        flush = case.cold and (not workload.rotates or wanted < rotated)
        last = last_of(launches, wanted)
        sets += [self._inputs(index, is_kept=index == last) for index in range(1, wanted)]

        group = self._group(sets, launches)
        if not device.joins_streams(group):
            raise CaseError(
                "a launch returns before all its streams have joined the measuring stream",
                where=case.name,
                remedy="make the measuring stream wait for every stream the launch uses",
            )
        sample_us = launch_us * launches
        pace, spin_us = self._spin(group, sample_us)
        has_own_clock = device.has_cycles and case.regime is not Regime.END_TO_END
        block_us = OWN_CLOCK_BLOCK_US if has_own_clock else BLOCK_US
        beside = None
        samples = _fitting(block_us, sample_us + spin_us, most=self.settings.samples)
        if device.has_cycles and not has_own_clock:
            own = self._group(sets, launches, backend="loop")
            own_spin_us = ISSUE_MARGIN * self._issue_us(own)
            few = _fitting(OWN_CLOCK_BLOCK_US, sample_us + own_spin_us, most=BESIDE_SAMPLES)
            beside = Plan(own, few, own_spin_us, flush)
        warm = (f"only the first of {launches} launches of a sample is cold",)
        notes = warm if flush and launches > 1 else ()
        return Plan(group, samples, spin_us, flush, pace, tuple(sets), notes, beside)

    def _inputs(self, index: int, *, is_kept: bool) -> Given:
        return given(self.device, self.workload, self.seed * SEEDS + index, is_kept=is_kept)

    def _launch_us(self, sets: Sequence[Given]) -> float:
        """Estimate one launch: alone first, then in a longer group when it is short."""
        launch_us = SHORTEST_US
        for most in ESTIMATE_LAUNCHES:
            # A graph of many more launches than are wanted takes long to make, and to start.
            launches = min(most, math.ceil(self.settings.sample_us / launch_us))
            group = self._group(sets, launches)
            spin_us = ESTIMATE_SPIN_US
            if group.backend == "loop":
                # What the host takes to issue many kernels one by one is no part of the estimate,
                # or short launches of many kernels would be sampled alone.
                spin_us = max(spin_us, ISSUE_MARGIN * self._issue_us(group))
            conditions = {"regime": self.case.regime, "spin_us": spin_us, "flush": False}
            samples = sampled(self.device, group, ESTIMATE_SAMPLES, **conditions)
            # The least: a first launch may still compile or load, and be no measure of the rest.
            times = [s.time_us for s in samples if math.isfinite(s.time_us)]
            if not times:
                raise DisturbedError("no sample of the first launches has a time")
            launch_us = self.device.agree(max(min(times) / launches, SHORTEST_US))
            if launch_us > self.settings.sample_us / 5:
                break
        return launch_us

    def _group(self, sets: Sequence[Given], launches: int, backend: str = "") -> Group:
        """Make a group; a single launch needs no graph, whose copy nodes may take other paths."""
        if not backend:
            backend = "graph" if self.workload.captures and launches > 1 else "loop"
            if self.case.regime is Regime.END_TO_END:
                backend = "host"
        arguments = [each.arguments for each in sets]
        return self.device.group(self.workload.fn, arguments, launches, backend=backend)

    def _spin(self, group: Group, sample_us: float) -> tuple[float, float]:
        """Return the pace and the spin before each sample."""
        if self.case.regime is not Regime.PACED:
            return 0.0, 0.0
        work = self.case.work(**self.axes) if self.case.work else None
        is_light = work and work.bytes and work.flops <= COMPUTE_HEAVY * work.bytes
        pace = PACE_MEMORY if is_light else PACE_COMPUTE
        spin_us = pace * sample_us
        if group.backend == "loop":
            # The spin must outlast the host's issuing of the loop, or launch overhead is timed.
            spin_us = max(spin_us, ISSUE_MARGIN * self._issue_us(group))
        return pace, spin_us

    def _issue_us(self, group: Group) -> float:
        self.device.synchronize()
        started = time.perf_counter()
        group()
        issued = time.perf_counter() - started
        self.device.synchronize()
        return self.device.agree(issued * 1e6)


def _fitting(block_us: float, sample_us: float, *, most: int) -> int:
    """Return how many samples a block holds."""
    return max(FEWEST_SAMPLES, min(most, int(block_us / sample_us)))


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


def unsteady_note(levels: Sequence[float], limit_s: float) -> str:
    """Return a note on what did not settle within ``limit_s``."""
    last = levels[-AGREEING:]
    why = f"only {len(last)} of {AGREEING} groups fitted"
    if len(last) == AGREEING:
        why = f"last {len(last)} groups differ by {max(last) / min(last) - 1:.2%}"
    return f"did not settle within {limit_s:g} s ({why})"
