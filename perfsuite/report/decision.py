"""The outcome of a run as a small JSON file for scripts; docs/verdict.md says what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfsuite.codec import encode, schema_of
from perfsuite.model import ClaimVerdict, MachineShift, Section, Verdict
from perfsuite.report.book import Book
from perfsuite.report.cause import explained
from perfsuite.report.metrics import Measured, measured
from perfsuite.report.page import headline

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
