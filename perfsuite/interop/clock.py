"""A device's clock as pytest-benchmark's timer: its tables and files have GPU times then."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.devices.protocol import Device, least_us, open_device, own_ns, sampled
from perfsuite.engine.calibrate import ISSUE_MARGIN
from perfsuite.model import Regime
from perfsuite.store.sku import sku_of

P = ParamSpec("P")
T = TypeVar("T")

CPU, CUDA = "cpu", "cuda"
# Until a call was issued faster: a first one, which may compile for seconds, waits no longer.
MOST_ISSUE_US = 20_000.0
# What the clock was last asked for within a round of pytest-benchmark.
BETWEEN, STARTED, TIMED = "between", "started", "timed"


class DeviceClock:
    """The seconds that a device spent on ``timed`` calls: ``@pytest.mark.benchmark(timer=clock)``.

    ``device`` is "cuda" (the process's first GPU, by stamps in its stream), "cpu" (the host's
    clock, less what the thread waited for a core) or a ``Device``. What is named is opened at the
    first timed call, with a ``DeviceError`` where it cannot be.
    """

    def __init__(self, device: Device | str) -> None:
        self._device = device
        self._name = device if isinstance(device, str) else device.name
        self._stream: AbstractContextManager[object] = nullcontext()
        self._least_us: float | None = None
        self._spent_s = 0.0
        self._round = BETWEEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __call__(self) -> float:
        """Return the seconds so far; a ``UsageError`` ending a round without a timed call."""
        last, self._round = self._round, BETWEEN
        if last == STARTED:
            raise UsageError(
                f"{self!r} was read twice without a timed call between",
                remedy="benchmark.pedantic(clock.timed(fn), args=..., rounds=...); benchmark(fn) "
                "looks for a tick, and this clock moves in timed calls only",
            )
        if last == BETWEEN:
            self._round = STARTED
        return self._spent_s

    def timed(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Return ``fn`` so that each call is awaited and moves the clock by the device's time.

        Of a GPU that is what passed in the current stream. A call that put no work there, or that
        the device could not time, is a ``DeviceError``.
        """
        # The shortest: a function that waits for the GPU itself waits for the spin as well.
        issue_us = [MOST_ISSUE_US]

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            returned: list[T] = []

            def issue() -> None:
                started = time.perf_counter()
                returned.append(fn(*args, **kwargs))
                issue_us.append(min(issue_us.pop(), 1e6 * (time.perf_counter() - started)))

            last, self._round = self._round, BETWEEN
            self._spent_s += self._time_us(issue, ISSUE_MARGIN * issue_us[0]) / 1e6
            self._round = BETWEEN if last == BETWEEN else TIMED
            return returned[0]

        return call

    def extra_info(self) -> dict[str, str]:
        """Return ``sku``, ``unit`` and ``clock``: "host", or the device's name."""
        if self._name == CPU:
            with _needing(CPU):
                from perfsuite.devices.cpu import cpu_facts
            facts = cpu_facts()
        else:
            facts = self._opened().facts()
        clock = "host" if self._name == CPU else self._name
        return {"sku": sku_of(facts).slug, "unit": facts.unit, "clock": clock}

    def _time_us(self, issue: Callable[[], None], spin_us: float) -> float:
        # As the CPU's Device does, which also limits torch's threads and may call again.
        if self._name == CPU:
            return own_ns(issue) / 1e3
        device = self._opened()
        with self._stream:
            device.synchronize()
            if self._least_us is None:
                self._least_us = least_us(device)
            group = device.group(issue, [()], 1, backend="loop")
            (sample,) = sampled(device, group, 1, regime=Regime.PACED, spin_us=spin_us, flush=False)
        if not sample.time_us > self._least_us:  # nor is NaN
            raise DeviceError(
                f"{self!r} saw {sample.time_us:.3g} us of a timed call, which is no work",
                remedy="let it put work on the device's current stream; use cpu for host code",
            )
        return sample.time_us

    def _opened(self) -> Device:
        if self._device == CUDA:
            with _needing(CUDA):
                from perfsuite.devices.tensors import open_guest

                self._device, self._stream = open_guest()
        elif isinstance(self._device, str):
            self._device = open_device(self._device)
        return self._device


@contextmanager
def _needing(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise DeviceError(
            f"device {name!r} needs {error.name}", remedy="pip install 'perfsuite[torch]'"
        ) from error
