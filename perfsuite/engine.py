"""Measures one variant on one device: build, check, calibrate, settle, blocks of samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perfsuite.check import SEEDS, check
from perfsuite.device import Context, Device, Group, Sample
from perfsuite.errors import CaseError, DisturbedError
from perfsuite.model import Axes, Block, Case, Evidence, Regime, Settings, Work, Workload

# A working set this many times the last-level cache makes each launch find its inputs cold.
COLD_CACHES = 3
MOST_SETS = 256
# Samples longer than this buy nothing: coldness then comes from a flush instead of more sets.
LONGEST_SAMPLE_US = 20_000.0
# Heat, not time, is what the spin is for. Compute-heavy kernels reach the power cap and need four
# times their own length to stay below it; the ratio is fixed by the variant's work, not by what
# was seen, because a ratio that flips between runs would compare two regimes with each other.
PACE_COMPUTE = 4.0
PACE_MEMORY = 1.0
# Operations per byte above which a kernel is compute-heavy on any GPU of the last ten years.
COMPUTE_HEAVY = 50.0
BLOCK_US = 150_000.0
FEWEST_SAMPLES = 5
VOIDED_MOST = 0.2
SETTLE_SAMPLES = 4
SETTLE_GROUPS = 3
BAD_REASONS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})


@dataclass(slots=True)
class _Plan:
    """How the variant is sampled, found by calibration."""

    group: Group
    sets: int
    samples: int
    pace: float
    spin_us: float
    flush: bool
    launch_us: float


@dataclass(slots=True)
class _Log:
    """What is worth handing back besides the samples."""

    phases: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, float] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


class Session:
    """One variant on one device in one worker: ``prepare``, then ``block`` by turn, ``finish``."""

    def __init__(
        self, device: Device, case: Case, axes: Axes, settings: Settings, seed: int
    ) -> None:
        self.device = device
        self.case = case
        self.axes = axes
        self.settings = settings
        self.seed = seed
        self._log = _Log()
        self._error: float | None = None
        self._settled = True
        self._plan: _Plan | None = None

    def prepare(self, announce: Callable[[str], None]) -> None:
        """Build, check, calibrate and settle; raises CaseError, WrongResultError, DeviceError."""
        workload = self._phase("build", announce, self._build)
        self._error = self._phase("check", announce, lambda: self._check(workload))
        if not self.settings.check_only:
            self._plan = self._phase("calibrate", announce, lambda: self._calibrate(workload))
            self._settled = self._phase("settle", announce, self._settle)

    def block(self) -> Block:
        """Take one turn's samples, again if the device was disturbed meanwhile."""
        plan = self._planned()
        started = time.monotonic()
        voided = 0
        while True:
            samples = self._sample(plan.samples)
            good = [sample for sample in samples if math.isfinite(sample.time_us)]
            health = self.device.health()
            disturbed = BAD_REASONS.intersection(health.reasons)
            if not disturbed and len(good) >= (1 - VOIDED_MOST) * len(samples):
                break
            voided += len(samples)
            if voided > VOIDED_MOST * self.settings.rounds * plan.samples + plan.samples:
                cause = ", ".join(sorted(disturbed)) or "stamps missed an SM"
                raise DisturbedError(
                    f"{voided} samples voided in one block ({cause})",
                    where=self.case.name,
                    remedy="look at the GPU's clock event reasons and at other processes on it",
                )
        block = Block(
            time_us=tuple(s.time_us / plan.group.launches for s in good),
            cycles=tuple(s.cycles / plan.group.launches for s in good if math.isfinite(s.cycles)),
            voided=voided + len(samples) - len(good),
            start_s=started,
            health=health,
        )
        self._log.blocks.append(block)
        self._add("measure", time.monotonic() - started)
        return block

    def finish(self) -> Evidence:
        """Return all that this process has to say about the variant."""
        plan = self._plan
        return Evidence(
            slot=0,
            seed=self.seed,
            launches=plan.group.launches if plan else 1,
            backend=plan.group.backend if plan else "",
            pace=plan.pace if plan else 0.0,
            sets=plan.sets if plan else 1,
            settled=self._settled,
            error=self._error,
            blocks=tuple(self._log.blocks),
            exact=self._log.exact,
            phases_s=self._log.phases,
            notes=tuple(self._log.notes),
        )

    def launch_once(self) -> Callable[[], None]:
        """Return a call that launches the built variant once (for profilers and debuggers)."""
        workload = self._build()
        inputs = workload.make_inputs(self.device.rng(self.seed))

        def launch() -> None:
            workload.fn(*inputs)
            self.device.synchronize()

        return launch

    def _phase(self, name: str, announce: Callable[[str], None], act: Callable[[], Any]) -> Any:
        announce(name)
        started = time.monotonic()
        value = act()
        self.device.synchronize()
        self._add(name, time.monotonic() - started)
        return value

    def _add(self, phase: str, seconds: float) -> None:
        self._log.phases[phase] = round(self._log.phases.get(phase, 0.0) + seconds, 6)

    def _build(self) -> Workload:
        context: Context = self.device.context(self.seed)
        workload = self.case.build(context, **self.axes)
        if not isinstance(workload, Workload):
            raise CaseError(
                f"the builder returned {workload!r}, not a Workload",
                where=self.case.name,
                remedy="return perfsuite.Workload(fn=..., make_inputs=..., reference=..., ...)",
            )
        return workload

    def _check(self, workload: Workload) -> float | None:
        error = check(self.device, workload, where=self.case.name, seed=self.seed)
        inputs = workload.make_inputs(self.device.rng(self.seed * SEEDS))
        peak = self.device.peak_bytes(workload.fn, inputs)
        if peak is not None:
            self._log.exact["peak_bytes"] = float(peak)
        return error

    def _calibrate(self, workload: Workload) -> _Plan:
        """Choose input sets, launches per sample, spin and samples per block."""
        sets = [workload.make_inputs(self.device.rng(self.seed * SEEDS))]
        launch_us = self._launch_us(workload, sets)
        wanted = self._wanted_sets(workload, sets[0])
        fewest = max(1, math.ceil(self.settings.sample_us / launch_us))
        if wanted > fewest and wanted * launch_us > LONGEST_SAMPLE_US:
            wanted, flush = 1, self.case.cold
        else:
            flush = self.case.cold and wanted == 1 and not workload.rotates
        sets += [
            workload.make_inputs(self.device.rng(self.seed * SEEDS + index))
            for index in range(1, wanted)
        ]
        launches = wanted * math.ceil(fewest / wanted)
        if flush and launches > 1:
            self._log.notes.append(f"only the first of {launches} launches of a sample is cold")
        group = self._group(workload, sets, launches)
        if not self.device.joins_streams(group):
            raise CaseError(
                "a launch returns before all its streams have joined the measuring stream",
                where=self.case.name,
                remedy="make the measuring stream wait for every stream the launch uses",
            )
        return self._paced(group, wanted, launch_us, flush=flush)

    def _launch_us(self, workload: Workload, sets: list[tuple[Any, ...]]) -> float:
        """Estimate one launch: alone first, then in a longer group when it is short."""
        launch_us = 0.0
        for launches in (1, 32):
            group = self._group(workload, sets, launches)
            samples = self._timed(group, 3, spin_us=200.0, flush=False)
            launch_us = max(statistics.median(s.time_us for s in samples) / launches, 0.05)
            if launch_us > self.settings.sample_us / 5:
                break
        return launch_us

    def _group(self, workload: Workload, sets: list[tuple[Any, ...]], launches: int) -> Group:
        """Make a group; a single launch needs no graph, whose copy nodes may take other paths."""
        backend = "graph" if workload.captures and launches > 1 else "loop"
        if self.case.regime is Regime.END_TO_END:
            backend = "host"
        return self.device.group(workload.fn, sets, launches, backend=backend)

    def _wanted_sets(self, workload: Workload, inputs: tuple[Any, ...]) -> int:
        if not self.case.cold or not workload.rotates:
            return 1
        size = max(1, self.device.bytes_of(inputs))
        return min(MOST_SETS, max(1, math.ceil(COLD_CACHES * self.device.cache_bytes / size)))

    def _paced(self, group: Group, sets: int, launch_us: float, *, flush: bool) -> _Plan:
        pace = 0.0
        if self.case.regime is Regime.PACED:
            work = self.case.work(**self.axes) if self.case.work else None
            pace = PACE_COMPUTE if _is_compute_heavy(work) else PACE_MEMORY
        sample_us = launch_us * group.launches
        spin_us = pace * sample_us
        if group.backend == "loop" and self.case.regime is Regime.PACED:
            # The spin must outlast the host's issuing of the loop, or launch overhead is timed.
            spin_us = max(spin_us, 1.3 * self._issue_us(group))
        samples = int(BLOCK_US / (sample_us + spin_us))
        samples = max(FEWEST_SAMPLES, min(self.settings.samples, samples))
        return _Plan(group, sets, samples, pace, spin_us, flush, launch_us)

    def _issue_us(self, group: Group) -> float:
        self.device.synchronize()
        started = time.perf_counter()
        group()
        issued = time.perf_counter() - started
        self.device.synchronize()
        return issued * 1e6

    def _settle(self) -> bool:
        """Launch until three consecutive groups agree, or the time is over; say which."""
        deadline = time.monotonic() + self.settings.settle_s
        recent: list[float] = []
        while True:
            times = [s.time_us for s in self._sample(SETTLE_SAMPLES)]
            recent = [*recent[1 - SETTLE_GROUPS :], statistics.median(times)]
            if len(recent) == SETTLE_GROUPS and max(recent) - min(recent) <= (
                self.device.settle_tolerance * min(recent)
            ):
                return True
            if time.monotonic() > deadline:
                self._log.notes.append(
                    f"did not settle within {self.settings.settle_s:g} s "
                    f"(last groups differ by {max(recent) / min(recent) - 1:.2%})"
                )
                return False

    def _sample(self, count: int) -> list[Sample]:
        plan = self._planned()
        return self._timed(plan.group, count, spin_us=plan.spin_us, flush=plan.flush)

    def _timed(self, group: Group, count: int, *, spin_us: float, flush: bool) -> list[Sample]:
        regime = self.case.regime
        return self.device.sample(group, count, regime=regime, spin_us=spin_us, flush=flush)

    def _planned(self) -> _Plan:
        if self._plan is None:
            raise CaseError("block() before prepare()", where=self.case.name)
        return self._plan


def _is_compute_heavy(work: Work | None) -> bool:
    return work is None or work.flops > COMPUTE_HEAVY * work.bytes
