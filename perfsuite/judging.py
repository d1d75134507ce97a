"""Judges a run by its yardstick: the variants of a stage, then its claims and its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfsuite.judge import Against, Policy, canary_clocks, judge, judge_claims, judge_machine
from perfsuite.model import Result, Run, Stage, Verdict
from perfsuite.plan import missing_of
from perfsuite.yardstick import Yardstick


@dataclass(frozen=True, slots=True)
class Judging:
    """What a run is compared with, and by which policy."""

    yardstick: Yardstick
    policy: Policy

    def stage(self, run: Run, stage: Stage) -> tuple[Verdict, ...]:
        """Return the verdicts on one stage's results; none where nothing was timed."""
        if run.settings.check_only:
            return ()
        return judge(
            _results(run, stage),
            variants=run.variants,
            entries=self.yardstick.entries,
            against=self._against(run),
        )

    def whole(self, run: Run, verdicts: Mapping[str, Verdict]) -> Run:
        """Return the run with its verdicts in the light of the machine, claims and notes."""
        machine = judge_machine(
            run,
            [verdicts[v.id] for v in run.variants if v.id in verdicts],
            entries=self.yardstick.entries,
            against=self._against(run),
        )
        unmet = {claim.id: missing_of(claim.needs, run.facts) for claim in run.instances}
        claims = judge_claims(
            run.instances,
            # The screen's alone: what one side took minutes later is no match for the other side.
            _results(run, Stage.SCREEN),
            facts=run.facts,
            unmet={claim: reason for claim, reason in unmet.items() if reason},
            policy=self.policy,
        )
        return replace(
            run,
            verdicts=machine.verdicts,
            shift=machine.shift,
            claims=self.yardstick.excused(claims, run.instances),
            notes=(*run.notes, *self.yardstick.notes, *machine.notes),
        )

    def _against(self, run: Run) -> Against:
        before, now = canary_clocks(run, self.yardstick.entries)
        return Against(
            facts=run.facts,
            slug=run.sku.slug,
            policy=self.policy,
            source=self.yardstick.source,
            sources=self.yardstick.sources,
            mismatches=self.yardstick.mismatches,
            known=self.yardstick.known,
            screened=_results(run, Stage.SCREEN),
            clocks_before=before,
            clocks_now=now,
        )


def _results(run: Run, stage: Stage) -> dict[str, Result]:
    return {result.variant: result for result in run.results if result.stage is stage}
