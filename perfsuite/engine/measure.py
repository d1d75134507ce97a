"""One variant inside a worker: checked, calibrated, settled, sampled in blocks, checked again."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

from perfsuite.boundary import CaseError, DisturbedError, WrongResultError, is_measurable, shown
from perfsuite.devices.protocol import Device, Group, Sample, sampled
from perfsuite.engine.check import (
    SEEDS,
    Given,
    Recheck,
    check_scenario,
    checked,
    given,
    last_of,
    played,
)
from perfsuite.engine.trace import artefact_of
from perfsuite.model import (
    MOST_SETS,
    Axes,
    Block,
    Buildable,
    Case,
    Evidence,
    Inspection,
    Regime,
    Sampling,
    Scenario,
    Settings,
    Workload,
)

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
ORDERS = ((0, 1, 1, 0), (1, 0, 0, 1))


@dataclass(frozen=True, slots=True)
class Plan:
    """How a group is sampled; ``sets`` are the input sets that its launches rotate over.

    ``beside`` is how the device's own time is told where the host's is judged.
    """

    group: Group
    samples: int
    spin_us: float
    flush: bool
    sets: tuple[Given, ...] = ()
    beside: Plan | None = None


@dataclass(slots=True)
class Session:
    """One variant on one device in one worker: check, prepare, then block by turn, finish.

    ``announce`` is called with the name of each phase that begins. The ranks of a gang agree on
    each step they take.
    """

    device: Device
    case: Case
    axes: Axes
    settings: Settings
    seed: int
    announce: Callable[[str], object] = lambda _phase: None
    built: Buildable | None = None
    plan: Plan | None = None
    # What its evidence will say.
    phases_s: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    exact: dict[str, float] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    # What the check allowed, how many launches were timed, what a scenario is expected to serve.
    limit: float = math.inf
    launched: int = 0
    _expected: Any = None
    _joules: float | None = None
    _is_first: bool = False

    # Built and checked.

    def check(self, *, is_thorough: bool = True) -> None:
        """Build and check; raises CaseError, WrongResultError, DeviceError.

        Not ``is_thorough``, it checks on one set of data, and plants no mistake: another process
        of the same variant does so.
        """
        with self.phase("build"):
            self.built = self._build()
        self._is_first = is_thorough
        with self.phase("check"):
            match self.built:
                case Workload() as workload:
                    self._check_workload(workload, is_thorough=is_thorough)
                case Scenario() as scenario:  # which warms up as well
                    seed = self.settings.seed
                    error = check_scenario(
                        self.device,
                        scenario,
                        where=self.case.name,
                        seed=seed,
                        is_thorough=is_thorough,
                    )
                    self.told = {"backend": "played", "error": error}
                case Inspection() as inspection:  # there is nothing to time
                    self.exact.update(self._inspect(inspection))
                    self.told = {"backend": "counted"}

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

    def _check_workload(self, workload: Workload, *, is_thorough: bool) -> None:
        """Compare with the reference, and read what has no noise."""
        device, where, seed = self.device, self.case.name, self.seed
        comparison = checked(device, workload, where=where, seed=seed, is_thorough=is_thorough)
        inputs = workload.make_inputs(device.rng(seed * SEEDS))
        peak = device.peak_bytes(workload.fn, inputs)
        if peak is not None:
            self.exact["peak_bytes"] = float(peak)
        if workload.exact is not None:
            self.exact.update(self._declared(workload.exact()))
        self.limit = comparison.limit
        self.told = {"error": comparison.known_error}

    def _inspect(self, inspection: Inspection) -> dict[str, float]:
        """Return the metrics read, once they agree with the reference and the mistake does not."""
        where = self.case.name
        found = self._declared(inspection.read())
        expected = self._declared(inspection.reference()) if inspection.reference else found
        if not (found and expected):
            raise CaseError("the inspection, or its reference, has no metric", where=where)
        if differences := _differences(found, expected):
            raise WrongResultError(
                f"metrics differ from the reference: {differences}",
                where=where,
                remedy="fix the implementation, or the reference if it is at fault",
            )
        if inspection.wrong:
            wrong = {**found, **self._declared(inspection.wrong())}
            if not _differences(wrong, expected):
                raise CaseError(
                    "the reference accepts the negative control",
                    where=where,
                    remedy="let the reference hold a metric that the mistake changes",
                )
        return found

    def _declared(self, metrics: Any) -> dict[str, float]:
        """Return a case's own metrics as numbers; raises CaseError for one it did not declare."""
        known = {metric.name for metric in self.case.metrics}
        if not isinstance(metrics, Mapping):
            what = f"metrics are {type(metrics).__name__}, no mapping of names to numbers"
            raise CaseError(what, where=self.case.name, remedy='return {"launches": 3} or the like')
        for name, value in metrics.items():
            if name not in known:
                raise CaseError(
                    f"the workload reports a metric {name!r} that the case does not declare",
                    where=self.case.name,
                    remedy=f"add it to @case(metrics=...); it has {', '.join(sorted(known))}",
                )
            if not (isinstance(value, Real) and is_measurable(float(value))):
                what = f"metric {name!r} is {shown(value)}, no number that can be stored"
                raise CaseError(what, where=self.case.name)
        return {name: float(value) for name, value in metrics.items()}

    # Calibrated: how it is to be sampled.

    def prepare(self, known: Sampling | None = None) -> Sampling | None:
        """Calibrate and settle, after a check if there was none; raises as that does.

        Samples as ``known`` says where samples are not far too long by it, and returns how. None
        where that is no choice.
        """
        if self.built is None:
            self.check()
        if self.settings.check_only or not isinstance(self.built, Workload):
            return None
        with self.phase("calibrate"):
            self.plan = plan = self._planned(self.built, known)
        chosen = Sampling(plan.group.launches, len(plan.sets))
        self.told |= {"launches": chosen.launches, "sets": chosen.sets}
        self.told["backend"] = plan.group.backend
        with self.phase("settle"):
            self.told["settled"] = self._settle(plan)
        if self.case.regime is Regime.SUSTAINED and not self.case.ranks:
            with self.phase("energy"):
                self._joules = self.device.energy_j(plan.group, ENERGY_S)
        return chosen

    def _planned(self, workload: Workload, known: Sampling | None) -> Plan:
        """Return how to sample; raises CaseError when a launch leaves streams running."""
        device, case, most = self.device, self.case, self.settings.samples

        def inputs(index: int, *, is_kept: bool) -> Given:
            return given(device, workload, self.seed * SEEDS + index, is_kept=is_kept)

        sets = [inputs(0, is_kept=True)]
        launch_us = self._launch_us(workload, sets)

        # As many input sets as are cold, and launches for a sample of the length asked for or more.
        cold = 1
        if case.cold and workload.rotates:
            size = max(1, device.bytes_of(sets[0].arguments))
            cold = min(MOST_SETS, max(1, math.ceil(COLD_CACHES * device.cache_bytes / size)))
        rotated = count = int(device.agree(cold))
        fewest = max(1, math.ceil(self.settings.sample_us / launch_us))
        if rotated > fewest and rotated * launch_us > LONGEST_SAMPLE_US:
            count = 1
        launches = count * math.ceil(fewest / count)
        is_near = known and 1 / MOST_STRETCH <= known.launches / launches <= MOST_STRETCH
        if known and is_near and known.sets in {1, rotated}:
            launches, count = known.launches, known.sets
        flush = case.cold and (not workload.rotates or count < rotated)
        if flush and launches > 1:
            self.notes.append(f"only the first of {launches} launches of a sample is cold")
        last = last_of(launches, count)
        sets += [inputs(index, is_kept=index == last) for index in range(1, count)]

        group = self._group(workload, sets, launches)
        if not device.joins_streams(group):
            raise CaseError(
                "a launch returns before all its streams have joined the measuring stream",
                where=case.name,
                remedy="make the measuring stream wait for every stream the launch uses",
            )
        sample_us = launch_us * launches
        spin_us = self._spin_us(group, sample_us)
        has_own_clock = device.has_cycles and case.regime is not Regime.END_TO_END
        block_us = OWN_CLOCK_BLOCK_US if has_own_clock else BLOCK_US
        samples = _fitting(block_us, sample_us + spin_us, most=most)
        beside = None
        if device.has_cycles and not has_own_clock:
            own = self._group(workload, sets, launches, backend="loop")
            own_spin_us = ISSUE_MARGIN * self._issue_us(own)
            few = _fitting(OWN_CLOCK_BLOCK_US, sample_us + own_spin_us, most=BESIDE_SAMPLES)
            beside = Plan(own, few, own_spin_us, flush)
        return Plan(group, samples, spin_us, flush, tuple(sets), beside)

    def _launch_us(self, workload: Workload, sets: Sequence[Given]) -> float:
        """Estimate one launch: alone first, then in a longer group when it is short."""
        sample_us, launch_us = self.settings.sample_us, SHORTEST_US
        for most in ESTIMATE_LAUNCHES:
            # A graph of many more launches than will be sampled takes long to make, and to start.
            launches = min(most, math.ceil(sample_us / launch_us))
            group = self._group(workload, sets, launches)
            spin_us = ESTIMATE_SPIN_US
            if group.backend == "loop":
                # What the host takes to issue many kernels one by one is no part of the estimate,
                # or short launches of many kernels would be sampled alone.
                spin_us = max(spin_us, ISSUE_MARGIN * self._issue_us(group))
            plan = Plan(group, ESTIMATE_SAMPLES, spin_us, flush=False)
            samples = self._sampled(plan, plan.samples, self.case.regime)
            # The least: a first launch may still compile or load, and be no measure of the rest.
            times = [s.time_us for s in samples if math.isfinite(s.time_us)]
            if not times:
                raise DisturbedError("no sample of the first launches has a time")
            launch_us = self.device.agree(max(min(times) / launches, SHORTEST_US))
            if launch_us > sample_us / 5:
                break
        return launch_us

    def _group(
        self, workload: Workload, sets: Sequence[Given], launches: int, backend: str = ""
    ) -> Group:
        """Make a group; a single launch needs no graph, whose copy nodes may take other paths."""
        if not backend:
            backend = "graph" if workload.captures and launches > 1 else "loop"
            if self.case.regime is Regime.END_TO_END:
                backend = "host"
        arguments = [each.arguments for each in sets]
        return self.device.group(workload.fn, arguments, launches, backend=backend)

    def _spin_us(self, group: Group, sample_us: float) -> float:
        """Return the spin before each sample, and tell what multiple of the sample it is."""
        if self.case.regime is not Regime.PACED:
            return 0.0
        work = self.case.work(**self.axes) if self.case.work else None
        is_light = work and work.bytes and work.flops <= COMPUTE_HEAVY * work.bytes
        pace = self.told["pace"] = PACE_MEMORY if is_light else PACE_COMPUTE
        if group.backend != "loop":
            return pace * sample_us
        # The spin must outlast the host's issuing of the loop, or launch overhead is timed.
        return max(pace * sample_us, ISSUE_MARGIN * self._issue_us(group))

    def _issue_us(self, group: Group) -> float:
        self.device.synchronize()
        started = time.perf_counter()
        group()
        issued = time.perf_counter() - started
        self.device.synchronize()
        return self.device.agree(issued * 1e6)

    def _settle(self, plan: Plan) -> bool:
        """Launch until groups are steady, or the time is over; say which."""
        device, is_sustained = self.device, self.case.regime is Regime.SUSTAINED
        limit_s = min(self.settings.settle_s, device.settle_s)
        deadline = time.monotonic() + limit_s
        tolerance = device.settle_tolerance
        if plan.group.backend == "host" or self.case.ranks:
            tolerance = max(tolerance, LOOSE_TOLERANCE)
        # Of long samples a group needs fewer: each is itself the mean of a long time.
        count = max(1, SETTLE_SAMPLES * plan.samples // self.settings.samples)
        # The clock must not move any more where it is what was waited for.
        has_clock = is_sustained and device.has_cycles
        levels: list[float] = []
        left_us = SUSTAINED_US if is_sustained else 0.0
        while True:
            samples = [s for s in self._sample(plan, count) if 0 < s.time_us < math.inf]
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
                self.notes.append(f"did not settle within {limit_s:g} s (at last: {last})")
            if state != UNSTEADY:
                return state == STEADY

    # Sampled.

    def block(self, *, is_paired: bool = False) -> None:
        """Take one turn's samples, again if the device was disturbed meanwhile.

        A scenario that has enough lets its turn pass, unless another's block ``is_paired`` with it.
        """
        if self.plan is not None:
            with self.timed("measure"):
                self._take(self.plan)
        elif isinstance(self.built, Scenario):
            # One more play as long as the last may be too much, on any rank.
            times_us = [time_us for block in self.blocks for time_us in block.time_us]
            expected_us = sum((*times_us, *times_us[-1:]))
            if is_paired or not times_us or self.device.agree(expected_us) <= PLAYS_US:
                with self.timed("measure"):
                    self._play(self.built)

    def _take(self, plan: Plan) -> None:
        device = self.device
        # Bring the clock to where it was before other workers had their turn.
        left_us = LEAD_IN_US if self.case.regime is Regime.SUSTAINED else 0.0
        while device.agree(left_us) > 0:
            spent_us = sum(s.time_us for s in self._sample(plan, plan.samples) if s.time_us > 0)
            left_us -= max(spent_us, plan.samples * self.settings.sample_us)

        started = time.monotonic()
        voided = 0
        while True:
            samples = self._sample(plan, plan.samples)
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
                self._recheck()
                raise DisturbedError(
                    f"{voided} samples voided in one block ({cause})",
                    where=self.case.name,
                    remedy="look at what slows the device (a GPU's clock event reasons), and at "
                    "other processes on it",
                )
            time.sleep(NAP_S)

        launches = plan.group.launches
        metrics: dict[str, tuple[float, ...]] = {}
        if plan.beside is not None:
            own = self._sampled(plan.beside, plan.beside.samples, Regime.PACED)
            times = tuple(s.time_us / plan.beside.group.launches for s in own if s.time_us > 0)
            metrics |= {"device_us": times} if times else {}
        if self._joules:
            metrics["energy_j"] = (self._joules,)
        self._joules = None
        block = Block(
            time_us=tuple(s.time_us / launches for s in good),
            cycles=tuple(s.cycles / launches for s in good if 0 < s.cycles < math.inf),
            voided=voided + len(samples) - len(good),
            start_s=started,
            health=health,
            metrics=metrics,
        )
        self.blocks.append(block)

    def _play(self, scenario: Scenario) -> None:
        """Play once: a play may hold many requests."""
        started = time.monotonic()
        # The seed of all processes and runs: a trace of its own would be another workload. What was
        # right once may be wrong on a warm cache, or when a graph is replayed.
        where, seed = self.case.name, self.settings.seed
        time_us, found, error, self._expected = played(
            self.device, scenario, where=where, seed=seed, expected=self._expected
        )
        self.told["error"] = error
        metrics = {name: (value,) for name, value in self._declared(found).items()}
        health = self.device.health()
        block = Block(time_us=(time_us,), start_s=started, health=health, metrics=metrics)
        self.blocks.append(block)

    def _sample(self, plan: Plan, count: int) -> list[Sample]:
        self.launched += count * plan.group.launches
        return self._sampled(plan, count, self.case.regime)

    def _sampled(self, plan: Plan, count: int, regime: Regime) -> list[Sample]:
        conditions = {"regime": regime, "spin_us": plan.spin_us, "flush": plan.flush}
        return sampled(self.device, plan.group, count, **conditions)

    # Checked again, and told.

    def recheck(self) -> None:
        """Check once more, after the last block; raises as ``check`` does."""
        if self.plan is not None:
            with self.phase("recheck"):
                self._recheck()

    def _recheck(self) -> None:
        if self.plan is not None and isinstance(self.built, Workload):
            recheck = Recheck(self, self.built, self.plan)
            recheck.run()
            if not recheck.is_fresh:
                self.notes.append(NOT_REFILLED)

    def finish(self) -> tuple[Evidence, ...]:
        """Return all that this process has to say about the variant."""
        # One process is enough: what it compiled is the same in all, and PTX takes a second time.
        artefact = artefact_of(self.device) if self._is_first else ""
        evidence = Evidence(
            slot=0,
            seed=self.seed,
            blocks=tuple(self.blocks),
            exact=self.exact,
            phases_s=self.phases_s,
            busy_s=round(self.device.busy_s, 6),
            artefact=artefact,
            notes=tuple(self.notes),
            **self.told,
        )
        return (evidence,)

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


class Pair:
    """Two variants in one worker: a block is four turns of theirs, ABBA or BAAB by the seed.

    ``known`` is the rival's sampling, as ``prepare`` is given the session's own.
    """

    def __init__(self, own: Session, rival: Session, *, known: Sampling | None, seed: int) -> None:
        self._sides = (own, rival)
        self._known = known
        self._order = random.Random(seed)  # noqa: S311 - an order, not a secret

    def check(self, *, is_thorough: bool = True) -> None:
        """Build and check both."""
        for side in self._sides:
            side.check(is_thorough=is_thorough)

    def prepare(self, known: Sampling | None = None) -> Sampling | None:
        """Calibrate and settle both; return how the session itself is sampled."""
        own, rival = self._sides
        chosen = own.prepare(known)
        rival.prepare(self._known)
        return chosen

    def block(self) -> None:
        """Take four turns."""
        for side in self._order.choice(ORDERS):
            self._sides[side].block(is_paired=True)

    def recheck(self) -> None:
        """Check both once more."""
        for side in self._sides:
            side.recheck()

    def finish(self) -> tuple[Evidence, ...]:
        """Return what both have to say; their blocks belong together two by two."""
        own, rival = self._sides
        return own.finish() + rival.finish()


def _differences(found: Mapping[str, float], expected: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} is {found.get(name, math.nan):.9g} instead of {value:.9g}"
        for name, value in expected.items()
        if found.get(name) != value
    )


def _fitting(block_us: float, sample_us: float, *, most: int) -> int:
    """Return how many samples a block holds."""
    return max(FEWEST_SAMPLES, min(most, int(block_us / sample_us)))


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
