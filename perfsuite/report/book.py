"""A run read for reporting: its variants in the order of how much they need a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from perfsuite.model import BaselineEntry, ClaimVerdict, ClaimWord, Run, Section, Series
from perfsuite.report import marks
from perfsuite.report.rows import Row, row
from perfsuite.report.subject import Subject, subjects
from perfsuite.roofline import Peaks, peaks_of


@dataclass(frozen=True)
class Book:
    """A run read for reporting: its variants in the order of how much they need a reader."""

    run: Run
    source: str
    previous: Run | None
    subjects: tuple[Subject, ...]
    baselines: Mapping[str, BaselineEntry]
    peaks: Peaks
    sections: tuple[Section, ...] = ()

    @cached_property
    def counts(self) -> Counter[str]:
        """How many variants each word holds for."""
        return Counter(subject.mark.word for subject in self.subjects)

    @property
    def tallies(self) -> list[tuple[marks.Mark, int]]:
        """The counts with their marks, what needs a reader first."""
        found = ((marks.mark(word), count) for word, count in self.counts.items())
        return sorted(found, key=lambda tally: tally[0].rank)

    @property
    def timed(self) -> list[Subject]:
        """The variants that have a time."""
        return [subject for subject in self.subjects if subject.now()]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The lines of the table of changes, one per variant that ran."""
        return tuple(
            row(subject, self.peaks) for subject in self.subjects if not subject.is_skipped
        )

    @cached_property
    def skips(self) -> list[tuple[str, str, list[str]]]:
        """Each word and reason for not running with its variants, the commonest first."""
        groups: dict[tuple[str, str], list[str]] = {}
        for subject in (each for each in self.subjects if each.is_skipped):
            key = subject.mark.word, subject.reason or "no reason given"
            groups.setdefault(key, []).append(subject.variant.id)
        found = [(word, why, ids) for (word, why), ids in groups.items()]
        return sorted(found, key=lambda group: (-len(group[2]), group[1]))

    @property
    def claims(self) -> list[ClaimVerdict]:
        """The claims, those that need a reader first."""
        return sorted(self.run.claims, key=lambda one: (marks.mark(one.word).rank, one.claim))

    @property
    def broken(self) -> list[ClaimVerdict]:
        """The claims whose ratio was not reached."""
        return [claim for claim in self.claims if claim.word is ClaimWord.BROKEN]

    @cached_property
    def is_broken(self) -> bool:
        """Say whether a variant or a claim fails the run."""
        variants = any(subject.fails for subject in self.subjects)
        return variants or any(claim.fails for claim in self.run.claims)

    @property
    def has_shifted(self) -> bool:
        """Say whether a change of the machine fails the run."""
        return self.run.shift is not None and self.run.shift.fails

    @property
    def fails(self) -> bool:
        """Say whether anything in the run fails it."""
        return self.is_broken or self.has_shifted


def read(  # noqa: PLR0913 - all that is known of a run, by name
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    source: str = "",
    previous: Run | None = None,
    history: Mapping[str, Series] | None = None,
    peaks: Peaks | None = None,
    sections: tuple[Section, ...] = (),
) -> Book:
    """Gather a run for reporting.

    ``baselines`` are the entries by variant that the run was judged against, ``source`` says in
    words what they are; ``previous`` is the run they come from, if it is at hand, ``history`` what
    earlier runs say of each variant, ``peaks`` what the SKU reaches, ``sections`` what packs have
    to say.
    """
    known = subjects(run, baselines=baselines, previous=previous, history=history or {})
    found = sorted(known, key=_urgency)
    peaks = peaks or peaks_of(run.sku.slug)
    return Book(run, source, previous, tuple(found), baselines, peaks, sections)


def _urgency(subject: Subject) -> tuple[int, float, str]:
    change = subject.change
    return subject.mark.rank, -abs(change.theta) if change else 0.0, subject.variant.id
