"""Finds where the level of a series of nights shifts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfsuite.stats.samples import MAD_TO_SD

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Fewer values at a level are outliers, not a level.
FEWEST = 3
# The smallest threshold of a verdict: a smaller shift is no news, however certain.
LEAST_SHIFT = 0.0025
# Of a shift, corrected for the number of places where it could have been.
MOST_P = 0.001
# A value this many standard deviations from its neighbours' median is drawn in to that distance.
REACH = 4.0
NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class Shift:
    """A shift of the level at ``index``, the first value after it, as a difference of means.

    ``p_value`` is Student's t of both levels times the number of places looked at.
    """

    index: int
    size: float
    p_value: float


def shifts(values: Sequence[float]) -> tuple[Shift, ...]:
    """Return where the level of (log) values shifts.

    Candidates are the best segmentation by squared error (ruptures' PELT) at a penalty of
    3 log n variances; then the weakest goes, until each is certain and large enough, as in Hunter
    (Fleming et al., ICPE 2023).
    """
    if len(values) < 2 * FEWEST:
        return ()
    import numpy as np
    from ruptures import KernelCPD

    raw = np.asarray(values, dtype=float)
    noise = _noise(raw)
    near = _drawn_in(raw, REACH * noise)
    scaled = ((near - near[0]) / noise).reshape(-1, 1)
    search = KernelCPD(kernel="linear", min_size=FEWEST).fit(scaled)
    ends = [0, *(int(end) for end in search.predict(pen=3 * math.log(len(raw))))]
    while len(ends) > 2:  # noqa: PLR2004 - more than one level
        found = [
            _shift(near, *place, noise) for place in zip(ends, ends[1:], ends[2:], strict=False)
        ]
        weakest = max(found, key=lambda shift: (shift.p_value, -abs(shift.size)))
        if weakest.p_value < MOST_P:
            weakest = min(found, key=lambda shift: abs(shift.size))
            if abs(weakest.size) >= LEAST_SHIFT:
                return tuple(found)
        ends.remove(weakest.index)
    return ()


def _noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation between neighbours, which a shift does not raise."""
    import numpy as np

    steps = np.diff(values)
    away = np.abs(steps - _median(steps))
    return max(MAD_TO_SD * float(_median(away)) / math.sqrt(2), LEAST_SHIFT / 10)


def _drawn_in(values: NDArray[np.float64], reach: float) -> NDArray[np.float64]:
    """Return the values, those far from the median of their neighbours at most ``reach`` from it.

    A shift stays as it is once most of the neighbours are behind it.
    """
    import numpy as np

    inside = len(values) - NEIGHBOURS + 1
    inner = _median(np.array([values[at : at + inside] for at in range(NEIGHBOURS)]).T)
    edge = NEIGHBOURS // 2
    middles = np.concatenate([[inner[0]] * edge, inner, [inner[-1]] * edge])
    return np.minimum(np.maximum(values, middles - reach), middles + reach)


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (upper) median; numpy's own takes most of the time of a thousand series."""
    import numpy as np

    middle = values.shape[-1] // 2
    found: NDArray[np.float64] = np.partition(values, middle)[..., middle]
    return found


def _shift(values: NDArray[np.float64], start: int, place: int, end: int, noise: float) -> Shift:
    from scipy.special import stdtr

    left, right = values[start:place], values[place:end]
    degrees = len(left) + len(right) - 2
    squares = len(left) * left.var() + len(right) * right.var()
    # Values that are rounded alike have no spread of their own.
    variance = max(squares / degrees, (noise / 10) ** 2)
    size = float(right.mean() - left.mean())
    error = math.sqrt(variance * (1 / len(left) + 1 / len(right)))
    p_value = 2 * float(stdtr(degrees, -abs(size) / error)) * (len(values) - 2 * FEWEST + 1)
    return Shift(place, size, min(1.0, p_value))
