"""One run: screen, judge, confirm, judge; canaries at both ends; resumed where it stopped."""

from __future__ import annotations

import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import structs

from perfsuite.boundary import PerfError, StoreError, UsageError, plain
from perfsuite.explain.trace import Tracing
from perfsuite.judge.claims import judge_claims, judge_quads
from perfsuite.judge.compare import Against, Policy, canary_clocks
from perfsuite.judge.machine import judge_machine
from perfsuite.judge.peaks import Peaks
from perfsuite.judge.verdict import judge, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Pack,
    Regime,
    Result,
    Revision,
    Run,
    Sampling,
    Settings,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
)
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.nightly.limit import CONFIRM_END, SCREEN_END, Fit, TimeLimit, fit_of
from perfsuite.packs.select import missing_need, missing_of, order
from perfsuite.run import against as turns
from perfsuite.run.against import Arms, open_arms
from perfsuite.run.config import Request
from perfsuite.run.expected import Yardstick, find_yardstick
from perfsuite.store.git import git_commit, unknown_commit
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

# Watches the machine: measures the packs' canaries on every unit at both ends of a run.


# What fewer variants say of the machine, their own verdicts say already.
FEWEST_TIMED = 3
# A CPU takes a second for each, and is compared within a gate that no count of them would halve.
HOST_PROCESSES, PROCESSES = 1, 2


def canaries_for(
    variants: Iterable[Variant], packs: Iterable[Pack], facts: DeviceFacts, *, settings: Settings
) -> tuple[Variant, ...]:
    """Return the packs' canaries that this device can run; none for a run of a few variants."""
    timed = [v for v in variants if v.case.regime is not Regime.EXACT]
    runnable = sum(not missing_need(v, facts) for v in timed)
    if settings.check_only or runnable < FEWEST_TIMED:
        return ()
    found = [v for pack in packs for v in pack.canaries.get(facts.device, ())]
    return tuple(v for v in found if not missing_need(v, facts))


def watch(
    desks: Sequence[Desk],
    canaries: Sequence[Variant],
    stage: Stage,
    *,
    on_result: Callable[[Result], object],
    on_phase: Callable[[str, str], None],
) -> None:
    """Measure each canary on each unit, all units at once; hand over one result per canary."""
    found: dict[str, list[Result]] = {}
    lock = threading.Lock()

    def take(result: Result) -> None:
        with lock:
            found.setdefault(result.variant, []).append(result)

    def measure(desk: Desk, share: Sequence[Variant]) -> None:
        desk.panel.measure(
            share,
            stage,
            processes=HOST_PROCESSES if desk.facts.is_host else PROCESSES,
            on_result=take,
            on_phase=on_phase,
        )

    if canaries:
        measure_on_all(desks, canaries, measure)
    for results in found.values():
        on_result(joined(results))


def joined(results: Sequence[Result]) -> Result:
    """Return the units' results as one; a unit where it failed has no evidence in it."""
    good = [result for result in results if result.status is Status.OK]
    evidence = tuple(process for result in good for process in result.evidence)
    wall_s = max(result.wall_s for result in results)
    return structs.replace((good or results)[0], evidence=evidence, wall_s=wall_s)


# Judges a run by its yardstick: the variants of a stage, then its machine.


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
        watched = structs.replace(run, canaries=tuple(c for c in run.canaries if c.id not in away))
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
        judged = structs.replace(run, verdicts=self.exceptions.applied(told, run))
        return structs.replace(
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
        return structs.replace(verdict, word=Word.UNCLEAR, reason=reason, fails=fails)

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


# What follows the last measurement, step by step: one that fails costs no other, and is told of.
#
# What was measured and judged is worth more than anything that is made of it.


T = TypeVar("T")
# Of an unexpected error's first line: its traceback has it whole.
MOST_FIRST = 300


@dataclass(slots=True)
class Steps:
    """The steps behind a measurement; ``tracebacks`` are of what nobody expected."""

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


# Who is told how a run goes on, and what it comes to.


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
    """A finished run, where it is stored, and what it was compared with: entries, their commits.

    ``steps`` are those behind its measuring: what of them failed.
    """

    run: Run
    run_file: Path
    baselines: Mapping[str, BaselineEntry]
    source: str
    previous: Run | None = None
    commits: Mapping[str, str] = field(default_factory=dict)
    peaks: Peaks | None = None
    is_interrupted: bool = False
    steps: Steps = field(default_factory=Steps)


# Judges a run's claims, what its results leave open by quads inside one process.


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
            each.claim: structs.replace(each, reason=f"{each.reason}; {undone[each.claim]}")
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
        variants = {variant.id: variant for variant in run.variants}
        desk.panel.samplings = dict(self.samplings)
        processes = run.settings.confirm_processes
        results = desk.panel.quads(
            variants[claim.faster], variants[claim.than], processes=processes
        )
        with self._lock:
            both = [
                self.run_file.append(structs.replace(result, claim=claim.id)) for result in results
            ]
            verdict = judge_quads(claim, both, facts=run.facts, policy=self.policy)
            if verdict is not None:
                self._decided[claim.id] = verdict
            elif both:
                last = next((r for r in both if r.status is not Status.OK), both[0])
                self._failed[claim.id] = f"quads ended {last.status.value}: {last.reason}"


# Opens the run file of a new run, or goes on with the one that was interrupted.


_OTHER_CODE = "run {!r} was measured with other code: {}, and now it is {}"


def new_run(
    request: Request, facts: DeviceFacts, canaries: tuple[Variant, ...], *, against: Revision | None
) -> Run:
    """Return what a request makes on a device that was just opened, with nothing measured yet."""
    now = datetime.now(UTC)
    project = request.against.project if request.against else request.root
    return Run(
        id=next_run_id(request.folder, now),
        started=now.isoformat(timespec="seconds"),
        command=request.command,
        sku=sku_of(facts),
        facts=facts,
        settings=request.settings,
        variants=request.variants,
        instances=request.claims,
        commit=git_commit(request.root),
        code=code_digest(project, request.packs),
        against=against,
        canaries=() if against else canaries,  # in their minutes the machine is the same to both
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
    if (interrupted.sku.slug, interrupted.facts.unit) != (run.sku.slug, run.facts.unit):
        return (
            f"run {interrupted.id!r} was measured on another unit of {interrupted.sku.slug!r}",
            "resume it there, or start a new run without --perf-resume",
        )
    if interrupted.against != run.against:
        told = [each.against or "baselines" for each in (interrupted, run)]
        return (
            f"run {interrupted.id!r} was compared with {told[0]}, this one would be with {told[1]}",
            "resume it with the same --perf-against, or start a new run",
        )
    if interrupted.code != run.code:
        return (
            _OTHER_CODE.format(interrupted.id, _code_of(interrupted), _code_of(run)),
            "bring that code back, or start a new run without --perf-resume",
        )
    strangers = sorted({v.id for v in run.variants} - {v.id for v in interrupted.variants})
    if strangers:
        return (
            f"run {interrupted.id!r} was not asked for {strangers[0]!r}",
            "resume it with the selection it was started with, or start a new run",
        )
    return "", ""


def open_run_file(folder: Path, run: Run, interrupted: Run | None) -> RunFile:
    """Create the file of ``run``, or open that of the interrupted run on the same unit."""
    if interrupted is None:
        return RunFile.create(folder, run)
    what, remedy = refusal(run, interrupted)
    if what:
        raise UsageError(what, where=str(folder), remedy=remedy)
    return RunFile.resume(run_path(folder, interrupted.id))


def spent_s(run: Run, devices: int) -> float:
    """Return how long an interrupted run's measuring took on so many devices."""
    return sum(result.wall_s for result in (*run.results, *run.aside)) / devices


def _code_of(run: Run) -> str:
    return f"commit {run.commit or 'unknown'} (code {run.code})"


def samplings_of(entries: Mapping[str, BaselineEntry], run: Run) -> dict[str, Sampling]:
    """Return how variants were sampled in the baseline, else earlier in this run."""
    found = {
        result.variant: result.evidence[0].sampling for result in run.results if result.evidence
    }
    found |= {name: entry.sampling for name, entry in entries.items() if entry.sampling}
    return {name: sampling for name, sampling in found.items() if sampling}


# Runs a request: panels, run file, screen, judge, confirm, judge again.


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
        run = fit.cut(structs.replace(run, notes=(*notes, *run.notes)))
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
        run = structs.replace(run, wall_s=round(wall_s, 3), units=units, phases_s=phases_s)
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        whole = structs.replace(run, traces=self.run_file.run.traces, finished=ended)
        return self.steps.take(
            "the run's file has no verdicts", partial(self.run_file.finish, run), whole
        )
