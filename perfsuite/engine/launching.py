"""Measures one variant on one device: build, check, calibrate, settle, blocks of samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perfsuite.calibration import Calibration, SamplingPlan
from perfsuite.check import SEEDS, check
from perfsuite.device import Context, Device, Sample
from perfsuite.errors import CaseError, DisturbedError
from perfsuite.model import Axes, Block, Case, Evidence, Settings, Workload

VOIDED_MOST = 0.2
SETTLE_SAMPLES = 4
SETTLE_GROUPS = 3
# Host time jitters more than a GPU's: waiting for a steadier host would never end.
HOST_TOLERANCE = 0.02
BAD_REASONS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})


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
        self._plan: SamplingPlan | None = None

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

    def _calibrate(self, workload: Workload) -> SamplingPlan:
        plan = Calibration(
            self.device, self.case, self.axes, settings=self.settings, seed=self.seed
        ).plan(workload)
        self._log.notes += plan.notes
        return plan

    def _settle(self) -> bool:
        """Launch until three consecutive groups agree, or the time is over; say which."""
        limit_s = min(self.settings.settle_s, self.device.settle_s)
        deadline = time.monotonic() + limit_s
        tolerance = self.device.settle_tolerance
        if self._planned().group.backend == "host":
            tolerance = max(tolerance, HOST_TOLERANCE)
        recent: list[float] = []
        while True:
            times = [s.time_us for s in self._sample(SETTLE_SAMPLES)]
            recent = [*recent[1 - SETTLE_GROUPS :], statistics.median(times)]
            if len(recent) == SETTLE_GROUPS and max(recent) - min(recent) <= (
                tolerance * min(recent)
            ):
                return True
            if time.monotonic() > deadline:
                spread = f"last {len(recent)} groups differ by {max(recent) / min(recent) - 1:.2%}"
                few = f"only {len(recent)} of {SETTLE_GROUPS} groups fitted"
                why = spread if len(recent) == SETTLE_GROUPS else few
                self._log.notes.append(f"did not settle within {limit_s:g} s ({why})")
                return False

    def _sample(self, count: int) -> list[Sample]:
        plan = self._planned()
        return self.device.sample(
            plan.group, count, regime=self.case.regime, spin_us=plan.spin_us, flush=plan.flush
        )

    def _planned(self) -> SamplingPlan:
        if self._plan is None:
            raise CaseError("block() before prepare()", where=self.case.name)
        return self._plan
