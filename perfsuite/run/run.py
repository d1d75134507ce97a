"""One run: screen, judge, confirm, judge; canaries at both ends; resumed where it stopped."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from perfsuite.boundary import PerfError, StoreError, UsageError, in_a_line, plain
from perfsuite.devices.peaks import peaks_of
from perfsuite.hooks import features
from perfsuite.judge.noise import usable_of
from perfsuite.judge.rule import looks_of, needs_pairs, steps_left
from perfsuite.judge.verdict import judge, judge_claims
from perfsuite.model import (
    DEVICE_TIME,
    TIME,
    BaselineEntry,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    Confirmation,
    DeviceFacts,
    Reason,
    Regime,
    Result,
    Revision,
    Run,
    Side,
    Source,
    Stage,
    Status,
    Variant,
    VariantRun,
    Verdict,
    Word,
    because,
    is_host_timed,
)
from perfsuite.packs.select import missing_need, order
from perfsuite.report import view
from perfsuite.run.against import (
    MOST_SOURCES,
    NoSideAError,
    Sides,
    by_size,
    by_source,
    chosen_of,
    is_one_code,
    keep_sources,
    of_one_code,
    open_sides,
    sources_of,
)
from perfsuite.run.config import ALWAYS, CONFIRM_END, SCREEN_END, Config, Exceptions, TimeLimit
from perfsuite.run.expected import (
    LIMIT_S,
    Basis,
    Forecast,
    beside,
    find_expected,
    gaps,
    joined,
    plausible,
    rank,
)
from perfsuite.stats import grouped
from perfsuite.store.git import code_digest, commit_of, remote_of
from perfsuite.store.runs import RunFile, list_runs, load_run, next_run_id, run_path, unfinished
from perfsuite.store.sku import differs, sku_of, version_changes
from perfsuite.workers.panel import Panel
from perfsuite.workers.units import (
    Panels,
    boards_of,
    count_on,
    idle_gpus,
    measure_on,
    share_out,
    spoilers,
    units_of,
)

T = TypeVar("T")
# Of a canary, at either end of a run.
PROCESSES = 2
# Claims that are taken up: the rest stay unclear.
MOST_CLAIMS = 20
# Of an unexpected error's first line: its traceback has it whole.
MOST_FIRST = 300
# Where runs are that take pairs for another; nobody's earlier run.
FOLDER = "settled"


class Listener(Protocol):
    """Who is told how a run goes on; called from the thread that measures."""

    def planned(self, total: int, facts: DeviceFacts, estimate_s: float) -> None:
        """``total`` variants are about to be measured on a device."""

    def phase(self, variant: str, phase: str) -> None:
        """A phase of a variant begins."""

    def finished(self, result: Result, done: int, total: int, left_s: float) -> None:
        """A variant ended; the run goes on for about ``left_s``, unless that is not known: 0."""

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
        return " ".join(str(error).replace("\n  ", "; ").split())
    if isinstance(error, ImportError) and error.name:
        return f"install {error.name}"
    return in_a_line(error)[:MOST_FIRST]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that was measured, where it is stored, and what it was compared with.

    ``steps`` are those behind its measuring: what of them failed.
    """

    run: Run
    run_file: Path
    basis: Basis
    steps: Steps = field(default_factory=Steps)


@dataclass(frozen=True, slots=True)
class Judging:
    """How a run that holds what is expected of it is judged."""

    basis: Basis
    sides: Sides = field(default_factory=Sides)
    exceptions: Exceptions = field(default_factory=Exceptions)

    def stage(self, run: Run, stage: Stage) -> dict[str, Verdict]:
        """Return the verdicts on one stage's results; none where nothing was timed."""
        if run.settings.check_only:
            return {}
        found = {one.variant: one for one in judge(beside(run), stage)}
        doubts = self.sides.doubts(run, found.values(), stage)
        return found | {n: _adding(found[n], doubts[n]) for n in found.keys() & doubts.keys()}

    def whole(
        self, run: Run, verdicts: Mapping[str, Verdict], claims: Sequence[ClaimVerdict]
    ) -> Run:
        """Return the run with its verdicts, claims and notes."""
        run = beside(run)
        told = [self.settled(verdicts[o.id], o, run) for o in run.variants if o.id in verdicts]
        judged = run.having(verdicts=self.exceptions.applied(told, run))
        excused = [_excused(each, judged) for each in claims]
        in_turns = {one.id for one in run.variants if one.expected.in_turns}
        is_ok = {result.variant for result in run.results if result.status is Status.OK}
        notes = [
            *run.notes,
            *(self.basis.notes if not in_turns or is_ok - in_turns else ()),
            *gaps(run, told),
            *self.sides.notes(),
            *self.exceptions.notes(run),
        ]
        claims = self.exceptions.claims(excused, judged)
        return view.worded(replace(judged, claims=claims, notes=tuple(notes)))

    def settled(self, verdict: Verdict, one: VariantRun, run: Run) -> Verdict:
        """Return the verdict, knowing whether the code is the very same."""
        is_stored, is_moved = is_by_stored_time(verdict), verdict.word.moved
        if is_stored:  # what is counted is said, or that the code is the same
            verdict = replace(verdict, changes=tuple(c for c in verdict.changes if not c.degrees))
        is_open = is_moved or (verdict.word is Word.UNCLEAR and (verdict.changes or is_stored))
        if verdict.in_turns or not is_open or not is_one_code(one, run):
            return verdict
        has_level = is_known(one, verdict)
        if is_moved and has_level:
            return self.environment(verdict, one, run)
        kinds = {reason.kind for reason in verdict.reasons}
        is_away = any(not each.low <= 0 <= each.high for each in verdict.changes)
        # What is away, or has another clock, hints at another environment.
        if "lost" in kinds or (has_level and (is_away or "clock_lost" in kinds)):
            return verdict
        kind = "same_code_noisy" if has_level else "same_code"
        same = because("not_timed") if is_stored else because(kind, code=str(one.expected.source_a))
        others = (each for each in verdict.reasons if each.kind != "stored_time")
        return replace(verdict, word=Word.SAME_CODE, reasons=(same, *others), fails=False)

    def environment(self, verdict: Verdict, one: VariantRun, run: Run) -> Verdict:
        """Return what moved although its code is the same."""
        others = version_changes(one.expected.environment, run.facts.environment)
        told = {reason.kind for reason in verdict.reasons} | {c.metric for c in verdict.changes}
        # No load of the host's loses a metric, moves what is counted or the device's own time.
        may_be_load = not (others or is_counted(verdict) or told & {"lost", DEVICE_TIME.name})
        word, kind = Word.ENVIRONMENT, "environment" if others else "environment_unknown"
        if may_be_load and is_host_timed(run.facts.device, one.variant.case.regime.value):
            # Minutes later the host may be a fifth faster: its load is no level, and not recorded.
            word, kind = Word.SAME_CODE, "same_code_host"
        reason = because(kind, code=str(one.expected.source_a), differing=others)
        is_past_gate = any(
            each.low > each.threshold and each.theta > each.gate
            for each in verdict.changes
            if not (each.degrees and is_by_stored_time(verdict))
        )
        return replace(
            verdict,
            word=word,
            reasons=(reason, *verdict.reasons),
            fails=is_past_gate and word.value in run.settings.policy.fail_on,
        )

    def unconfirmed(self, verdict: Verdict, run: Run, why: str) -> Verdict:
        """Return the verdict on one screen alone: a change that nothing confirmed is unclear.

        What is counted needs no confirmation.
        """
        if not verdict.word.moved or is_counted(verdict):
            return verdict
        told, word = _adding(verdict, because("unconfirmed", why=why)), Word.UNCLEAR
        return replace(told, word=word, fails=word.value in run.settings.policy.fail_on)


def _adding(verdict: Verdict, why: Reason) -> Verdict:
    return replace(verdict, reasons=(*verdict.reasons, why))


def is_counted(verdict: Verdict) -> bool:
    """Say whether what has no noise moved."""
    return any(change.theta and not change.degrees for change in verdict.changes)


def is_by_stored_time(verdict: Verdict) -> bool:
    """Say whether a stored time is all that a time stands against, which decides nothing."""
    return any(reason.kind == "stored_time" for reason in verdict.reasons)


def _excused(verdict: ClaimVerdict, run: Run) -> ClaimVerdict:
    """Return a claim's verdict: it fails the run only if it held in what that is compared with.

    A broken one says whether it held, and which ratio the times that are shown have.
    """
    if verdict.word is not ClaimWord.BROKEN:
        return verdict
    claim = next(each for each in run.instances if each.id == verdict.claim)
    runs, metric = {one.id: one for one in run.variants}, claim.metric or TIME.name
    than, faster = runs[claim.than], runs[claim.faster]
    reasons, ratio = [*verdict.reasons], _shown_us(than) / (_shown_us(faster) or math.inf)
    if ratio and not claim.metric and not (verdict.low or 0) <= ratio <= (verdict.high or math.inf):
        reasons.append(because("shown", ratio=ratio))
    entries = [one.entry for one in (than, faster) if one.entry and metric in one.entry.metrics]
    held = [entry.metrics[metric].center for entry in entries]
    fails = verdict.fails and len(held) > 1 and held[0] >= claim.by * held[1]
    if verdict.fails and not held[1:]:
        reasons.append(because("lacks_a_side"))
    elif verdict.fails and held[1]:
        kind = "held_before" if fails else "no_better_before"
        reasons.append(because(kind, ratio=held[0] / held[1]))
    return replace(verdict, reasons=tuple(reasons), fails=fails)


def _shown_us(one: VariantRun) -> float:
    """Return the time that a report shows of a variant; 0 where there is none."""
    changes = one.verdict.changes if one.verdict else ()
    judged = [change.current for change in changes if change.metric == TIME.name]
    times = judged or [each.time_us for each in (usable_of(one.last) if one.last else ())]
    return median(times) if times else 0.0


def entries_in(run: Run) -> dict[str, BaselineEntry]:
    """Return what the variants and canaries of a run are compared with."""
    return {one.id: one.entry for one in run.every if one.entry}


def execute(
    config: Config, listener: Listener, panels: Panels | None = None, within: Work | None = None
) -> Outcome:
    """Measure, judge, confirm and store; raises PerfError where the whole run cannot be done.

    ``panels`` are those of another run of the same device, which are left open; ``within`` is the
    one that this run is a part of.
    """
    limit, interrupted = TimeLimit(config.time_s), interrupted_run(config)
    variants, settings = config.variants, (interrupted or config).settings
    if interrupted:
        variants = tuple(one.variant for one in interrupted.variants)
    with ExitStack() as stack:
        sides = open_sides(config, variants, stack)
        place = panels or stack.enter_context(Panels())
        others = sorted(settings.asked.items() - config.settings.asked.items())
        told = [f"as the run was started, {name} is {how or 'not set'}" for name, how in others]
        sources, trees = sources_of(config, told)
        opened = place.of(config.device, config.packs, settings, sides.code)
        limit = replace(limit, started=limit.started + place.waited_s)
        sides = sides.seen_by(opened[0])
        run = new_run(config, opened[0].facts, sides.revision)
        run = replace(run, sources=sources, boards=boards_of(opened, variants))
        notes = [*idle_gpus(opened, place.gpus), *filter(None, [commit_of(config.root)[1]]), *told]
        if interrupted and (refused := refusal(run, interrupted)):
            what, remedy = refused
            if config.resume == ALWAYS:
                raise UsageError(what, where=str(config.folder), remedy=remedy)
            notes.append(f"not resumed, started anew: {what}")
            interrupted = None
        # Before the file is opened: a damaged baseline must not leave a run behind.
        basis = find_expected(
            config.baseline_roots, config.folder, run=interrupted or run, packs=config.packs
        )
        if interrupted and interrupted.finished:  # the pairs that another run had asked for
            return Outcome(interrupted, run_path(config.folder, interrupted.id), basis)
        if interrupted:
            file = stack.enter_context(RunFile.resume(run_path(config.folder, interrupted.id)))
            kept = sum(one.status is not Status.SKIPPED for one in file.run.results)
            listener.note(f"resuming run {interrupted.id}; results kept: {kept}")
            spent_s = sum(result.wall_s for result in (*interrupted.results, *interrupted.aside))
            limit = replace(limit, spent_s=spent_s / len(opened))
        else:
            file = stack.enter_context(RunFile.create(config.folder, run))
            keep_sources(trees, run.id, notes)
        file.run = basis.hold(file.run)
        for note in (*itertools.chain(*(() if config.source else spoilers(run.facts))), *notes):
            listener.note(note)
        judging = Judging(basis, sides, config.exceptions)
        work = Work(config, listener, place, opened, file, judging, limit, within)
        run = work.measured(notes)
        return Outcome(run, file.path, basis, work.steps)


def new_run(config: Config, facts: DeviceFacts, revision: Revision | None) -> Run:
    """Return what is asked for on a device that was just opened, with nothing measured yet."""
    now = datetime.now(UTC)
    canaries = [each for pack in config.packs for each in pack.canaries.get(facts.device, ())]
    is_sustained = any(each.case.regime is Regime.SUSTAINED for each in config.variants)
    # Their clock is what that of back-to-back launches is held against. Beside a revision there
    # are none: in its minutes the machine is the same to both. Of a host no level is judged.
    if config.settings.check_only or revision or not is_sustained or facts.is_host:
        canaries = []
    return Run(
        id=next_run_id(config.folder, now),
        started=now.isoformat(timespec="seconds"),
        command=config.command,
        sku=sku_of(facts),
        facts=facts,
        settings=config.settings,
        variants=tuple(VariantRun(variant=each) for each in config.variants),
        instances=config.claims,
        commit=commit_of(config.root)[0],
        remote=remote_of(config.root, config.project),
        code=code_digest(config.project, config.packs),
        against=revision,
        canaries=tuple(VariantRun(variant=c) for c in canaries if not missing_need(c, facts)),
        shard=config.shard,
    )


def interrupted_run(config: Config) -> Run | None:
    """Return the newest interrupted run, if it is to go on; UsageError if it must and is not there.

    Where it need not, it goes on only if nothing was run since, and if as much was asked for.
    Of pairs, whatever was run of the same question since the run that asks may be finished too.
    """
    if not config.resume:
        return None
    idle, known = unfinished(config.folder), list_runs(config.folder)
    if config.resume == ALWAYS:
        if idle:
            return load_run(idle[0])
        remedy = "start a new run without --perf-resume"
        raise UsageError("no interrupted run to resume", where=str(config.folder), remedy=remedy)
    since = [path for path in known if config.source and path.stem > config.resume]
    ids = {variant.id for variant in config.variants}
    for path in since or [path for path in known[:1] if path in idle and not config.source]:
        with suppress(StoreError):  # damaged: there is nothing to go on with
            run = load_run(path)
            if run.settings == config.settings and {v.id for v in run.variants} == ids:
                return run if run.finished or path in idle else None
    return None


def refusal(run: Run, interrupted: Run) -> tuple[str, str] | None:
    """Return why an interrupted run cannot go on as ``run``, and what to do; None if it can."""
    name, anew = f"run {interrupted.id!r}", "or start a new run without --perf-resume"
    if (interrupted.sku.slug, interrupted.facts.unit) != (run.sku.slug, run.facts.unit):
        what = f"{name} was measured on another unit of {interrupted.sku.slug!r}"
        return what, f"resume it there, {anew}"
    before, here = ({**o.facts.environment, **o.facts.state} for o in (interrupted, run))
    if others := differs(before, here):
        return f"since {name} the machine changed: {others}", f"bring that back, {anew}"
    if interrupted.against != run.against:
        then, now = (each.against or "baselines" for each in (interrupted, run))
        what = f"{name} was compared with {then}, this one would be with {now}"
        return what, "resume it with the same --perf-against, or start a new run"
    if interrupted.code != run.code:
        old, new = (f"commit {o.commit or 'unknown'} (code {o.code})" for o in (interrupted, run))
        what = f"{name} was measured with other code: {old}, and now it is {new}"
        return what, f"bring that code back, {anew}"
    if strangers := sorted({v.id for v in run.variants} - {v.id for v in interrupted.variants}):
        remedy = "resume it with the selection it was started with, or start a new run"
        return f"{name} was not asked for {strangers[0]!r}", remedy
    return None


@dataclass
class Work:
    """One run in progress."""

    config: Config
    listener: Listener
    place: Panels
    panels: Sequence[Panel]
    file: RunFile
    judging: Judging
    limit: TimeLimit
    within: Work | None = None
    steps: Steps = field(default_factory=Steps)
    # What pairs with the baseline's code said, and why there are none; by variant.
    answers: dict[str, Verdict] = field(default_factory=dict)
    unanswered: dict[str, Reason] = field(default_factory=dict)
    sources: set[Source] = field(default_factory=set)

    def __post_init__(self) -> None:
        run = self.file.run
        self.facts, self.settings, self.entries = run.facts, run.settings, entries_in(run)
        self.peaks, self.started = peaks_of(run.sku.slug), time.monotonic()
        own = Forecast(self.judging.basis.previous, run, len(self.panels), self.limit)
        self.forecast: Forecast = self.within.forecast if self.within else own
        self.phases_s: defaultdict[str, float] = defaultdict(float)
        self.phases_s["open"] = self.started - self.limit.started
        # As variants were sampled earlier in this run, else in the baseline.
        found = {name: entry.sampling for name, entry in self.entries.items()}
        found |= {r.variant: r.evidence[0].sampling for r in run.results if r.evidence}
        self.samplings = {name: sampling for name, sampling in found.items() if sampling}
        self._lock = threading.Lock()

    def measured(self, notes: Sequence[str]) -> Run:
        """Go through the stages, judge, trace what moved, and end the run file."""
        runnable = self._runnable(self._left(self.file.run.variants, Stage.SCREEN))
        fit = features().hook.perf_fit(work=self)
        self._watch(Stage.CANARY_START)
        verdicts: dict[str, Verdict] = {}
        for chosen in self._rounds(fit, runnable):
            self._screen(chosen)
            verdicts = self._confirmed(self._judged(Stage.SCREEN))
        self._watch(Stage.CANARY_END)
        claims = self._claims()
        with self._timed("judge"):
            run = self.judging.whole(self.file.run, verdicts, claims)
        run = replace(run, notes=(*notes, *run.notes))
        run = fit.cut(run) if fit else run
        for look in () if self.config.source else features().hook.perf_judged():
            run = self.steps.take("kernels not traced", partial(look, run, self), run)
        run = replace(
            run.having(traces=self.file.run.traces),
            # With what was measured before an interruption.
            wall_s=round(self.limit.spent_s + time.monotonic() - self.started, 3),
            units=units_of(self.panels, [one.variant for one in run.variants]),
            forecasts=() if self.config.source else tuple(self.forecast.said),
            phases_s={n: round(s, 3) for n, s in {**run.phases_s, **self.phases_s}.items()},
        )
        whole = replace(run, finished=datetime.now(UTC).isoformat(timespec="seconds"))
        lacks = "the run's file has no verdicts"
        return self.steps.take(lacks, partial(self.file.finish, run), whole)

    def _screen(self, chosen: Sequence[Variant]) -> None:
        """Screen variants: where a host's stored time decides nothing, one process is enough."""
        of_claims = {name for each in self.file.run.instances for name in (each.faster, each.than)}
        compared, settings = self.judging.sides.compared, self.settings
        known = self.entries.keys() - of_claims - compared if self.facts.is_host else set()
        rest = [one for one in chosen if one.id not in known]
        processes = looks_of(settings).step if compared else settings.processes
        self.forecast.plan(rest, processes, compared)  # before what comes first is measured
        self._measure([one for one in chosen if one.id in known], Stage.SCREEN, 1)
        self._measure(rest, Stage.SCREEN, processes)

    def _rounds(self, fit: Any, runnable: list[Variant]) -> Iterator[Sequence[Variant]]:
        """Yield what is to be screened and confirmed: all, or what fits, then what still does."""
        chosen = fit.chosen(runnable) if fit else order(runnable, self.settings.seed)
        self.forecast.is_cut = len(chosen) < len(runnable)
        yield chosen
        while fit and not self.limit.is_over(CONFIRM_END):
            before, stage = len(runnable), Stage.SCREEN
            screened = {each.variant for each in self.file.run.results if each.stage is stage}
            runnable = [variant for variant in runnable if variant.id not in screened]
            chosen = fit.still(self.file.run).chosen(runnable)
            self.forecast.is_cut = 0 < len(chosen) < len(runnable)
            if not chosen or len(runnable) == before:  # nothing is left, or nothing begins any more
                return
            yield chosen

    def _left(self, runs: Iterable[VariantRun], stage: Stage) -> list[Variant]:
        """Return the variants that a stage has not measured yet, on both sides if there are two."""
        two = self.judging.sides.compared
        return [
            one.variant
            for one in runs
            if not one.result(stage) or (one.id in two and not one.result(stage, Side.A))
        ]

    def _runnable(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return what this device can run; store of the rest that it was skipped."""
        unmet = {v.id: reason for v in variants if (reason := missing_need(v, self.facts))}
        for name, reason in unmet.items():
            self.file.append(Result(variant=name, status=Status.SKIPPED, reason=reason))
        return [variant for variant in variants if variant.id not in unmet]

    def _watch(self, stage: Stage) -> None:
        """Measure each canary on each unit, all units at once; store one result for each."""
        found, canaries = list[Result](), self._left(self.file.run.canaries, stage)
        # No limit holds for canaries, and for what follows the last.
        share = partial(self._share, stage=stage, processes=PROCESSES, is_over=bool)
        take = partial(share, take=found.append)
        share_out(self.panels, self.panels, lambda panel, _: take(panel, canaries))
        for results in grouped(found, attrgetter("variant")).values():
            self._store(joined(results))

    def _measure(self, variants: Sequence[Variant], stage: Stage, processes: int) -> None:
        """Measure the variants on all units; what has no noise in one process alone."""
        if not variants:
            return
        counted = [v for v in variants if v.case.regime is Regime.EXACT]
        timed = [v for v in variants if v.case.regime is not Regime.EXACT]
        self.forecast.plan(variants, processes, self.judging.sides.compared)
        self.listener.planned(len(variants), self.facts, self.forecast.left_s())
        runs = {one.id: one for one in self.file.run.variants}
        confirming = partial(self.limit.is_over, CONFIRM_END)
        is_over = self.limit.until(SCREEN_END) if stage is Stage.SCREEN else confirming

        def unwelcome(variant: Variant, panel: Panel) -> int:
            return rank(runs[variant.id], panel.facts.unit)

        done = itertools.count(1)

        def take(result: Result) -> None:
            with self._lock:
                stored = self._store(result)
                if not stored.is_aside:
                    one = next(each for each in self.file.run.variants if each.id == stored.variant)
                    own = [c for c in self.file.run.instances if one.id in {c.faster, c.than}]
                    self.forecast.claims |= self._judged_claims(own)[1]
                    words = self.judging.stage(replace(self.file.run, variants=(one,)), stage)
                    looks, needs = looks_of(self.settings), any(map(needs_pairs, words.values()))
                    steps = sum(steps_left(each, _pairs(one), looks) for each in words.values())
                    left_s = self.forecast.took(result, steps, needs_pairs=needs)
                    self.listener.finished(stored, next(done), len(variants), left_s)

        measure = partial(self._share, stage=stage, is_over=is_over, take=take)
        measure_on(self.panels, timed, partial(measure, processes=processes), unwelcome)
        count_on(self.panels, counted, partial(measure, processes=1))

    def _share(  # noqa: PLR0913 - what a panel needs to know
        self,
        panel: Panel,
        share: Sequence[Variant],
        *,
        stage: Stage,
        processes: int,
        is_over: Callable[[], bool],
        take: Callable[[Result], None],
    ) -> None:
        panel.samplings, panel.is_over = self.samplings, is_over
        both = self.judging.sides.compared
        panel.compared = {variant.id: variant for variant in share if variant.id in both}
        runs = [one for one in self.file.run.variants if stage is Stage.CONFIRM and one.is_paired]
        panel.begun = {one.id: 2 * _pairs(one) for one in runs}
        panel.measure(
            share, stage, processes=processes, on_result=take, on_phase=self.listener.phase
        )

    def _store(self, result: Result) -> Result:
        one = next(one for one in self.file.run.every if one.id == result.variant)
        before = one.result(result.stage, result.side) if result.stage is Stage.CONFIRM else None
        if before and one.is_paired:  # more pairs of the same stage; what went bad stays so
            bad = before if before.status is not Status.OK else result
            whole = (*before.evidence, *result.evidence)
            result = replace(bad, wall_s=result.wall_s, evidence=whole)
        return self.file.append(plausible(result, one.variant, self.peaks))

    def _judged(self, stage: Stage) -> dict[str, Verdict]:
        with self._timed("judge"):
            return self.judging.stage(self.file.run, stage)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.phases_s[phase] += time.monotonic() - started

    def _confirmed(self, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
        """Replace doubtful verdicts by those on fresh data; what failed then has none.

        These are pairs with the baseline's code. Where it is the same code, or cannot be had, they
        are fresh processes. Beside a revision they are more pairs, until all is plain or there are
        enough.
        """
        if self.settings.check_only:
            return verdicts
        settings, looks, settled = self.settings, looks_of(self.settings), self.judging.settled
        with self._timed("pairs"):
            self._ask(verdicts)
        screened = verdicts
        while True:
            run = self.file.run
            doubtful = [
                one
                for one in run.variants
                if one.id in verdicts.keys() - self.answers.keys()
                and needs_pairs(verdicts[one.id])
                and not is_by_stored_time(verdicts[one.id])
                and not (is_one_code(one, run) and settled(verdicts[one.id], one, run).word.stayed)
            ]
            beside_a = {one.id for one in doubtful if verdicts[one.id].in_turns}
            paired = [o for o in doubtful if steps_left(verdicts[o.id], _pairs(o), looks)]
            single = [o for o in doubtful if o.id not in beside_a and not o.result(Stage.CONFIRM)]
            of_all = f"of {len(verdicts)} variants"
            if single:
                self.listener.note(f"confirming {len(single)} {of_all} in fresh processes")
            if paired:
                self.listener.note(f"alternating {looks.step} more times: {len(paired)} {of_all}")
            for some, processes in ((single, settings.confirm_processes), (paired, looks.step)):
                chosen = order([one.variant for one in some], settings.seed)
                self._measure(chosen, Stage.CONFIRM, processes)
            if gone := {o.id for o in self.file.run.variants if o.result(Stage.CONFIRM)}:
                kept = {name: one for name, one in screened.items() if name not in gone}
                verdicts = kept | self._judged(Stage.CONFIRM)
            if len(run.results) == len(self.file.run.results):  # no time is left, or no doubt
                break
        short = f"{(self.within or self).limit} left no time"  # as it was asked for
        for name in {one.id for one in single} & verdicts.keys():
            verdicts[name] = self.judging.unconfirmed(verdicts[name], run, short)
        why = because("unconfirmed", why=f"{short} to measure it longer")
        for name in {one.id for one in paired} & verdicts.keys():
            verdicts[name] = _adding(verdicts[name], why)
        # What did not stay says why no pairs were taken, if none were.
        open_ones = {name for name, each in verdicts.items() if not each.word.stayed}
        told = {
            n: _adding(verdicts[n], self.unanswered[n]) for n in self.unanswered if n in open_ones
        }
        return {**verdicts, **told, **self.answers}

    def _claims(self) -> tuple[ClaimVerdict, ...]:
        """Judge the claims by the screen; take pairs of both sides of those left open."""
        run, pairs = self.file.run, self.settings.confirm_processes
        found, left = self._judged_claims(run.instances)
        taken = [*left.values()][:MOST_CLAIMS]
        if not left:
            return found
        self.listener.note(f"deciding {len(taken)} of {len(found)} claims by pairs of both sides")
        deadline = time.monotonic() + min(LIMIT_S, self.limit.left_s())
        variants = {one.id: one.variant for one in run.variants}

        def take(claim: str, result: Result) -> None:
            if result.status is not Status.OK:
                self.listener.note(f"a pair of claim {claim} ended as {result.status.value}")
            with self._lock:
                self.file.append(replace(result, claim=claim))
                self.forecast.claims.pop(claim, None)
                self.forecast.left_s()

        def decide(panel: Panel, share: Sequence[ClaimInstance]) -> None:
            panel.samplings, panel.is_over, panel.begun = self.samplings, bool, {}
            for claim in share:
                if time.monotonic() + self.forecast.takes_s(claim) > deadline:
                    continue
                faster, own = [variants[claim.faster]], partial(take, claim.id)
                panel.compared = {claim.faster: variants[claim.than]}
                panel.measure(faster, Stage.CONFIRM, processes=pairs, on_result=own)

        for panel in self.panels:  # both are of this code, also where another revision is side A
            panel.compare({})
        share_out(self.panels, taken, decide)
        for panel in self.panels:
            panel.compare(self.judging.sides.code)
        limit = f"no pairs of both sides: the limit is {MOST_CLAIMS} claims, {LIMIT_S:g} s"
        limit += f", within {self.limit}" if self.limit.is_set else ""
        why, (found, left) = because("no_abba", why=limit), self._judged_claims(run.instances)
        return tuple(
            replace(each, reasons=(*each.reasons, why)) if each.claim in left else each
            for each in found
        )

    def _judged_claims(
        self, instances: Sequence[ClaimInstance]
    ) -> tuple[tuple[ClaimVerdict, ...], dict[str, ClaimInstance]]:
        """Return the verdicts on claims, and which claims pairs may still decide."""
        run = replace(self.file.run, instances=tuple(instances))
        # The screen's alone: what one side took minutes later is no match for the other side.
        found = judge_claims(run, Stage.SCREEN)
        # Side A is stored first: pairs that were interrupted behind it are taken again.
        done = {o.claim for o in run.aside if o.side is Side.B or o.status is not Status.OK}
        gangs = {one.id for one in run.variants if one.variant.is_gang}
        names = {o.claim for o in found if o.word is ClaimWord.UNCLEAR} - done
        left = (each for each in run.instances if each.id in names)
        return found, {o.id: o for o in left if not {o.faster, o.than} & gangs}

    def _ask(self, verdicts: Mapping[str, Verdict]) -> None:
        """Take pairs with the code that entries come from, where stored numbers say no *same*.

        Where everything moved at once some speak for the others, if all of these say *same*. Of a
        shard none are taken: it is judged anew when it is merged.
        """
        run, told = self.file.run, self.answers.keys() | self.unanswered.keys()
        if run.against or self.config.shard:
            return
        runs = {one.id: one for one in run.variants}
        doubted = [runs[v.variant] for v in by_size(verdicts.values()) if needs_pairs(v)]
        left = [o for o in doubted if o.id not in told and o.entry and not is_one_code(o, run)]
        chosen = chosen_of(left, run.settings.seed, self.facts.device)
        self._pair(chosen, verdicts)
        found = [self.answers.get(one.id) for one in chosen]
        left = [one for one in left if one not in chosen]
        if all(each and (each.word.stayed or each.word is Word.ENVIRONMENT) for each in found):
            why = because("paired", count=len(chosen), total=len(chosen) + len(left))
            for one in left:  # what moved as others did is the environment's
                mine = verdicts[one.id]
                whole = replace(mine, reasons=(why, *mine.reasons))
                if not is_known(one, mine):
                    self.answers[one.id] = replace(whole, word=Word.SAME_CODE, fails=False)
                elif mine.word.moved:
                    self.answers[one.id] = self.judging.environment(whole, one, run)
                else:
                    self.unanswered[one.id] = why
        else:
            self._pair(left, verdicts)
        self.forecast.end_pairs()

    def _pair(self, some: Sequence[VariantRun], verdicts: Mapping[str, Verdict]) -> None:
        """Take pairs of variants, by the code of their entries; note of which there are none."""
        for source, own in by_source(some):
            if why := self._tried(source, own, verdicts):
                self.unanswered |= dict.fromkeys((one.id for one in own), why)

    def _tried(
        self, source: Source, some: Sequence[VariantRun], verdicts: Mapping[str, Verdict]
    ) -> Reason | None:
        """Take pairs with a source if it can be had; return why not."""
        if self.limit.is_over(CONFIRM_END):
            return because("unconfirmed", why=f"{self.limit} left no time")
        if source not in self.sources and len(self.sources) == MOST_SOURCES:
            return because("too_many", code=str(source), most=MOST_SOURCES)
        self.sources.add(source)
        try:
            self._take_pairs(source, some, verdicts)
        except NoSideAError as error:
            self.sources.discard(source)
            return error.reason
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdicts are worth more
            self.steps.add("pairs not taken", why(error))
            return because("no_turns", code=str(source), why=why(error))
        finally:  # these panels have one side again
            for panel in self.panels:
                panel.compare({})
        return None

    def _take_pairs(
        self, source: Source, some: Sequence[VariantRun], verdicts: Mapping[str, Verdict]
    ) -> None:
        """Measure a source beside the tree in a run of its own; keep what it says of each."""
        run, total = self.file.run, len(verdicts)
        self.listener.note(f"measuring {len(some)} of {total} beside the old code, {source}")
        question = dataclasses.replace(
            self.config,
            variants=tuple(one.variant for one in some),
            claims=(),
            resume=run.id if self.config.resume else None,
            settings=self.settings,
            time_s=self.limit.left_s(),
            source=source,
            state=f"{self.config.state}/{FOLDER}",
        )
        found = execute(question, self.listener, self.place, self).run
        of_one, both = dict(of_one_code(found)), [*zip(some, found.variants, strict=True)]
        # By stored numbers, too, side B is judged as it was in pairs: the screen was chosen for its
        # time.
        taken = (
            replace(one, results=(replace(ended.last, stage=Stage.SCREEN),))
            for one, ended in both
            if ended.last
        )
        fresh = self.judging.stage(replace(run, variants=tuple(taken)), Stage.SCREEN)
        for one, ended in both:
            answer = None if one.id in of_one else ended.verdict
            if answer and answer.in_turns:
                mine = fresh.get(one.id, verdicts[one.id])
                self.answers[one.id] = self._answer(answer, mine, one)
                # What is accepted is not the screen alone, which was chosen for its time.
                if ended.last and not one.result(Stage.CONFIRM):
                    self.file.append(replace(ended.last, stage=Stage.CONFIRM))
            elif answer and answer.reasons:
                self.unanswered[one.id] = answer.reasons[-1]
            else:
                why = of_one.get(one.id) or _ended(ended)
                self.unanswered[one.id] = because("no_turns", code=str(source), why=why)

    def _answer(self, answer: Verdict, mine: Verdict, one: VariantRun) -> Verdict:
        """Return what pairs say of the code and stored numbers of its environment."""
        same = because("same_in_turns", revision=answer.source, code=str(one.expected.source_a))
        confirmed = replace(mine, confirmation=Confirmation.IN_TURNS)
        # Of what is counted both sides have the same, or the pairs would say that it moved.
        if is_counted(mine) and (answer.word.stayed or answer.word is Word.UNCLEAR):
            return self.judging.environment(confirmed, one, self.file.run)
        if not answer.word.stayed:
            return answer
        if any(reason.kind == "lost" for reason in mine.reasons):
            return replace(mine, reasons=(same, *mine.reasons))
        if not mine.word.moved and (is_by_stored_time(mine) or is_known(one, mine)):
            return replace(answer, reasons=(same, *answer.reasons))
        if not is_known(one, mine):
            return replace(answer, word=Word.SAME_CODE, reasons=(same, *answer.reasons))
        return self.judging.environment(confirmed, one, self.file.run)


def is_known(one: VariantRun, verdict: Verdict) -> bool:
    """Say whether the card has a level of its own; what is counted, or was lost, has it on any."""
    if is_counted(verdict):
        return True
    time = one.entry.metrics.get(TIME.name) if one.entry else None
    units = {process.unit for process in one.last.evidence} if one.last else set()
    return time is None or not units.isdisjoint(time.values)


def _pairs(one: VariantRun) -> int:
    """Return how many processes side B of a variant has that counts in pairs."""
    return len(one.last.evidence) if one.last else 0


def _ended(one: VariantRun) -> str:
    """Say how a variant ended of which there are no pairs."""
    if (last := one.last) is None:
        return one.left_out.reason.partition(":")[0] if one.left_out else "it was not measured"
    return f"it ended as {last.status.value}" + (f": {last.reason}" if last.reason else "")
