"""A run as Markdown for a CI step: the outcome first, a short table, the rest folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from perfsuite.model import ClaimVerdict
from perfsuite.report import view
from perfsuite.report.book import Book
from perfsuite.report.cause import cause
from perfsuite.report.page import headline
from perfsuite.report.rows import Row

# As many as are read; the page has all.
MOST_ROWS = 10
MOST_WHY = 300
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>@$])")
# A character of no width keeps these from becoming links, mentions, references and pictures.
_ACTIVE = re.compile(r"://|@|#|www(?=\.)|:(?=[\w+-]+:)")
_HEAD = (
    "| verdict | variant | now | baseline | change | interval | why |",
    "| --- | --- | ---: | ---: | ---: | ---: | --- |",
)
_CLAIMS = ("| claim | outcome | found | asked for | why |", "| --- | --- | ---: | ---: | --- |")
_PACKS = ("| pack | variants | ran | outcome |", "| --- | ---: | ---: | --- |")


def summary(book: Book) -> str:
    """Return the run's outcome with ten rows of each table. Data is escaped, never markup."""
    return "\n\n".join("\n".join(lines) for lines in _blocks(book)) + "\n"


def plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    active = _ACTIVE.sub(lambda found: f"{found[0][0]}&#8203;{found[0][1:]}", _one_line(text))
    escaped = _SPECIAL.sub(r"\\\1", active).replace("&\\#8203;", "&#8203;")
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


def _one_line(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").split())


def _blocks(book: Book) -> Iterator[list[str]]:
    """Yield what is told, the most important first."""
    told = [_line(line) for line in book.rows if not line.subject.mark.is_quiet]
    yield [f"### {_outcome(book)}", "", _about(book), "", _tally(book)]
    if book.run.shift:
        yield [f"**machine-shift**: {plain(book.run.shift.reason)}"]
    if told:
        yield [*_HEAD, *_first(told)]
    if book.broken:
        yield ["Broken claims:", "", *_CLAIMS, *_first(list(map(_claim, book.broken)))]
    quiet = [_line(line) for line in book.rows if line.subject.mark.is_quiet]
    yield from _folded(view.count(len(quiet), "other variant"), _HEAD, quiet)
    held = [_claim(claim) for claim in book.claims if claim not in book.broken]
    yield from _folded(f"Claims: {view.count(len(held), 'other')}", _CLAIMS, held)
    yield from _folded("Coverage, by pack", _PACKS, list(_packs(book)))
    skipped = [f"- {word} {len(ids)}: {plain(_short(why))}" for word, why, ids in book.skips]
    yield from _folded("Skipped and left out, by reason", (), skipped)
    for section in book.sections:
        columns = map(plain, section.columns)
        head = [_cells(*columns), _cells(*["---"] * len(section.columns))]
        table = head if section.columns else []
        text = [plain(_short(section.text)), ""] if section.text else []
        rows = [_cells(*map(plain, map(_short, row))) for row in section.rows]
        yield from _folded(plain(section.title), [*text, *table], rows or [""])
    yield from _folded("Notes", (), [f"- {plain(_short(note))}" for note in book.run.notes])


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_ROWS
    return [*lines[:MOST_ROWS], *(["", f"{more} more: see the report"] if more > 0 else [])]


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
    told = "" if subject.mark.is_quiet else _short(cause(subject))
    cells = (f"{line.now} {plain(line.metric)}".strip(), line.baseline, line.change, line.interval)
    return _cells(mark, plain(subject.variant.id), *cells, plain(told))


def _claim(one: ClaimVerdict) -> str:
    ratios = view.ratio(one.ratio), view.ratio(one.required)
    return _cells(plain(one.claim), one.word.value, *ratios, plain(_short(one.reason)))


def _packs(book: Book) -> Iterator[str]:
    found: dict[str, Counter[str]] = {}
    for subject in book.subjects:
        found.setdefault(subject.variant.pack, Counter())[subject.mark.word] += 1
    for pack, words in sorted(found.items()):
        ran = words.total() - words["skipped"] - words["not run"]
        outcome = ", ".join(f"{count} {word}" for word, count in words.most_common())
        yield _cells(plain(pack), str(words.total()), str(ran), outcome)


def _short(text: str) -> str:
    return text if len(text) <= MOST_WHY else f"{text[:MOST_WHY]} …"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _folded(title: str, head: Sequence[str], lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield a block that is opened by hand, or none where there is nothing to say."""
    if lines:
        summary_line = f"<summary>{title}</summary>"
        yield ["<details>", summary_line, "", *head, *_first(lines), "", "</details>"]
