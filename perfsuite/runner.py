"""Runs a request: panels, run file, screen, judge, confirm, judge again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from perfsuite.arms import Arms, open_arms
from perfsuite.baselines import Root
from perfsuite.judge import Policy, judge, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    DeviceFacts,
    Pack,
    Regime,
    Result,
    Run,
    Settings,
    Stage,
    Status,
    Variant,
    Verdict,
)
from perfsuite.plan import missing_need, order
from perfsuite.quads import Claims
from perfsuite.resumption import interrupted_run, open_run_file, samplings_of
from perfsuite.revision import RevisionOptions
from perfsuite.runs import RunFile, new_run_id
from perfsuite.sites import Desk, count_on, git_commit, measure_on, open_desks, units_of
from perfsuite.sku import sku_of
from perfsuite.yardstick import Yardstick, find_yardstick


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run and how it is judged; folders are the project's."""

    variants: tuple[Variant, ...]
    claims: tuple[ClaimInstance, ...]
    packs: tuple[Pack, ...]
    device: str = "auto"
    settings: Settings = field(default_factory=Settings)
    policy: Policy = field(default_factory=Policy)
    root: Path
    folder: Path
    baseline_roots: tuple[Root, ...]
    command: str = ""
    resume: bool = False
    against: RevisionOptions | None = None


class Listener(Protocol):
    """Who is told how a run goes on; called from the thread that measures."""

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        """``total`` variants are about to be measured on a device."""

    def phase(self, variant: str, phase: str) -> None:
        """A phase of a variant begins."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """A variant ended."""

    def note(self, text: str) -> None:
        """Something worth a line."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, where it is stored, and what it was compared with."""

    run: Run
    run_file: Path
    baselines: Mapping[str, BaselineEntry]
    source: str
    previous: Run | None = None


# A process of a variant, prepared and measured: on a warm H200, and on two shared cores.
ESTIMATE_S = {"cuda": 0.5, "cpu": 2.0}


def execute(request: Request, listener: Listener) -> Outcome:
    """Measure, judge, confirm and store; raises PerfError where the whole run cannot be done."""
    interrupted = interrupted_run(request.folder) if request.resume else None
    settings = interrupted.settings if interrupted else request.settings
    with ExitStack() as stack:
        variants = (interrupted or request).variants
        arms = open_arms(request, variants, folder=request.folder, stack=stack)
        desks = open_desks(request.device, request.packs, settings, stack, arms=arms.code)
        run = replace(_new_run(request, desks[0].facts), against=arms.revision)
        # Before the file is opened: a damaged baseline must not leave a run behind.
        yardstick = find_yardstick(request.baseline_roots, request.folder, run=interrupted or run)
        file = stack.enter_context(open_run_file(request.folder, run, interrupted))
        if interrupted:
            listener.note(f"resuming run {interrupted.id}: {len(file.run.results)} results kept")
        run = _Work(request, listener, desks, file, yardstick, arms).run()
    yardstick = yardstick.beside(run)
    return Outcome(run, file.path, yardstick.entries, yardstick.source, yardstick.previous)


def _new_run(request: Request, facts: DeviceFacts) -> Run:
    now = datetime.now(UTC)
    return Run(
        id=new_run_id(now),
        started=now.isoformat(timespec="seconds"),
        command=request.command,
        sku=sku_of(facts),
        facts=facts,
        settings=request.settings,
        variants=request.variants,
        instances=request.claims,
        commit=git_commit(request.root),
    )


@dataclass
class _Work:
    """One run in progress."""

    request: Request
    listener: Listener
    desks: Sequence[Desk]
    run_file: RunFile
    yardstick: Yardstick
    arms: Arms

    def __post_init__(self) -> None:
        self.facts = self.run_file.run.facts
        self.started = time.monotonic()
        self.samplings = samplings_of(self.yardstick.entries, self.run_file.run)
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0

    def run(self) -> Run:
        """Go through the stages and end the run file."""
        settings = self.run_file.run.settings
        variants = self.run_file.run.variants
        kept = self._kept(Stage.SCREEN)
        runnable = self._skip_unmet([v for v in variants if v.id not in kept])
        ordered = order(runnable, settings.seed)
        self._measure(ordered, Stage.SCREEN, settings.processes)
        verdicts = {v.variant: v for v in self._judge(Stage.SCREEN)}
        doubtful = [v for v in variants if v.id in verdicts and wants_confirmation(verdicts[v.id])]
        if doubtful and not settings.check_only:
            self.listener.note(f"confirming {len(doubtful)} of {len(verdicts)} in fresh processes")
            kept = self._kept(Stage.CONFIRM)
            again = order([v for v in doubtful if v.id not in kept], settings.seed)
            self._measure(again, Stage.CONFIRM, settings.confirm_processes)
            verdicts = self._confirmed(verdicts)
        return self._finish(verdicts)

    def _kept(self, stage: Stage) -> set[str]:
        run = self.run_file.run
        kept = {r.variant for r in run.results if r.stage is stage}
        return kept - self.arms.unmeasured(run, stage)

    def _confirmed(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """Replace screened verdicts by those on fresh data; a variant that failed then has none."""
        measured = {r.variant for r in self.run_file.run.results if r.stage is Stage.CONFIRM}
        screened = {name: v for name, v in verdicts.items() if name not in measured}
        return screened | {v.variant: v for v in self._judge(Stage.CONFIRM)}

    def _skip_unmet(self, variants: Sequence[Variant]) -> list[Variant]:
        runnable = []
        for variant in variants:
            reason = missing_need(variant, self.facts)
            if reason:
                self._store(Result(variant=variant.id, status=Status.SKIPPED, reason=reason))
            else:
                runnable.append(variant)
        return runnable

    def _measure(self, variants: Sequence[Variant], stage: Stage, processes: int) -> None:
        self._done, self._total = 0, len(variants)
        if not variants:
            return
        counted = [v for v in variants if v.case.regime is Regime.EXACT]
        timed = [v for v in variants if v.case.regime is not Regime.EXACT]
        each_s = ESTIMATE_S.get(self.facts.device, 0.0)
        twice = sum(variant.id in self.arms.compared for variant in timed)
        estimate_s = each_s * (processes * (len(timed) + twice) + len(counted))
        self.listener.planned(len(variants), self.facts, estimate_s)
        # What has no noise is the same in every process: one is enough.
        measure_on(self.desks, timed, partial(self._let, stage, processes))
        count_on(self.desks, counted, partial(self._let, stage, 1))

    def _let(self, stage: Stage, processes: int, desk: Desk, share: Sequence[Variant]) -> None:
        desk.panel.samplings, desk.panel.compared = self.samplings, self.arms.compared
        desk.panel.measure(
            share,
            stage,
            processes=processes,
            on_result=self._take,
            on_phase=self.listener.phase,
        )

    def _take(self, result: Result) -> None:
        with self._lock:
            stored = self._store(result)
            if not stored.is_aside:
                self._done += 1
                self.listener.finished(stored, self._done, self._total)

    def _store(self, result: Result) -> Result:
        return self.run_file.append(self.yardstick.plausible(result))

    def _judge(self, stage: Stage) -> tuple[Verdict, ...]:
        if self.run_file.run.settings.check_only:
            return ()
        results = {r.variant: r for r in self.run_file.run.results if r.stage is stage}
        yardstick = self.yardstick.beside(self.run_file.run, stage)
        verdicts = judge(
            results,
            variants=self.run_file.run.variants,
            entries=yardstick.entries,
            against=yardstick.against(self.run_file.run, self.request.policy),
        )
        return self.arms.told(verdicts, self.run_file.run)

    def _finish(self, verdicts: Mapping[str, Verdict]) -> Run:
        claims = Claims(self.run_file, self.desks, self.request.policy, self.samplings)
        judged = claims.verdicts(self.listener.note)
        run = self.run_file.run
        yardstick = self.yardstick.beside(run)
        return self.run_file.finish(
            replace(
                run,
                verdicts=tuple(verdicts[v.id] for v in run.variants if v.id in verdicts),
                claims=yardstick.excused(judged, run.instances),
                notes=(*run.notes, *yardstick.notes, *self.arms.notes()),
                wall_s=round(time.monotonic() - self.started, 3),
                units=units_of(self.desks, run.variants),
            )
        )
