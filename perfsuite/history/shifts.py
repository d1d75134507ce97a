"""Says of series that were read where their level shifted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from perfsuite.model import ChangePoint, RunLabel, Series, Trend, Trends
from perfsuite.stats import shifts


def with_shifts(found: Trends) -> Trends:
    """Return the trends with where each series' level shifted."""
    return replace(found, rows=tuple(_with_shifts(row, found.runs) for row in found.rows))


def with_change_points(one: Series) -> Series:
    """Return the series with where its level shifted; points that do not count are passed over."""
    valid = one.valid
    found = _shifted([point.center or 0.0 for point in valid])
    if found is None:
        return one
    cuts = [0, *(shift.index for shift in found), len(valid)]
    units = [
        {unit for point in valid[start:end] for unit in point.values}
        for start, end in pairwise(cuts)
    ]
    labels = [RunLabel(point.run, point.started, point.commit) for point in valid]
    told = tuple(
        replace(_told(shift, labels), is_other_unit=bool(here and there and not here & there))
        for shift, there, here in zip(found, units, units[1:], strict=False)
    )
    return replace(one, change_points=told)


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A shift with the levels around it in the metric's unit."""

    index: int
    before: float
    after: float
    p_value: float


def _shifted(centers: Sequence[float]) -> list[_Shifted] | None:
    """Return each shift; None where nothing can look."""
    if not centers:
        return []
    # Counts may be nothing at all, which has no logarithm.
    add = 0.0 if all(center > 0 for center in centers) else 1.0
    try:
        found = shifts([math.log(max(center, 0.0) + add) for center in centers])
    except ImportError:  # there is no ruptures for every Python
        return None
    ends = [0, *(shift.index for shift in found), len(centers)]
    levels = [fmean(centers[start:end]) for start, end in pairwise(ends)]
    around = zip(found, levels, levels[1:], strict=False)
    return [_Shifted(each.index, before, after, each.p_value) for each, before, after in around]


def _told(shift: _Shifted, labels: Sequence[RunLabel]) -> ChangePoint:
    before, first = labels[shift.index - 1], labels[shift.index]
    return ChangePoint(
        run=first.id,
        started=first.started,
        commit_before=before.commit,
        commit=first.commit,
        before=shift.before,
        after=shift.after,
        p_value=shift.p_value,
    )


def _with_shifts(row: Trend, labels: Sequence[RunLabel]) -> Trend:
    counted = [
        at for at, center in enumerate(row.centers) if center is not None and at not in row.why_not
    ]
    found = _shifted([row.centers[at] or 0.0 for at in counted])
    if not found:
        return row if found is None else replace(row, change_points=())
    own = [labels[row.runs[at]] for at in counted]
    return replace(row, change_points=tuple(_told(shift, own) for shift in found))
