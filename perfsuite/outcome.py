"""Who is told how a run goes on, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfsuite.model import BaselineEntry, DeviceFacts, Result, Run
from perfsuite.roofline import Peaks
from perfsuite.steps import Steps


class Listener(Protocol):
    """Who is told how a run goes on; called from the thread that measures."""

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        """``total`` variants are about to be measured on a device."""

    def phase(self, variant: str, phase: str) -> None:
        """A phase of a variant begins."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """A variant ended."""

    def note(self, text: str) -> None:
        """Something worth a line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, where it is stored, and what it was compared with: entries, their commits.

    ``steps`` are those behind its measuring: what of them failed.
    """

    run: Run
    run_file: Path
    baselines: Mapping[str, BaselineEntry]
    source: str
    previous: Run | None = None
    commits: Mapping[str, str] = field(default_factory=dict)
    peaks: Peaks | None = None
    is_interrupted: bool = False
    steps: Steps = field(default_factory=Steps)
