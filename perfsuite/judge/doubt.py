"""Names what else than the code may be behind a change of time: others' load, a single card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfsuite.judge.change import Shift
from perfsuite.judge.policy import Against, Policy
from perfsuite.judge.timings import Timing
from perfsuite.model import BaselineEntry, Result, foreign_share

# Cards of one board differ by up to 8 % in single kernels (3 of 164 variants on two H200s: tf32
# GEMMs that every card runs in one of two ways, a reduction): up to here one card's word that no
# entry knows is not enough, unless so many cards agree that the variant has no such ways.
ONE_CARD, AGREEING_CARDS = 0.1, 3
# What others take of a device is no reason for doubt up to here: workers' own ends and starts.
QUIET = 0.1


@dataclass(frozen=True, slots=True)
class Doubts:
    """What a result's circumstances leave open.

    ``load`` is the share of the device that others took meanwhile, if it is worth a doubt, and
    ``load_before`` what they took of it when the entry was measured.
    ``card`` is the unit that alone was measured and that the entry does not know, if it is so.
    """

    load: float = 0.0
    load_before: float = 0.0
    card: str = ""

    def about(self, shift: Shift, policy: Policy) -> str:
        """Say what else than the code may be all of a change, or nothing."""
        low, high = shift.interval(policy.alpha)
        least = max(low, -high)
        load = max(self.load, self.load_before)
        if load and least < math.log1p(shift.gate + load):
            when = "meanwhile" if load == self.load else "when it was measured before"
            return f"others took {100 * load:.0f} % of the device {when}, which may be all of it"
        if self.card and least < math.log1p(max(ONE_CARD, 2 * shift.gate)):
            return (
                f"only one card says so, unit {self.card[:4]}, which the baseline has never seen: "
                "measure on another, or with --perf-against"
            )
        return ""


NO_DOUBTS = Doubts()


def doubts_about(
    result: Result, entry: BaselineEntry, before: Sequence[Timing], against: Against
) -> Doubts:
    """Return the doubts about a result that is compared with these processes of an entry.

    A device with two clocks has voided the blocks that were taken beside others; of arms that took
    turns others took alike.
    """
    is_alike = "cycles" in against.facts.clocks or result.variant in against.arms
    loads = (0.0, 0.0) if is_alike else (foreign_share(result.evidence), entry.load)
    now, then = (load if load > QUIET else 0.0 for load in loads)
    return Doubts(now, then, _unseen_card(result, before, against))


def _unseen_card(result: Result, before: Sequence[Timing], against: Against) -> str:
    known = {one.unit for one in before}
    measured = (result, against.screened.get(result.variant))
    units = {process.unit for one in measured if one for process in one.evidence}
    is_told = result.variant not in against.arms and "" not in known | units
    is_alone = len(units) == 1 and not units & known and len(known) < AGREEING_CARDS
    return units.pop() if is_told and is_alone else ""
