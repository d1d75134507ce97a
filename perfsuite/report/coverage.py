"""What of the catalogue ran, by pack, and what did not and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.report import charts, marks
from perfsuite.report.subject import Subject

# The words in which the plan says what is missing, in the order they are tried.
_KINDS = (
    (
        "another device",
        re.compile(r"needs (device|arch|gpus|feature) |needs \d+ GPUs|GB of memory"),
    ),
    ("other software", re.compile(r"needs package ")),
    ("more time", re.compile(r"--perf-time")),
)
OTHER = "another reason"


@dataclass(frozen=True, slots=True)
class Gap:
    """A reason for which variants did not run, and of which kind it is."""

    kind: str
    reason: str
    variants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """One pack: how many variants were chosen and ran, how they ended, and what is missing."""

    pack: str
    chosen: int
    ran: int
    tallies: tuple[tuple[marks.Mark, int], ...]
    bar: Markup
    gaps: tuple[Gap, ...]


def coverage(subjects: Iterable[Subject]) -> list[Coverage]:
    """Return what ran of each pack, by name."""
    packs: dict[str, list[Subject]] = {}
    for subject in subjects:
        packs.setdefault(subject.variant.pack, []).append(subject)
    return [_of(pack, packs[pack]) for pack in sorted(packs)]


def kind_of(reason: str) -> str:
    """Return what would have to be different for a variant to run."""
    return next((kind for kind, words in _KINDS if words.search(reason)), OTHER)


def _of(pack: str, subjects: list[Subject]) -> Coverage:
    words = Counter(subject.mark.word for subject in subjects)
    tallies = sorted(
        ((marks.mark(word), count) for word, count in words.items()), key=lambda one: one[0].rank
    )
    gaps: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.is_skipped:
            gaps.setdefault(subject.reason or "no reason given", []).append(subject.variant.id)
    found = [Gap(kind_of(reason), reason, tuple(ids)) for reason, ids in gaps.items()]
    return Coverage(
        pack=pack,
        chosen=len(subjects),
        ran=len(subjects) - sum(map(len, gaps.values())),
        tallies=tuple(tallies),
        bar=charts.proportions([(mark.tone, count) for mark, count in tallies]),
        gaps=tuple(sorted(found, key=lambda gap: (gap.kind, -len(gap.variants), gap.reason))),
    )
