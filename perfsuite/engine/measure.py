"""One variant inside a worker: checked, prepared, sampled in blocks, checked again."""

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
from typing import Any, Protocol

from msgspec.structs import replace

from perfsuite.boundary import (
    CaseError,
    DisturbedError,
    WrongResultError,
    is_measurable,
    shown,
)
from perfsuite.devices.protocol import Device, Sample, sampled
from perfsuite.engine.calibrate import Calibration, Groups, SamplingPlan
from perfsuite.engine.check import (
    SEEDS,
    Recheck,
    Timed,
    check_play,
    check_scenario,
    checked,
    played,
)
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

# What the parts of one variant's measuring share: the device, the case and what is noted.


@dataclass(slots=True)
class Log:
    """What is handed back besides the plan: phases by wall seconds, notes, counts, samples."""

    phases: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, float] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """One variant on one device in one worker."""

    device: Device
    case: Case
    axes: Axes
    settings: Settings
    seed: int
    log: Log = field(default_factory=Log)

    def phase(self, name: str, announce: Callable[[str], None], act: Callable[[], Any]) -> Any:
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
            total_s = self.log.phases.get(name, 0.0) + max(0.0, seconds)
            if total_s or name == phase:
                self.log.phases[name] = round(total_s, 6)

    def declared(self, metrics: Mapping[str, float]) -> dict[str, float]:
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
            if not _is_number(value):
                raise CaseError(
                    f"metric {name!r} is {shown(value)}, no number that can be stored",
                    where=self.case.name,
                )
        return {name: float(value) for name, value in metrics.items()}


def _is_number(value: Any) -> bool:
    """Say whether a value is a number that a run file can hold, of whichever library."""
    return isinstance(value, Real) and bool(is_measurable(float(value)))


# Reads a variant's metrics without noise, and has them refused when they are wrong.


class Inspecting:
    """The measuring of an inspection: there is nothing to time."""

    def __init__(self, bench: Bench, inspection: Inspection) -> None:
        self._bench = bench
        self._inspection = inspection

    @property
    def has_enough(self) -> bool:
        """Say yes: it was read when it was checked."""
        return True

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Read and check; raises WrongResultError or CaseError."""
        del is_thorough  # there is one process only
        self._bench.phase("check", announce, self._read)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Do nothing more."""

    def block(self) -> None:
        """Take no samples."""

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Do nothing more."""

    def evidence(self) -> Evidence:
        """Return an evidence that was counted, not timed."""
        return Evidence(slot=0, seed=0, backend="counted")

    def _read(self) -> None:
        bench, inspection = self._bench, self._inspection
        found = bench.declared(inspection.read())
        if not found:
            raise CaseError("the inspection read no metric", where=bench.case.name)
        if inspection.reference is not None and inspection.wrong is not None:
            expected = bench.declared(inspection.reference())
            if not expected:
                raise CaseError("the reference holds no metric", where=bench.case.name)
            difference = _difference(found, expected)
            if difference:
                raise WrongResultError(
                    f"metrics differ from the reference: {difference}",
                    where=bench.case.name,
                    remedy="fix the implementation, or the reference if it is at fault",
                )
            if not _difference({**found, **bench.declared(inspection.wrong())}, expected):
                raise CaseError(
                    "the reference accepts the negative control",
                    where=bench.case.name,
                    remedy="let the reference hold a metric that the mistake changes",
                )
        bench.log.exact.update(found)


def _difference(found: Mapping[str, float], expected: Mapping[str, float]) -> str:
    for name, value in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != value:
            return f"{name} is {found[name]:.9g} instead of {value:.9g}"
    return ""


# Measures a workload: check, calibrate, settle, blocks of samples.


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


# Plays a service scenario and times each play.


# What the plays of one process may take together, if they are more than one: a play of seconds is
# itself long, and what is judged is one value of each process, of which there are several.
PLAYS_US = 2e6


class Playing:
    """The measuring of a scenario: wall time and service metrics of each play."""

    def __init__(self, bench: Bench, scenario: Scenario) -> None:
        self._bench = bench
        self._scenario = scenario
        self._error: float | None = None
        self._expected: Any = None

    @property
    def has_enough(self) -> bool:
        """Say whether one more play as long as the last is too much, on any rank."""
        times_us = [time_us for block in self._bench.log.blocks for time_us in block.time_us]
        if not times_us:
            return False
        return self._bench.device.agree(sum(times_us) + times_us[-1]) > PLAYS_US

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Check one play, which warms up as well; raises WrongResultError or CaseError."""
        bench = self._bench

        def checked() -> float | None:
            return check_scenario(
                bench.device,
                self._scenario,
                where=bench.case.name,
                seed=bench.settings.seed,
                is_thorough=is_thorough,
            )

        self._error = bench.phase("check", announce, checked)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Do nothing more."""

    def block(self) -> None:
        """Play once: a play may hold many requests."""
        with self._bench.timed("measure"):
            self._play()

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Do nothing more: the output of each play was compared."""

    def evidence(self) -> Evidence:
        """Return the error of the check; a play is one launch."""
        return Evidence(slot=0, seed=0, backend="played", error=self._error)

    def _play(self) -> None:
        bench = self._bench
        started = time.monotonic()
        bench.device.synchronize()
        begun = time.perf_counter()
        # The seed of all processes and runs: a trace of its own would be another workload.
        output, found = played(self._scenario, bench.settings.seed, bench.case.name)
        bench.device.synchronize()
        time_us = 1e6 * (time.perf_counter() - begun)
        if self._expected is None:
            self._expected = self._scenario.reference(bench.settings.seed)
        # What was right once may be wrong on a warm cache, or when a graph is replayed.
        pair = (output, self._expected)
        self._error = check_play(bench.device, self._scenario, pair, where=bench.case.name)
        bench.log.blocks.append(
            Block(
                time_us=(time_us,),
                start_s=started,
                health=bench.device.health(),
                metrics={name: (value,) for name, value in bench.declared(found).items()},
            )
        )


# One variant in one worker: what its builder returns decides how it is measured.


class Part(Protocol):
    """How one kind of workload is measured."""

    @property
    def has_enough(self) -> bool:
        """Say whether more turns would only cost time."""

    def check(self, announce: Callable[[str], None], *, is_thorough: bool) -> None:
        """Have a wrong result refused; raises WrongResultError, CaseError, DeviceError."""

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None) -> None:
        """Get ready; sample as ``sampling`` says where that fits."""

    def block(self) -> None:
        """Take one turn's samples."""

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Have a result refused that became wrong while it was timed."""

    def evidence(self) -> Evidence:
        """Return what is known besides the log."""


class Session:
    """One variant on one device in one worker: check, prepare, then block by turn, finish."""

    def __init__(
        self, device: Device, case: Case, axes: Axes, settings: Settings, seed: int
    ) -> None:
        self._bench = Bench(device, case, axes, settings, seed)
        self._part: Part | None = None
        self._is_first = False

    @property
    def sampling(self) -> Sampling | None:
        """How the prepared variant is sampled; None where that is not a choice."""
        return self._prepared().evidence().sampling

    def check(self, announce: Callable[[str], None], *, is_thorough: bool = True) -> None:
        """Build and check; raises CaseError, WrongResultError, DeviceError.

        Not ``is_thorough``, it checks on one set of data, and plants no mistake: another process
        of the same variant does so.
        """
        built = self._bench.phase("build", announce, self._build)
        self._part = _part(self._bench, built)
        self._part.check(announce, is_thorough=is_thorough)
        self._is_first = is_thorough

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None = None) -> None:
        """Calibrate and settle, after a check if there was none; raises as that does."""
        if self._part is None:
            self.check(announce)
        self._prepared().prepare(announce, sampling)

    def block(self, *, is_paired: bool = False) -> None:
        """Take one turn's samples, again if the device was disturbed meanwhile.

        What has enough lets its turn pass, unless another's block ``is_paired`` with it.
        """
        part = self._prepared()
        if is_paired or not part.has_enough:
            part.block()

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Check once more, after the last block; raises as ``check`` does."""
        self._prepared().recheck(announce)

    def finish(self) -> Evidence:
        """Return all that this process has to say about the variant."""
        log = self._bench.log
        # One process is enough: what it compiled is the same in all, and PTX takes a second time.
        artefact = artefact_of(self._bench.device) if self._is_first else ""
        return replace(
            self._prepared().evidence(),
            seed=self._bench.seed,
            blocks=tuple(log.blocks),
            exact=log.exact,
            phases_s=log.phases,
            busy_s=round(self._bench.device.busy_s, 6),
            artefact=artefact,
            notes=tuple(log.notes),
        )

    def launches(self, sets: int) -> list[Callable[[], object]]:
        """Build, and return a call for each input set that launches the variant once."""
        device, seed = self._bench.device, self._bench.seed
        match self._build():
            case Workload() as workload:
                rngs = (device.rng(seed + index) for index in range(sets))
                return [partial(workload.fn, *workload.make_inputs(rng)) for rng in rngs]
            case Scenario() as scenario:
                return [partial(scenario.play, seed)]
            case inspection:
                return [inspection.read]

    def launch_once(self) -> Callable[[], None]:
        """Return a call that launches the built variant once (for profilers and debuggers)."""
        (once,) = self.launches(1)

        def launch() -> None:
            once()
            self._bench.device.synchronize()

        return launch

    def _build(self) -> Buildable:
        bench = self._bench
        built = bench.case.build(bench.device.context(bench.seed), **bench.axes)
        if not isinstance(built, (Workload, Inspection, Scenario)):
            raise CaseError(
                f"the builder returned {built!r}, no Workload, Inspection or Scenario",
                where=bench.case.name,
                remedy="return perfsuite.Workload(fn=..., make_inputs=..., reference=..., ...)",
            )
        if isinstance(built, Inspection) != (bench.case.regime is Regime.EXACT):
            raise CaseError(
                f"a {type(built).__name__} cannot be measured as {bench.case.regime.value}",
                where=bench.case.name,
                remedy="an Inspection needs regime=Regime.EXACT, and nothing else has it",
            )
        return built

    def _prepared(self) -> Part:
        if self._part is None:
            raise CaseError("block() before prepare()", where=self._bench.case.name)
        return self._part


def _part(bench: Bench, built: Buildable) -> Part:
    match built:
        case Workload():
            return Launching(bench, built)
        case Scenario():
            return Playing(bench, built)
        case Inspection():
            return Inspecting(bench, built)


# Two variants in one worker whose blocks alternate in quads, so that what it suffers cancels.


QUADS = ((0, 1, 1, 0), (1, 0, 0, 1))


class Quads:
    """A session and its rival: a block is a quad, ABBA or BAAB, drawn from the seed.

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

    def check(self, announce: Callable[[str], None], *, is_thorough: bool = True) -> None:
        """Build and check both."""
        for side in self._sides:
            side.check(announce, is_thorough=is_thorough)

    def prepare(self, announce: Callable[[str], None], sampling: Sampling | None = None) -> None:
        """Calibrate and settle both."""
        own, rival = self._sides
        own.prepare(announce, sampling)
        rival.prepare(announce, self._sampling)

    def block(self) -> None:
        """Take four turns."""
        for side in self._order.choice(QUADS):
            self._sides[side].block(is_paired=True)

    def recheck(self, announce: Callable[[str], None]) -> None:
        """Check both once more."""
        for side in self._sides:
            side.recheck(announce)

    def finish(self) -> tuple[Evidence, Evidence]:
        """Return what both have to say; the blocks of one quad are two by two."""
        own, rival = self._sides
        return own.finish(), rival.finish()
