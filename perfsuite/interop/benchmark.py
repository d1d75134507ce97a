"""A run in pytest-benchmark's JSON, which its ``compare`` and services around it read.

Its "data" are processes, not samples: samples of one process say nothing about the next, so a
standard deviation over them would call changes that are none. ``rounds`` counts processes, ``data``
holds the middle of each, in seconds. What has no time, or did not end ok, is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfsuite.model import Run, Status
from perfsuite.report.data import TIME, RunView, VariantView
from perfsuite.store.codec import encode

# Whose files this one is like; the name is what tells readers that another tool wrote it.
VERSION = "5.3.1"
US = 1e-6
QUARTILES = (0.25, 0.5, 0.75)
FENCE = 1.5  # Tukey's, of the distance between the quartiles


def benchmark_json(book: RunView) -> str:
    """Return the times of a run as ``pytest-benchmark compare`` reads them."""
    told = [one for one in book.variants if _is_timed(one)]
    found = {
        "machine_info": _machine(book.run),
        "commit_info": _commit(book.run),
        "benchmarks": [_benchmark(one, book.run) for one in told],
        "datetime": book.run.started,
        "version": VERSION,
    }
    return encode(found).decode() + "\n"


def stats(data: Sequence[float]) -> Mapping[str, Any]:
    """Return what pytest-benchmark says of durations, with its quartiles and fences."""
    q1, median, q3 = (_quantile(sorted(data), share) for share in QUARTILES)
    # Not the statistics module: its exact fractions take seconds of a large report.
    mean = math.fsum(data) / len(data)
    squares = math.fsum((one - mean) ** 2 for one in data)
    stddev = math.sqrt(squares / (len(data) - 1)) if len(data) > 1 else 0.0
    low, high = q1 - FENCE * (q3 - q1), q3 + FENCE * (q3 - q1)
    inside = [one for one in data if low <= one <= high]
    apart = sum(not mean - stddev <= one <= mean + stddev for one in data)
    return {
        "min": min(data),
        "max": max(data),
        "mean": mean,
        "stddev": stddev,
        "rounds": len(data),
        "median": median,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": len(data) - len(inside),
        "stddev_outliers": apart,
        "outliers": f"{apart};{len(data) - len(inside)}",
        "ld15iqr": min(inside),
        "hd15iqr": max(inside),
        "ops": 1 / mean,
        "total": sum(data),
        "data": list(data),
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return Hazen's quantile: "method 3" of odd counts and "method 2" of even ones there."""
    place = min(max(share * len(ordered) - 0.5, 0.0), len(ordered) - 1)
    below, rest = ordered[int(place)], place % 1
    return below + rest * (ordered[int(place) + 1] - below) if rest else below


def _is_timed(subject: VariantView) -> bool:
    ended_ok = subject.result is not None and subject.result.status is Status.OK
    return ended_ok and min(subject.middles.get(TIME, ()), default=0.0) > 0


def _benchmark(subject: VariantView, run: Run) -> dict[str, Any]:
    variant, verdict = subject.variant, subject.verdict
    return {
        "group": f"{variant.pack}.{variant.case.name}",
        "name": variant.id,
        "fullname": variant.id,
        "params": dict(variant.axes),
        "param": ",".join(subject.axes),
        "extra_info": {
            "sku": run.sku.slug,
            "verdict": verdict.word.value if verdict else "",
            "reason": subject.reason,
        },
        "options": {},
        "stats": {
            **stats([time_us * US for time_us in subject.middles[TIME]]),
            "iterations": max((one.launches for one in subject.evidence), default=1),
        },
    }


def _machine(run: Run) -> dict[str, Any]:
    facts = run.facts
    known = {**facts.environment, **facts.state, **facts.identity}
    return {**known, "sku": run.sku.slug, "device": facts.name}


def _commit(run: Run) -> dict[str, Any]:
    commit = run.commit.removesuffix("-dirty")
    return {"id": commit or "unversioned", "dirty": commit != run.commit}
