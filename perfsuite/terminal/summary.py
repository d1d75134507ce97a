"""The summary of a run on one screen: the counts, what needs a reader, doubts, skips and notes."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfsuite.model import ClaimVerdict
from perfsuite.report import marks, view
from perfsuite.report.book import Book
from perfsuite.report.cause import cause
from perfsuite.report.rows import change_text
from perfsuite.report.subject import Subject
from perfsuite.terminal.words import plain

ALWAYS_COUNTED = ("unclear", "skipped")
OTHERS = frozenset({"faster", "incomparable"})
MOST_SKIPS = 5
# What a terminal has that does not say; and what is left of a very small one.
USUAL = (100, 24)
LEAST = (60, 16)
INDENT = " " * 6
# The first items of a group keep their causes where not all can have one.
KEPT_CAUSES = 3


@dataclass(frozen=True, slots=True)
class Screen:
    """How many lines of how many columns may be written."""

    columns: int = USUAL[0]
    lines: int = USUAL[1]

    @classmethod
    def of_terminal(cls) -> Screen:
        """Return the terminal's own size, 24 lines of 100 columns where there is none."""
        found = shutil.get_terminal_size(USUAL)
        return cls(max(found.columns, LEAST[0]), max(found.lines, LEAST[1]))

    def height(self, lines: Sequence[str]) -> int:
        """Return how many lines of the screen are taken: a long one is wrapped, never cut."""
        found = (part for line in lines for part in line.split("\n"))
        return sum(max(1, math.ceil(len(part) / self.columns)) for part in found)

    def cut(self, text: str, indent: str = "", lines: int = 1) -> str:
        """Return text that takes at most so many lines of the screen."""
        return textwrap.shorten(text, lines * self.columns - len(indent), placeholder=" ...")


@dataclass(frozen=True, slots=True)
class _Group:
    """What may be cut short: items of a line and its cause, and how the rest of them is told.

    There are ``count`` of them; ``items`` need be no more than a screen holds.
    """

    items: Sequence[tuple[str, ...]]
    rest: str
    least: int
    count: int

    def need(self, screen: Screen) -> int:
        """Return the lines that all items take."""
        return sum(map(screen.height, self.items))

    def fitted(self, screen: Screen, room: int) -> list[str]:
        """Return as many items as fit: causes go first, but the first ones', then items."""
        items = list(self.items[: max(room, 1)])
        for index in range(len(items) - 1, KEPT_CAUSES - 1, -1):
            if sum(map(screen.height, items)) + (len(items) < self.count) <= room:
                break
            items[index] = items[index][:1]
        while items and sum(map(screen.height, items)) + (len(items) < self.count) > room:
            items.pop()
        left = self.count - len(items)
        more = [self.rest.format(f"{left} more" if items else left)] if left else []
        return [*(line for item in items for line in item), *more]


def summary(book: Book, screen: Screen | None = None, after: Sequence[str] = ()) -> Iterator[str]:
    """Yield the summary so that it fits the screen together with what is written ``after``."""
    screen = screen or Screen()
    head = list(_head(book, screen))
    yield from head
    groups = [group for group in _groups(book, screen) if group.items]
    # One line above the summary, and pytest's own last one below.
    room = screen.lines - 2 - screen.height([*head, *after])
    for index, group in enumerate(groups):
        later = sum(min(each.need(screen), each.least) for each in groups[index + 1 :])
        # What is least to be told of may go; that something needs a reader may not.
        if index and room < 1:
            break
        lines = group.fitted(screen, max(room - later, 1 if index else group.least))
        room -= screen.height(lines)
        yield from lines


def first_line(book: Book) -> str:
    """Return how many variants each word holds for; skipped and unclear always."""
    counts = {**dict.fromkeys(ALWAYS_COUNTED, 0), **book.counts}
    ordered = sorted(counts.items(), key=lambda item: marks.mark(item[0]).rank)
    tally = ", ".join(f"{count} {word}" for word, count in ordered)
    total = plain(view.count(len(book.subjects), "variant"))
    return plain(f"{total} on {book.run.facts.name or book.run.sku.slug}: {tally}")


def skip_lines(book: Book) -> list[str]:
    """Return how many variants were skipped for each of the commonest reasons."""
    told = [f"{word} {len(ids)}: {plain(why)}" for word, why, ids in book.skips[:MOST_SKIPS]]
    more = len(book.skips) - MOST_SKIPS
    return [*told, f"skipped for {more} more reasons: see the report"] if more > 0 else told


def _head(book: Book, screen: Screen) -> Iterator[str]:
    yield from textwrap.wrap(
        first_line(book), screen.columns, subsequent_indent="  ", break_on_hyphens=False
    )
    if book.run.shift:
        yield screen.cut(plain(f"machine-shift: {book.run.shift.reason}"), lines=3)
    if book.source:
        yield screen.cut(plain(f"compared with {book.source}"))


def _groups(book: Book, screen: Screen) -> tuple[_Group, ...]:
    urgent = [one for one in book.subjects if one.mark.needs_reader]
    doubts = [one for one in book.subjects if one.mark.tone == "unclear"]
    others = [one for one in book.subjects if one.mark.word in OTHERS]
    most = screen.lines
    told = [_told(one, screen) for one in urgent[:most]]
    told += [_claim(claim, screen) for claim in book.broken[:most]]
    skips = [(screen.cut(f"{w} {len(ids)}: {plain(why)}"),) for w, why, ids in book.skips[:most]]
    notes = [(screen.cut(plain(f"note: {note}"), lines=3),) for note in book.run.notes[:most]]
    more = "  ... and {} %s: see the report"
    return (
        _Group(told, more % "that need a reader", 3, len(urgent) + len(book.broken)),
        _Group([_short(one, screen) for one in doubts[:most]], more % "unclear", 2, len(doubts)),
        _Group(
            [_told(one, screen)[:1] for one in others[:most]],
            more % "faster or incomparable",
            1,
            len(others),
        ),
        _Group(skips, "skipped for {} reasons: see the report", 1, len(book.skips)),
        _Group(notes, "note: {} more in the report", 1, len(book.run.notes)),
    )


def _told(subject: Subject, screen: Screen) -> tuple[str, ...]:
    """Return the line of one variant and the cause below, the id last: a long one harms nothing."""
    change = subject.telling
    if change is None:
        return _short(subject, screen)
    interval = f"({view.interval(change.low, change.high)})"
    row = f"  {subject.mark.word:<12} {change_text(change):>8} {interval:<20} {subject.variant.id}"
    why = screen.cut(plain(cause(subject)), INDENT)
    return (plain(row), f"{INDENT}{why}") if why else (plain(row),)


def _short(subject: Subject, screen: Screen) -> tuple[str, ...]:
    """Return the variant and its cause on one line, or on two where the id leaves little room."""
    start, why = plain(f"  {subject.mark.word:<12} {subject.variant.id}"), plain(cause(subject))
    if len(start) + 2 + min(len(why), screen.columns // 4) <= screen.columns:
        return (f"{start}: {screen.cut(why, start + ': ')}" if why else start,)
    return start, f"{INDENT}{screen.cut(why, INDENT)}"


def _claim(claim: ClaimVerdict, screen: Screen) -> tuple[str, ...]:
    found = f"{view.ratio(claim.ratio)} found, {view.ratio(claim.required)} asked for"
    why = screen.cut(plain(claim.reason), INDENT)
    return plain(f"  {claim.word:<12} {found}  {claim.claim}"), f"{INDENT}{why}"
