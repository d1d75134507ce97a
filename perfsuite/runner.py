"""Runs a request: panels, run file, screen, judge, confirm, judge again."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from perfsuite import turns
from perfsuite.arms import open_arms
from perfsuite.canaries import canaries_for, watch
from perfsuite.desks import Desks
from perfsuite.judge import wants_confirmation
from perfsuite.judging import Judging
from perfsuite.model import (
    Regime,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    Verdict,
)
from perfsuite.outcome import Listener, Outcome
from perfsuite.plan import missing_need, order
from perfsuite.quads import Claims
from perfsuite.repository import unknown_commit
from perfsuite.requested import Request
from perfsuite.resumption import (
    interrupted_run,
    new_run,
    open_run_file,
    refusal,
    samplings_of,
    spent_s,
)
from perfsuite.runs import RunFile, clock_notes
from perfsuite.sites import Desk, count_on, idle_gpus, measure_on, units_of
from perfsuite.steps import Steps
from perfsuite.time_limit import CONFIRM_END, SCREEN_END, Fit, TimeLimit, fit_of
from perfsuite.tracing import Tracing
from perfsuite.yardstick import find_yardstick

__all__ = ["Listener", "Outcome", "execute"]

# A process of a variant, prepared and measured: on a warm H200, and on two shared cores.
ESTIMATE_S = {"cuda": 0.5, "cpu": 2.0}


def execute(request: Request, listener: Listener, desks: Desks | None = None) -> Outcome:
    """Measure, judge, confirm and store; raises PerfError where the whole run cannot be done.

    ``desks`` are those of another run of the same device, which are left open.
    """
    limit, interrupted = TimeLimit(request.time_s), interrupted_run(request)
    asked = interrupted or request
    with ExitStack() as stack:
        arms = open_arms(request, asked.variants, stack)
        place = desks or stack.enter_context(Desks())
        opened = place.of(request.device, request.packs, asked.settings, arms.code)
        facts, settings = opened[0].facts, request.settings
        canaries = canaries_for(request.variants, request.packs, facts, settings=settings)
        run = new_run(request, facts, canaries, against=arms.revision)
        notes = [*idle_gpus(opened), *filter(None, [unknown_commit(request.root)])]
        notes += () if interrupted else clock_notes(run)
        if interrupted and not request.resume and (why := refusal(run, interrupted)[0]):
            notes.append(f"not resumed, started anew: {why}")
            interrupted = None
        # Before the file is opened: a damaged baseline must not leave a run behind.
        yardstick = find_yardstick(
            request.baseline_roots, request.folder, run=interrupted or run, packs=request.packs
        )
        file = stack.enter_context(open_run_file(request.folder, run, interrupted))
        if interrupted:
            listener.note(f"resuming run {interrupted.id}: {len(file.run.results)} results kept")
            limit = replace(limit, spent_s=spent_s(interrupted, len(opened)))
        judging = Judging(yardstick, request.policy, arms, request.exceptions)
        work = _Work(listener, opened, file, judging, limit)
        work.phases_s["open"] = work.started - limit.started
        for note in notes:
            listener.note(note)
        found = yardstick.beside(run := work.run(request, notes))
    return Outcome(
        run,
        file.path,
        found.entries,
        found.source,
        found.previous,
        found.commits,
        peaks=found.reached,
        steps=work.steps,
    )


@dataclass
class _Work:
    """One run in progress."""

    listener: Listener
    desks: Sequence[Desk]
    run_file: RunFile
    judging: Judging
    limit: TimeLimit
    steps: Steps = field(default_factory=Steps)

    def __post_init__(self) -> None:
        self.facts = self.run_file.run.facts
        self.started = time.monotonic()
        self.phases_s: defaultdict[str, float] = defaultdict(float)
        self.samplings = samplings_of(self.judging.yardstick.entries, self.run_file.run)
        self._lock, self._done, self._total = threading.Lock(), 0, 0

    def run(self, request: Request, notes: Sequence[str]) -> Run:
        """Go through the stages and end the run file."""
        settings = self.run_file.run.settings
        variants = self.run_file.run.variants
        runnable = self._skip_unmet(self._left(variants, Stage.SCREEN))
        entries = self.judging.yardstick.entries
        fit = fit_of(
            self.run_file.run, request, limit=self.limit, entries=entries, devices=len(self.desks)
        )
        chosen = fit.chosen(runnable) if self.limit.is_set else order(runnable, settings.seed)
        self._watch(Stage.CANARY_START)
        self._measure(chosen, Stage.SCREEN, settings.processes)
        verdicts = {v.variant: v for v in self._judge(Stage.SCREEN)}
        run, found = self.run_file.run, self.judging.yardstick
        asked = turns.decided(verdicts.values(), request, run, found, devices=len(self.desks))
        wants = partial(wants_confirmation, is_brief=request.is_brief)
        doubtful = [v for v in variants if v.id in verdicts.keys() - asked]
        doubtful = [v for v in doubtful if wants(verdicts[v.id])]
        if doubtful and not settings.check_only:
            self.listener.note(f"confirming {len(doubtful)} of {len(verdicts)} in fresh processes")
            again = order(self._left(doubtful, Stage.CONFIRM), settings.seed)
            self._measure(again, Stage.CONFIRM, settings.confirm_processes)
            verdicts = self._confirmed(verdicts, {variant.id for variant in doubtful})
        self._watch(Stage.CANARY_END)
        return self._finish(verdicts, notes, fit, request)

    def _left(self, variants: Sequence[Variant], stage: Stage) -> list[Variant]:
        kept = self._results(stage).keys() - self.judging.arms.unmeasured(self.run_file.run, stage)
        return [variant for variant in variants if variant.id not in kept]

    def _watch(self, stage: Stage) -> None:
        canaries = self._left(self.run_file.run.canaries, stage)
        for desk in self.desks:
            desk.panel.samplings, desk.panel.is_over = self.samplings, bool
        watch(self.desks, canaries, stage, on_result=self._store, on_phase=self.listener.phase)

    def _confirmed(
        self, verdicts: Mapping[str, Verdict], doubtful: AbstractSet[str]
    ) -> dict[str, Verdict]:
        """Replace screened verdicts by those on fresh data; a variant that failed then has none."""
        measured, why = self._results(Stage.CONFIRM), f"{self.limit} left no time"
        screened = {
            name: self.judging.unconfirmed(v, why) if name in doubtful else v
            for name, v in verdicts.items()
            if name not in measured
        }
        return screened | {v.variant: v for v in self._judge(Stage.CONFIRM)}

    def _skip_unmet(self, variants: Sequence[Variant]) -> list[Variant]:
        unmet = {v.id: reason for v in variants if (reason := missing_need(v, self.facts))}
        for name, reason in unmet.items():
            self._store(Result(variant=name, status=Status.SKIPPED, reason=reason))
        return [variant for variant in variants if variant.id not in unmet]

    def _measure(self, variants: Sequence[Variant], stage: Stage, processes: int) -> None:
        self._done, self._total = 0, len(variants)
        if not variants:
            return
        counted = [v for v in variants if v.case.regime is Regime.EXACT]
        timed = [v for v in variants if v.case.regime is not Regime.EXACT]
        each_s = ESTIMATE_S.get(self.facts.device, 0.0)
        twice = sum(variant.id in self.judging.arms.compared for variant in timed)
        estimate_s = each_s * (processes * (len(timed) + twice) + len(counted))
        self.listener.planned(len(variants), self.facts, estimate_s)
        # What has no noise is the same in every process: one is enough.
        rank = partial(self._rank, self._results(Stage.SCREEN))
        measure_on(self.desks, timed, partial(self._let, stage, processes), rank)
        count_on(self.desks, counted, partial(self._let, stage, 1))

    def _rank(self, screened: Mapping[str, Result], variant: Variant, desk: Desk) -> int:
        return self.judging.yardstick.rank(screened.get(variant.id), desk.facts.unit)

    def _let(self, stage: Stage, processes: int, desk: Desk, share: Sequence[Variant]) -> None:
        desk.panel.samplings, desk.panel.compared = self.samplings, self.judging.arms.compared
        end = CONFIRM_END if stage is Stage.CONFIRM else SCREEN_END
        desk.panel.is_over = partial(self.limit.is_over, end)
        desk.panel.measure(
            share, stage, processes=processes, on_result=self._take, on_phase=self.listener.phase
        )

    def _take(self, result: Result) -> None:
        with self._lock:
            stored = self._store(result)
            if not stored.is_aside:
                self._done += 1
                self.listener.finished(stored, self._done, self._total)

    def _store(self, result: Result) -> Result:
        return self.run_file.append(self.judging.yardstick.plausible(result))

    def _judge(self, stage: Stage) -> tuple[Verdict, ...]:
        started = time.monotonic()
        verdicts = self.judging.stage(self.run_file.run, stage)
        self.phases_s["judge"] += time.monotonic() - started
        return verdicts

    def _results(self, stage: Stage) -> dict[str, Result]:
        return {r.variant: r for r in self.run_file.run.results if r.stage is stage}

    def _finish(
        self, verdicts: Mapping[str, Verdict], notes: Sequence[str], fit: Fit, request: Request
    ) -> Run:
        claims = Claims(self.run_file, self.desks, self.judging.policy, self.samplings, self.limit)
        judged = claims.verdicts(self.listener.note)
        started = time.monotonic()
        run = self.judging.whole(self.run_file.run, verdicts, judged)
        self.phases_s["judge"] += time.monotonic() - started
        run = replace(run, notes=(*notes, *run.notes), left_out=fit.left_out(run))
        run = replace(run, notes=(*fit.told(run), *run.notes))
        entries = self.judging.yardstick.entries
        tracing = Tracing(
            self.run_file,
            self.desks,
            entries,
            self.samplings,
            self.limit,
            has_counters=request.counters,
            is_brief=request.is_brief,
        )
        traced = partial(tracing.take, run, self.listener.note)
        run = self.steps.take("kernels not traced", traced, run)
        phases_s = {n: round(s, 3) for n, s in {**run.phases_s, **self.phases_s}.items()}
        # With what was measured before an interruption.
        wall_s = self.limit.spent_s + time.monotonic() - self.started
        units = units_of(self.desks, run.variants)
        run = replace(run, wall_s=round(wall_s, 3), units=units, phases_s=phases_s)
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        whole = replace(run, traces=self.run_file.run.traces, finished=ended)
        return self.steps.take(
            "the run's file has no verdicts", partial(self.run_file.finish, run), whole
        )
