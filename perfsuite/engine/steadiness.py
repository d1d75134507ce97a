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
# six errors apart. As simulated, a decay hidden in 1 % of noise is left no earlier for it where a
# group is of four samples. Of single long ones that scatter by 1 %, one of 50 groups is left with 6
# of its 10 % to come (4 of 10 without this); by 0.5 %, with 3.
SCATTERING = 16
MOST_ERRORS = 1.0


class Groups:
    """The levels of groups of samples, in their order."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._levels: deque[float] = deque(maxlen=SCATTERING)

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
        if len(self._levels) < SCATTERING:
            return False
        levels, half = tuple(self._levels), SCATTERING // 2
        early, late = levels[:half], levels[half:]
        apart = abs(statistics.fmean(late) - statistics.fmean(early))
        error = math.sqrt((statistics.variance(early) + statistics.variance(late)) / half)
        return apart <= MOST_ERRORS * error

    @property
    def _last(self) -> Sequence[float]:
        return tuple(self._levels)[-AGREEING:]


def _agree(last: Sequence[float], tolerance: float) -> bool:
    return len(last) == AGREEING and max(last) - min(last) <= tolerance * min(last)
