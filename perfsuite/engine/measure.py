"""One variant inside a worker: checked, calibrated, settled, sampled in blocks, checked again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from numbers import Real
from typing import Any

from msgspec.structs import asdict

from perfsuite import model
from perfsuite.boundary import CaseError, DisturbedError, WrongResultError, is_measurable, shown
from perfsuite.devices.protocol import KERNELS, Device, count_kernels
from perfsuite.engine.calibrate import Plan, planned, settle
from perfsuite.engine.check import SEEDS, Checked, Recheck, check, marked, play
from perfsuite.engine.trace import artefact_of

VOIDED_MOST = 0.2
BAD_REASONS = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "ecc_error"})
# What disturbs often passes as soon as it came.
NAP_S = 0.3
# After another worker has measured, a part of what heats the device up will do.
LEAD_IN_US = 2e5
# NVML's counter of energy moves on in steps of up to a tenth of a second.
ENERGY_S = 2.0
# What the plays of one process may take together, if they are more than one: a play of seconds is
# itself long, and what is judged is one value of each process, of which there are several.
PLAYS_US = 2e6


@dataclass(slots=True)
class Session:
    """One variant on one device in one worker: check, prepare, take blocks, finish.

    The data of a check come from ``check_seed``, which all processes of a variant share.
    ``announce`` is called with the name of each phase that begins. The ranks of a gang agree on
    each step they take.
    """

    device: Device
    case: model.Case
    axes: model.Axes
    settings: model.Settings
    seed: int
    check_seed: int = 0
    announce: Callable[[str], object] = lambda _phase: None
    built: model.Buildable | None = None
    plan: Plan | None = None
    work: model.Work | None = None
    # What its evidence will say.
    phases_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, float] = field(default_factory=dict)
    blocks: list[model.Block] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    # What the check found and allowed, and what a scenario is expected to serve.
    checked: Checked = field(default_factory=Checked)
    _expected: Any = None
    # What is measured once, and told with the next block.
    _once: dict[str, tuple[float, ...]] = field(default_factory=dict)
    _is_first: bool = False

    # Built and checked.

    def check(self, *, is_thorough: bool = True) -> None:
        """Build and check; raises CaseError, WrongResultError, DeviceError.

        Not ``is_thorough``, a workload is launched on the last data of the check alone, to be
        matched with what another process of the same variant found.
        """
        with self.phase("build"):
            self.built = built = self._build()
            self.work = self.case.work(**self.axes) if self.case.work else None
        self._is_first = is_thorough
        with self.phase("check"):
            if isinstance(built, model.Inspection):  # there is nothing to time
                self.exact.update(self._inspect(built))
                self.told = {"backend": "counted"}
                return
            # A scenario's seed is that of all processes and runs: a trace of its own would be
            # another workload.
            if isinstance(built, model.Scenario):  # the check warms it up
                seed = self.settings.seed
                self.checked = check(self.device, built, seed=seed, is_thorough=is_thorough)
                self.told["backend"] = "played"
                return
            find = check if is_thorough else marked
            self.checked = find(self.device, built, seed=self.check_seed)
            inputs = built.make_inputs(self.device.rng(self.seed * SEEDS))
            if (peak := self.device.peak_bytes(built.fn, inputs)) is not None:
                self.exact[model.PEAK_BYTES.name] = float(peak)
            if built.exact is not None:
                taken = inputs if signature(built.exact).parameters else ()
                self.exact.update(self._declared(built.exact(*taken)))
            if KERNELS in self.case.metrics and KERNELS.name not in self.exact:
                counted = count_kernels(self.device.context(self.seed), partial(built.fn, *inputs))
                self.exact[KERNELS.name] = counted

    def match(self, known: Checked | None = None) -> None:
        """Take over what another process found of the same result, to the bit; else compare.

        Raises as ``check`` does. Ranks compare if one of them has another result.
        """
        if not isinstance(self.built, model.Workload):
            return
        with self.phase("check"):
            is_other = known is None or not known.mark or known.mark != self.checked.mark
            if self.device.agree(float(is_other)) or known is None:
                known = check(self.device, self.built, seed=self.check_seed, is_thorough=False)
            self.checked = known

    def launches(self, sets: int) -> list[Callable[[], object]]:
        """Build, and return a call for each input set that launches the variant once."""
        match self._build():
            case model.Workload() as workload:
                rngs = (self.device.rng(self.seed + index) for index in range(sets))
                return [partial(workload.fn, *workload.make_inputs(rng)) for rng in rngs]
            case model.Scenario() as scenario:
                return [partial(scenario.play, self.seed)]
            case inspection:
                return [inspection.read]

    def _build(self) -> model.Buildable:
        case = self.case
        built = case.build(self.device.context(self.seed), **self.axes)
        if not isinstance(built, (model.Workload, model.Inspection, model.Scenario)):
            raise CaseError(
                f"the builder returned {built!r}, no Workload, Inspection or Scenario",
                remedy="return perfsuite.Workload(fn=..., make_inputs=..., reference=..., ...)",
            )
        if isinstance(built, model.Inspection) != (case.regime is model.Regime.EXACT):
            raise CaseError(
                f"a {type(built).__name__} cannot be measured as {case.regime.value}",
                remedy="an Inspection needs regime=Regime.EXACT, and nothing else has it",
            )
        return built

    def _inspect(self, inspection: model.Inspection) -> dict[str, float]:
        """Return the metrics read, once they agree with the reference and the mistake does not."""
        found = self._declared(inspection.read())
        expected = self._declared(inspection.reference()) if inspection.reference else found
        if not (found and expected):
            raise CaseError("the inspection, or its reference, has no metric")
        if differences := _differences(found, expected):
            raise WrongResultError(
                f"metrics differ from the reference: {differences}",
                remedy="fix the implementation, or the reference if it is at fault",
            )
        if inspection.wrong:
            wrong = {**found, **self._declared(inspection.wrong())}
            if not _differences(wrong, expected):
                raise CaseError(
                    "the reference accepts the negative control",
                    remedy="let the reference hold a metric that the mistake changes",
                )
        return found

    def _declared(self, metrics: Any) -> dict[str, float]:
        """Return a case's own metrics as numbers; raises CaseError for one it did not declare."""
        known = {metric.name for metric in self.case.metrics}
        if not isinstance(metrics, Mapping):
            what = f"metrics are {type(metrics).__name__}, no mapping of names to numbers"
            raise CaseError(what, remedy='return {"launches": 3} or the like')
        for name, value in metrics.items():
            if name not in known:
                raise CaseError(
                    f"the workload reports a metric {name!r} that the case does not declare",
                    remedy=f"add it to @case(metrics=...); it has {', '.join(sorted(known))}",
                )
            if not (isinstance(value, Real) and is_measurable(float(value))):
                what = f"metric {name!r} is {shown(value)}, no number that can be stored"
                raise CaseError(what)
        return {name: float(value) for name, value in metrics.items()}

    # Calibrated: how it is to be sampled.

    def prepare(self, known: model.Sampling | None = None) -> model.Sampling | None:
        """Calibrate and settle, after a check if there was none; raises as that does.

        Samples as ``known`` says unless that cannot be, and returns how. None where that is no
        choice.
        """
        if self.built is None:
            self.check()
        if self.settings.check_only or not isinstance(self.built, model.Workload):
            return None
        with self.phase("calibrate"):
            self.plan = plan = planned(self, self.built, known)
        chosen = model.Sampling(plan.group.launches, len(plan.sets))
        self.told |= {**asdict(chosen), "backend": plan.group.backend, "pace": plan.pace}
        with self.phase("settle"):
            self.told["settled"] = settle(self, plan)
        if self.case.regime is model.Regime.SUSTAINED and not self.case.ranks:
            with self.phase("energy"):
                if joules := self.device.energy_j(plan.group, ENERGY_S):
                    self._once[model.ENERGY.name] = (joules,)
        return chosen

    # Sampled.

    def block(self) -> None:
        """Take a block of samples, again if the device was disturbed meanwhile.

        What has enough takes none.
        """
        count = len(self.blocks)
        if self.plan is not None:
            if count < self.plan.blocks:
                with self.timed("measure"):
                    self._take(self.plan)
        elif isinstance(self.built, model.Scenario) and count < self.settings.rounds:
            # One more play as long as the last may be too much, on any rank.
            times_us = [time_us for block in self.blocks for time_us in block.time_us]
            expected_us = sum((*times_us, *times_us[-1:]))
            if not times_us or self.device.agree(expected_us) <= PLAYS_US:
                with self.timed("measure"):
                    self._play(self.built)

    def _take(self, plan: Plan) -> None:
        device = self.device
        # Bring the clock to where it was before other workers measured.
        left_us = LEAD_IN_US if self.case.regime is model.Regime.SUSTAINED else 0.0
        while device.agree(left_us) > 0:
            spent_us = sum(s.time_us for s in plan.sample(plan.samples) if s.time_us > 0)
            left_us -= max(spent_us, plan.samples * self.settings.sample_us)

        started = time.monotonic()
        voided = 0
        while True:
            samples = plan.sample(plan.samples)
            good = [s for s in samples if not device.agree(not 0 < s.time_us < math.inf)]
            health = device.health()
            causes = sorted(BAD_REASONS.intersection(health.reasons))
            if (health.foreign_percent or 0.0) > device.foreign_most:
                causes.append(f"foreign load of {health.foreign_percent:.0f} %")
            is_lost = bool(causes) or len(good) < (1 - VOIDED_MOST) * len(samples)
            if not device.agree(is_lost):
                break
            voided += len(samples)
            cause = ", ".join(causes) or device.untimed
            self.notes.append(f"a block was voided: {cause}")
            if voided > VOIDED_MOST * self.settings.rounds * plan.samples + plan.samples:
                # What is wrong is so on a busy machine too; what launches nothing has no time
                # either.
                self.recheck()
                raise DisturbedError(
                    f"{voided} samples voided in one block ({cause})",
                    remedy="look at what slows the device (a GPU's clock event reasons), and at "
                    "other processes on it",
                )
            time.sleep(NAP_S)

        launches = plan.group.launches
        metrics, self._once = self._once, {}
        if plan.beside is not None:
            own = plan.beside.sample(plan.beside.samples)
            times = tuple(s.time_us / plan.beside.group.launches for s in own if s.time_us > 0)
            metrics |= {model.DEVICE_TIME.name: times} if times else {}
        block = model.Block(
            time_us=tuple(s.time_us / launches for s in good),
            cycles=tuple(s.cycles / launches for s in good if 0 < s.cycles < math.inf),
            voided=voided + len(samples) - len(good),
            start_s=started,
            health=health,
            metrics=_told(health) | metrics,
        )
        self.blocks.append(block)

    def _play(self, scenario: model.Scenario) -> None:
        """Play once: a play may hold many requests."""
        started = time.monotonic()
        # What was right once may be wrong on a warm cache, or when a graph is replayed.
        played = play(self.device, scenario, self.settings.seed, self._expected)
        time_us, found, comparison, self._expected = played
        self.checked = Checked(comparison.known_error, comparison.limit)
        health = self.device.health()
        metrics = _told(health) | {name: (value,) for name, value in self._declared(found).items()}
        block = model.Block(time_us=(time_us,), start_s=started, health=health, metrics=metrics)
        self.blocks.append(block)

    # Checked again, and told.

    def recheck(self) -> None:
        """Check once more, after the last block; raises as ``check`` does."""
        if self.plan is not None and isinstance(self.built, model.Workload):
            with self.phase("recheck"):
                Recheck(self, self.built, self.plan).run()

    def finish(self) -> model.Evidence:
        """Return all that this process has to say about the variant."""
        # One process is enough: what it compiled is the same in all, and PTX takes a second time.
        artefact = artefact_of(self.device) if self._is_first else ""
        return model.Evidence(
            slot=0,
            seed=self.seed,
            blocks=tuple(self.blocks),
            error=self.checked.known_error,
            exact=self.exact,
            phases_s=self.phases_s,
            busy_s=round(self.device.busy_s, 6),
            artefact=artefact,
            notes=tuple(self.notes),
            **self.told,
        )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce a phase and note how long it took; raises what the device reports."""
        self.announce(name)
        with self.timed(name):
            yield
            self.device.synchronize()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note wall time of a phase; what of it went into pacing is a phase of its own."""
        started, spun_s = time.monotonic(), self.device.spun_s
        yield
        spun_s = self.device.spun_s - spun_s
        for name, seconds in ((phase, time.monotonic() - started - spun_s), ("spin", spun_s)):
            total_s = self.phases_s.get(name, 0.0) + max(0.0, seconds)
            if total_s or name == phase:
                self.phases_s[name] = round(total_s, 6)


def _told(health: model.Health) -> dict[str, tuple[float, ...]]:
    """Return what a device's health says of the core's metrics, each in the field of its name."""
    told = {name: getattr(health, name, None) or 0.0 for name in model.OWN_METRICS}
    return {name: (value,) for name, value in told.items() if 0 < value < math.inf}


def _differences(found: Mapping[str, float], expected: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} is {found.get(name, math.nan):.9g} instead of {value:.9g}"
        for name, value in expected.items()
        if found.get(name) != value
    )
