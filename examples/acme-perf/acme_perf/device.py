"""The Acme A1, simulated: its memory is numpy's, its clock is virtual, its noise comes from a seed.

A real device's module would talk to its driver here; all that perfsuite asks of it is the same.
"""

from __future__ import annotations

import math
import os
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import perfsuite
from acme_perf.assembler import Program

CLOCK_MHZ = 1000.0
MEMORY_BYTES = 16 << 30
# Relative standard deviations: of a sample, of a process, of a unit.
WITHIN, BETWEEN, UNITS = 0.002, 0.0008, 0.0005
TOLERANCE = 1e-6


@dataclass(slots=True)
class Context(perfsuite.Context):
    """What a builder is handed: it launches programs of the A1."""

    owner: A1 = field(kw_only=True)

    def launch(self, program: Program, **operands: Any) -> None:
        """Run a program on arrays and numbers by the names that it uses."""
        self.owner.run(program, operands)


class Rng:
    """Inputs as numpy arrays; all places are one."""

    def __init__(self, seed: int) -> None:
        self.outputs: list[Any] = []
        self._draw = np.random.default_rng(seed)

    def randn(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """Standard normal values."""
        del place
        return self._draw.standard_normal(shape).astype(dtype)

    def rand(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """Uniform values in [0, 1)."""
        del place
        return self._draw.random(shape).astype(dtype)

    def randint(self, low: int, high: int, *shape: int, dtype: str = "int32") -> Any:
        """Uniform integers in [low, high)."""
        return self._draw.integers(low, high, shape).astype(dtype)

    def empty(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """An output, to be written by the launch."""
        del place
        self.outputs.append(np.empty(shape, dtype))
        return self.outputs[-1]


class A1(perfsuite.Device):
    """One A1, with two clocks: time, and the cycles of its cores.

    ACME_A1_SLOWDOWN=1.05 plants a slowdown: each program takes 1.05 times the cycles it should.
    """

    name = "acme"
    cache_bytes = 1 << 20
    has_cycles = True

    def __init__(self, *, unit: str, seed: int) -> None:
        self._unit = unit
        self._cycles = 0.0
        self._slowdown = float(os.environ.get("ACME_A1_SLOWDOWN", "1"))
        self._noise = random.Random(seed)
        level = random.Random(zlib.crc32(unit.encode())).gauss(0, UNITS)
        self._process = math.exp(level + self._noise.gauss(0, BETWEEN))
        self._seen: list[perfsuite.TracedKernel] | None = None

    def facts(self) -> perfsuite.DeviceFacts:
        """Describe the device."""
        return perfsuite.DeviceFacts(
            device=self.name,
            name="Acme A1",
            unit=self._unit,
            identity={"vendor": "acme", "name": "Acme A1", "cores": "8"},
            state={"power_cap_w": os.environ.get("ACME_A1_POWER_CAP", "300")},
            environment={"driver": "a1-sim 1.0"},
            arch="a1",
            memory_bytes=MEMORY_BYTES,
            clocks=("time_us", "cycles"),
        )

    def context(self, seed: int) -> Context:
        """Return what a builder needs."""
        return Context(seed, self.name, "acme", "a1", owner=self)

    def rng(self, seed: int) -> Rng:
        """Return a maker of inputs."""
        return Rng(seed)

    def digest(self, arguments: tuple[Any, ...], outputs: Sequence[Any]) -> object:
        """Return a checksum of each array that is no output."""
        return [zlib.crc32(each.tobytes()) for each in _inputs(arguments, outputs)]

    def refill(
        self, arguments: tuple[Any, ...], fresh: tuple[Any, ...], outputs: Sequence[Any]
    ) -> bool:
        """Copy other data to where the arguments lie."""
        for old, new in zip(arguments, fresh, strict=True):
            if _inputs((old,), outputs):
                np.copyto(old, new)
        return True

    def bytes_of(self, values: Sequence[Any]) -> int:
        """Return the bytes of the arrays among ``values``."""
        return sum(each.nbytes for each in values if isinstance(each, np.ndarray))

    def poison(self, outputs: Sequence[Any]) -> None:
        """Overwrite outputs with NaN, integers with their largest number."""
        for each in (each for each in outputs if isinstance(each, np.ndarray)):
            each[...] = np.nan if each.dtype.kind == "f" else np.iinfo(each.dtype).max

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> perfsuite.Comparison:
        """Compare an output (array or tuple of arrays) with its reference, by relative L2 error."""
        limit = TOLERANCE if tolerance is None else tolerance
        got, want = (np.ravel(np.asarray(side, np.float64)) for side in (actual, expected))
        if got.shape != want.shape:
            return perfsuite.Comparison(math.inf, limit, f"{got.size} values, not {want.size}")
        error = float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1.0))
        if not math.isfinite(error):
            return perfsuite.Comparison(math.inf, limit, "NaN or infinity in the output")
        reason = "" if error <= limit else f"relative error {error:.3g} above {limit:.3g}"
        return perfsuite.Comparison(error, limit, reason)

    def group(
        self,
        fn: Callable[..., Any],
        sets: Sequence[tuple[Any, ...]],
        launches: int,
        *,
        backend: str,
    ) -> perfsuite.Group:
        """Launch over the input sets in turn; the A1 knows no graphs."""

        def issue() -> None:
            for index in range(launches):
                fn(*sets[index % len(sets)])

        return perfsuite.Group(issue, launches, "host" if backend == "host" else "loop")

    def sample(
        self,
        group: perfsuite.Group,
        count: int,
        *,
        regime: perfsuite.Regime,
        spin_us: float,
        flush: bool,
    ) -> list[perfsuite.Sample]:
        """Run the group and read the virtual clock, with noise."""
        del regime, spin_us, flush
        samples = []
        for _ in range(count):
            before = self._cycles
            group()
            spent = self._process * (self._cycles - before)
            cycles = spent * math.exp(self._noise.gauss(0, WITHIN))
            samples.append(perfsuite.Sample(cycles / CLOCK_MHZ, cycles))
            self.busy_s += cycles / CLOCK_MHZ / 1e6
        return samples

    def health(self) -> perfsuite.Health:
        """Return the state that its sensors would tell."""
        return perfsuite.Health(power_w=180.0, temperature_c=55.0, sm_clock_mhz=CLOCK_MHZ)

    def traced(self, issue: Callable[[], object]) -> Sequence[perfsuite.TracedKernel]:
        """Return the programs that ran."""
        seen: list[perfsuite.TracedKernel] = []
        self._seen = seen
        issue()
        self._seen = None
        return seen

    def run(self, program: Program, operands: dict[str, Any]) -> None:
        """Run a program, and let the clock go on by what it costs."""
        registers: dict[str, Any] = {}
        for line in program.code:
            match (line.name, *line.operands):
                case ("load", to, buffer):
                    registers[to] = operands[buffer].copy()
                case ("store", register, buffer):
                    operands[buffer][...] = registers[register]
                case ("scale", to, register, number):
                    registers[to] = registers[register] * np.float32(operands[number])
                case ("exp", to, register):
                    registers[to] = np.exp(registers[register])
                case ("add", to, one, other):
                    registers[to] = registers[one] + registers[other]
        count = max(each.size for each in operands.values() if isinstance(each, np.ndarray))
        cycles = self._slowdown * program.cycles(count)
        self._cycles += cycles
        if self._seen is not None:
            kernel = perfsuite.TracedKernel(
                name=program.name, count=1, duration_us=cycles / CLOCK_MHZ
            )
            self._seen.append(kernel)


def _inputs(arguments: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the arrays among the arguments that are no outputs."""
    arrays = [each for each in arguments if isinstance(each, np.ndarray)]
    return [each for each in arrays if not any(each is output for output in outputs)]
