"""One variant inside a worker: checked, calibrated, settled, sampled in blocks, checked again."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

from msgspec.structs import replace

from perfsuite.boundary import (
    CaseError,
    DisturbedError,
    WrongResultError,
    is_measurable,
    shown,
)
from perfsuite.devices.protocol import Device, Sample, sampled
from perfsuite.engine.calibrate import Calibration, Plan, is_steady, unsteady_note
from perfsuite.engine.check import SEEDS, Recheck, check_play, check_scenario, checked, played
from perfsuite.engine.trace import artefact_of
from perfsuite.model import (
    Axes,
    Block,
    Buildable,
    Case,
    Evidence,
    Health,
    Inspection,
    Regime,
    Sampling,
    Scenario,
    Settings,
    Workload,
)

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
# NVML's counter of energy moves on in steps of up to a tenth of a second.
ENERGY_S = 2.0
NOT_REFILLED = (
    "its inputs cannot be given other data: the timed launches were compared on their own"
)
STEADY, UNSTEADY, LATE = 0.0, 1.0, 2.0
# What the plays of one process may take together, if they are more than one: a play of seconds is
# itself long, and what is judged is one value of each process, of which there are several.
PLAYS_US = 2e6
# The orders in which the blocks of two variants alternate, so that what their worker suffers
# cancels.
QUADS = ((0, 1, 1, 0), (1, 0, 0, 1))

Announce = Callable[[str], None]


@dataclass(slots=True)
class Session:
    """One variant on one device in one worker: check, prepare, then block by turn, finish."""

    device: Device
    case: Case
    axes: Axes
    settings: Settings
    seed: int
    phases_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, float] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    _measuring: Measuring | None = None
    _is_first: bool = False

    @property
    def sampling(self) -> Sampling | None:
        """How the prepared variant is sampled; None where that is not a choice."""
        return self._prepared().evidence.sampling

    def check(self, announce: Announce, *, is_thorough: bool = True) -> None:
        """Build and check; raises CaseError, WrongResultError, DeviceError.

        Not ``is_thorough``, it checks on one set of data, and plants no mistake: another process
        of the same variant does so.
        """
        match self.phase("build", announce, self._build):
            case Workload() as workload:
                self._measuring = Launching(self, workload)
            case Scenario() as scenario:
                self._measuring = Playing(self, scenario)
            case inspection:
                self._measuring = Inspecting(self, inspection)
        self.phase("check", announce, partial(self._measuring.check, is_thorough=is_thorough))
        self._is_first = is_thorough

    def prepare(self, announce: Announce, sampling: Sampling | None = None) -> None:
        """Calibrate and settle, after a check if there was none; raises as that does."""
        if self._measuring is None:
            self.check(announce)
        self._prepared().prepare(announce, sampling)

    def block(self, *, is_paired: bool = False) -> None:
        """Take one turn's samples, again if the device was disturbed meanwhile.

        What has enough lets its turn pass, unless another's block ``is_paired`` with it.
        """
        measuring = self._prepared()
        if is_paired or not measuring.has_enough():
            with self.timed("measure"):
                measuring.block()

    def recheck(self, announce: Announce) -> None:
        """Check once more, after the last block; raises as ``check`` does."""
        self._prepared().recheck(announce)

    def finish(self) -> Evidence:
        """Return all that this process has to say about the variant."""
        # One process is enough: what it compiled is the same in all, and PTX takes a second time.
        artefact = artefact_of(self.device) if self._is_first else ""
        return replace(
            self._prepared().evidence,
            seed=self.seed,
            blocks=tuple(self.blocks),
            exact=self.exact,
            phases_s=self.phases_s,
            busy_s=round(self.device.busy_s, 6),
            artefact=artefact,
            notes=tuple(self.notes),
        )

    def launches(self, sets: int) -> list[Callable[[], object]]:
        """Build, and return a call for each input set that launches the variant once."""
        match self._build():
            case Workload() as workload:
                rngs = (self.device.rng(self.seed + index) for index in range(sets))
                return [partial(workload.fn, *workload.make_inputs(rng)) for rng in rngs]
            case Scenario() as scenario:
                return [partial(scenario.play, self.seed)]
            case inspection:
                return [inspection.read]

    def launch_once(self) -> Callable[[], None]:
        """Return a call that launches the built variant once (for profilers and debuggers)."""
        (once,) = self.launches(1)

        def launch() -> None:
            once()
            self.device.synchronize()

        return launch

    def phase(self, name: str, announce: Announce, act: Callable[[], Any]) -> Any:
        """Announce a phase, do it and note how long it took; raises what the device reports."""
        announce(name)
        with self.timed(name):
            value = act()
            self.device.synchronize()
        return value

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

    def declared(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return a case's own metrics as numbers; raises CaseError for one it did not declare."""
        if not isinstance(metrics, Mapping):
            raise CaseError(
                f"metrics are {type(metrics).__name__}, no mapping of names to numbers",
                where=self.case.name,
                remedy='return a dict such as {"launches": 3}',
            )
        known = {metric.name for metric in self.case.metrics}
        for name, value in metrics.items():
            if name not in known:
                raise CaseError(
                    f"the workload reports a metric {name!r} that the case does not declare",
                    where=self.case.name,
                    remedy=f"add it to @case(metrics=...); it has {', '.join(sorted(known))}",
                )
            if not (isinstance(value, Real) and is_measurable(float(value))):
                raise CaseError(
                    f"metric {name!r} is {shown(value)}, no number that can be stored",
                    where=self.case.name,
                )
        return {name: float(value) for name, value in metrics.items()}

    def _build(self) -> Buildable:
        case = self.case
        built = case.build(self.device.context(self.seed), **self.axes)
        if not isinstance(built, (Workload, Inspection, Scenario)):
            raise CaseError(
                f"the builder returned {built!r}, no Workload, Inspection or Scenario",
                where=case.name,
                remedy="return perfsuite.Workload(fn=..., make_inputs=..., reference=..., ...)",
            )
        if isinstance(built, Inspection) != (case.regime is Regime.EXACT):
            raise CaseError(
                f"a {type(built).__name__} cannot be measured as {case.regime.value}",
                where=case.name,
                remedy="an Inspection needs regime=Regime.EXACT, and nothing else has it",
            )
        return built

    def _prepared(self) -> Measuring:
        if self._measuring is None:
            raise CaseError("block() before prepare()", where=self.case.name)
        return self._measuring


class Measuring:
    """How one kind of what builders return is measured; ``evidence`` is what is known so far."""

    def __init__(self, session: Session, backend: str) -> None:
        self.session = session
        self.evidence = Evidence(slot=0, seed=0, backend=backend)

    def has_enough(self) -> bool:
        """Say whether more turns would only cost time."""
        return False

    def check(self, *, is_thorough: bool) -> None:
        """Have a wrong result refused; raises WrongResultError, CaseError, DeviceError."""
        raise NotImplementedError

    def prepare(self, announce: Announce, sampling: Sampling | None) -> None:
        """Get ready; sample as ``sampling`` says where that fits."""

    def block(self) -> None:
        """Take one turn's samples."""

    def recheck(self, announce: Announce) -> None:
        """Have a result refused that became wrong while it was timed."""


class Launching(Measuring):
    """The measuring of a workload; the ranks of a gang agree on each step they take."""

    def __init__(self, session: Session, workload: Workload) -> None:
        super().__init__(session, backend="")
        self._workload = workload
        self._is_sustained = session.case.regime is Regime.SUSTAINED
        self._plan: Plan | None = None
        self._joules: float | None = None
        self._launched, self._limit = 0, math.inf

    def check(self, *, is_thorough: bool) -> None:
        """Compare with the reference, and read what has no noise."""
        session, workload, device = self.session, self._workload, self.session.device
        where, seed = session.case.name, session.seed
        comparison = checked(device, workload, where=where, seed=seed, is_thorough=is_thorough)
        inputs = workload.make_inputs(device.rng(seed * SEEDS))
        peak = device.peak_bytes(workload.fn, inputs)
        if peak is not None:
            session.exact["peak_bytes"] = float(peak)
        if workload.exact is not None:
            session.exact.update(session.declared(workload.exact()))
        self._limit = comparison.limit
        self.evidence = replace(self.evidence, error=comparison.known_error)

    def prepare(self, announce: Announce, sampling: Sampling | None) -> None:
        """Calibrate, settle, and read the energy of what is sustained."""
        session, device = self.session, self.session.device
        if session.settings.check_only:
            return
        calibration = Calibration(
            device, session.case, session.axes, session.settings, session.seed, self._workload
        )
        plan = session.phase("calibrate", announce, partial(calibration.plan, sampling))
        self._plan = plan
        session.notes += plan.notes
        self.evidence = replace(
            self.evidence,
            launches=plan.group.launches,
            backend=plan.group.backend,
            pace=plan.pace,
            sets=len(plan.sets),
        )
        settled = session.phase("settle", announce, partial(self._settle, plan))
        self.evidence = replace(self.evidence, settled=settled)
        if self._is_sustained and not session.case.ranks:
            read = partial(device.energy_j, plan.group, ENERGY_S)
            self._joules = session.phase("energy", announce, read)

    def block(self) -> None:
        """Take one turn's samples, again if the device was disturbed meanwhile."""
        plan, session, device = self._planned(), self.session, self.session.device
        # Bring the clock to where it was before other workers had their turn.
        left_us = LEAD_IN_US if self._is_sustained else 0.0
        while device.agree(left_us) > 0:
            spent_us = sum(s.time_us for s in self._sample(plan, plan.samples) if s.time_us > 0)
            left_us -= max(spent_us, plan.samples * session.settings.sample_us)

        started = time.monotonic()
        voided = 0
        while True:
            samples = self._sample(plan, plan.samples)
            good = [s for s in samples if not device.agree(not 0 < s.time_us < math.inf)]
            health = device.health()
            cause = _disturbance(health, device.foreign_most)
            is_lost = bool(cause) or len(good) < (1 - VOIDED_MOST) * len(samples)
            if not device.agree(is_lost):
                break
            voided += len(samples)
            cause = cause or device.untimed
            session.notes.append(f"a block was voided: {cause}")
            if voided > VOIDED_MOST * session.settings.rounds * plan.samples + plan.samples:
                # What is wrong is so on a busy machine too; what launches nothing has no time
                # either.
                self._recheck()
                raise DisturbedError(
                    f"{voided} samples voided in one block ({cause})",
                    where=session.case.name,
                    remedy="look at what slows the device (a GPU's clock event reasons), and at "
                    "other processes on it",
                )
            time.sleep(NAP_S)

        launches = plan.group.launches
        metrics: dict[str, tuple[float, ...]] = {}
        if plan.beside is not None:
            own = self._timed(plan.beside, plan.beside.samples, Regime.PACED)
            times = tuple(s.time_us / plan.beside.group.launches for s in own if s.time_us > 0)
            metrics |= {"device_us": times} if times else {}
        if self._joules:
            metrics["energy_j"] = (self._joules,)
        self._joules = None
        session.blocks.append(
            Block(
                time_us=tuple(s.time_us / launches for s in good),
                cycles=tuple(s.cycles / launches for s in good if 0 < s.cycles < math.inf),
                voided=voided + len(samples) - len(good),
                start_s=started,
                health=health,
                metrics=metrics,
            )
        )

    def recheck(self, announce: Announce) -> None:
        """Compare once more, now that all is timed."""
        if self._plan is not None:
            self.session.phase("recheck", announce, self._recheck)

    def _recheck(self) -> None:
        plan, session = self._planned(), self.session
        recheck = Recheck(
            session.device,
            self._workload,
            plan.group,
            plan.sets,
            seed=session.seed,
            where=session.case.name,
            launches=self._launched,
            spent_s=sum(session.phases_s.get(name, 0.0) for name in ("settle", "measure", "spin")),
            limit=self._limit,
        )
        recheck.run()
        if not recheck.is_fresh:
            session.notes.append(NOT_REFILLED)

    def _settle(self, plan: Plan) -> bool:
        """Launch until groups are steady, or the time is over; say which."""
        session, device = self.session, self.session.device
        limit_s = min(session.settings.settle_s, device.settle_s)
        deadline = time.monotonic() + limit_s
        tolerance = device.settle_tolerance
        if plan.group.backend == "host" or session.case.ranks:
            tolerance = max(tolerance, LOOSE_TOLERANCE)
        # Of long samples a group needs fewer: each is itself the mean of a long time.
        count = max(1, SETTLE_SAMPLES * plan.samples // session.settings.samples)
        levels: list[float] = []
        left_us = SUSTAINED_US if self._is_sustained else 0.0
        while True:
            samples = [s for s in self._sample(plan, count) if 0 < s.time_us < math.inf]
            left_us -= sum(s.time_us for s in samples)
            if samples:  # a level that is no number would spoil the whole row
                levels.append(statistics.median(map(self._level, samples)))
            state = STEADY if is_steady(levels, tolerance) and not left_us > 0 else UNSTEADY
            if state and time.monotonic() > deadline:
                state = LATE
            state = device.agree(state)
            if state == LATE:
                session.notes.append(unsteady_note(levels, limit_s))
            if state != UNSTEADY:
                return state == STEADY

    def _level(self, sample: Sample) -> float:
        """Return what must not move any more: the clock where it is what was waited for."""
        has_clock = self._is_sustained and self.session.device.has_cycles
        return sample.cycles / sample.time_us if has_clock else sample.time_us

    def _sample(self, plan: Plan, count: int) -> list[Sample]:
        self._launched += count * plan.group.launches
        return self._timed(plan, count, self.session.case.regime)

    def _timed(self, plan: Plan, count: int, regime: Regime) -> list[Sample]:
        conditions = {"regime": regime, "spin_us": plan.spin_us, "flush": plan.flush}
        return sampled(self.session.device, plan.group, count, **conditions)

    def _planned(self) -> Plan:
        if self._plan is None:
            raise CaseError("block() before prepare()", where=self.session.case.name)
        return self._plan


def _disturbance(health: Health, foreign_most: float) -> str:
    """Say what about the device spoils a block, or nothing."""
    found = sorted(BAD_REASONS.intersection(health.reasons))
    if (health.foreign_percent or 0.0) > foreign_most:
        found.append(f"foreign load of {health.foreign_percent:.0f} %")
    return ", ".join(found)


class Playing(Measuring):
    """The measuring of a scenario: wall time and service metrics of each play."""

    def __init__(self, session: Session, scenario: Scenario) -> None:
        super().__init__(session, backend="played")
        self._scenario = scenario
        self._expected: Any = None

    def has_enough(self) -> bool:
        """Say whether one more play as long as the last is too much, on any rank."""
        times_us = [time_us for block in self.session.blocks for time_us in block.time_us]
        if not times_us:
            return False
        return self.session.device.agree(sum(times_us) + times_us[-1]) > PLAYS_US

    def check(self, *, is_thorough: bool) -> None:
        """Check one play, which warms up as well."""
        device, where = self.session.device, self.session.case.name
        seed = self.session.settings.seed
        error = check_scenario(
            device, self._scenario, where=where, seed=seed, is_thorough=is_thorough
        )
        self.evidence = replace(self.evidence, error=error)

    def block(self) -> None:
        """Play once: a play may hold many requests."""
        session, scenario, device = self.session, self._scenario, self.session.device
        where, seed = session.case.name, session.settings.seed
        started = time.monotonic()
        device.synchronize()
        begun = time.perf_counter()
        # The seed of all processes and runs: a trace of its own would be another workload.
        output, found = played(scenario, seed, where)
        device.synchronize()
        time_us = 1e6 * (time.perf_counter() - begun)
        if self._expected is None:
            self._expected = scenario.reference(seed)
        # What was right once may be wrong on a warm cache, or when a graph is replayed.
        error = check_play(device, scenario, (output, self._expected), where=where)
        self.evidence = replace(self.evidence, error=error)
        metrics = {name: (value,) for name, value in session.declared(found).items()}
        health = device.health()
        session.blocks.append(
            Block(time_us=(time_us,), start_s=started, health=health, metrics=metrics)
        )


class Inspecting(Measuring):
    """The measuring of an inspection: its metrics have no noise, and there is nothing to time."""

    def __init__(self, session: Session, inspection: Inspection) -> None:
        super().__init__(session, backend="counted")
        self._inspection = inspection

    def has_enough(self) -> bool:
        """Say yes: it was read when it was checked."""
        return True

    def check(self, *, is_thorough: bool) -> None:
        """Read, and have what is wrong refused; there is one process only."""
        del is_thorough
        inspection, where = self._inspection, self.session.case.name
        declared = self.session.declared
        found = declared(inspection.read())
        if not found:
            raise CaseError("the inspection read no metric", where=where)
        if inspection.reference is not None and inspection.wrong is not None:
            expected = declared(inspection.reference())
            if not expected:
                raise CaseError("the reference holds no metric", where=where)
            if difference := _difference(found, expected):
                raise WrongResultError(
                    f"metrics differ from the reference: {difference}",
                    where=where,
                    remedy="fix the implementation, or the reference if it is at fault",
                )
            if not _difference({**found, **declared(inspection.wrong())}, expected):
                raise CaseError(
                    "the reference accepts the negative control",
                    where=where,
                    remedy="let the reference hold a metric that the mistake changes",
                )
        self.session.exact.update(found)


def _difference(found: Mapping[str, float], expected: Mapping[str, float]) -> str:
    for name, value in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != value:
            return f"{name} is {found[name]:.9g} instead of {value:.9g}"
    return ""


class Quads:
    """Two variants in one worker: a block is four turns of theirs, ABBA or BAAB by the seed.

    ``sampling`` is the rival's, as ``prepare`` is given the session's own.
    """

    def __init__(
        self, own: Session, rival: Session, *, sampling: Sampling | None, seed: int
    ) -> None:
        self._sides = (own, rival)
        self._sampling = sampling
        self._order = random.Random(seed)  # noqa: S311 - an order, not a secret

    @property
    def sampling(self) -> Sampling | None:
        """How the session itself is sampled."""
        return self._sides[0].sampling

    def check(self, announce: Announce, *, is_thorough: bool = True) -> None:
        """Build and check both."""
        for side in self._sides:
            side.check(announce, is_thorough=is_thorough)

    def prepare(self, announce: Announce, sampling: Sampling | None = None) -> None:
        """Calibrate and settle both."""
        for side, known in zip(self._sides, (sampling, self._sampling), strict=True):
            side.prepare(announce, known)

    def block(self) -> None:
        """Take four turns."""
        for side in self._order.choice(QUADS):
            self._sides[side].block(is_paired=True)

    def recheck(self, announce: Announce) -> None:
        """Check both once more."""
        for side in self._sides:
            side.recheck(announce)

    def finish(self) -> tuple[Evidence, Evidence]:
        """Return what both have to say; the blocks of one quad are two by two."""
        own, rival = self._sides
        return own.finish(), rival.finish()
