"""Judges a run's claims, what its results leave open by quads inside one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfsuite.judge import Policy, judge_claims, judge_quads
from perfsuite.model import ClaimInstance, ClaimVerdict, ClaimWord, Sampling, Stage, Status
from perfsuite.panel import GangPanel
from perfsuite.plan import missing_of
from perfsuite.runs import RunFile
from perfsuite.sites import Desk, share_out
from perfsuite.time_limit import TimeLimit

# Claims that are taken up, and how long another one may begin: the rest stay unclear.
MOST_CLAIMS = 20
LIMIT_S = 60.0


@dataclass(slots=True)
class Claims:
    """The claims of a run, whose quads are stored in its file.

    ``samplings`` says how their variants were sampled.
    """

    run_file: RunFile
    desks: Sequence[Desk]
    policy: Policy
    samplings: Mapping[str, Sampling]
    limit: TimeLimit = field(default_factory=TimeLimit)
    _decided: dict[str, ClaimVerdict] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def verdicts(self, tell: Callable[[str], None]) -> tuple[ClaimVerdict, ...]:
        """Return what became of each claim; ``tell`` is told of the quads that it takes."""
        run = self.run_file.run
        unmet = {claim.id: missing_of(claim.needs, run.facts) for claim in run.instances}
        found = judge_claims(
            run.instances,
            # The screen's alone: what one side took minutes later is no match for the other side.
            {result.variant: result for result in run.results if result.stage is Stage.SCREEN},
            facts=run.facts,
            unmet={claim: reason for claim, reason in unmet.items() if reason},
            policy=self.policy,
        )
        unclear = {each.claim for each in found if each.word is ClaimWord.UNCLEAR}
        gangs = {variant.id for variant in run.variants if variant.is_gang}
        left = [c for c in run.instances if c.id in unclear and not {c.faster, c.than} & gangs]
        if left:
            tell(f"deciding {len(left[:MOST_CLAIMS])} of {len(found)} claims inside one process")
            self._decide(left[:MOST_CLAIMS])
        limit = f"no quads: the limit is {MOST_CLAIMS} claims, {LIMIT_S:g} s"
        limit += f", within {self.limit}" if self.limit.is_set else ""
        undone = {claim.id: self._failed.get(claim.id, limit) for claim in left}
        still_open = {
            each.claim: replace(each, reason=f"{each.reason}; {undone[each.claim]}")
            for each in found
            if each.claim in undone
        }
        told = still_open | self._decided
        return tuple(told.get(each.claim, each) for each in found)

    def _decide(self, claims: Sequence[ClaimInstance]) -> None:
        deadline = time.monotonic() + min(LIMIT_S, self.limit.left_s())

        def decide(desk: Desk, share: Sequence[ClaimInstance]) -> None:
            for claim in share:
                if time.monotonic() < deadline:
                    self._measure(desk, claim)

        share_out(self.desks, claims, decide)

    def _measure(self, desk: Desk, claim: ClaimInstance) -> None:
        run = self.run_file.run
        if isinstance(desk.panel, GangPanel):
            return
        variants = {variant.id: variant for variant in run.variants}
        desk.panel.samplings = dict(self.samplings)
        processes = run.settings.confirm_processes
        results = desk.panel.quads(
            variants[claim.faster], variants[claim.than], processes=processes
        )
        with self._lock:
            both = [self.run_file.append(replace(result, claim=claim.id)) for result in results]
            verdict = judge_quads(claim, both, facts=run.facts, policy=self.policy)
            if verdict is not None:
                self._decided[claim.id] = verdict
            elif both:
                last = next((r for r in both if r.status is not Status.OK), both[0])
                self._failed[claim.id] = f"quads ended {last.status.value}: {last.reason}"
