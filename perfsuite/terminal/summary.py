"""The summary of a run: the counts, what needs a reader, skips and notes."""

from __future__ import annotations

from collections.abc import Iterator

from perfsuite.report import marks, view
from perfsuite.report.book import Book
from perfsuite.report.rows import change_text
from perfsuite.report.subject import Subject
from perfsuite.terminal.words import plain

MOST_ROWS = 20
MOST_SKIPS = 5
QUIET_WORDS = frozenset({"same", "checked", "new", "skipped", "not run"})
ALWAYS_COUNTED = ("unclear", "skipped")


def summary(book: Book) -> Iterator[str]:
    """Yield the lines of the summary: the counts, what needs a reader, skips and notes."""
    yield first_line(book)
    if book.run.shift:
        yield plain(f"machine-shift: {book.run.shift.reason}")
    if book.source:
        yield f"compared with {book.source}"
    told = [subject for subject in book.subjects if subject.mark.word not in QUIET_WORDS]
    yield from map(_row, told[:MOST_ROWS])
    if len(told) > MOST_ROWS:
        yield f"  ... and {len(told) - MOST_ROWS} more: see the report"
    for claim in book.broken[:MOST_ROWS]:
        found = f"{view.ratio(claim.ratio)} found, {view.ratio(claim.required)} asked for"
        yield plain(f"  {claim.word:<13} {found}  {claim.claim}")
    yield from skip_lines(book)
    yield from (f"note: {note}" for note in book.run.notes)


def skip_lines(book: Book) -> Iterator[str]:
    """Yield how many variants were skipped for each of the commonest reasons."""
    for reason, variants in book.skips[:MOST_SKIPS]:
        yield f"skipped {len(variants)}: {plain(reason)}"
    if len(book.skips) > MOST_SKIPS:
        yield f"skipped for {len(book.skips) - MOST_SKIPS} more reasons: see the report"


def first_line(book: Book) -> str:
    """Return how many variants each word holds for; skipped and unclear always."""
    counts = {**dict.fromkeys(ALWAYS_COUNTED, 0), **book.counts}
    ordered = sorted(counts.items(), key=lambda item: marks.mark(item[0]).rank)
    tally = ", ".join(f"{count} {word}" for word, count in ordered)
    total = plain(view.count(len(book.subjects), "variant"))
    return f"{total} on {book.run.facts.name or book.run.sku.slug}: {tally}"


def _row(subject: Subject) -> str:
    """Return the line of one variant, its id last so that a long one harms no column."""
    change = subject.telling
    moved = change_text(change) if change else ""
    interval = f"({view.interval(change.low, change.high)})" if change else ""
    return plain(f"  {subject.mark.word:<13} {moved:>8} {interval:<20} {subject.variant.id}")
