"""A variant's rate and its share of the ceiling, for display only."""

from __future__ import annotations

from perfsuite import roofline
from perfsuite.model import Work
from perfsuite.report import view
from perfsuite.roofline import Peaks


def rate_of(work: Work | None, time_us: float | None, peaks: Peaks) -> tuple[str, float | None]:
    """Return the rate of the work that limits a launch, and its share of the ceiling."""
    if work is None or not time_us:
        return view.NOTHING, None
    found = {metric.name: metric for metric in roofline.rates(work, time_us, peaks)}
    by_flops = work.flops and roofline.work_class(work, peaks) != roofline.MEMORY
    limit = "tflop_per_s" if by_flops else "gb_per_s"
    if roofline.is_held_by_starts(work, peaks):
        limit = "kernels_per_ms"
    metric = found.get(limit) or found.get("tflop_per_s") or found.get("kernels_per_ms")
    if metric is None:
        return view.NOTHING, None
    return view.rate(metric.value, metric.unit), roofline.efficiency(work, peaks, time_us)
