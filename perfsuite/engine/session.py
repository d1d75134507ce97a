"""One variant in one worker: what its builder returns decides how it is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from perfsuite.device import Device
from perfsuite.engine.bench import Bench
from perfsuite.engine.inspecting import Inspecting
from perfsuite.engine.launching import Launching
from perfsuite.engine.playing import Playing
from perfsuite.engine.tracing import artefact_of
from perfsuite.errors import CaseError
from perfsuite.model import (
    Axes,
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
