"""A device that a pack brings, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Devices of the core; "auto" chooses among devices.
BUILT_IN_DEVICES = ("cuda", "cpu", "fake")
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
OPENS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A device that a pack brings; ``name`` is what ``--perf-device`` takes.

    ``opens`` is ``module:callable``; a worker calls it with ``unit=`` and ``seed=`` and gets a
    ``Device``. ``units`` are those of this machine, each in words that open it again. ``auto`` may
    take it unless ``is_automatic`` is False, as for a simulator. ``preload`` names modules that
    are slow to import, and that a process may have imported before it forks.
    """

    name: str
    opens: str
    units: tuple[str, ...] = ()
    is_automatic: bool = True
    preload: tuple[str, ...] = ()
    folder: str = ""

    def __post_init__(self) -> None:
        if not NAME.match(self.name) or self.name in {*BUILT_IN_DEVICES, "auto"}:
            raise ValueError(
                f"device name {self.name!r} must match {NAME.pattern} and be none of "
                f"auto, {', '.join(BUILT_IN_DEVICES)}"
            )
        if not OPENS.match(self.opens):
            raise ValueError(f"device {self.name!r}: opens={self.opens!r} is no module:callable")
