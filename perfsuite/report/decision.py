"""The outcome of a run as a small JSON file for scripts."""

from __future__ import annotations

from perfsuite.codec import encode
from perfsuite.report.book import Book
from perfsuite.report.page import headline

SCHEMA = 1


def verdict_json(book: Book) -> str:
    """Return the run's outcome, the variants that need a reader first.

    A new key is no new schema, another meaning is.
    """
    run = book.run
    decision = {
        "schema": SCHEMA,
        "run": run.id,
        "sku": run.sku.slug,
        "commit": run.commit,
        "started": run.started,
        "compared_with": book.source,
        "headline": headline(book),
        "fails": book.fails,
        "counts": dict(sorted(book.counts.items())),
        "variants": [
            {
                "variant": one.variant.id,
                "word": one.mark.word,
                "reason": one.reason,
                "verdict": one.verdict,
            }
            for one in book.subjects
        ],
        "claims": run.claims,
        "machine_shift": run.shift,
        "notes": run.notes,
    }
    return encode(decision).decode() + "\n"
