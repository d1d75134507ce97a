"""The errors perfsuite raises on purpose: what failed, the value, where, and what to do."""

from __future__ import annotations

from perfsuite.boundary import plain


class PerfError(Exception):
    """Base of every deliberate error; its message is meant to be read by a person."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(what, where, remedy)

    def __str__(self) -> str:
        place = f"\n  where: {self.where}" if self.where else ""
        remedy = f"\n  do: {self.remedy}" if self.remedy else ""
        # A name, a path or another program's words may hold what a terminal obeys.
        return plain(f"{self.what}{place}{remedy}")


class PackError(PerfError):
    """A pack could not be loaded or declares something that does not hold."""


class CaseError(PerfError):
    """A variant's own code failed: its builder, inputs, function or reference."""


class WrongResultError(CaseError):
    """A variant's output differs from its reference."""


class StoreError(PerfError):
    """A stored file (baseline, run file) is missing, damaged or of an unknown version."""


class DeviceError(PerfError):
    """A device is missing, misbehaves or cannot measure what was asked of it."""


class UsageError(PerfError):
    """The person who started the run asked for something that cannot be done."""


class DisturbedError(DeviceError):
    """The device was disturbed (slowdown, foreign load, lost stamps) for too much of a block."""
