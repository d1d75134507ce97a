"""A run as Markdown for a CI step: the outcome first, a short table, the rest folded."""

from __future__ import annotations

import re

from perfsuite.report import view
from perfsuite.report.book import Book
from perfsuite.report.page import headline
from perfsuite.report.rows import Row

MOST_ROWS = 20
# A CI step's summary may be cut off, or refused, at a megabyte.
MOST_FOLDED = 500
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>@$])")
_HEAD = (
    "| verdict | variant | now | baseline | change of the code | interval |",
    "| --- | --- | ---: | ---: | ---: | ---: |",
)


def summary(book: Book) -> str:
    """Return the run's outcome with at most 20 rows in sight; data is escaped, never markup."""
    run = book.run
    rows = book.rows
    told = [line for line in rows if not line.subject.mark.is_quiet]
    lines = [f"### {_outcome(book)}", "", _about(book), "", _tally(book), ""]
    if run.shift:
        lines += [f"**machine-shift**: {plain(run.shift.reason)}", ""]
    if told:
        lines += [*_HEAD, *map(_line, told[:MOST_ROWS]), ""]
    lines += _broken(book)
    folded = [*told[MOST_ROWS:], *(line for line in rows if line.subject.mark.is_quiet)]
    rest = [*_HEAD, *map(_line, folded[:MOST_FOLDED])]
    lines += _folded(view.count(len(folded), "more variant"), rest)
    if len(folded) > MOST_FOLDED:
        lines += [f"The table ends after {MOST_FOLDED} of them; the HTML report has all.", ""]
    skipped = [f"- {len(variants)}: {plain(reason)}" for reason, variants in book.skips]
    lines += _folded("Skipped, by reason", skipped)
    lines += _folded("Notes", [f"- {plain(note)}" for note in run.notes])
    return "\n".join(lines).rstrip() + "\n"


def plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;").replace("://", ":&#8203;//")


def _outcome(book: Book) -> str:
    mark = "❌ " if book.fails else ""
    return f"{mark}{headline(book)}"


def _about(book: Book) -> str:
    run = book.run
    said = [run.facts.name or run.sku.slug, f"compared with {book.source or 'nothing'}"]
    said += [f"commit {view.commit(run.commit)}"] if run.commit else []
    said += [f"run {run.id}", view.duration(run.wall_s)] if run.wall_s else [f"run {run.id}"]
    return " · ".join(plain(one) for one in said)


def _tally(book: Book) -> str:
    return ", ".join(f"**{count}** {mark.word}" for mark, count in book.tallies)


def _line(line: Row) -> str:
    subject = line.subject
    mark = f"{subject.mark.glyph} {subject.mark.word}"
    cells = (f"{line.now} {plain(line.metric)}".strip(), line.baseline, line.change, line.interval)
    return f"| {' | '.join((mark, plain(subject.variant.id), *cells))} |"


def _broken(book: Book) -> list[str]:
    told = [
        f"- {plain(one.claim)}: {view.ratio(one.ratio)} found, {view.ratio(one.required)} "
        f"asked for. {plain(one.reason)}"
        for one in book.broken[:MOST_ROWS]
    ]
    return ["Broken claims:", "", *told, ""] if told else []


def _folded(title: str, lines: list[str]) -> list[str]:
    body = [line for line in lines if line not in _HEAD]
    return (
        ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]
        if body
        else []
    )
