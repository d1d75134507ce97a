"""Puts a decided shift into sentences that an engineer can act on."""

from __future__ import annotations

import math

from perfsuite.judge.change import Shift
from perfsuite.judge.policy import Policy
from perfsuite.judge.timings import TIME
from perfsuite.model import Change, Word

# Below this a movement of the SM clock is not worth a word.
NOTABLE_CLOCK = 0.002


def percent(share: float) -> str:
    """Return a share of 1 as signed percent, with the digits its size supports."""
    value = round(100 * share, 2) + 0.0  # no minus zero
    return f"{value:+.{2 if abs(value) < 1 else 1}f} %"


def timed_reason(word: Word, shift: Shift, change: Change, policy: Policy) -> str:
    """Say what moved, how surely, what the limit was and what both clocks did."""
    if shift.metric is not TIME:
        # The change is not the ratio of these: stray processes count less in it.
        medians = f"{change.baseline:.6g} and {change.current:.6g} {change.unit}".strip()
        found = _finding(word, shift, change, policy)
        return f"{shift.metric.name}, medians {medians}: {found}"
    parts = [_clocks(shift, word), _finding(word, shift, change, policy), _evidence(shift)]
    return "; ".join(part for part in parts if part)


def exact_reason(change: Change) -> str:
    """Say how a metric without noise moved."""
    moved = f"{change.metric} {_ends(change)}"
    is_share = change.theta > 0 and change.baseline
    return f"{moved} ({percent(change.theta)} worse)" if is_share else moved


def _ends(change: Change) -> str:
    return f"{change.baseline:.6g} -> {change.current:.6g} {change.unit}".strip()


def _clocks(shift: Shift, word: Word) -> str:
    if not shift.has_clock:
        return ""
    time = f"time {percent(math.expm1(shift.time))}"
    if abs(shift.clock) < NOTABLE_CLOCK:
        return time
    both = f"{time}, SM clock {percent(math.expm1(shift.clock))}"
    moved = abs(shift.time) > shift.threshold
    return f"{both}: the code is the same" if word is Word.SAME and moved else both


def _finding(word: Word, shift: Shift, change: Change, policy: Policy) -> str:
    alpha = 2 * policy.alpha_same if word is Word.SAME else policy.alpha
    span = f"{100 * (1 - alpha):g} % interval {percent(change.low)} to {percent(change.high)}"
    # With one clock the code's change is that of time.
    name = ("code " if shift.has_clock else "time ") if shift.metric is TIME else ""
    # More is better there, and the sign says what is worse.
    worse = " worse" if shift.metric.better == "higher" else ""
    code = f"{name}{percent(change.theta)}{worse} ({span}"
    found = f"from {limit(change.detectable)} on a change would be found"
    if word is Word.SAME:
        return f"{code}, inside the gate of {limit(shift.gate)}); {found}"
    if word in {Word.SLOWER, Word.FASTER}:
        return f"{code}, threshold {limit(shift.threshold)})"
    why = "the SM clock moved too far to tell the code's part; " if shift.is_clock_lost else ""
    return f"{code}); {why}{found}"


def _evidence(shift: Shift) -> str:
    where = "the same unit" if shift.same_unit else "another unit"
    text = f"{shift.processes[1]} processes against {shift.processes[0]} on {where}"
    if not shift.strays:
        return text
    count = "one process stands" if shift.strays == 1 else f"{shift.strays} processes stand"
    return f"{text}, {count} apart from the others"


def limit(share: float) -> str:
    """Return a share of 1 in percent, with three digits, or all that lie before the point."""
    return f"{100 * share:{'.3g' if share < 1 else '.0f'}} %"
