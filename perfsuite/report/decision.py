"""The outcome of a run as a small JSON file for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfsuite.codec import encode
from perfsuite.model import ClaimVerdict, MachineShift, Verdict
from perfsuite.report.book import Book
from perfsuite.report.page import headline

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one variant ended, with its verdict where it has one."""

    variant: str
    word: str
    reason: str
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What ``verdict.json`` says; a new field is no new schema, another meaning is."""

    schema: int
    run: str
    sku: str
    commit: str
    started: str
    compared_with: str
    headline: str
    fails: bool
    counts: Mapping[str, int]
    variants: tuple[Ending, ...]
    claims: tuple[ClaimVerdict, ...]
    machine_shift: MachineShift | None
    notes: tuple[str, ...]


def verdict_json(book: Book) -> str:
    """Return the run's outcome, the variants that need a reader first."""
    run = book.run
    endings = (
        Ending(variant=one.variant.id, word=one.mark.word, reason=one.reason, verdict=one.verdict)
        for one in book.subjects
    )
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
        variants=tuple(endings),
        claims=run.claims,
        machine_shift=run.shift,
        notes=run.notes,
    )
    return encode(decision).decode() + "\n"
