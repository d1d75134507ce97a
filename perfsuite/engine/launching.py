"""Measures a workload: check, calibrate, settle, blocks of samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial

from perfsuite.calibration import Calibration, SamplingPlan
from perfsuite.check import SEEDS, Recheck, Timed, checked
from perfsuite.device import Sample, sampled
from perfsuite.engine.bench import Bench
from perfsuite.engine.steadiness import Groups
from perfsuite.errors import CaseError, DisturbedError
from perfsuite.model import Block, Evidence, Health, Regime, Sampling, Workload

VOIDED_MOST = 0.2
SETTLE_SAMPLES = 4
# Host time jitters more than a GPU's, and so do collectives (2 ranks, H200: half of all never came
# within 0.2 %): waiting for steadier ones would never end.
LOOSE_TOLERANCE = 0.02
BAD_REASONS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "ecc_error"})
# What disturbs often passes as soon as it came.
NAP_S = 0.3
# A power cap takes a tenth of a second to pull the clock down (H200): until well after that,
# launches without a gap look steadier than they will be. After another worker's turn a part of it
# will do.
SUSTAINED_US, LEAD_IN_US = 1e6, 2e5
# What a GPU's samples lack that have no time; of other devices that is all that is known.
STAMPS_LOST = "stamps missed an SM"
# NVML's counter of energy moves on in steps of up to a tenth of a second.
ENERGY_S = 2.0
NOT_REFILLED = (
    "its inputs cannot be given other data: the timed launches were compared on their own"
)
STEADY, UNSTEADY, LATE = 0.0, 1.0, 2.0


class Launching:
    """The measuring of a workload; the ranks of a gang agree on each step they take."""

    def __init__(self, bench: Bench, workload: Workload) -> None:
        self._bench = bench
        self._workload = workload
        self._error: float | None = None
        self._settled = True
        self._joules: float | None = None
        self._plan: SamplingPlan | None = None
        self._launched, self._limit = 0, math.inf

    @property
    def has_enough(self) -> bool:
        """Say no: blocks are as short as they may be."""
        return False

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Compare with the reference; raises CaseError, WrongResultError, DeviceError."""
        act = partial(self._check, is_thorough=is_thorough)
        self._error = self._bench.phase("check", announce, act)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Calibrate and settle; raises CaseError, DeviceError."""
        phase = self._bench.phase
        if not self._bench.settings.check_only:
            self._plan = phase("calibrate", announce, partial(self._calibrate, sampling))
            self._settled = phase("settle", announce, self._settle)
            if self._is_sustained and not self._bench.case.ranks:
                self._joules = phase("energy", announce, self._energy)

    def block(self) -> None:
        """Take one turn's samples, again if the device was disturbed meanwhile."""
        with self._bench.timed("measure"):
            self._block()

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Compare once more, now that all is timed; raises WrongResultError, CaseError."""
        if self._plan is not None:
            self._bench.phase("recheck", announce, self._rechecked)

    def evidence(self) -> Evidence:
        """Return how it was sampled, and the error of the check."""
        plan = self._plan
        if plan is None:
            return Evidence(slot=0, seed=0, settled=self._settled, error=self._error)
        return Evidence(
            slot=0,
            seed=0,
            launches=plan.group.launches,
            backend=plan.group.backend,
            pace=plan.pace,
            sets=plan.sets,
            settled=self._settled,
            error=self._error,
        )

    def _block(self) -> None:
        plan, bench = self._planned(), self._bench
        self._lead_in()
        started = time.monotonic()
        voided = 0
        while True:
            samples = self._sample(plan.samples)
            good = [s for s in samples if not bench.device.agree(not 0 < s.time_us < math.inf)]
            health = bench.device.health()
            cause = _disturbance(health, bench.device.foreign_most)
            is_lost = bool(cause) or len(good) < (1 - VOIDED_MOST) * len(samples)
            if not bench.device.agree(is_lost):
                break
            voided += len(samples)
            cause = cause or (STAMPS_LOST if bench.device.name == "cuda" else "they have no time")
            bench.log.notes.append(f"a block was voided: {cause}")
            self._refuse_excess(voided, cause)
            time.sleep(NAP_S)
        self._note(good, voided + len(samples) - len(good), started, health)

    def _rechecked(self) -> None:
        plan, bench = self._planned(), self._bench
        spent_s = sum(bench.log.phases.get(phase, 0.0) for phase in ("settle", "measure", "spin"))
        where = bench.case.name
        timed = Timed(
            self._workload, plan.group, plan.data, self._launched, spent_s, self._limit, where
        )
        recheck = Recheck(bench.device, timed, bench.seed)
        recheck.run()
        if not recheck.is_fresh:
            bench.log.notes.append(NOT_REFILLED)

    def _check(self, *, is_thorough: bool) -> float | None:
        bench, workload = self._bench, self._workload
        comparison = checked(
            bench.device,
            workload,
            where=bench.case.name,
            seed=bench.seed,
            is_thorough=is_thorough,
        )
        inputs = workload.make_inputs(bench.device.rng(bench.seed * SEEDS))
        peak = bench.device.peak_bytes(workload.fn, inputs)
        if peak is not None:
            bench.log.exact["peak_bytes"] = float(peak)
        if workload.exact is not None:
            bench.log.exact.update(bench.declared(workload.exact()))
        self._limit = comparison.limit
        return comparison.error if math.isfinite(comparison.error) else None

    def _calibrate(self, sampling: Sampling | None) -> SamplingPlan:
        bench = self._bench
        plan = Calibration(
            bench.device, bench.case, bench.axes, settings=bench.settings, seed=bench.seed
        ).plan(self._workload, sampling)
        bench.log.notes += plan.notes
        return plan

    def _settle(self) -> bool:
        """Launch until groups are steady, or the time is over; say which."""
        bench = self._bench
        limit_s = min(bench.settings.settle_s, bench.device.settle_s)
        deadline = time.monotonic() + limit_s
        tolerance = bench.device.settle_tolerance
        if self._planned().group.backend == "host" or bench.case.ranks:
            tolerance = max(tolerance, LOOSE_TOLERANCE)
        # Of long samples a group needs fewer: each is itself the mean of a long time.
        count = max(1, SETTLE_SAMPLES * self._planned().samples // bench.settings.samples)
        groups = Groups(tolerance)
        left_us = SUSTAINED_US if self._is_sustained else 0.0
        while True:
            samples = [s for s in self._sample(count) if 0 < s.time_us < math.inf]
            left_us -= sum(s.time_us for s in samples)
            if samples:  # a level that is no number would spoil the whole row
                groups.add(statistics.median(map(self._level, samples)))
            state = STEADY if groups.are_steady and not left_us > 0 else UNSTEADY
            if state and time.monotonic() > deadline:
                state = LATE
            state = bench.device.agree(state)
            if state == LATE:
                bench.log.notes.append(groups.why_not(limit_s))
            if state != UNSTEADY:
                return state == STEADY

    @property
    def _is_sustained(self) -> bool:
        return self._bench.case.regime is Regime.SUSTAINED

    def _level(self, sample: Sample) -> float:
        """Return what must not move any more: the clock where it is what was waited for."""
        has_clock = self._is_sustained and self._bench.device.has_cycles
        return sample.cycles / sample.time_us if has_clock else sample.time_us

    def _lead_in(self) -> None:
        """Bring the clock to where it was before other workers had their turn."""
        plan, bench = self._planned(), self._bench
        left_us = LEAD_IN_US if self._is_sustained else 0.0
        while bench.device.agree(left_us) > 0:
            spent_us = sum(s.time_us for s in self._sample(plan.samples) if s.time_us > 0)
            left_us -= max(spent_us, plan.samples * bench.settings.sample_us)

    def _energy(self) -> float | None:
        return self._bench.device.energy_j(self._planned().group, ENERGY_S)

    def _sample(self, count: int) -> list[Sample]:
        plan, bench = self._planned(), self._bench
        regime = bench.case.regime
        self._launched += count * plan.group.launches
        return sampled(
            bench.device, plan.group, count, regime=regime, spin_us=plan.spin_us, flush=plan.flush
        )

    def _refuse_excess(self, voided: int, cause: str) -> None:
        bench, samples = self._bench, self._planned().samples
        if voided > VOIDED_MOST * bench.settings.rounds * samples + samples:
            # What is wrong is so on a busy machine too; what launches nothing has no time either.
            self._rechecked()
            raise DisturbedError(
                f"{voided} samples voided in one block ({cause})",
                where=bench.case.name,
                remedy="look at what slows the device (a GPU's clock event reasons), and at other "
                "processes on it",
            )

    def _note(self, good: list[Sample], voided: int, started: float, health: Health) -> None:
        plan, bench = self._planned(), self._bench
        launches = plan.group.launches
        bench.log.blocks.append(
            Block(
                time_us=tuple(s.time_us / launches for s in good),
                cycles=tuple(s.cycles / launches for s in good if 0 < s.cycles < math.inf),
                voided=voided,
                start_s=started,
                health=health,
                metrics={**self._device_times(), **self._energies()},
            )
        )

    def _device_times(self) -> dict[str, tuple[float, ...]]:
        """Return the device's own time of launches that are otherwise timed by the host."""
        plan = self._planned()
        beside = plan.beside
        if beside is None:
            return {}
        samples = sampled(
            self._bench.device,
            beside.group,
            beside.samples,
            regime=Regime.PACED,
            spin_us=beside.spin_us,
            flush=plan.flush,
        )
        times = [s.time_us / beside.group.launches for s in samples if s.time_us > 0]
        return {"device_us": tuple(times)} if times else {}

    def _energies(self) -> dict[str, tuple[float, ...]]:
        joules, self._joules = self._joules, None
        return {"energy_j": (joules,)} if joules else {}

    def _planned(self) -> SamplingPlan:
        if self._plan is None:
            raise CaseError("block() before prepare()", where=self._bench.case.name)
        return self._plan


def _disturbance(health: Health, foreign_most: float) -> str:
    """Say what about the device spoils a block, or nothing."""
    found = sorted(BAD_REASONS.intersection(health.reasons))
    if (health.foreign_percent or 0.0) > foreign_most:
        found.append(f"foreign load of {health.foreign_percent:.0f} %")
    return ", ".join(found)
