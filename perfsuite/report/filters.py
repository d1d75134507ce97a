"""What the table of changes can be filtered by: words that many lines share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfsuite.report.marks import mark
from perfsuite.report.rows import Row
from perfsuite.report.subject import CYCLES, TIME, Subject


@dataclass(frozen=True, slots=True)
class Choice:
    """One word to filter by, how many lines have it, and the kinds of line that do."""

    word: str
    count: int
    kinds: str


@dataclass(frozen=True, slots=True)
class Filters:
    """The choices of each field, and each line's kind: lines of one kind share all words."""

    fields: tuple[tuple[str, tuple[Choice, ...]], ...]
    kinds: tuple[int, ...]


def filters(rows: Sequence[Row]) -> Filters:
    """Return what the lines can be filtered by; a field with one choice chooses nothing."""
    known: dict[tuple[tuple[str, ...], ...], int] = {}
    kinds = [known.setdefault(_words(line.subject), len(known)) for line in rows]
    counts = Counter(kinds)
    fields = (
        (name, _choices([words[at] for words in known], counts))
        for at, name in enumerate(("verdict", "pack", "tag", "metric"))
    )
    return Filters(tuple(field for field in fields if len(field[1]) > 1), tuple(kinds))


def metrics_of(subject: Subject) -> tuple[str, ...]:
    """Return the names of what was measured of a variant, time first."""
    timed = (name for name, values in subject.middles.items() if values and name != CYCLES)
    counted = (name for process in subject.evidence for name in process.exact)
    compared = (change.metric for change in subject.others)
    return tuple(dict.fromkeys((*timed, *counted, *compared)))


def _words(subject: Subject) -> tuple[tuple[str, ...], ...]:
    case = subject.variant.case
    return (subject.mark.word,), (subject.variant.pack,), case.tags, metrics_of(subject)


def _choices(words: Iterable[tuple[str, ...]], counts: Mapping[int, int]) -> tuple[Choice, ...]:
    kinds: dict[str, list[int]] = {}
    for kind, held in enumerate(words):
        for word in held:
            kinds.setdefault(word, []).append(kind)
    # Verdicts come by urgency, time before all other metrics; the rest by name.
    names = sorted(kinds, key=lambda word: (mark(word).rank, word != TIME, word))
    return tuple(
        Choice(name, sum(counts[kind] for kind in kinds[name]), " ".join(map(str, kinds[name])))
        for name in names
    )
