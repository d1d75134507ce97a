"""Judges a run by its yardstick: the variants of a stage, then its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfsuite.arms import Arms
from perfsuite.judge import Against, Policy, canary_clocks, judge, judge_machine
from perfsuite.model import ClaimVerdict, Result, Run, Stage, Verdict, Word
from perfsuite.yardstick import Yardstick


@dataclass(frozen=True, slots=True)
class Judging:
    """What a run is compared with, by which policy, and in which arms."""

    yardstick: Yardstick
    policy: Policy
    arms: Arms

    def stage(self, run: Run, stage: Stage) -> tuple[Verdict, ...]:
        """Return the verdicts on one stage's results; none where nothing was timed."""
        if run.settings.check_only:
            return ()
        yardstick = self.yardstick.beside(run, stage)
        verdicts = judge(
            _results(run, stage),
            variants=run.variants,
            entries=yardstick.entries,
            against=self._against(run, yardstick),
        )
        return self.arms.told(verdicts, run)

    def whole(
        self, run: Run, verdicts: Mapping[str, Verdict], claims: Sequence[ClaimVerdict]
    ) -> Run:
        """Return the run with its verdicts in the light of the machine, claims and notes."""
        yardstick = self.yardstick.beside(run)
        machine = judge_machine(
            run,
            [verdicts[v.id] for v in run.variants if v.id in verdicts],
            entries=yardstick.entries,
            against=self._against(run, yardstick),
        )
        return replace(
            run,
            verdicts=machine.verdicts,
            shift=machine.shift,
            claims=yardstick.excused(claims, run.instances),
            environments=yardstick.environments,
            notes=(*run.notes, *yardstick.notes, *self.arms.notes(), *machine.notes),
        )

    def unconfirmed(self, verdict: Verdict, why: str) -> Verdict:
        """Return the verdict on one screen alone: a change that nothing confirmed is unclear.

        What is counted needs no confirmation.
        """
        is_counted = any(change.theta and not change.degrees for change in verdict.changes)
        if verdict.word not in {Word.SLOWER, Word.FASTER} or is_counted:
            return verdict
        fails = Word.UNCLEAR.value in self.policy.fail_on
        reason = f"{verdict.reason}; not confirmed: {why}"
        return replace(verdict, word=Word.UNCLEAR, reason=reason, fails=fails)

    def _against(self, run: Run, yardstick: Yardstick) -> Against:
        before, now = canary_clocks(run, yardstick.entries)
        return Against(
            facts=run.facts,
            slug=run.sku.slug,
            policy=self.policy,
            source=yardstick.source,
            sources=yardstick.sources,
            mismatches=yardstick.mismatches,
            arms=yardstick.arms,
            known=yardstick.known,
            screened=_results(run, Stage.SCREEN),
            clocks_before=before,
            clocks_now=now,
        )


def _results(run: Run, stage: Stage) -> dict[str, Result]:
    return {result.variant: result for result in run.results if result.stage is stage}
