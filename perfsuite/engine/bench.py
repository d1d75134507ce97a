"""What the parts of one variant's measuring share: the device, the case and what is noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from perfsuite.boundary import is_measurable, shown
from perfsuite.device import Device
from perfsuite.errors import CaseError
from perfsuite.model import Axes, Block, Case, Settings


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
