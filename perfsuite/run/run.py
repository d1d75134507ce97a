"""One run: screen, judge, confirm, judge; canaries at both ends; resumed where it stopped."""

from __future__ import annotations

import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import structs

from perfsuite.boundary import PerfError, StoreError, UsageError, plain
from perfsuite.hooks import features
from perfsuite.judge.claims import judge_claims, judge_quads
from perfsuite.judge.compare import Against, Policy
from perfsuite.judge.machine import canary_clocks, judge_machine
from perfsuite.judge.verdict import judge, wants_confirmation
from perfsuite.model import (
    Arm,
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Confirmation,
    DeviceFacts,
    Regime,
    Result,
    Revision,
    Run,
    Stage,
    Status,
    Trace,
    Variant,
    VariantRun,
    Verdict,
    Word,
    because,
)
from perfsuite.packs.select import missing_need, missing_of, order
from perfsuite.report import view
from perfsuite.run import against
from perfsuite.run.against import Arms, open_arms
from perfsuite.run.config import CONFIRM_END, SCREEN_END, Exceptions, Request, TimeLimit
from perfsuite.run.expected import Yardstick, find_yardstick
from perfsuite.store.git import RevisionOptions, git_commit, unknown_commit
from perfsuite.store.runs import (
    RunFile,
    clock_notes,
    list_runs,
    load_run,
    next_run_id,
    run_path,
    unfinished,
)
from perfsuite.store.sku import code_digest, sku_of
from perfsuite.workers.units import (
    Desk,
    Desks,
    count_on,
    idle_gpus,
    measure_on,
    measure_on_all,
    share_out,
    units_of,
)

T = TypeVar("T")
# A process of a variant, prepared and measured: on a warm H200, and on two shared cores.
ESTIMATE_S = {"cuda": 0.5, "cpu": 2.0}
# What fewer variants say of the machine, their own verdicts say already.
FEWEST_TIMED = 3
# A CPU takes a second for each, and is compared within a gate that no count of them would halve.
HOST_PROCESSES, PROCESSES = 1, 2
# Claims that are taken up, and how long another one may begin: the rest stay unclear.
MOST_CLAIMS, LIMIT_S = 20, 60.0
# Of an unexpected error's first line: its traceback has it whole.
MOST_FIRST = 300
# Runs and checkouts that ask a baseline's commit: nobody's earlier run, none to resume.
FOLDER = "settled"


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


@dataclass(slots=True)
class Steps:
    """What follows the last measurement, step by step: one that fails costs no other.

    What was measured and judged is worth more than anything that is made of it. ``tracebacks``
    are of what nobody expected.
    """

    tracebacks: list[str] = field(default_factory=list)
    # What failed, by why and by what to do: one cause is told of once.
    _failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def are_done(self) -> bool:
        """Say whether all were done."""
        return not self._failed

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each cause of failure."""
        return tuple(
            plain("; ".join(filter(None, (f"{', '.join(failed)}: {why}", remedy))))
            for (why, remedy), failed in self._failed.items()
        )

    def take(self, failed: str, act: Callable[[], T], fallback: T, *, remedy: str = "") -> T:
        """Return what a step returns; if it fails the fallback, noting ``failed`` and why.

        Ctrl-C is no failure: it ends the rest.
        """
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdicts are worth more
            is_new = self.add(failed, why(error), remedy=remedy)
            if is_new and not isinstance(error, (PerfError, ImportError)):
                self.tracebacks.append("".join(traceback.format_exception(error)))
            return fallback

    def add(self, failed: str, why: str, *, remedy: str = "") -> bool:
        """Note a step that failed; say whether that was not known yet."""
        known = self._failed.setdefault((why, remedy), [])
        if failed in known:
            return False
        known.append(failed)
        return True


def why(error: Exception) -> str:
    """Return an error on one line: what, where and the remedy, or its type and first line."""
    if isinstance(error, PerfError):
        where, remedy = error.where, error.remedy
        found = (error.what, where and f"where: {where}", remedy and f"do: {remedy}")
        return " ".join("; ".join(filter(None, found)).split())
    if isinstance(error, ImportError) and error.name:
        return f"install {error.name}"
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception as broken:  # noqa: BLE001 - an error may be unable to say what it is
        first = f"it cannot say why ({type(broken).__name__})"
    first = plain(first, most=MOST_FIRST)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that was measured, where it is stored, and what it was compared with.

    ``steps`` are those behind its measuring: what of them failed.
    """

    run: Run
    run_file: Path
    expected: Yardstick
    is_interrupted: bool = False
    steps: Steps = field(default_factory=Steps)

    @property
    def baselines(self) -> Mapping[str, BaselineEntry]:
        """The entries by variant."""
        return self.expected.entries

    @property
    def source(self) -> str:
        """Where the entries come from, in words."""
        return self.expected.source

    @property
    def previous(self) -> Run | None:
        """The run that the entries come from, if it is at hand."""
        return self.expected.previous


@dataclass(frozen=True, slots=True)
class Judging:
    """What a run is compared with, by which policy, and with which other revision."""

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
            results_of(run, stage),
            variants=[one.variant for one in run.variants],
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
        watched = structs.replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
        machine = judge_machine(
            watched,
            [verdicts[v.id] for v in run.variants if v.id in verdicts and v.id not in away],
            entries=yardstick.entries,
            against=self._against(watched, yardstick),
        )
        found = {**verdicts, **{verdict.variant: verdict for verdict in machine.verdicts}}
        told = [found[v.id] for v in run.variants if v.id in found]
        judged = run.having(verdicts=self.exceptions.applied(told, run))
        notes = (*yardstick.notes, *yardstick.unaccepted(run), *self.arms.notes())
        notes += tuple(map(view.sentence, machine.notes))
        whole = structs.replace(
            judged,
            shift=machine.shift,
            claims=self.exceptions.claims(yardstick.excused(claims, run.instances), judged),
            variants=tuple(map(yardstick.held, judged.variants)),
            canaries=tuple(map(yardstick.held, judged.canaries)),
            notes=(*run.notes, *notes, *self.exceptions.notes(run)),
        )
        return view.worded(whole)

    def unconfirmed(self, verdict: Verdict, why: str) -> Verdict:
        """Return the verdict on one screen alone: a change that nothing confirmed is unclear.

        What is counted needs no confirmation.
        """
        is_counted = any(change.theta and not change.degrees for change in verdict.changes)
        if not verdict.word.moved or is_counted:
            return verdict
        fails = Word.UNCLEAR.value in self.policy.fail_on
        reasons = (*verdict.reasons, because("unconfirmed", why=why))
        return structs.replace(verdict, word=Word.UNCLEAR, reasons=reasons, fails=fails)

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
            screened=results_of(run, Stage.SCREEN),
            clocks_before=before,
            clocks_now=now,
        )


def results_of(run: Run, stage: Stage) -> dict[str, Result]:
    """Return the results of one stage by variant."""
    return {result.variant: result for result in run.results if result.stage is stage}


def joined(results: Sequence[Result]) -> Result:
    """Return a canary's results on several units as one; a unit where it failed is not in it."""
    good = [result for result in results if result.status is Status.OK]
    evidence = tuple(process for result in good for process in result.evidence)
    wall_s = max(result.wall_s for result in results)
    return structs.replace((good or results)[0], evidence=evidence, wall_s=wall_s)


def execute(request: Request, listener: Listener, desks: Desks | None = None) -> Outcome:
    """Measure, judge, confirm and store; raises PerfError where the whole run cannot be done.

    ``desks`` are those of another run of the same device, which are left open.
    """
    limit, interrupted = TimeLimit(request.time_s), interrupted_run(request)
    variants = [one.variant for one in interrupted.variants] if interrupted else request.variants
    with ExitStack() as stack:
        arms = open_arms(request, variants, stack)
        place = desks or stack.enter_context(Desks())
        settings = (interrupted or request).settings
        opened = place.of(request.device, request.packs, settings, arms.code)
        run = new_run(request, opened[0].facts, arms.revision)
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
            spent_s = sum(result.wall_s for result in (*interrupted.results, *interrupted.aside))
            limit = structs.replace(limit, spent_s=spent_s / len(opened))
        for note in notes:
            listener.note(note)
        judging = Judging(yardstick, request.policy, arms, request.exceptions)
        work = _Work(request, listener, opened, file, judging, limit)
        run = work.measured(notes)
    return Outcome(run, file.path, yardstick.beside(run), steps=work.steps)


def new_run(request: Request, facts: DeviceFacts, revision: Revision | None) -> Run:
    """Return what a request makes on a device that was just opened, with nothing measured yet."""
    now = datetime.now(UTC)
    project = request.against.project if request.against else request.root
    timed = [each for each in request.variants if each.case.regime is not Regime.EXACT]
    canaries = [each for pack in request.packs for each in pack.canaries.get(facts.device, ())]
    few = sum(not missing_need(each, facts) for each in timed) < FEWEST_TIMED
    # Beside a revision there are none: in its minutes the machine is the same to both.
    if request.settings.check_only or few or revision:
        canaries = []
    return Run(
        id=next_run_id(request.folder, now),
        started=now.isoformat(timespec="seconds"),
        command=request.command,
        sku=sku_of(facts),
        facts=facts,
        settings=request.settings,
        variants=tuple(VariantRun(variant=each) for each in request.variants),
        instances=request.claims,
        commit=git_commit(request.root),
        code=code_digest(project, request.packs),
        against=revision,
        canaries=tuple(
            VariantRun(variant=each) for each in canaries if not missing_need(each, facts)
        ),
        shard=request.shard,
    )


def interrupted_run(request: Request) -> Run | None:
    """Return the newest interrupted run, if it is to go on; UsageError if it must and is not there.

    Where it need not, it goes on only if nothing was run since, and if as much was asked for.
    """
    if not (request.resume or request.resume_if_any):
        return None
    found = unfinished(request.folder)[:1]
    if request.resume:
        if found:
            return load_run(found[0])
        raise UsageError(
            "no interrupted run to resume",
            where=str(request.folder),
            remedy="start a new run without --perf-resume",
        )
    try:
        run = load_run(found[0]) if found and found == list_runs(request.folder)[:1] else None
    except StoreError:  # damaged: there is nothing to go on with
        return None
    ids = {variant.id for variant in request.variants}
    is_same = run and run.settings == request.settings and {v.id for v in run.variants} == ids
    return run if is_same else None


def refusal(run: Run, interrupted: Run) -> tuple[str, str]:
    """Return why an interrupted run cannot go on as ``run``, and what to do; nothing if it can."""
    name, anew = f"run {interrupted.id!r}", "or start a new run without --perf-resume"
    if (interrupted.sku.slug, interrupted.facts.unit) != (run.sku.slug, run.facts.unit):
        what = f"{name} was measured on another unit of {interrupted.sku.slug!r}"
        return what, f"resume it there, {anew}"
    if interrupted.against != run.against:
        then, now = (each.against or "baselines" for each in (interrupted, run))
        what = f"{name} was compared with {then}, this one would be with {now}"
        return what, "resume it with the same --perf-against, or start a new run"
    if interrupted.code != run.code:
        codes = [
            f"commit {each.commit or 'unknown'} (code {each.code})" for each in (interrupted, run)
        ]
        what = f"{name} was measured with other code: {codes[0]}, and now it is {codes[1]}"
        return what, f"bring that code back, {anew}"
    strangers = sorted({v.id for v in run.variants} - {v.id for v in interrupted.variants})
    if strangers:
        remedy = "resume it with the selection it was started with, or start a new run"
        return f"{name} was not asked for {strangers[0]!r}", remedy
    return "", ""


def open_run_file(folder: Path, run: Run, interrupted: Run | None) -> RunFile:
    """Create the file of ``run``, or open that of the interrupted run on the same unit."""
    if interrupted is None:
        return RunFile.create(folder, run)
    what, remedy = refusal(run, interrupted)
    if what:
        raise UsageError(what, where=str(folder), remedy=remedy)
    return RunFile.resume(run_path(folder, interrupted.id))


@dataclass
class _Work:
    """One run in progress."""

    request: Request
    listener: Listener
    desks: Sequence[Desk]
    file: RunFile
    judging: Judging
    limit: TimeLimit
    steps: Steps = field(default_factory=Steps)

    def __post_init__(self) -> None:
        self.facts, self.settings = self.file.run.facts, self.file.run.settings
        self.entries = self.judging.yardstick.entries
        self.started = time.monotonic()
        self.phases_s: defaultdict[str, float] = defaultdict(float)
        self.phases_s["open"] = self.started - self.limit.started
        # As variants were sampled in the baseline, else earlier in this run.
        found = {r.variant: r.evidence[0].sampling for r in self.file.run.results if r.evidence}
        found |= {name: entry.sampling for name, entry in self.entries.items() if entry.sampling}
        self.samplings = {name: sampling for name, sampling in found.items() if sampling}
        self._lock, self._done, self._total = threading.Lock(), 0, 0

    def measured(self, notes: Sequence[str]) -> Run:
        """Go through the stages, judge, trace what moved, and end the run file."""
        request = self.request
        variants = [one.variant for one in self.file.run.variants]
        runnable = self._runnable(self._left(variants, Stage.SCREEN))
        fit = features().hook.perf_fit(
            run=self.file.run,
            request=request,
            limit=self.limit,
            entries=self.entries,
            devices=len(self.desks),
        )
        self._watch(Stage.CANARY_START)
        chosen = fit.chosen(runnable) if fit else order(runnable, self.settings.seed)
        self._measure(chosen, Stage.SCREEN)
        verdicts = self._judged(Stage.SCREEN)
        verdicts = self._confirmed(verdicts)
        self._watch(Stage.CANARY_END)

        claims = self._claims()
        with self._timed("judge"):
            run = self.judging.whole(self.file.run, verdicts, claims)
        run = structs.replace(run, notes=(*notes, *run.notes))
        run = fit.cut(run) if fit else run
        for look in features().hook.perf_judged():
            traced = partial(
                look,
                run,
                self.listener.note,
                run_file=self.file,
                desks=self.desks,
                entries=self.entries,
                samplings=self.samplings,
                limit=self.limit,
                request=request,
            )
            run = self.steps.take("kernels not traced", traced, run)
        phases_s = {n: round(s, 3) for n, s in {**run.phases_s, **self.phases_s}.items()}
        # With what was measured before an interruption.
        wall_s = round(self.limit.spent_s + time.monotonic() - self.started, 3)
        units = units_of(self.desks, variants)
        run = run.having(traces=self.file.run.traces)
        run = structs.replace(run, wall_s=wall_s, units=units, phases_s=phases_s)
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        whole = structs.replace(run, finished=ended)
        return self.steps.take(
            "the run's file has no verdicts", partial(self.file.finish, run), whole
        )

    def _left(self, variants: Iterable[Variant], stage: Stage) -> list[Variant]:
        """Return the variants that a stage has not measured yet, on both sides if there are two."""
        unmeasured = self.judging.arms.unmeasured(self.file.run, stage)
        kept = results_of(self.file.run, stage).keys() - unmeasured
        return [variant for variant in variants if variant.id not in kept]

    def _runnable(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return what this device can run; store of the rest that it was skipped."""
        unmet = {v.id: reason for v in variants if (reason := missing_need(v, self.facts))}
        for name, reason in unmet.items():
            self.file.append(Result(variant=name, status=Status.SKIPPED, reason=reason))
        return [variant for variant in variants if variant.id not in unmet]

    def _watch(self, stage: Stage) -> None:
        """Measure each canary on each unit, all units at once; store one result for each."""
        found: dict[str, list[Result]] = {}
        for desk in self.desks:  # no limit holds for canaries, and for what follows the last
            desk.panel.samplings, desk.panel.is_over = self.samplings, bool

        def take(result: Result) -> None:
            with self._lock:
                found.setdefault(result.variant, []).append(result)

        def measure(desk: Desk, share: Sequence[Variant]) -> None:
            desk.panel.measure(
                share,
                stage,
                processes=HOST_PROCESSES if desk.facts.is_host else PROCESSES,
                on_result=take,
                on_phase=self.listener.phase,
            )

        watched = [one.variant for one in self.file.run.canaries]
        if canaries := self._left(watched, stage):
            measure_on_all(self.desks, canaries, measure)
        for results in found.values():
            self._store(joined(results))

    def _measure(self, variants: Sequence[Variant], stage: Stage) -> None:
        """Measure the variants on all units; what has no noise in one process alone."""
        self._done, self._total = 0, len(variants)
        if not variants:
            return
        is_screen = stage is Stage.SCREEN
        processes = self.settings.processes if is_screen else self.settings.confirm_processes
        compared = self.judging.arms.compared
        counted = [v for v in variants if v.case.regime is Regime.EXACT]
        timed = [v for v in variants if v.case.regime is not Regime.EXACT]
        twice = sum(variant.id in compared for variant in timed)
        count = processes * (len(timed) + twice) + len(counted)
        estimate_s = ESTIMATE_S.get(self.facts.device, 0.0) * count
        self.listener.planned(len(variants), self.facts, estimate_s)
        screened = results_of(self.file.run, Stage.SCREEN)

        def rank(variant: Variant, desk: Desk) -> int:
            return self.judging.yardstick.rank(screened.get(variant.id), desk.facts.unit)

        def measure(desk: Desk, share: Sequence[Variant], *, processes: int) -> None:
            panel, end = desk.panel, SCREEN_END if is_screen else CONFIRM_END
            panel.samplings, panel.compared = self.samplings, compared
            panel.is_over = partial(self.limit.is_over, end)
            panel.measure(
                share,
                stage,
                processes=processes,
                on_result=self._take,
                on_phase=self.listener.phase,
            )

        measure_on(self.desks, timed, partial(measure, processes=processes), rank)
        count_on(self.desks, counted, partial(measure, processes=1))

    def _take(self, result: Result) -> None:
        with self._lock:
            stored = self._store(result)
            if not stored.is_aside:
                self._done += 1
                self.listener.finished(stored, self._done, self._total)

    def _store(self, result: Result) -> Result:
        return self.file.append(self.judging.yardstick.plausible(result))

    def _judged(self, stage: Stage) -> dict[str, Verdict]:
        with self._timed("judge"):
            return {each.variant: each for each in self.judging.stage(self.file.run, stage)}

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.phases_s[phase] += time.monotonic() - started

    def _confirmed(self, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
        """Replace doubtful verdicts by those on fresh data; what failed then has none."""
        run, settings = self.file.run, self.settings
        asked = against.decided(
            verdicts.values(), self.request, run, self.judging.yardstick, devices=len(self.desks)
        )
        doubtful = [
            each.variant
            for each in run.variants
            if each.id in verdicts.keys() - asked
            and wants_confirmation(verdicts[each.id], is_brief=self.request.is_brief)
        ]
        if not doubtful or settings.check_only:
            return verdicts
        self.listener.note(f"confirming {len(doubtful)} of {len(verdicts)} in fresh processes")
        self._measure(order(self._left(doubtful, Stage.CONFIRM), settings.seed), Stage.CONFIRM)
        confirmed = self._judged(Stage.CONFIRM)
        gone = results_of(self.file.run, Stage.CONFIRM).keys()
        names, why = {each.id for each in doubtful}, f"{self.limit} left no time"
        screened = {
            name: self.judging.unconfirmed(verdict, why) if name in names else verdict
            for name, verdict in verdicts.items()
            if name not in gone
        }
        return screened | confirmed

    def _claims(self) -> tuple[ClaimVerdict, ...]:
        """Judge the claims by the screen; decide those left open by blocks inside one process."""
        run = self.file.run
        unmet = {claim.id: missing_of(claim.needs, run.facts) for claim in run.instances}
        found = judge_claims(
            run.instances,
            # The screen's alone: what one side took minutes later is no match for the other side.
            results_of(run, Stage.SCREEN),
            facts=run.facts,
            unmet={claim: reason for claim, reason in unmet.items() if reason},
            policy=self.judging.policy,
        )
        unclear = {each.claim for each in found if each.word is ClaimWord.UNCLEAR}
        gangs = {one.id for one in run.variants if one.variant.is_gang}
        left = [c for c in run.instances if c.id in unclear and not {c.faster, c.than} & gangs]
        if not left:
            return found
        taken = left[:MOST_CLAIMS]
        self.listener.note(f"deciding {len(taken)} of {len(found)} claims inside one process")
        deadline = time.monotonic() + min(LIMIT_S, self.limit.left_s())
        decided: dict[str, ClaimVerdict | str] = {}

        def decide(desk: Desk, share: Sequence[ClaimInstance]) -> None:
            for claim in share:
                if time.monotonic() < deadline:
                    decided[claim.id] = self._decided(desk, claim)

        share_out(self.desks, taken, decide)
        limit = f"no quads: the limit is {MOST_CLAIMS} claims, {LIMIT_S:g} s"
        limit += f", within {self.limit}" if self.limit.is_set else ""
        told = {each.claim: each for each in found}
        for claim in left:
            answer = decided.get(claim.id) or limit
            if isinstance(answer, str):
                reasons = (*told[claim.id].reasons, because("no_quads", why=answer))
                answer = structs.replace(told[claim.id], reasons=reasons)
            told[claim.id] = answer
        return tuple(told.values())

    def _decided(self, desk: Desk, claim: ClaimInstance) -> ClaimVerdict | str:
        """Measure both sides in turns inside one process; return the verdict, or why none."""
        run = self.file.run
        variants = {one.id: one.variant for one in run.variants}
        desk.panel.samplings = dict(self.samplings)
        results = desk.panel.quads(
            variants[claim.faster],
            variants[claim.than],
            processes=self.settings.confirm_processes,
        )
        with self._lock:
            both = [self.file.append(structs.replace(result, claim=claim.id)) for result in results]
        verdict = judge_quads(claim, both, facts=run.facts, policy=self.judging.policy)
        if verdict is not None or not both:
            return verdict or ""
        last = next((r for r in both if r.status is not Status.OK), both[0])
        return f"quads ended {last.status.value}: {last.reason}"


def settled(request: Request, listener: Listener) -> Outcome:
    """Execute a request, then settle it on the same desks; raises as ``execute`` does."""
    with Desks() as desks:
        return settle(execute(request, listener, desks), request, listener, desks)


def settle(outcome: Outcome, request: Request, listener: Listener, desks: Desks) -> Outcome:
    """Ask the baseline's own revision where one card never seen leaves verdicts unclear.

    It is measured beside the tree, on that card. What was found before is in the run file either
    way; Ctrl-C leaves the rest unclear. ``desks`` are those of the run that asks.
    """
    # First those that were not confirmed, since this is to decide them.
    confirmed = results_of(outcome.run, Stage.CONFIRM)
    doubted = against.by_size(v for v in outcome.run.verdicts if v.card)
    doubted.sort(key=lambda verdict: verdict.variant in confirmed)
    if request.against is not None or not doubted:
        return outcome
    settling = _Settling(outcome, request, listener, desks)
    try:
        ask = partial(settling.ask, doubted[: against.MOST])
        outcome.steps.take("the rest was not measured in turns", ask, None)
    except KeyboardInterrupt:
        outcome = replace(outcome, is_interrupted=True)
        desks.close()  # a second Ctrl-C may have left a thread that still measures
        settling.notes.append("interrupted while the baseline's code was measured in turns")
    if left := len(doubted[against.MOST :]):
        settling.leave(left, f"{against.MOST} at most are")
    found, traces = settling.found(), settling.traces
    run = outcome.steps.take(
        "the run's file lacks what was found in turns",
        lambda: RunFile.amend(outcome.run_file, found, traces=traces),
        found.having(traces=(*found.traces, *traces)),
    )
    return replace(outcome, run=run)


@dataclass
class _Settling:
    """The answers found so far for one run, and notes of what was not asked.

    ``traces`` are of what the answers call slower or faster: the run that asks saw no cause to.
    """

    outcome: Outcome
    request: Request
    listener: Listener
    desks: Desks
    answers: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def found(self) -> Run:
        """Return the run with the answers in their verdicts' place, and the time that they took."""
        run, spent_s = self.outcome.run, time.monotonic() - self.started
        found = structs.replace(
            run.having(verdicts=[self.answers.get(each.variant, each) for each in run.verdicts]),
            notes=(*run.notes, *self.notes),
            wall_s=round(run.wall_s + spent_s, 3),
            phases_s={**run.phases_s, "turns": round(spent_s, 3)},
        )
        return view.worded(found)

    def leave(self, count: int, why: str) -> None:
        self.notes.append(f"{count} not measured in turns with the baseline's code: {why}")

    def ask(self, doubted: Sequence[Verdict]) -> None:
        """Measure each revision that baselines come from with the variants that it is asked of."""
        run, expected = self.outcome.run, self.outcome.expected
        limit = TimeLimit(self.request.time_s, spent_s=run.wall_s)

        def commit_of(verdict: Verdict) -> str:
            return expected.commits.get(expected.entries[verdict.variant].run, "")

        for commit, verdicts in groupby(sorted(doubted, key=commit_of), key=commit_of):
            asked = {verdict.variant: verdict for verdict in verdicts}
            why = against.refusal(commit, run.commit)
            why = f"{limit} left no time" if limit.is_over() else why
            try:
                if not why:
                    say = f"{len(asked)} unclear on a card never seen: measuring {commit} in turns"
                    self.listener.note(say)
                    self._measure(commit, asked, limit)
            except (PerfError, OSError) as error:
                why = str(error).partition("\n")[0]
            if why:
                self.leave(len(asked), why)

    def _measure(self, commit: str, asked: Mapping[str, Verdict], limit: TimeLimit) -> None:
        question = replace(
            self.request,
            variants=tuple(each.variant for each in self.outcome.run.variants if each.id in asked),
            claims=(),
            resume=False,
            resume_if_any=False,
            time_s=limit.left_s(),
            shard=None,
            # A night may have forty of these to ask.
            is_brief=True,
            against=RevisionOptions(rev=commit, project=self.request.root),
            folder=self.request.folder / FOLDER,
        )
        run = execute(question, self.listener, self.desks).run
        known = {trace.variant for trace in self.outcome.run.traces}
        own = (trace for trace in run.traces if trace.arm is Arm.B)
        # One that failed must not take the place of what the run that asks has.
        self.traces += [each for each in own if each.kernels or each.variant not in known]
        said = {verdict.variant: verdict for verdict in run.verdicts}
        of_one = dict(against.of_one_code(run))
        for name, mine in asked.items():
            found = said.get(name)
            if run.against and found and found.in_turns and name not in of_one:
                self.answers[name] = self._answer(mine, found, run.against)
                continue
            why = of_one.get(name, "it was not measured")
            reasons = [because("no_turns", commit=commit, why=why)]
            if found and name not in of_one:
                reasons = [because("in_turns", revision=commit), *found.reasons]
            # Against the baseline fresh processes may be clear, as in a confirmation; that code
            # is the same as itself says nothing.
            is_clear = found and not found.in_turns and found.word is Word.SAME
            kept = found if found and is_clear else mine
            self.answers[name] = structs.replace(kept, reasons=(*kept.reasons, *reasons))

    def _answer(self, mine: Verdict, found: Verdict, revision: Revision) -> Verdict:
        """Return a change of the code as found, *same* for none, else why it is still unclear.

        What is no change of the repository's code may be one of what it uses from outside: where
        that is known to be another, it is named and left unclear.
        """
        run, expected = self.outcome.run, self.outcome.expected
        if found.word.moved:
            return self.request.exceptions.applied([found], run)[0]
        if found.word is not Word.SAME:
            beside = because("in_turns", revision=str(revision))
            return structs.replace(mine, reasons=(*mine.reasons, beside, *found.reasons))
        before = expected.environments.get(expected.entries[mine.variant].run, {})
        if differing := tuple(against.differing(before, run.facts.environment)):
            same = because("same_in_turns", revision=str(revision))
            causes = because("not_the_code", differing=differing)
            return structs.replace(mine, reasons=(same, causes, *mine.reasons))
        differs = because("card_differs", revision=str(revision))
        # The limits of turns are not those of the verdict.
        how_much = takewhile(lambda reason: reason.kind != "detectable", found.reasons)
        return structs.replace(
            mine,
            word=Word.SAME,
            reasons=(differs, *how_much, *mine.reasons),
            confirmation=Confirmation.IN_TURNS,
            fails=False,
            card="",
        )
