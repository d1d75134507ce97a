"""A run as text for other tools: JSON, JUnit, Markdown, annotations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.boundary import plain
from perfsuite.model import Change, ClaimVerdict, MachineShift, Result, Section, Verdict
from perfsuite.report import view
from perfsuite.report.data import (
    Book,
    Measured,
    Row,
    Subject,
    change_text,
    headline,
    measured,
)
from perfsuite.report.why import cause, explained
from perfsuite.store.codec import encode, schema_of
from perfsuite.store.files import appending

# The outcome of a run as a small JSON file for scripts; docs/verdict.md says what is in it.


SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """How one variant ended: a verdict's word, or its status where there is no verdict.

    ``why`` says what a change is made of, where that is known; ``fails`` whether it fails the run;
    ``verdict`` has the changes behind the word, ``metrics`` what is no clock.
    """

    variant: str
    word: str
    reason: str
    why: str
    fails: bool
    verdict: Verdict | None
    metrics: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a run, the variants that need a reader first.

    Changes are relative (0.02 is 2 % worse), times in the unit that stands beside them.
    """

    schema: int
    run: str
    sku: str
    commit: str
    started: str
    compared_with: str
    headline: str
    fails: bool
    counts: Mapping[str, int]
    variants: tuple[Decided, ...]
    claims: tuple[ClaimVerdict, ...]
    machine_shift: MachineShift | None
    notes: tuple[str, ...]
    gaps: tuple[str, ...]
    sections: tuple[Section, ...] = ()


def verdict_json(book: Book) -> str:
    """Return the run's outcome. A new key is no new schema, another meaning is."""
    run = book.run
    decision = Decision(
        schema=SCHEMA,
        run=run.id,
        sku=run.sku.slug,
        commit=run.commit,
        started=run.started,
        compared_with=book.source,
        headline=headline(book),
        fails=book.fails,
        counts=dict(sorted(book.counts.items())),
        variants=tuple(
            Decided(
                variant=one.variant.id,
                word=one.mark.word,
                reason=one.reason,
                why=explained(one),
                fails=one.fails,
                verdict=one.verdict,
                metrics=measured(one),
            )
            for one in book.subjects
        ),
        claims=run.claims,
        machine_shift=run.shift,
        notes=run.notes,
        gaps=run.gaps,
        sections=book.sections,
    )
    return encode(decision).decode() + "\n"


def json_schema() -> str:
    """Return the JSON Schema that docs/verdict.schema.json is a copy of."""
    return schema_of(Decision, title="perfsuite verdict.json", version=SCHEMA)


# A run as properties of JUnit's test cases and of their suite, in plain types.


Property = tuple[str, str | float]


def properties(result: Result | None, verdict: Verdict | None) -> list[Property]:
    """Return what a test case carries; changes are relative, times in microseconds."""
    found: list[Property] = []
    if result is not None:
        found += [("perf_status", result.status.value), ("perf_wall_s", result.wall_s)]
        found.append(("perf_processes", len(result.evidence)))
    if verdict is not None:
        found += [("perf_verdict", verdict.word.value), ("perf_reason", verdict.reason)]
        found += [("perf_compared_with", verdict.source)] if verdict.source else []
        if excepted := verdict.excepted:
            found += [("perf_excepted", excepted.kind), ("perf_excepted_until", excepted.until)]
            found += [("perf_excepted_reason", excepted.reason)]
            found += [("perf_excepted_issue", excepted.issue)] if excepted.issue else []
        for change in verdict.changes:
            found += _of_change(change)
    elif result is not None and result.reason:
        found.append(("perf_reason", result.reason))
    return found


def suite_properties(book: Book) -> list[Property]:
    """Return what the suite carries: which run it was, on what, and how it ended."""
    run = book.run
    return [
        ("perf_run", run.id),
        ("perf_started", run.started),
        ("perf_sku", run.sku.slug),
        ("perf_device", run.facts.name),
        ("perf_commit", run.commit),
        ("perf_compared_with", book.source),
        ("perf_outcome", headline(book)),
        ("perf_machine_shift", run.shift.word.value if run.shift else ""),
        *((f"perf_count_{mark.word}", count) for mark, count in book.tallies),
    ]


def _of_change(change: Change) -> list[Property]:
    return [
        (f"perf_{change.metric}", change.current),
        (f"perf_{change.metric}_unit", change.unit),
        (f"perf_{change.metric}_baseline", change.baseline),
        (f"perf_{change.metric}_change", change.theta),
        (f"perf_{change.metric}_change_low", change.low),
        (f"perf_{change.metric}_change_high", change.high),
        (f"perf_{change.metric}_threshold", change.threshold),
        (f"perf_{change.metric}_gate", change.gate),
    ]


# A run as Markdown for a CI step: the outcome first, a short table, the rest folded.


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


def plain_summary(text: str) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    active = _ACTIVE.sub(lambda found: f"{found[0][0]}&#8203;{found[0][1:]}", _one_line(text))
    escaped = _SPECIAL.sub(r"\\\1", active).replace("&\\#8203;", "&#8203;")
    return escaped.replace("\\<", "&lt;").replace("\\>", "&gt;")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table of text that may hold anything."""
    cells = [columns, ["---"] * len(columns), *(list(map(plain_summary, row)) for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]


def _one_line(text: str) -> str:
    return " ".join(text.replace("&", "&amp;").split())


def _blocks(book: Book) -> Iterator[list[str]]:
    """Yield what is told, the most important first."""
    told = [_line(line) for line in book.rows if not line.subject.mark.is_quiet]
    yield [f"### {_outcome(book)}", "", _about(book), "", _tally(book)]
    if book.run.shift:
        yield [f"**machine-shift**: {plain_summary(book.run.shift.reason)}"]
    if told:
        yield [*_HEAD, *_first(told)]
    if book.broken:
        yield ["Broken claims:", "", *_CLAIMS, *_first(list(map(_claim, book.broken)))]
    quiet = [_line(line) for line in book.rows if line.subject.mark.is_quiet]
    yield from _folded(view.count(len(quiet), "other variant"), _HEAD, quiet)
    held = [_claim(claim) for claim in book.claims if claim not in book.broken]
    yield from _folded(f"Claims: {view.count(len(held), 'other')}", _CLAIMS, held)
    yield from _folded("Coverage, by pack", _PACKS, list(_packs(book)))
    skipped = [
        f"- {word} {len(ids)}: {plain_summary(_short(why))}" for word, why, ids in book.skips
    ]
    yield from _folded("Skipped and left out, by reason", (), skipped)
    for section in book.sections:
        columns = map(plain_summary, section.columns)
        head = [_cells(*columns), _cells(*["---"] * len(section.columns))]
        table = head if section.columns else []
        text = [plain_summary(_short(section.text)), ""] if section.text else []
        rows = [_cells(*map(plain_summary, map(_short, row))) for row in section.rows]
        yield from _folded(plain_summary(section.title), [*text, *table], rows or [""])
    yield from _folded("Notes", (), [f"- {plain_summary(_short(note))}" for note in book.run.notes])


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
    return " · ".join(plain_summary(one) for one in said)


def _tally(book: Book) -> str:
    return ", ".join(f"**{count}** {mark.word}" for mark, count in book.tallies)


def _line(line: Row) -> str:
    subject = line.subject
    mark = f"{subject.mark.glyph} {subject.mark.word}"
    told = "" if subject.mark.is_quiet else _short(cause(subject))
    cells = (
        f"{line.now} {plain_summary(line.metric)}".strip(),
        line.baseline,
        line.change,
        line.interval,
    )
    return _cells(mark, plain_summary(subject.variant.id), *cells, plain_summary(told))


def _claim(one: ClaimVerdict) -> str:
    ratios = view.ratio(one.ratio), view.ratio(one.required)
    return _cells(
        plain_summary(one.claim), one.word.value, *ratios, plain_summary(_short(one.reason))
    )


def _packs(book: Book) -> Iterator[str]:
    found: dict[str, Counter[str]] = {}
    for subject in book.subjects:
        found.setdefault(subject.variant.pack, Counter())[subject.mark.word] += 1
    for pack, words in sorted(found.items()):
        ran = words.total() - words["skipped"] - words["not run"]
        outcome = ", ".join(f"{count} {word}" for word, count in words.most_common())
        yield _cells(plain_summary(pack), str(words.total()), str(ran), outcome)


def _short(text: str) -> str:
    return text if len(text) <= MOST_WHY else f"{text[:MOST_WHY]} …"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _folded(title: str, head: Sequence[str], lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield a block that is opened by hand, or none where there is nothing to say."""
    if lines:
        summary_line = f"<summary>{title}</summary>"
        yield ["<details>", summary_line, "", *head, *_first(lines), "", "</details>"]


# What a GitHub workflow reads: annotations at the lines of the cases, and the step's summary.


# GitHub shows this many annotations of a kind for a step, and this much of a step's summary.
MOST = 10
MOST_BYTES = 1024 * 1024
_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A message of a kind (error, warning), at a line of a file if there is one."""

    kind: str
    title: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = {"file": self.file, "line": str(self.line)} if self.file else {}
        properties = {**place, "title": self.title}
        told = ",".join(f"{name}={_escaped(text, _PROPERTY)}" for name, text in properties.items())
        return f"::{self.kind} {told}::{_escaped(self.message, _DATA)}"


def commands_of(book: Book, *, here: Path, workspace: Path) -> Iterator[str]:
    """Yield workflow commands: errors for what fails, warnings for what else needs a reader.

    ``here`` is what the cases' paths are relative to, ``workspace`` the checkout on GitHub. The
    most important come first; what is more than GitHub shows is one that says how many they are.
    """
    found = list(_all(book, _Places(here, workspace)))
    for kind in ("error", "warning"):
        of_kind = [one for one in found if one.kind == kind]
        cut = len(of_kind) > MOST
        yield from map(str, of_kind[: MOST - 1] if cut else of_kind)
        if cut:
            rest = f"and {len(of_kind) - MOST + 1} more: see the step's summary"
            yield str(Annotation(kind=kind, title="perfsuite", message=rest))


def append_summary(book: Book, path: Path) -> None:
    """Append the run's Markdown to the file of a step's summary, if it has room."""
    with appending(path) as file:
        room = MOST_BYTES - file.tell()
        data = summary(book).encode("utf-8", "replace")
        # GitHub shows nothing of a summary that is too large: better that of earlier steps alone.
        file.write(data if len(data) <= room else b"")


@dataclass(frozen=True, slots=True)
class _Places:
    here: Path
    workspace: Path

    def of(self, file: str) -> str:
        """Return a file as GitHub names it; nothing for one that is no part of the checkout."""
        path = (self.here / file).resolve()
        inside = file and path.is_file() and path.is_relative_to(self.workspace.resolve())
        return path.relative_to(self.workspace.resolve()).as_posix() if inside else ""


def _all(book: Book, places: _Places) -> Iterator[Annotation]:
    if shift := book.run.shift:
        kind = "error" if shift.fails else "warning"
        yield Annotation(kind=kind, title="machine-shift", message=shift.reason)
    yield from (_of_variant(one, places) for one in book.subjects if one.fails)
    instances = {instance.id: instance for instance in book.run.instances}
    for claim in book.broken:
        instance = instances.get(claim.claim)
        yield Annotation(
            kind="error" if claim.fails else "warning",
            title=f"broken: {claim.claim}",
            message=claim.reason,
            file=places.of(instance.file) if instance else "",
            line=instance.line if instance else 0,
        )
    doubts = (one for one in book.subjects if not one.fails and _is_doubtful(one))
    yield from (_of_variant(one, places) for one in doubts)


def _is_doubtful(subject: Subject) -> bool:
    return subject.mark.needs_reader or subject.mark.tone == "unclear"


def _of_variant(subject: Subject, places: _Places) -> Annotation:
    case, change = subject.variant.case, subject.telling
    moved = f" {change_text(change)}" if change else ""
    return Annotation(
        kind="error" if subject.fails else "warning",
        title=f"{subject.mark.word}{moved}: {subject.variant.id}",
        message=cause(subject) or subject.mark.meaning,
        file=places.of(case.file),
        line=case.line,
    )


def _escaped(text: str, marks: Mapping[str, str]) -> str:
    return "".join(marks.get(each, each) for each in plain(text))
