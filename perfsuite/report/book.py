"""A run read for reporting: its variants in the order of how much they need a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from perfsuite.model import BaselineEntry, Run
from perfsuite.report.rows import Row, row
from perfsuite.report.subject import Subject, subjects


@dataclass(frozen=True)
class Book:
    """A run read for reporting: its variants in the order of how much they need a reader."""

    run: Run
    source: str
    previous: Run | None
    subjects: tuple[Subject, ...]
    baselines: Mapping[str, BaselineEntry]

    @cached_property
    def shown(self) -> list[Subject]:
        """The variants that ran."""
        return [subject for subject in self.subjects if not subject.is_skipped]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many variants each word holds for."""
        return Counter(subject.mark.word for subject in self.subjects)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The lines of the table of changes, one per variant that ran."""
        return tuple(row(subject, self.run.sku.slug) for subject in self.shown)

    @cached_property
    def fails(self) -> bool:
        """Say whether anything in the run fails it."""
        verdicts = [subject.verdict for subject in self.subjects if subject.verdict]
        return (
            any(subject.mark.tone == "fail" for subject in self.subjects)
            or any(verdict.fails for verdict in verdicts)
            or (self.run.shift is not None and self.run.shift.fails)
            or any(claim.fails for claim in self.run.claims)
        )


def read(
    run: Run, *, baselines: Mapping[str, BaselineEntry], source: str, previous: Run | None
) -> Book:
    """Gather a run for reporting."""
    found = sorted(subjects(run, baselines=baselines, previous=previous), key=_urgency)
    return Book(run, source, previous, tuple(found), baselines)


def _urgency(subject: Subject) -> tuple[int, float, str]:
    change = subject.change
    return subject.mark.rank, -abs(change.theta) if change else 0.0, subject.variant.id
