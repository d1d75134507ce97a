"""What a GitHub workflow reads: annotations at the lines of the cases, and the step's summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfsuite.boundary import plain
from perfsuite.files import appending
from perfsuite.report.book import Book
from perfsuite.report.cause import cause
from perfsuite.report.rows import change_text
from perfsuite.report.subject import Subject
from perfsuite.report.summary import summary

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
