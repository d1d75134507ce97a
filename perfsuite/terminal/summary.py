"""The summary of a run on a terminal: the counts, what needs a reader, doubts, skips and notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from perfsuite.model import ClaimVerdict
from perfsuite.report import marks, view
from perfsuite.report.book import Book
from perfsuite.report.cause import cause
from perfsuite.report.rows import change_text
from perfsuite.report.subject import Subject
from perfsuite.terminal.words import plain

ALWAYS_COUNTED = ("unclear", "skipped")
OTHERS = frozenset({"faster", "incomparable"})
MOST, MOST_SKIPS = 10, 5
MOST_CHARACTERS = 300
INDENT = " " * 6


def summary(book: Book) -> Iterator[str]:
    """Yield the counts, the items that need a reader most, reasons of skips, and notes."""
    yield first_line(book)
    if book.run.shift:
        yield _cut(f"machine-shift: {book.run.shift.reason}")
    if book.source:
        yield _cut(f"compared with {book.source}")
    urgent = [one for one in book.subjects if one.mark.needs_reader]
    quiet = [one for one in book.subjects if one.mark.tone == "unclear"]
    quiet += [one for one in book.subjects if one.mark.word in OTHERS]
    items: list[Subject | ClaimVerdict] = [*urgent, *book.broken, *quiet]
    for item in items[:MOST]:
        yield from _claim(item) if isinstance(item, ClaimVerdict) else _told(item)
    if more := items[MOST:]:
        yield f"  ... and {len(more)} more: see the report"
    yield from skip_lines(book)
    yield from _first(book.run.notes)


def first_line(book: Book) -> str:
    """Return how many variants each word holds for; skipped and unclear always."""
    counts = {**dict.fromkeys(ALWAYS_COUNTED, 0), **book.counts}
    ordered = sorted(counts.items(), key=lambda item: marks.mark(item[0]).rank)
    tally = ", ".join(f"{count} {word}" for word, count in ordered)
    total = plain(view.count(len(book.subjects), "variant"))
    return plain(f"{total} on {book.run.facts.name or book.run.sku.slug}: {tally}")


def skip_lines(book: Book) -> list[str]:
    """Return how many variants were skipped for each of the commonest reasons."""
    told = [_cut(f"{word} {len(ids)}: {why}") for word, why, ids in book.skips[:MOST_SKIPS]]
    more = len(book.skips) - MOST_SKIPS
    return [*told, f"skipped for {more} more reasons: see the report"] if more > 0 else told


def _first(notes: Sequence[str]) -> Iterator[str]:
    yield from (_cut(f"note: {note}") for note in notes[:MOST])
    if more := notes[MOST:]:
        yield f"note: {len(more)} more: see the report"


def _cut(text: str) -> str:
    return textwrap.shorten(plain(text), MOST_CHARACTERS, placeholder=" ...")


def _told(subject: Subject) -> Iterator[str]:
    """Yield the line of one variant and its cause, the id last: a long one harms nothing."""
    change, why = subject.telling, _cut(cause(subject))
    start, name = f"  {subject.mark.word:<12}", subject.variant.id
    if change is None or subject.mark.tone == "unclear":
        yield plain(f"{start} {name}{': ' if why else ''}{why}")
        return
    interval = f"({view.interval(change.low, change.high)})"
    yield plain(f"{start} {change_text(change):>8} {interval:<20} {name}")
    if why:
        yield f"{INDENT}{why}"


def _claim(claim: ClaimVerdict) -> Iterator[str]:
    found = f"{view.ratio(claim.ratio)} found, {view.ratio(claim.required)} asked for"
    yield plain(f"  {claim.word:<12} {found}  {claim.claim}")
    yield f"{INDENT}{_cut(claim.reason)}"
