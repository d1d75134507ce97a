"""A variant's rate and its share of the ceiling, for display only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfsuite import roofline
from perfsuite.model import Work
from perfsuite.report import view


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast the work was done, as text, and how near to what the device can do."""

    text: str = view.NOTHING
    share: str = ""
    share_of_ceiling: float | None = None


def rate_of(work: Work | None, time_us: float | None, slug: str) -> Rate:
    """Return the rate of the work that limits a launch, on the SKU of this slug."""
    if work is None or not time_us:
        return Rate()
    peaks = _peaks(slug)
    found = {metric.name: metric for metric in roofline.rates(work, time_us, peaks)}
    share = roofline.efficiency(work, peaks, time_us)
    by_flops = work.flops and roofline.work_class(work, peaks) != roofline.MEMORY
    metric = found.get("tflop_per_s" if by_flops else "gb_per_s") or found.get("tflop_per_s")
    if metric is None:
        return Rate()
    return Rate(view.rate(metric.value, metric.unit), view.share(share) if share else "", share)


@lru_cache(maxsize=8)
def _peaks(slug: str) -> roofline.Peaks:
    return roofline.peaks_of(slug)
