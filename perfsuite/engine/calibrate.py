"""Sizes a group of launches so that the clocks can see it, and says when it is steady."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.boundary import CaseError, DisturbedError
from perfsuite.devices.protocol import Device, Group, sampled
from perfsuite.engine.check import SEEDS, Given, given, last_of
from perfsuite.model import MOST_SETS, Axes, Case, Regime, Sampling, Settings, Work, Workload

# Finds how a variant is to be sampled: input sets, launches per sample, spin, samples.


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
class Beside:
    """A group whose device time is told beside the host's: ``samples`` a block."""

    group: Group
    spin_us: float
    samples: int


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How a variant is sampled; ``spin_us`` before each sample is ``pace`` times its length.

    ``data`` are the input sets that launches rotate over.
    """

    group: Group
    sets: int
    samples: int
    pace: float
    spin_us: float
    flush: bool
    notes: tuple[str, ...] = ()
    beside: Beside | None = None
    data: tuple[Given, ...] = ()


class Calibration:
    """Calibrates one variant on one device."""

    def __init__(
        self, device: Device, case: Case, axes: Axes, *, settings: Settings, seed: int
    ) -> None:
        self.device = device
        self.case = case
        self.axes = axes
        self.settings = settings
        self.seed = seed

    def plan(self, workload: Workload, known: Sampling | None = None) -> SamplingPlan:
        """Return the plan, with the ``known`` sampling where samples are not far too long by it.

        Raises CaseError when a launch leaves streams running.
        """
        sets = [self._inputs(workload, 0, is_kept=True)]
        launch_us = self._launch_us(workload, sets)
        rotated = int(self.device.agree(self._wanted_sets(workload, sets[0].arguments)))
        sampling = self._sampling(rotated, launch_us)
        if known and known.sets in {1, rotated} and _is_near(known, sampling):
            sampling = known
        wanted, launches = sampling.sets, sampling.launches
        flush = self.case.cold and (not workload.rotates or wanted < rotated)
        last = last_of(launches, wanted)
        sets += [self._inputs(workload, n, is_kept=n == last) for n in range(1, wanted)]
        group = self._group(workload, sets, launches)
        if not self.device.joins_streams(group):
            raise CaseError(
                "a launch returns before all its streams have joined the measuring stream",
                where=self.case.name,
                remedy="make the measuring stream wait for every stream the launch uses",
            )
        warm = f"only the first of {launches} launches of a sample is cold"
        notes = (warm,) if flush and launches > 1 else ()
        pace, spin_us = self._spin(group, launch_us * launches)
        block_us = OWN_CLOCK_BLOCK_US if self._has_own_clock else BLOCK_US
        samples = _fitting(block_us, launch_us * launches + spin_us, most=self.settings.samples)
        beside = self._beside(workload, sets, launches, launch_us * launches)
        return SamplingPlan(
            group, wanted, samples, pace, spin_us, flush, notes, beside, tuple(sets)
        )

    @property
    def _has_own_clock(self) -> bool:
        return self.device.has_cycles and self.case.regime is not Regime.END_TO_END

    def _sampling(self, rotated: int, launch_us: float) -> Sampling:
        """Return launches and input sets for a sample of the wanted length, or a little more."""
        fewest = max(1, math.ceil(self.settings.sample_us / launch_us))
        if rotated > fewest and rotated * launch_us > LONGEST_SAMPLE_US:
            rotated = 1
        return Sampling(rotated * math.ceil(fewest / rotated), rotated)

    def _inputs(self, workload: Workload, index: int, *, is_kept: bool) -> Given:
        return given(self.device, workload, self.seed * SEEDS + index, is_kept=is_kept)

    def _launch_us(self, workload: Workload, sets: Sequence[Given]) -> float:
        """Estimate one launch: alone first, then in a longer group when it is short."""
        launch_us = SHORTEST_US
        for most in ESTIMATE_LAUNCHES:
            # A graph of many more launches than are wanted takes long to make, and to start.
            launches = min(most, math.ceil(self.settings.sample_us / launch_us))
            group = self._group(workload, sets, launches)
            samples = sampled(
                self.device,
                group,
                ESTIMATE_SAMPLES,
                regime=self.case.regime,
                spin_us=self._estimate_spin_us(group),
                flush=False,
            )
            # The least: a first launch may still compile or load, and be no measure of the rest.
            times = [s.time_us for s in samples if math.isfinite(s.time_us)]
            if not times:
                raise DisturbedError("no sample of the first launches has a time")
            launch_us = self.device.agree(max(min(times) / launches, SHORTEST_US))
            if launch_us > self.settings.sample_us / 5:
                break
        return launch_us

    def _estimate_spin_us(self, group: Group) -> float:
        """Return a spin that hides what the host takes to issue many kernels one by one.

        It is no part of the estimate, or short launches of many kernels would be sampled alone.
        """
        if group.backend != "loop":
            return ESTIMATE_SPIN_US
        return max(ESTIMATE_SPIN_US, ISSUE_MARGIN * self._issue_us(group))

    def _group(self, workload: Workload, sets: Sequence[Given], launches: int) -> Group:
        """Make a group; a single launch needs no graph, whose copy nodes may take other paths."""
        backend = "graph" if workload.captures and launches > 1 else "loop"
        if self.case.regime is Regime.END_TO_END:
            backend = "host"
        return self.device.group(workload.fn, _arguments(sets), launches, backend=backend)

    def _beside(
        self, workload: Workload, sets: Sequence[Given], launches: int, sample_us: float
    ) -> Beside | None:
        if self._has_own_clock or not self.device.has_cycles:
            return None
        group = self.device.group(workload.fn, _arguments(sets), launches, backend="loop")
        spin_us = ISSUE_MARGIN * self._issue_us(group)
        samples = _fitting(OWN_CLOCK_BLOCK_US, sample_us + spin_us, most=BESIDE_SAMPLES)
        return Beside(group, spin_us, samples)

    def _wanted_sets(self, workload: Workload, inputs: tuple[Any, ...]) -> int:
        if not self.case.cold or not workload.rotates:
            return 1
        size = max(1, self.device.bytes_of(inputs))
        return min(MOST_SETS, max(1, math.ceil(COLD_CACHES * self.device.cache_bytes / size)))

    def _spin(self, group: Group, sample_us: float) -> tuple[float, float]:
        """Return the pace and the spin before each sample."""
        if self.case.regime is not Regime.PACED:
            return 0.0, 0.0
        work = self.case.work(**self.axes) if self.case.work else None
        pace = PACE_COMPUTE if _is_compute_heavy(work) else PACE_MEMORY
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


def _arguments(sets: Sequence[Given]) -> list[tuple[Any, ...]]:
    return [each.arguments for each in sets]


def _fitting(block_us: float, sample_us: float, *, most: int) -> int:
    """Return how many samples a block holds."""
    return max(FEWEST_SAMPLES, min(most, int(block_us / sample_us)))


def _is_near(known: Sampling, chosen: Sampling) -> bool:
    return 1 / MOST_STRETCH <= known.launches / chosen.launches <= MOST_STRETCH


def _is_compute_heavy(work: Work | None) -> bool:
    return not (work and work.bytes) or work.flops > COMPUTE_HEAVY * work.bytes


# Says when launches have settled: groups of samples agree, or only scatter about one level.


# So many groups in a row within the tolerance are steady.
AGREEING = 3
# Launches that scatter by themselves (blocks that race for work, a host that is late) agree so
# closely by luck alone, after seconds. They are steady when a row of this many shows no drift: the
# means of its halves differ by no more than their standard error. Halves of a straight line are
# six errors apart. As simulated, a decay hidden in 1 % of noise is left no earlier for it where a
# group is of four samples. Of single long ones that scatter by 1 %, one of 50 groups is left with 6
# of its 10 % to come (4 of 10 without this); by 0.5 %, with 3.
SCATTERING = 16
MOST_ERRORS = 1.0


class Groups:
    """The levels of groups of samples, in their order."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._levels: deque[float] = deque(maxlen=SCATTERING)

    def add(self, level: float) -> None:
        """Add the level of one more group, positive."""
        self._levels.append(level)

    @property
    def are_steady(self) -> bool:
        """Say whether the last groups agree, or scatter without a drift."""
        return _agree(self._last, self._tolerance) or self._have_no_drift

    def why_not(self, limit_s: float) -> str:
        """Return a note on what did not settle within ``limit_s``."""
        last = self._last
        why = f"only {len(last)} of {AGREEING} groups fitted"
        if len(last) == AGREEING:
            why = f"last {len(last)} groups differ by {max(last) / min(last) - 1:.2%}"
        return f"did not settle within {limit_s:g} s ({why})"

    @property
    def _have_no_drift(self) -> bool:
        if len(self._levels) < SCATTERING:
            return False
        levels, half = tuple(self._levels), SCATTERING // 2
        early, late = levels[:half], levels[half:]
        apart = abs(statistics.fmean(late) - statistics.fmean(early))
        error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / half)
        return apart <= MOST_ERRORS * error

    @property
    def _last(self) -> Sequence[float]:
        return tuple(self._levels)[-AGREEING:]


def _agree(last: Sequence[float], tolerance: float) -> bool:
    return len(last) == AGREEING and max(last) - min(last) <= tolerance * min(last)
