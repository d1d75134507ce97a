"""A run as properties of JUnit's test cases and of their suite, in plain types."""

from __future__ import annotations

from perfsuite.model import Change, Result, Verdict
from perfsuite.report.book import Book
from perfsuite.report.page import headline

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
