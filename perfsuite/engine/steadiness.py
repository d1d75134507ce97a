"""Says when launches have settled: groups of samples agree, or only scatter about one level."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

# So many groups in a row within the tolerance are steady.
AGREEING = 3
# Launches that scatter by themselves (blocks that race for work, a host that is late) agree so
# closely by luck alone, after seconds. They are steady when a row of this many shows no drift: the
# means of its halves differ by no more than their standard error. Halves of a straight line are
# six errors apart, four in the short row. As simulated, a decay hidden in 1 % of noise is left no
# earlier for the long row, whose groups are of four samples. Half as many long samples, one a
# group, still take several times as long as 16 groups of short ones: of those that scatter by 1 %
# a decay that takes 50 groups may be left when most of it is still to come.
SCATTERING, SCATTERING_LONG = 16, 8
MOST_ERRORS = 1.0


class Groups:
    """The levels of groups of samples, in their order."""

    def __init__(self, tolerance: float, *, row: int = SCATTERING) -> None:
        self._tolerance = tolerance
        self._row = row
        self._levels: deque[float] = deque(maxlen=row)

    def add(self, level: float) -> None:
        """Add the level of one more group, positive."""
        self._levels.append(level)

    @property
    def are_steady(self) -> bool:
        """Say whether the last groups agree, or scatter without a drift."""
        return _agree(self._last, self._tolerance) or self._have_no_drift

    def why_not(self, limit_s: float) -> str:
        """Return a note on what did not settle within ``limit_s``."""
        last = self._last
        why = f"only {len(last)} of {AGREEING} groups fitted"
        if len(last) == AGREEING:
            why = f"last {len(last)} groups differ by {max(last) / min(last) - 1:.2%}"
        return f"did not settle within {limit_s:g} s ({why})"

    @property
    def _have_no_drift(self) -> bool:
        if len(self._levels) < self._row:
            return False
        levels, half = tuple(self._levels), self._row // 2
        early, late = levels[:half], levels[half:]
        apart = abs(statistics.fmean(late) - statistics.fmean(early))
        error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / half)
        return apart <= MOST_ERRORS * error

    @property
    def _last(self) -> Sequence[float]:
        return tuple(self._levels)[-AGREEING:]


def _agree(last: Sequence[float], tolerance: float) -> bool:
    return len(last) == AGREEING and max(last) - min(last) <= tolerance * min(last)
