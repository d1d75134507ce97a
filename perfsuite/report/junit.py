"""A verdict as properties of a JUnit test case, in plain types."""

from __future__ import annotations

from perfsuite.model import Change, Result, Verdict

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
        for change in verdict.changes:
            found += _of_change(change)
    elif result is not None and result.reason:
        found.append(("perf_reason", result.reason))
    return found


def _of_change(change: Change) -> list[Property]:
    return [
        (f"perf_{change.metric}", change.current),
        (f"perf_{change.metric}_baseline", change.baseline),
        (f"perf_{change.metric}_change", change.theta),
        (f"perf_{change.metric}_change_low", change.low),
        (f"perf_{change.metric}_change_high", change.high),
    ]
