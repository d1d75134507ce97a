"""A run as Markdown for a CI step: the outcome first, a short table, the rest folded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from perfsuite.report import view
from perfsuite.report.book import Book
from perfsuite.report.cause import cause
from perfsuite.report.page import headline
from perfsuite.report.rows import Row

MOST_ROWS = 20
# What GitHub takes of one step; as many rows as these are read by nobody.
MOST_BYTES = 1024 * 1024
MOST_FOLDED = 500
MOST_WHY = 200
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~<>@$])")
# A character of no width keeps these from becoming links, mentions, references and pictures.
_ACTIVE = re.compile(r"://|@|#|www(?=\.)|:(?=[\w+-]+:)")
_HEAD = (
    "| verdict | variant | now | baseline | change | interval | why |",
    "| --- | --- | ---: | ---: | ---: | ---: | --- |",
)
_CLAIMS = ("| claim | outcome | found | asked for | why |", "| --- | --- | ---: | ---: | --- |")
_PACKS = ("| pack | variants | ran | outcome |", "| --- | ---: | ---: | --- |")

Block = tuple[str, list[str]]


def summary(book: Book, most_bytes: int = MOST_BYTES) -> str:
    """Return the run's outcome with at most 20 rows in sight; data is escaped, never markup.

    Blocks that would make it larger than ``most_bytes`` are left out and named at its end.
    """
    text = ""
    left_out: list[str] = []
    for name, lines in _blocks(book):
        block = "\n".join(lines) + "\n\n"
        # The note of what is left out has to fit as well.
        if len(f"{text}{block}".encode()) <= most_bytes - len(_note([*left_out, name]).encode()):
            text += block
        else:
            left_out.append(name)
    return (text + (_note(left_out) if left_out else "")).rstrip() + "\n"


def plain(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    active = _ACTIVE.sub(lambda found: f"{found[0][0]}&#8203;{found[0][1:]}", _one_line(text))
    escaped = _SPECIAL.sub(r"\\\1", active).replace("&\\#8203;", "&#8203;")
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


def _one_line(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").split())


def _note(names: Sequence[str]) -> str:
    return f"Left out, for a step's summary has room for no more: {', '.join(names)}.\n"


def _blocks(book: Book) -> Iterator[Block]:
    """Yield what is told, the most important first, each with its name."""
    told = [line for line in book.rows if not line.subject.mark.is_quiet]
    quiet = [line for line in book.rows if line.subject.mark.is_quiet]
    yield "outcome", [f"### {_outcome(book)}", "", _about(book), "", _tally(book)]
    if book.run.shift:
        yield "machine-shift", [f"**machine-shift**: {plain(book.run.shift.reason)}"]
    if told:
        yield "changes", [*_HEAD, *map(_line, told[:MOST_ROWS])]
    if book.broken:
        yield "broken claims", ["Broken claims:", "", *_claims(book, is_broken=True)]
    folded = [*told[MOST_ROWS:], *quiet]
    yield from _folded(view.count(len(folded), "more variant"), _HEAD, list(map(_line, folded)))
    held = _claims(book, is_broken=False)
    yield from _folded(f"Claims: {view.count(len(held) - 2, 'other')}", _CLAIMS, held[2:])
    yield from _folded("Coverage, by pack", _PACKS, list(_packs(book)))
    skipped = [f"- {word} {len(ids)}: {plain(why)}" for word, why, ids in book.skips]
    yield from _folded("Skipped and left out, by reason", (), skipped)
    for section in book.sections:
        head = [_cells(*map(plain, section.columns)), _cells(*["---"] * len(section.columns))]
        rows = [_cells(*map(plain, row)) for row in section.rows]
        text = [plain(section.text), ""] if section.text else []
        table = [*head, *rows] if section.columns else []
        yield from _folded(plain(section.title), text, table or [""])
    yield from _folded("Notes", (), [f"- {plain(note)}" for note in book.run.notes])


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


def _claims(book: Book, *, is_broken: bool) -> list[str]:
    told = [claim for claim in book.claims if (claim in book.broken) is is_broken]
    return [
        *_CLAIMS,
        *(
            _cells(
                plain(one.claim),
                one.word.value,
                view.ratio(one.ratio),
                view.ratio(one.required),
                plain(_short(one.reason)),
            )
            for one in (told[:MOST_ROWS] if is_broken else told)
        ),
    ]


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


def _folded(title: str, head: Sequence[str], lines: Sequence[str]) -> Iterator[Block]:
    """Yield a block that is opened by hand, or none where there is nothing to say."""
    if not lines:
        return
    cut = len(lines) > MOST_FOLDED
    note = [f"The table ends after {MOST_FOLDED} of them; the HTML report has all."] if cut else []
    body = [*head, *lines[:MOST_FOLDED]]
    summary_line = f"<summary>{title}</summary>"
    yield title, ["<details>", summary_line, "", *body, "", "</details>", *note]
