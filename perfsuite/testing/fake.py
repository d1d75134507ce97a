"""A device whose clocks follow a script, for tests of perfsuite and of packs."""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from perfsuite.boundary import from_environment
from perfsuite.devices import plain, protocol
from perfsuite.devices.protocol import Arguments, Fn, Gang, Group, Loaded, Sample
from perfsuite.model import BUILT_IN_DEVICES, DeviceFacts, Gpu, Health, TracedKernel

POISON = float("nan")
CLOCK_MHZ = 2000.0
DEFAULT_US = 100.0
TOLERANCE = 1e-6


class FakeRng(plain.PlainRng):
    """Inputs as lists of floats, flattened."""

    def randn(self, *shape: int, **_kind: str) -> list[float]:
        """Standard normal values."""
        return self._drawn(shape, lambda source: source.gauss(0, 1))

    def rand(self, *shape: int, **_kind: str) -> list[float]:
        """Uniform values in [0, 1)."""
        return self._drawn(shape, random.Random.random)

    def randint(self, low: int, high: int, *shape: int, **_kind: str) -> list[float]:
        """Uniform integers in [low, high)."""
        return self._drawn(shape, lambda source: source.randrange(low, high))

    def empty(self, *shape: int, **_kind: str) -> list[float]:
        """An output, to be written in place."""
        output = [POISON] * math.prod(shape)
        self.outputs.append(output)
        return output

    def _drawn(self, shape: tuple[int, ...], draw: Callable[[random.Random], float]) -> list[float]:
        source = random.Random(self.seed)  # noqa: S311 - data, not secrets
        return [draw(source) for _ in range(math.prod(shape))]


@dataclass(slots=True)
class FakeContext(protocol.Context):
    """A builder's context whose ``spend`` moves the virtual clock; scripts trace and health."""

    owner: FakeDevice = field(kw_only=True)

    def spend(self, time_us: float) -> None:
        """Let a launch take this long at the nominal clock."""
        self.owner.now_us += time_us * CLOCK_MHZ / self.owner.clock_mhz
        self.owner.spent = True

    def run_kernel(self, name: str, time_us: float, ptx: str = "", **shape: Any) -> None:
        """Let a launch run a kernel; with a ``ptx``, one that was compiled here."""
        self.spend(time_us)
        if self.owner.kernels is not None:
            kernel = TracedKernel(name=name, count=1, duration_us=time_us, **shape)
            self.owner.kernels.append(kernel)
        if ptx:
            self.owner.compiled[name] = Loaded(name, name, ptx)

    def throttle(self, clock_mhz: float, *reasons: str) -> None:
        """Let the clock be held back, for these of NVML's reasons."""
        self.owner.clock_mhz, self.owner.reasons = clock_mhz, reasons


class FakeDevice(plain.PlainDevice):
    """Times what a workload says it spends, with the noise of a good GPU.

    ``within`` and ``between`` are relative standard deviations; both draw from the worker's seed,
    so that a run can be repeated to the digit. ``foreign_percent`` is the load by others,
    ``watts`` what launches without a gap draw.
    """

    name = "fake"
    has_cycles = True
    foreign_percent = 0.0
    watts = 100.0
    within = 0.002
    between = 0.0005

    def __init__(self, *, seed: int = 0, gang: Gang | None = None) -> None:
        super().__init__(gang, 0)
        self.now_us = 0.0
        self.spent = False
        self.clock_mhz = CLOCK_MHZ
        self.reasons: tuple[str, ...] = ()
        self.kernels: list[TracedKernel] | None = None
        self.compiled: dict[str, Loaded] = {}
        self._noise = random.Random(seed)  # noqa: S311 - noise, not secrets
        self._process = math.exp(self._noise.gauss(0, self.between))

    def facts(self) -> DeviceFacts:
        """Describe a device that does not exist; every other card is of another board."""
        found = re.match(r"FAKE-(\d+)", os.environ.get(BUILT_IN_DEVICES[self.name].visible, ""))
        card = int(found[1]) if found else 0
        return DeviceFacts(
            device=self.name,
            name="Fake Device",
            unit=f"fa4e{card:08}",
            identity={"vendor": "perfsuite", "name": "Fake Device", "board": f"fake-{card % 2}"},
            environment={"driver": "fake 1.0"},
            arch="fake_1",
            memory_bytes=1 << 34,
            clocks=("time_us", "cycles"),
        )

    def context(self, seed: int) -> FakeContext:
        """Return a builder's context."""
        names = (self.name, "fake", "fake_1")
        return FakeContext(seed, *names, self._gang.rank, self._gang.ranks, owner=self)

    def rng(self, seed: int) -> FakeRng:
        """Return a maker of lists."""
        return FakeRng(seed)

    def bytes_of(self, values: Iterable[Any]) -> int:
        """Return eight bytes for each number."""
        return sum(8 * len(value) for value in values if isinstance(value, list))

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> protocol.Comparison:
        """Compare lists (or tuples of lists) element by element."""
        return super().compare(actual, expected, TOLERANCE if tolerance is None else tolerance)

    def sample(self, group: Group, count: int, **_conditions: Any) -> list[Sample]:
        """Run the group and read the virtual clock, with noise."""
        samples = []
        for _ in range(count):
            start, self.spent = self.now_us, False
            group()
            spent = self.now_us - start if self.spent else DEFAULT_US * group.launches
            noise = self._process * math.exp(self._noise.gauss(0, self.within))
            samples.append(Sample(spent * noise, spent * noise * self.clock_mhz))
            self.busy_s += spent / 1e6
        return samples

    def health(self) -> Health:
        """Return a cool, idle device."""
        told = {"power_w": 100.0, "temperature_c": 40.0, "foreign_percent": self.foreign_percent}
        return Health(**told, sm_clock_mhz=self.clock_mhz, reasons=self.reasons)

    def energy_j(self, group: Group, time_s: float) -> float | None:
        """Return what ``watts`` make of one round of the group."""
        (sample,) = self.sample(group, 1)
        return self.watts * sample.time_us / 1e6 / group.launches

    def peak_bytes(self, fn: Fn, inputs: Arguments) -> int | None:
        """Return the size of what one launch hands back."""
        output = fn(*inputs)
        return self.bytes_of(output if isinstance(output, tuple) else [output])

    def traced(self, issue: Callable[[], object]) -> list[TracedKernel]:
        """Return the kernels that the context was told of."""
        self.kernels = kernels = list[TracedKernel]()
        issue()
        self.kernels = None
        return kernels

    def loaded(self) -> list[Loaded]:
        """Return the kernels that the context was told the PTX of."""
        return list(self.compiled.values())


def fake_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that PERFSUITE_FAKE_GPUS names by product, ``A,A,B``; none by default."""
    names = enumerate(filter(None, from_environment("PERFSUITE_FAKE_GPUS").split(",")))
    return tuple(Gpu(index=i, uuid=f"FAKE-{i}", name=f"Fake {name}") for i, name in names)
