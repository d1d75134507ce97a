"""Judges a run by its yardstick: the variants of a stage, then its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfsuite.arms import Arms
from perfsuite.baselines import Exceptions
from perfsuite.judge import Against, Policy, canary_clocks, judge, judge_machine
from perfsuite.model import ClaimVerdict, Result, Run, Stage, Verdict, Word
from perfsuite.yardstick import Yardstick


@dataclass(frozen=True, slots=True)
class Judging:
    """What a run is compared with, by which policy, and in which arms."""

    yardstick: Yardstick
    policy: Policy
    arms: Arms
    exceptions: Exceptions = field(default_factory=Exceptions)

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
        away = self.exceptions.quarantined(run)
        watched = replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
        machine = judge_machine(
            watched,
            [verdicts[v.id] for v in run.variants if v.id in verdicts and v.id not in away],
            entries=yardstick.entries,
            against=self._against(watched, yardstick),
        )
        found = {**verdicts, **{verdict.variant: verdict for verdict in machine.verdicts}}
        told = [found[v.id] for v in run.variants if v.id in found]
        notes = (*yardstick.notes, *yardstick.unaccepted(run), *self.arms.notes())
        notes += (*machine.notes, *self.exceptions.notes(run))
        judged = replace(run, verdicts=self.exceptions.applied(told, run))
        return replace(
            judged,
            shift=machine.shift,
            claims=self.exceptions.claims(yardstick.excused(claims, run.instances), judged),
            environments=yardstick.environments,
            notes=(*run.notes, *notes),
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
