"""A run in pytest-benchmark's JSON, which its ``compare`` and services around it read.

Its "data" are processes, not samples: samples of one process say nothing about the next, so a
standard deviation over them would call changes that are none. ``rounds`` counts processes, ``data``
holds the middle of each, in seconds. What has no time, or did not end ok, is not in it.
"""

from __future__ import annotations

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


def benchmark_json(run_view: RunView) -> str:
    """Return the times of a run as ``pytest-benchmark compare`` reads them."""
    run, facts = run_view.run, run_view.run.facts
    commit = run.commit.removesuffix("-dirty")
    known = {**facts.environment, **facts.state, **facts.identity}
    found = {
        "machine_info": {**known, "sku": run.sku.slug, "device": facts.name},
        "commit_info": {"id": commit or "unversioned", "dirty": commit != run.commit},
        "benchmarks": [_benchmark(one, run) for one in run_view.variants if _is_timed(one)],
        "datetime": run.started,
        "version": VERSION,
    }
    return encode(found).decode() + "\n"


def stats(data: Sequence[float]) -> Mapping[str, Any]:
    """Return what pytest-benchmark says of durations, with its quartiles and fences."""
    import numpy as np

    each = np.asarray(data)
    # "Method 3" of odd counts and "method 2" of even ones there.
    q1, middle, q3 = map(float, np.quantile(each, QUARTILES, method="hazen"))
    mean = float(each.mean())
    stddev = float(each.std(ddof=1)) if len(data) > 1 else 0.0
    reach = FENCE * (q3 - q1)
    inside = each[(each >= q1 - reach) & (each <= q3 + reach)]
    apart, outside = int((abs(each - mean) > stddev).sum()), len(data) - len(inside)
    return {
        "min": min(data),
        "max": max(data),
        "mean": mean,
        "stddev": stddev,
        "rounds": len(data),
        "median": middle,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": apart,
        "outliers": f"{apart};{outside}",
        "ld15iqr": float(inside.min()),
        "hd15iqr": float(inside.max()),
        "ops": 1 / mean,
        "total": sum(data),
        "data": list(data),
    }


def _is_timed(variant_view: VariantView) -> bool:
    ended_ok = variant_view.last is not None and variant_view.last.status is Status.OK
    return ended_ok and min(variant_view.middles.get(TIME, ()), default=0.0) > 0


def _benchmark(variant_view: VariantView, run: Run) -> dict[str, Any]:
    variant, verdict = variant_view.variant, variant_view.verdict
    return {
        "group": f"{variant.pack}.{variant.case.name}",
        "name": variant.id,
        "fullname": variant.id,
        "params": dict(variant.axes),
        "param": ",".join(variant_view.axes),
        "extra_info": {
            "sku": run.sku.slug,
            "verdict": verdict.word.value if verdict else "",
            "reason": variant_view.reason,
        },
        "options": {},
        "stats": {
            **stats([time_us * US for time_us in variant_view.middles[TIME]]),
            "iterations": max((one.launches for one in variant_view.evidence), default=1),
        },
    }
