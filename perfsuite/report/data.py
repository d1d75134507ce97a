"""What the page says of a run and of each variant, before it is worded."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from markupsafe import Markup

from perfsuite.judge import peaks as roofline
from perfsuite.judge.peaks import Peaks, peaks_of
from perfsuite.model import (
    Arm,
    BaselineEntry,
    Change,
    ClaimInstance,
    ClaimVerdict,
    ClaimWord,
    DeviceFacts,
    Evidence,
    Health,
    Part,
    Regime,
    Result,
    Run,
    Section,
    Series,
    Settings,
    Stage,
    Status,
    Trace,
    Variant,
    Verdict,
    Word,
    Work,
)
from perfsuite.report import charts, view
from perfsuite.report.view import profile_of
from perfsuite.stats import estimate

# The words of verdicts, statuses and claims with their glyphs and tones, in order of urgency.


@dataclass(frozen=True, slots=True)
class Mark:
    """A word with its glyph and tone, so that colour never says something alone.

    ``rank`` orders the words by how much they need a reader; ``needs_reader`` opens a section.
    """

    word: str
    glyph: str
    tone: str
    rank: int
    meaning: str

    @property
    def needs_reader(self) -> bool:
        """Say whether somebody should look at this without being asked."""
        return self.tone in {"fail", "budget", "slower"}

    @property
    def is_quiet(self) -> bool:
        """Say whether nobody has to look at this at all."""
        return self.word in {"same", "new", "measured", "checked"}


_MARKS: tuple[tuple[str, str, str, str], ...] = (
    ("wrong", "✕", "fail", "the output differs from the reference"),
    ("crashed", "✕", "fail", "the worker died"),
    ("timed-out", "✕", "fail", "the worker had to be killed"),
    ("error", "✕", "fail", "the case's own code failed"),
    ("broken", "✕", "fail", "the ratio asked for was not reached"),
    ("disturbed", "~", "unclear", "the device was disturbed too often to judge"),
    *((word.value, *word.look) for word in Word),
    ("held", "✓", "new", "the ratio asked for was reached"),
    ("measured", "•", "same", "the run ended before it was judged"),
    ("checked", "✓", "same", "correct; speed was not measured"),
    ("not applicable", "\N{EN DASH}", "skip", "this device cannot show it"),
    ("not run", "○", "skip", "the run ended before it"),
    ("left out", "○", "skip", "the run's time limit had no room for it"),
    ("skipped", "○", "skip", "cannot run here"),
)
_TONES = ("fail", "budget", "slower", "unclear", "other", "faster", "new", "same", "skip")
MARKS: Mapping[str, Mark] = {
    word: Mark(word, glyph, tone, rank, meaning)
    for rank, (word, glyph, tone, meaning) in enumerate(
        sorted(_MARKS, key=lambda mark: _TONES.index(mark[2]))
    )
}


def mark(word: str) -> Mark:
    """Return the mark of a verdict's, status' or claim's word; an unknown word keeps its text."""
    return MARKS.get(word) or Mark(word, "•", "other", len(MARKS), "")


# All that a run says about one variant, gathered from the stages it went through.


TIME = "time_us"
CYCLES = "cycles"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One variant with the result that was judged, the stage before it, and what was before.

    ``result`` is the last stage's, ``screen`` an earlier stage's that is not judged any more.
    ``environment`` is the run's own, ``environments`` those of the runs before, by their ids.
    ``left_out`` says why the run had no time for it.
    """

    variant: Variant
    anchor: str
    result: Result | None = None
    screen: Result | None = None
    verdict: Verdict | None = None
    entry: BaselineEntry | None = None
    before: Result | None = None
    history: Series | None = None
    middles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    trace: Trace | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: str = ""

    @cached_property
    def mark(self) -> Mark:
        """The verdict's word, or how the variant ended where there is no verdict."""
        if self.result is None:
            return mark("left out" if self.left_out else "not run")
        if self.result.status is not Status.OK:
            return mark(self.result.status.value)
        if self.verdict is None:
            return mark("measured" if self.middles.get(TIME) else "checked")
        return mark(self.verdict.word.value)

    @property
    def is_skipped(self) -> bool:
        """Say whether the variant has nothing to show but a reason."""
        return self.result is None or self.result.status is Status.SKIPPED

    @property
    def fails(self) -> bool:
        """Say whether the variant alone fails the run."""
        return self.mark.tone == "fail" or bool(self.verdict and self.verdict.fails)

    @property
    def axes(self) -> list[str]:
        """The axes of the id as they stand there, without reading them."""
        axes = self.variant.id.partition("[")[2].removesuffix("]")
        return axes.split(",") if axes else []

    @property
    def reason(self) -> str:
        """Why the variant ended as it did, in words."""
        if self.result is None:
            return self.left_out or "the run ended before it"
        if self.result.status is not Status.OK or self.verdict is None:
            return self.result.reason
        return self.verdict.reason

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the judged processes have to say."""
        return self.result.evidence if self.result else ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """What was compared of the variant."""
        return self.verdict.changes if self.verdict else ()

    @cached_property
    def change(self) -> Change | None:
        """The change of time, with the clocks beside it; None where time was not compared."""
        return next((change for change in self.changes if change.metric == TIME), None)

    @property
    def telling(self) -> Change | None:
        """The change that the verdict is about: that of time, unless only another metric moved."""
        moved = [c for c in self.changes if c.low > c.threshold or c.high < -c.threshold]
        return self.change if self.change in moved or not moved else moved[0]

    @property
    def others(self) -> list[Change]:
        """The changes of metrics that are no clock."""
        return [change for change in self.changes if change.metric not in {TIME, CYCLES}]

    def now(self, metric: str = TIME) -> float | None:
        """Return the metric's middle over the judged processes."""
        if metric == TIME and self.change:
            return self.change.current
        found = self.middles.get(metric)
        return statistics.median(found) if found else None

    def baseline(self, metric: str = TIME) -> float | None:
        """Return what the metric was, or None where it may not be compared."""
        if self.verdict is None or self.verdict.word is Word.INCOMPARABLE:
            return None
        if metric == TIME and self.change:
            return self.change.baseline
        stored = self.entry.metrics.get(metric) if self.entry else None
        return stored.center if stored else None

    def noise(self, metric: str = TIME) -> float | None:
        """Return the relative standard deviation from process to process, in this run."""
        logs = [math.log(value) for value in self.middles.get(metric, ()) if value > 0]
        if len(logs) < 2:  # noqa: PLR2004 - a spread takes two
            return None
        # Not statistics.stdev: its exact fractions take most of the time of a large report.
        middle = math.fsum(logs) / len(logs)
        return math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))

    def digits(self, metric: str = TIME) -> float | None:
        """Return the relative noise that a shown value's digits must not go below."""
        stored = self.entry.metrics.get(metric) if self.entry else None
        known = [self.noise(metric), stored.between if stored else None]
        return max((noise for noise in known if noise), default=None)


def centre(evidence: Evidence, metric: str = TIME) -> float | None:
    """Return the estimate of one process, as it is judged."""
    blocks = evidence.samples(metric)
    return estimate(blocks) if any(blocks) else None


def middles(result: Result | None) -> dict[str, tuple[float, ...]]:
    """Return the middle of each process by clock, and by each other metric that has samples."""
    evidence = result.evidence if result else ()
    others = (name for process in evidence for block in process.blocks for name in block.metrics)
    names = dict.fromkeys((TIME, CYCLES, *others))
    found = {metric: [centre(process, metric) for process in evidence] for metric in names}
    return {
        metric: tuple(value for value in values if value is not None)
        for metric, values in found.items()
    }


def subjects(
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    previous: Run | None,
    history: Mapping[str, Series],
) -> Iterator[Subject]:
    """Yield every variant of the run with what belongs to it, in the run's order."""
    staged = {(result.variant, result.stage): result for result in run.results}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    before = {result.variant: result for result in previous.asked} if previous else {}
    traces = {trace.variant: trace for trace in run.traces if trace.arm is Arm.B}
    left_out = {each.variant: each.reason for each in run.left_out}
    taken: set[str] = set()
    for variant in run.variants:
        screen = staged.get((variant.id, Stage.SCREEN))
        confirm = staged.get((variant.id, Stage.CONFIRM))
        result = confirm or screen
        yield Subject(
            variant=variant,
            anchor=_anchor(variant.id, taken),
            result=result,
            middles=middles(result),
            screen=screen if confirm else None,
            verdict=verdicts.get(variant.id),
            entry=baselines.get(variant.id),
            before=before.get(variant.id),
            history=history.get(variant.id),
            trace=traces.get(variant.id),
            environment=run.facts.environment,
            environments=run.environments,
            left_out=left_out.get(variant.id, ""),
        )


def _anchor(variant: str, taken: set[str]) -> str:
    stem = f"v-{view.slug(variant)}"
    anchor, again = stem, 1
    while anchor in taken:
        again += 1
        anchor = f"{stem}-{again}"
    taken.add(anchor)
    return anchor


# The metrics of a variant before and now: its clocks' rates, and those that are no clock.


# Lower is what a reader expects.
BETTER = {"higher": "higher is better", "equal": "must not change"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric before and now, with its change where there is something to compare with."""

    name: str
    baseline: str
    now: str
    change: str
    note: str = ""


def judged(subject: Subject) -> Compared | None:
    """Return the metric that an untimed variant's verdict is about; None where time has one."""
    if subject.now() is not None:
        return None
    case, found = subject.variant.case, {line.name: line for line in others(subject)}
    telling = [subject.telling.metric] if subject.telling else []
    told = (*telling, *(one.metric for one in case.budgets), *(one.name for one in case.metrics))
    return next((found[name] for name in (*told, *found) if name in found), None)


def rates(subject: Subject, peaks: roofline.Peaks) -> Iterator[Compared]:
    """Yield the rates of a launch's work, by the formula of the case."""
    work = subject.variant.work
    now, before = subject.now(), subject.baseline()
    if work is None or not now:
        return
    found = (roofline.rates(work, time, peaks) if time else () for time in (now, before))
    values, old = ({rate.name: rate for rate in side} for side in found)
    for name in ("gb_per_s", "tflop_per_s", "kernels_per_ms"):
        if name in values:
            rate, was = values[name], old.get(name)
            yield Compared(
                name,
                view.rate(was.value, was.unit) if was else view.NOTHING,
                view.rate(rate.value, rate.unit),
                _moved(was.value if was else None, rate.value),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric that is no clock; ``better`` is empty where the case does not declare it."""

    name: str
    unit: str
    better: str
    value: float | None
    baseline: float | None


def measured(subject: Subject) -> tuple[Measured, ...]:
    """Return the metrics that are no clock, of this run and of the baseline."""
    now = {name: value for one in subject.evidence for name, value in one.exact.items()}
    noisy = {name: subject.now(name) for name in subject.middles if name not in {TIME, CYCLES}}
    now |= {name: value for name, value in noisy.items() if value is not None}
    stored = subject.entry.metrics if subject.entry else {}
    changes = {change.metric: change for change in subject.others}
    declared = {metric.name: metric for metric in subject.variant.case.metrics}
    lines = []
    for name in dict.fromkeys((*now, *changes)):
        change, own = changes.get(name), declared.get(name)
        before = change.baseline if change else stored[name].center if name in stored else None
        lines.append(
            Measured(
                name=name,
                unit=(own.unit if own else "") or (change.unit if change else view.unit_of(name)),
                better=own.better if own else "",
                # What was judged, where something was: of an exact metric the worst process counts.
                value=change.current if change else now.get(name),
                baseline=before,
            )
        )
    return tuple(lines)


def others(subject: Subject) -> tuple[Compared, ...]:
    """Return the metrics that are no clock, as they are shown."""
    return tuple(
        Compared(
            one.name,
            view.NOTHING if one.baseline is None else view.amount(one.baseline, one.unit),
            view.NOTHING if one.value is None else view.amount(one.value, one.unit),
            _moved(one.baseline, one.value),
            BETTER.get(one.better, ""),
        )
        for one in measured(subject)
    )


def _moved(before: float | None, value: float | None) -> str:
    if before is None or value is None:
        return view.NOTHING
    if before == value:
        return "="
    return view.percent(value / before - 1) if before else "from none"


# A variant's rate and its share of the ceiling, for display only.


def rate_of(work: Work | None, time_us: float | None, peaks: Peaks) -> tuple[str, float | None]:
    """Return the rate of the work that limits a launch, and its share of the ceiling."""
    if work is None or not time_us:
        return view.NOTHING, None
    found = {metric.name: metric for metric in roofline.rates(work, time_us, peaks)}
    by_flops = work.flops and roofline.work_class(work, peaks) != roofline.MEMORY
    limit = "tflop_per_s" if by_flops else "gb_per_s"
    if roofline.is_held_by_starts(work, peaks):
        limit = "kernels_per_ms"
    metric = found.get(limit) or found.get("tflop_per_s") or found.get("kernels_per_ms")
    if metric is None:
        return view.NOTHING, None
    return view.rate(metric.value, metric.unit), roofline.efficiency(work, peaks, time_us)


# The lines of the table of changes: one per variant that ran.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line as text and charts; ``keys`` are its sort keys, separated by spaces."""

    subject: Subject
    metric: str
    now: str
    baseline: str
    change: str
    interval: str
    bar: Markup
    aside: str
    time_change: str
    clock_change: str
    rate: str
    share: str
    noise: str
    keys: str


def row(subject: Subject, peaks: Peaks) -> Row:
    """Return the line of one variant."""
    change, now, digits = subject.change, subject.now(), subject.digits()
    rate, share = rate_of(subject.variant.work, now, peaks)
    has_clock = any(block.cycles for process in subject.evidence for block in process.blocks)
    exact = judged(subject)
    return Row(
        subject=subject,
        metric=exact.name if exact else "",
        now=exact.now if exact else view.time(now, digits),
        baseline=exact.baseline if exact else view.time(subject.baseline(), digits, like=now),
        change=exact.change if exact else change_text(change),
        interval=view.interval(change.low, change.high) if change else "",
        bar=bar(change, subject.mark) if change else Markup(),
        aside=_aside(subject),
        time_change=log_change(change.time_change if change else None, change),
        clock_change=log_change(change.clock_change if change and has_clock else None),
        rate=rate,
        share=view.share(share) if share else "",
        noise=view.spread(subject.noise()),
        keys=_keys(subject, share),
    )


def change_text(change: Change | None) -> str:
    """Return a change to the digits that its interval supports."""
    if change is None:
        return view.NOTHING
    return view.percent(change.theta, half_width=abs(change.high - change.low) / 2)


def log_change(change: float | None, precise: Change | None = None) -> str:
    """Return a log change as a relative one in percent, to the digits of ``precise``."""
    half = abs(precise.high - precise.low) / 2 if precise else None
    return view.percent(math.expm1(change) if change is not None else None, half_width=half)


def bar(change: Change, mark: Mark) -> Markup:
    """Return the change drawn against threshold and gate."""
    return charts.change_bar(
        change.theta,
        ends=(change.low, change.high),
        limits=(change.threshold, change.gate),
        tone=mark.tone,
    )


def _aside(subject: Subject) -> str:
    # Where there is no change of time to show, or another metric decided, the row says why.
    if subject.change is None:
        return subject.reason
    exact = [change for change in subject.others if abs(change.theta) > change.threshold]
    excepted = subject.verdict.excepted if subject.verdict else None
    return ", ".join([*([excepted.short] if excepted else []), *map(_exact_text, exact)])


def _exact_text(change: Change) -> str:
    # A share of nothing says nothing.
    if not change.baseline:
        return f"{change.metric} from 0 to {view.amount(change.current, change.unit)}"
    return f"{change.metric} {view.percent(change.current / change.baseline - 1)}"


def _keys(subject: Subject, share: float | None) -> str:
    change = subject.change
    values = (
        subject.mark.rank,
        None,  # the variant, which is sorted by its text
        subject.now(),
        subject.baseline(),
        change.theta if change else None,
        change.time_change if change else None,
        change.clock_change if change else None,
        share,
        subject.noise(),
    )
    # A dash sorts behind every number in the page's script.
    return " ".join("-" if value is None else f"{value:.5g}" for value in values)


# A run read for reporting: its variants in the order of how much they need a reader.


@dataclass(frozen=True)
class Book:
    """A run read for reporting: its variants in the order of how much they need a reader."""

    run: Run
    source: str
    previous: Run | None
    subjects: tuple[Subject, ...]
    baselines: Mapping[str, BaselineEntry]
    peaks: Peaks
    sections: tuple[Section, ...] = ()

    @cached_property
    def counts(self) -> Counter[str]:
        """How many variants each word holds for."""
        return Counter(subject.mark.word for subject in self.subjects)

    @property
    def tallies(self) -> list[tuple[Mark, int]]:
        """The counts with their marks, what needs a reader first."""
        found = ((mark(word), count) for word, count in self.counts.items())
        return sorted(found, key=lambda tally: tally[0].rank)

    @property
    def timed(self) -> list[Subject]:
        """The variants that have a time."""
        return [subject for subject in self.subjects if subject.now()]

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The lines of the table of changes, one per variant that ran."""
        return tuple(
            row(subject, self.peaks) for subject in self.subjects if not subject.is_skipped
        )

    @cached_property
    def skips(self) -> list[tuple[str, str, list[str]]]:
        """Each word and reason for not running with its variants, the commonest first."""
        groups: dict[tuple[str, str], list[str]] = {}
        for subject in (each for each in self.subjects if each.is_skipped):
            key = subject.mark.word, subject.reason or "no reason given"
            groups.setdefault(key, []).append(subject.variant.id)
        found = [(word, why, ids) for (word, why), ids in groups.items()]
        return sorted(found, key=lambda group: (-len(group[2]), group[1]))

    @property
    def claims(self) -> list[ClaimVerdict]:
        """The claims, those that need a reader first."""
        return sorted(self.run.claims, key=lambda one: (mark(one.word).rank, one.claim))

    @property
    def broken(self) -> list[ClaimVerdict]:
        """The claims whose ratio was not reached."""
        return [claim for claim in self.claims if claim.word is ClaimWord.BROKEN]

    @cached_property
    def is_broken(self) -> bool:
        """Say whether a variant or a claim fails the run."""
        variants = any(subject.fails for subject in self.subjects)
        return variants or any(claim.fails for claim in self.run.claims)

    @property
    def has_shifted(self) -> bool:
        """Say whether a change of the machine fails the run."""
        return self.run.shift is not None and self.run.shift.fails

    @property
    def fails(self) -> bool:
        """Say whether anything in the run fails it."""
        return self.is_broken or self.has_shifted


def read(  # noqa: PLR0913 - all that is known of a run, by name
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    source: str = "",
    previous: Run | None = None,
    history: Mapping[str, Series] | None = None,
    peaks: Peaks | None = None,
    sections: tuple[Section, ...] = (),
) -> Book:
    """Gather a run for reporting.

    ``baselines`` are the entries by variant that the run was judged against, ``source`` says in
    words what they are; ``previous`` is the run they come from, if it is at hand, ``history`` what
    earlier runs say of each variant, ``peaks`` what the SKU reaches, ``sections`` what packs have
    to say.
    """
    run = view.worded(run)
    known = subjects(run, baselines=baselines, previous=previous, history=history or {})
    found = sorted(known, key=_urgency)
    peaks = peaks or peaks_of(run.sku.slug)
    return Book(run, source, previous, tuple(found), baselines, peaks, sections)


def _urgency(subject: Subject) -> tuple[int, float, str]:
    change = subject.change
    return subject.mark.rank, -abs(change.theta) if change else 0.0, subject.variant.id


# Labelled values: what a case is, how it was measured, where, and what differs from before.


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and what there is to say."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact of the environment before and now; ``before`` is empty where nothing is known."""

    name: str
    before: str
    now: str
    is_changed: bool


def present(pairs: Iterable[tuple[str, str]]) -> tuple[Fact, ...]:
    """Return the pairs that say something."""
    return tuple(Fact(label, text) for label, text in pairs if text not in {"", view.NOTHING})


def of_case(variant: Variant, device: str) -> tuple[Fact, ...]:
    """Return what a variant is, as its pack declares it."""
    case, work = variant.case, variant.work or Work()
    budgets = (
        f"{budget.metric} at most {view.budget(budget.metric, budget.most)}: {budget.reason}"
        for budget in case.budgets
    )
    operations = f"{view.operations(work.flops)} {work.rate_dtype}"
    moved = f"{view.size(work.read_bytes)} read, {view.size(work.write_bytes)} written"
    # The links are a GPU's.
    moved += "" if device == "cpu" else f" ({work.link})"
    return present(
        (
            ("Source", case.source),
            ("Declared in", f"{case.file}:{case.line}" if case.file else ""),
            ("Conditions", _conditions(variant)),
            ("Ranks", f"{variant.ranks}; the slowest one's time counts" if variant.is_gang else ""),
            ("Work per launch", operations.rstrip() if work.flops else ""),
            ("Bytes moved", moved if work.bytes else ""),
            ("Kernels in a row", f"{work.kernels:g}, by {work.start}" if work.kernels else ""),
            ("Rates", f"work / time, by {case.source}" if variant.work else ""),
            ("Budget", "; ".join(budgets)),
            ("Needs", ", ".join(f"{need.kind} {need.value}" for need in variant.needs)),
            ("Tags", ", ".join(case.tags)),
            ("Case version, tier", f"{case.version}, {variant.tier.value}"),
        )
    )


def _conditions(variant: Variant) -> str:
    case = variant.case
    if case.regime is Regime.EXACT:
        return "nothing is timed"
    temperature = "cold: inputs rotate" if case.cold else "hot: the same inputs again"
    return f"{case.regime.value.replace('_', ' ')}, {temperature}"


def of_measuring(subject: Subject) -> tuple[Fact, ...]:
    """Return how the judged processes measured, and how the device fared meanwhile."""
    evidence, wall_s = subject.evidence, subject.result.wall_s if subject.result else 0.0
    if subject.variant.case.regime is Regime.EXACT:
        return present((("Counted", "once, not timed"), ("Wall time", view.duration(wall_s))))
    blocks = [block for process in evidence for block in process.blocks]
    voided = sum(block.voided for block in blocks)
    errors = [one.error for one in evidence if one.error is not None]
    return present(
        (
            ("Check: error against the reference", view.relative_error(max(errors, default=None))),
            ("Samples", _samples(evidence)),
            ("Launches per sample", _range(one.launches for one in evidence)),
            ("Issued by", _words(one.backend for one in evidence)),
            ("Pace (spin per sample)", _pace(evidence)),
            ("Input sets", _range(one.sets for one in evidence)),
            ("Settled", "" if all(one.settled for one in evidence) else "no: limit reached first"),
            ("Samples voided", view.number(voided, 0) if voided else ""),
            *_health_facts([block.health for block in blocks if block.health]),
            ("Units", _words(one.unit[:4] for one in evidence)),
            ("Seeds", _words(str(one.seed) for one in evidence)),
            ("Wall time", view.duration(wall_s) if wall_s else ""),
        )
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """One phase of the run with its wall time over all processes."""

    name: str
    meaning: str
    time: str
    share: str


def of_costs(run: Run) -> tuple[Cost, ...]:
    """Return where the run's own time went, and how long the device was busy with samples."""
    profile = profile_of(run)
    if not profile.phases:
        return ()
    busy_s = profile.busy * profile.devices * profile.wall_s
    busy = Cost("busy", "samples on the device", view.duration(busy_s), view.share(profile.busy))
    return (
        *(
            Cost(one.name, one.meaning, view.duration(one.seconds), view.share(one.share))
            for one in profile.phases
        ),
        busy,
    )


def of_settings(settings: Settings) -> tuple[Fact, ...]:
    """Return how the run measures."""
    rounds, samples = settings.rounds, settings.samples
    return present(
        (
            ("Processes per variant", f"{settings.processes}, fresh for each variant"),
            ("To confirm a change", f"{settings.confirm_processes} other processes"),
            ("Samples per process", f"up to {rounds * samples} in {view.count(rounds, 'block')}"),
            ("Shortest sample", view.time(settings.sample_us, None)),
            ("Settling for at most", view.duration(settings.settle_s)),
            ("Time limit to prepare", view.duration(settings.prepare_limit_s)),
            ("Time limit of a block", view.duration(settings.block_limit_s)),
            ("Seed", str(settings.seed)),
        )
    )


def everything(device: DeviceFacts) -> dict[str, str]:
    """Return all facts of a device by name."""
    return {**device.identity, **device.state, **device.environment}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return each fact of either side; only facts that both sides know count as changed."""
    return tuple(
        Difference(
            name,
            before.get(name, ""),
            now.get(name, ""),
            name in before and before[name] != now.get(name, ""),
        )
        for name in dict.fromkeys((*now, *before))
    )


def differences_of_state(subject: Subject, device: DeviceFacts) -> tuple[Difference, ...]:
    """Return what the accepted entry says of its machine that this one does not."""
    if not subject.entry or not subject.entry.state:
        return ()
    found = differences(subject.entry.state, everything(device))
    return tuple(difference for difference in found if difference.is_changed)


def _samples(evidence: tuple[Evidence, ...]) -> str:
    total = sum(len(block.time_us) for one in evidence for block in one.blocks)
    blocks = sum(len(one.blocks) for one in evidence)
    processes = view.count(len(evidence), "process", "processes")
    return (
        f"{view.number(total, 0)} in {view.count(blocks, 'block')} of {processes}" if total else ""
    )


def _pace(evidence: tuple[Evidence, ...]) -> str:
    paces = {one.pace for one in evidence if one.pace}
    return ", ".join(f"{view.number(pace, 1)}{view.TIMES}" for pace in sorted(paces))


def _range(values: Iterable[float]) -> str:
    found = sorted(set(values))
    if not found:
        return ""
    low, high = view.number(found[0], 0), view.number(found[-1], 0)
    return low if low == high else f"{low} to {high}"


def _words(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def _health_facts(seen: list[Health]) -> list[tuple[str, str]]:
    powers = [health.power_w for health in seen if health.power_w is not None]
    warmth = [health.temperature_c for health in seen if health.temperature_c is not None]
    clocks = [health.sm_clock_mhz for health in seen if health.sm_clock_mhz is not None]
    foreign = max((health.foreign_percent or 0.0 for health in seen), default=0.0)
    unit = view.SPACE
    return [
        ("Power", f"{_range(powers)}{unit}W" if powers else ""),
        ("Temperature", f"{_range(warmth)}{unit}°C" if warmth else ""),
        ("SM clock by the driver", f"{_range(clocks)}{unit}MHz" if clocks else ""),
        ("Clock held back by", _words(reason for health in seen for reason in health.reasons)),
        ("Load by others", f"{view.number(foreign, 0)}{unit}%" if foreign else ""),
    ]


# The section of one variant: what the table of changes has no room for.


KEPT = ("--perf-pack", "--perf-device", "--perf-processes", "--perf-repo", "--perf-against-build")


def notes(subject: Subject) -> tuple[str, ...]:
    """Return what the processes have to say, each once."""
    return tuple(dict.fromkeys(note for one in subject.evidence for note in one.notes))


def paragraphs(variant: Variant) -> list[str]:
    """Return what the case says of itself, paragraph by paragraph."""
    return [part for part in re.split(r"\n\s*\n", variant.case.doc) if part.strip()]


def brief(subject: Subject) -> str:
    """Return the middle of each process now, and of those accepted, as one line of text."""
    metric = subject.entry.metrics.get(TIME) if subject.entry else None
    sides = {"now": subject.middles.get(TIME, ())}
    for unit, values in metric.values.items() if metric else ():
        sides[f"baseline, {view.unit(unit)}"] = values
    like, digits = subject.now(), subject.digits()
    told = (
        f"{side}: {', '.join(view.time(value, digits, like=like) for value in values)}"
        for side, values in sides.items()
        if values
    )
    return "; ".join(told)


def command(variant: Variant, run: Run) -> str:
    """Return the command that measures a variant again as in this run, whatever its tier."""
    of_arms = (f"--perf-against={run.against.name}",) if run.against else ()
    tier = ("--perf-tier", variant.tier.value)
    return view.command(variant.id, *tier, *_kept(run.command), *of_arms)


def _kept(given: str) -> Iterator[str]:
    """Yield the options of a run's command without which a variant is not there, or another."""
    try:
        words = iter(shlex.split(given))
    except ValueError:
        return  # typed by hand into a run file
    for word in words:
        name, equals, value = word.partition("=")
        if name in KEPT:
            yield f"{name}={value if equals else next(words, '')}"


def decided(subject: Subject) -> tuple[Fact, ...]:
    """Return the numbers behind the verdict."""
    change, verdict = subject.change, subject.verdict
    if change is None or verdict is None:
        return ()
    has_cycles = subject.now(CYCLES) is not None
    label = "Change of the code" if has_cycles else "Change"
    share = view.number(change.beta, 2) if has_cycles else ""
    found = (
        (label, f"{change_text(change)} ({view.interval(change.low, change.high)})"),
        ("Threshold, gate", f"{view.share(change.threshold)}, {view.share(change.gate)}"),
        ("Detectable", f"{view.share(change.detectable)} nine times in ten"),
        ("p value", view.p_value(change.p_value)),
        ("Share of time on the SM clock (β)", share),
        ("Confirmed by", verdict.confirmation),
    )
    return present(found)


def clocks(subject: Subject) -> Iterator[Compared]:
    """Yield time, SM cycles and the SM clock that follows from both."""
    change, digits, noise = subject.change, subject.digits(), subject.digits(CYCLES)
    time, before = subject.now(), subject.baseline()
    cycles, cycles_before = subject.now(CYCLES), subject.baseline(CYCLES)
    if time is None:
        return
    yield Compared(
        "Time per launch",
        view.time(before, digits, like=time),
        view.time(time, digits),
        log_change(change.time_change if change else None, change),
    )
    if cycles is None:
        return
    yield Compared(
        "SM cycles per launch",
        view.cycles(cycles_before, noise),
        view.cycles(cycles, noise),
        view.percent(cycles / cycles_before - 1 if cycles_before else None, half_width=noise),
    )
    yield Compared(
        "SM clock",
        view.clock(cycles_before / before if cycles_before and before else None),
        view.clock(cycles / time),
        log_change(change.clock_change if change else None),
    )


# What the page says of a run as a whole.


# Above this many variants, quiet ones and what comes after so many are told in short: a browser has
# to hold the whole page.
FULL_DETAIL = 1000
MOST_OPEN = 6
# A browser lays out what is in sight, so many lines at a time.
CHUNK = 25
# What is told in the headline where nothing needs a reader.
QUIET = ("faster", "same", "new", "incomparable", "measured", "checked")


@dataclass(frozen=True, slots=True)
class PageSection:
    """One variant's section; not ``is_full`` where its row and two lines say enough."""

    row: Row
    is_full: bool
    is_open: bool


def sections(book: Book) -> list[PageSection]:
    """Return the section of each variant that ran."""
    many = is_lean(book)
    found = ((line, line.subject.mark) for line in book.rows)
    return [
        PageSection(
            line,
            not many or (index < FULL_DETAIL and not mark.is_quiet),
            mark.needs_reader and index < MOST_OPEN,
        )
        for index, (line, mark) in enumerate(found)
    ]


def is_lean(book: Book) -> bool:
    """Say whether the page has so many variants that quiet ones are told in short."""
    return len(book.rows) > FULL_DETAIL


def headline(book: Book) -> str:
    """Return the outcome of the run in one sentence, what needs a reader first."""
    counts, total = book.counts, len(book.rows)
    shift = "machine-shift; " if book.run.shift else ""
    broken = sum(claim.fails for claim in book.run.claims)
    failed = sum(count for mark, count in book.tallies if mark.tone == "fail")
    said = [
        (failed, "failed"),
        (counts["over-budget"], "over budget"),
        (counts["slower"], "slower"),
        (counts["disturbed"], "disturbed"),
        (counts["unclear"], "unclear"),
    ]
    parts = [f"{view.number(count, 0)} {word}" for count, word in said if count]
    first = f"{', '.join(parts)} of {view.count(total, 'variant')}" if parts else _quiet(counts)
    rest = [f"{view.count(broken, 'claim')} broken"] if broken else []
    excepted = sum(bool(each.verdict and each.verdict.excepted) for each in book.subjects)
    rest += [f"{excepted} excepted"] if excepted else []
    unrun = ("skipped", "not run", "left out")
    rest += [f"{view.number(counts[word], 0)} {word}" for word in unrun if counts[word]]
    return shift + "; ".join([*book.run.gaps, first, *([", ".join(rest)] if rest else [])])


def tone(book: Book) -> str:
    """Return the tone of the whole run."""
    if book.fails:
        return "slower"
    doubts = book.run.shift or book.counts["unclear"] or book.counts["disturbed"]
    if doubts or book.run.gaps or not book.run.finished:
        return "unclear"
    return "faster" if book.rows else "other"


def header(book: Book) -> tuple[Fact, ...]:
    """Return what the run was, for the head of the page."""
    run, known = book.run, everything(book.run.facts)
    before = view.commit(book.previous.commit) if book.previous else ""
    commit = view.commit(run.commit)
    return present(
        (
            ("SKU", run.sku.slug),
            ("Device", run.facts.name),
            ("Driver", known.get("driver", "")),
            ("Commit", f"{commit} (before: {before})" if before and before != commit else commit),
            ("Started", view.moment(run.started)),
            ("Took", view.duration(run.wall_s) if run.wall_s else ""),
            ("Compared with", book.source or "nothing"),
            ("Shard", str(run.shard or "")),
            ("Shards", "; ".join(map(_part, run.parts))),
            ("Command", run.command),
        )
    )


def _part(part: Part) -> str:
    units = ", ".join(part.units) or part.facts.unit
    return f"{part.shard} on {units} in {view.duration(part.wall_s)}, run {part.run}"


def environment(book: Book) -> tuple[list[Difference], list[Difference]]:
    """Return what is known of the machine, now and before: what differs, and all else."""
    now = everything(book.run.facts)
    if book.previous:
        before = everything(book.previous.facts)
    else:
        states = [entry.state for entry in book.baselines.values()]
        seen = {name: {state[name] for state in states if name in state} for name in now}
        before = {name: ", ".join(sorted(values)) for name, values in seen.items() if values}
    found = differences(before, now)
    return [one for one in found if one.is_changed], [one for one in found if not one.is_changed]


def _quiet(counts: Counter[str]) -> str:
    words = [word for word in QUIET if counts[word]]
    if not words:
        return "No variant ran"
    if words == ["same"]:
        return f"No change in {view.count(counts['same'], 'variant')}"
    if words == ["new"]:
        return f"{view.count(counts['new'], 'new variant')}, nothing to compare with yet"
    return ", ".join(f"{view.number(counts[word], 0)} {word}" for word in words)


# What of the catalogue ran, by pack, and what did not and why.


# The words in which the plan says what is missing, in the order they are tried.
_KINDS = (
    (
        "another device",
        re.compile(r"needs (device|arch|gpus|feature) |needs \d+ GPUs|GB of memory"),
    ),
    ("other software", re.compile(r"needs package ")),
    ("more time", re.compile(r"--perf-time")),
)
OTHER = "another reason"


@dataclass(frozen=True, slots=True)
class Gap:
    """A reason for which variants did not run, and of which kind it is."""

    kind: str
    reason: str
    variants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """One pack: how many variants were chosen and ran, how they ended, and what is missing."""

    pack: str
    chosen: int
    ran: int
    tallies: tuple[tuple[Mark, int], ...]
    bar: Markup
    gaps: tuple[Gap, ...]


def coverage(subjects: Iterable[Subject]) -> list[Coverage]:
    """Return what ran of each pack, by name."""
    packs: dict[str, list[Subject]] = {}
    for subject in subjects:
        packs.setdefault(subject.variant.pack, []).append(subject)
    return [_of(pack, packs[pack]) for pack in sorted(packs)]


def kind_of(reason: str) -> str:
    """Return what would have to be different for a variant to run."""
    return next((kind for kind, words in _KINDS if words.search(reason)), OTHER)


def _of(pack: str, subjects: list[Subject]) -> Coverage:
    words = Counter(subject.mark.word for subject in subjects)
    tallies = sorted(
        ((mark(word), count) for word, count in words.items()), key=lambda one: one[0].rank
    )
    gaps: dict[str, list[str]] = {}
    for subject in subjects:
        if subject.is_skipped:
            gaps.setdefault(subject.reason or "no reason given", []).append(subject.variant.id)
    found = [Gap(kind_of(reason), reason, tuple(ids)) for reason, ids in gaps.items()]
    return Coverage(
        pack=pack,
        chosen=len(subjects),
        ran=len(subjects) - sum(map(len, gaps.values())),
        tallies=tuple(tallies),
        bar=charts.proportions([(mark.tone, count) for mark, count in tallies]),
        gaps=tuple(sorted(found, key=lambda gap: (gap.kind, -len(gap.variants), gap.reason))),
    )


# What holds on this device: the claims of a run by pack and name, broken ones first.


# The dashed lines of a drawing: half and twice the ratio asked for.
FACTOR = math.log(2)


@dataclass(frozen=True)
class Line:
    """One claim on two variants, as text and as a drawing of the ratio found over that asked."""

    verdict: ClaimVerdict
    axes: str
    than: str
    anchor: str
    bar: Markup

    @property
    def mark(self) -> Mark:
        """The mark of the claim's word."""
        return mark(self.verdict.word.value)


@dataclass(frozen=True)
class Tip:
    """All lines of one claim by name; they have one source."""

    name: str
    source: str
    lines: tuple[Line, ...]

    @property
    def rank(self) -> tuple[int, str]:
        """How much it needs a reader."""
        return min(line.mark.rank for line in self.lines), self.name


@dataclass(frozen=True)
class Chapter:
    """All claims of a pack."""

    pack: str
    tips: tuple[Tip, ...]

    @cached_property
    def tallies(self) -> list[tuple[Mark, int]]:
        """How many claims each word holds for, what needs a reader first."""
        words = Counter(line.mark.word for tip in self.tips for line in tip.lines)
        found = ((mark(word), count) for word, count in words.items())
        return sorted(found, key=lambda tally: tally[0].rank)

    @property
    def rank(self) -> tuple[int, str]:
        """How much it needs a reader."""
        return self.tips[0].rank[0], self.pack


def chapters(book: Book) -> list[Chapter]:
    """Return the claims of a run by pack, those that need a reader first at every level."""
    instances = {one.id: one for one in book.run.instances}
    anchors = {one.variant.id: one.anchor for one in book.subjects if not one.is_skipped}
    packs: dict[str, dict[tuple[str, str], list[Line]]] = {}
    for verdict in book.claims:
        instance = instances.get(verdict.claim)
        name, bound = _names(verdict, instance)
        pack = instance.pack if instance else name.partition(".")[0]
        anchor = anchors.get(instance.faster, "") if instance else ""
        line = Line(verdict, bound, _than(instance), anchor, _bar(verdict))
        packs.setdefault(pack, {}).setdefault((name, verdict.source), []).append(line)
    found = (Chapter(pack, _tips(tips.items())) for pack, tips in packs.items())
    return sorted(found, key=lambda chapter: chapter.rank)


def _tips(groups: Iterable[tuple[tuple[str, str], list[Line]]]) -> tuple[Tip, ...]:
    tips = (Tip(name, source, tuple(lines)) for (name, source), lines in groups)
    return tuple(sorted(tips, key=lambda tip: tip.rank))


def _names(verdict: ClaimVerdict, instance: ClaimInstance | None) -> tuple[str, str]:
    """Return a claim's name in words and the axes that it is bound by."""
    stem, _, axes = verdict.claim.partition("[")
    name = instance.name if instance else stem.rpartition(":")[2]
    return name.replace("_", " "), axes.removesuffix("]").replace(",", " ")


def _than(instance: ClaimInstance | None) -> str:
    """Return what the two variants differ by."""
    if instance is None:
        return ""
    sides = [one.partition("[")[2].removesuffix("]").split(",") for one in _both(instance)]
    own, other = (
        [axis for axis in side if axis not in set(sides[1 - at])] for at, side in enumerate(sides)
    )
    if not own or not other:
        return ""
    if instance.metric:  # less of it is better: the ratio is of the other one's
        return f"{instance.metric} of {' '.join(other)} over {' '.join(own)}"
    return f"{' '.join(own)} over {' '.join(other)}"


def _both(instance: ClaimInstance) -> tuple[str, str]:
    return instance.faster, instance.than


def _bar(verdict: ClaimVerdict) -> Markup:
    """Draw how many times the ratio asked for was found: right of the middle it holds."""
    found = (verdict.ratio, verdict.low, verdict.high)
    if not verdict.required or any(not value or value <= 0 for value in found):
        return Markup()
    middle, low, high = (math.log(value / verdict.required) for value in found if value)
    tone = mark(verdict.word.value).tone
    return charts.change_bar(middle, ends=(low, high), limits=(0.0, FACTOR), tone=tone)


# What the table of changes can be filtered by: words that many lines share.


@dataclass(frozen=True, slots=True)
class Choice:
    """One word to filter by, how many lines have it, and the kinds of line that do."""

    word: str
    count: int
    kinds: str


@dataclass(frozen=True, slots=True)
class Filters:
    """The choices of each field, and each line's kind: lines of one kind share all words."""

    fields: tuple[tuple[str, tuple[Choice, ...]], ...]
    kinds: tuple[int, ...]


def filters(rows: Sequence[Row]) -> Filters:
    """Return what the lines can be filtered by; a field with one choice chooses nothing."""
    known: dict[tuple[tuple[str, ...], ...], int] = {}
    kinds = [known.setdefault(_words_filters(line.subject), len(known)) for line in rows]
    counts = Counter(kinds)
    fields = (
        (name, _choices([words[at] for words in known], counts))
        for at, name in enumerate(("verdict", "pack", "tag", "metric"))
    )
    return Filters(tuple(field for field in fields if len(field[1]) > 1), tuple(kinds))


def metrics_of(subject: Subject) -> tuple[str, ...]:
    """Return the names of what was measured of a variant, time first."""
    timed = (name for name, values in subject.middles.items() if values and name != CYCLES)
    counted = (name for process in subject.evidence for name in process.exact)
    compared = (change.metric for change in subject.others)
    return tuple(dict.fromkeys((*timed, *counted, *compared)))


def _words_filters(subject: Subject) -> tuple[tuple[str, ...], ...]:
    case = subject.variant.case
    return (subject.mark.word,), (subject.variant.pack,), case.tags, metrics_of(subject)


def _choices(words: Iterable[tuple[str, ...]], counts: Mapping[int, int]) -> tuple[Choice, ...]:
    kinds: dict[str, list[int]] = {}
    for kind, held in enumerate(words):
        for word in held:
            kinds.setdefault(word, []).append(kind)
    # Verdicts come by urgency, time before all other metrics; the rest by name.
    names = sorted(kinds, key=lambda word: (mark(word).rank, word != TIME, word))
    return tuple(
        Choice(name, sum(counts[kind] for kind in kinds[name]), " ".join(map(str, kinds[name])))
        for name in names
    )
