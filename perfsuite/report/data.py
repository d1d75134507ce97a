"""One view of a run and one of each variant: all that page, texts and terminal tell is read here.

A view reads the values handed to it and opens no store, so that a report can be made again.
"""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from perfsuite.judge import peaks as roofline
from perfsuite.judge.peaks import Peaks, Rate, peaks_of
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
    Result,
    Run,
    Section,
    Series,
    Stage,
    Status,
    Trace,
    Variant,
    Verdict,
    Word,
    Work,
)
from perfsuite.report import view
from perfsuite.stats import estimate

TIME = "time_us"
CYCLES = "cycles"
# Lower is what a reader expects.
BETTER = {"higher": "higher is better", "equal": "must not change"}
# A command that measures again needs these options of the run's own.
KEPT = ("--perf-pack", "--perf-device", "--perf-processes", "--perf-repo", "--perf-against-build")
# A browser has to hold the whole page: above so many variants, quiet ones are told in short, and
# all after the first so many.
FULL_DETAIL = 1000
# What the headline tells where nothing needs a reader.
QUIET = ("faster", "same", "new", "incomparable", "measured", "checked")
# The words in which the plan says what is missing.
GAPS = {
    "another device": re.compile(r"needs (device|arch|gpus|feature) |needs \d+ GPUs|GB of memory"),
    "other software": re.compile(r"needs package "),
    "more time": re.compile(r"--perf-time"),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A word with its glyph and tone, so that colour never says something alone.

    ``rank`` orders the words by how much they need a reader.
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


def tallies(marks: Iterable[Mark]) -> list[tuple[Mark, int]]:
    """Return how often each mark occurs, what needs a reader first."""
    return sorted(Counter(marks).items(), key=lambda tally: tally[0].rank)


class Compared(NamedTuple):
    """A metric before and now, with its change where there is something to compare with."""

    name: str
    baseline: str
    now: str
    change: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric that is no clock; ``better`` is empty where the case does not declare it."""

    name: str
    unit: str
    better: str
    value: float | None
    baseline: float | None


class Process(NamedTuple):
    """The samples of one process by block; none of an accepted card, which has many ``middles``."""

    label: str
    tone: str
    blocks: Sequence[Sequence[float]]
    middles: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a variant stands: rates in bytes/s or FLOP/s, ``intensity`` in FLOP/byte.

    ``link`` names its wire, ``dtype`` the rate of its operations; without operations there is
    neither a dtype nor an intensity. ``before`` is its rate in the baseline, if it has moved.
    ``limit`` names the nearest ``ceiling``, which is None where it is not known.
    """

    link: str
    dtype: str
    intensity: float
    rate: float
    before: float | None
    share: float | None
    limit: str
    ceiling: Rate | None

    @property
    def is_on_plane(self) -> bool:
        """Say whether it does operations on bytes, so that both axes tell of it."""
        return bool(self.dtype) and math.isfinite(self.intensity)

    @property
    def said(self) -> str:
        """The rate, and the share of the ceiling where that is known."""
        rate = self.shown(self.rate)
        return f"{rate}, {view.share(self.share)} of the ceiling" if self.share else rate

    def shown(self, rate: float | None) -> str:
        """Return a rate in its unit."""
        return view.flow(rate, "FLOP/s" if self.dtype else "B/s")


@dataclass(frozen=True, kw_only=True)
class VariantView:
    """All that a run says of one variant.

    ``result`` is the last stage's and the one that counts; ``screen`` is an earlier stage's that is
    not judged any more, ``before`` that of the run before. ``left_out`` says why the run had no
    time for it.
    """

    variant: Variant
    anchor: str
    run: Run
    peaks: Peaks
    result: Result | None = None
    screen: Result | None = None
    verdict: Verdict | None = None
    entry: BaselineEntry | None = None
    before: Result | None = None
    history: Series | None = None
    trace: Trace | None = None
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
    def reason(self) -> str:
        """Why the variant ended as it did, in words."""
        if self.result is None:
            return self.left_out or "the run ended before it"
        if self.result.status is not Status.OK or self.verdict is None:
            return self.result.reason
        return self.verdict.reason

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
    def evidence(self) -> tuple[Evidence, ...]:
        """What the judged processes have to say."""
        return self.result.evidence if self.result else ()

    @property
    def health(self) -> tuple[Health, ...]:
        """How the device fared while the judged processes measured."""
        return tuple(block.health for one in self.evidence for block in one.blocks if block.health)

    @cached_property
    def middles(self) -> Mapping[str, tuple[float, ...]]:
        """The middle of each process by clock, and by each other metric that has samples."""
        names = (name for one in self.evidence for block in one.blocks for name in block.metrics)
        found = {
            metric: [middle(one, metric) for one in self.evidence]
            for metric in dict.fromkeys((TIME, CYCLES, *names))
        }
        return {
            metric: tuple(value for value in values if value is not None)
            for metric, values in found.items()
        }

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
        centre = math.fsum(logs) / len(logs)
        return math.sqrt(math.fsum((log - centre) ** 2 for log in logs) / (len(logs) - 1))

    def digits(self, metric: str = TIME) -> float | None:
        """Return the relative noise that a shown value's digits must not go below."""
        stored = self.entry.metrics.get(metric) if self.entry else None
        known = [self.noise(metric), stored.between if stored else None]
        return max((noise for noise in known if noise), default=None)

    @cached_property
    def shown(self) -> Compared:
        """What its row tells: time, or the metric that an untimed variant's verdict is about."""
        now, digits, case = self.now(), self.digits(), self.variant.case
        if now is None:
            found = {line.name: line for line in self.metrics}
            told = [self.telling.metric] if self.telling else []
            told += [one.metric for one in case.budgets] + [one.name for one in case.metrics]
            if name := next((name for name in (*told, *found) if name in found), ""):
                return found[name]
        before = view.time(self.baseline(), digits, like=now)
        return Compared("", before, view.time(now, digits), view.change(self.change))

    @property
    def interval(self) -> str:
        """The interval of the change of time."""
        return view.interval(self.change.low, self.change.high) if self.change else ""

    @property
    def aside(self) -> str:
        """What the row says where no change of time is there to show, or another metric decided."""
        if self.change is None:
            return self.reason
        excepted = self.verdict.excepted if self.verdict else None
        told = [excepted.short] if excepted else []
        for one in self.others:
            if abs(one.theta) > one.threshold:
                # A share of nothing says nothing.
                from_none = f"from 0 to {view.amount(one.current, one.unit)}"
                by = view.percent(one.current / one.baseline - 1) if one.baseline else from_none
                told.append(f"{one.metric} {by}")
        return ", ".join(told)

    @cached_property
    def rate(self) -> tuple[str, float | None]:
        """The rate of the work that limits a launch, and its share of the ceiling."""
        return rate_of(self.variant.work, self.now(), self.peaks)

    @property
    def keys(self) -> str:
        """What its row is sorted by, column by column; the variant's own is its text."""
        change = self.change
        moved = (change.theta, change.time_change, change.clock_change) if change else (None,) * 3
        values = (self.now(), self.baseline(), *moved, self.rate[1], self.noise())
        # A dash sorts behind every number in the page's script.
        told = ("-" if value is None else f"{value:.5g}" for value in values)
        return " ".join((str(self.mark.rank), "-", *told))

    @property
    def rates(self) -> Iterator[Compared]:
        """The rates of a launch's work, by the formula of the case."""
        work, now, before = self.variant.work, self.now(), self.baseline()
        if work is None or not now:
            return
        values, old = (roofline.rates(work, time) if time else {} for time in (now, before))
        for name in ("gb_per_s", "tflop_per_s", "kernels_per_ms"):
            if name in values:
                rate, was = values[name], old.get(name)
                shown = view.rate(*was) if was else view.NOTHING
                moved = _moved(was[0] if was else None, rate[0])
                yield Compared(name, shown, view.rate(*rate), moved)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The metrics that are no clock, of this run and of the baseline."""
        now = {name: value for one in self.evidence for name, value in one.exact.items()}
        noisy = {name: self.now(name) for name in self.middles if name not in {TIME, CYCLES}}
        now |= {name: value for name, value in noisy.items() if value is not None}
        stored = self.entry.metrics if self.entry else {}
        changes = {change.metric: change for change in self.others}
        declared = {metric.name: metric for metric in self.variant.case.metrics}
        lines = []
        for name in dict.fromkeys((*now, *changes)):
            change, own = changes.get(name), declared.get(name)
            before = change.baseline if change else stored[name].center if name in stored else None
            unit = (own.unit if own else "") or (change.unit if change else view.unit_of(name))
            # What was judged, where something was: of an exact metric the worst process counts.
            value = change.current if change else now.get(name)
            better = own.better if own else ""
            line = Measured(name=name, unit=unit, better=better, value=value, baseline=before)
            lines.append(line)
        return tuple(lines)

    @property
    def metrics(self) -> list[Compared]:
        """The metrics that are no clock, as they are shown."""
        return [
            Compared(
                one.name,
                view.amount(one.baseline, one.unit),
                view.amount(one.value, one.unit),
                _moved(one.baseline, one.value),
                BETTER.get(one.better, ""),
            )
            for one in self.measured
        ]

    @cached_property
    def words(self) -> Mapping[str, Iterable[str]]:
        """The words that its row can be found by, by field."""
        case = self.variant.case
        timed = (name for name, values in self.middles.items() if values and name != CYCLES)
        counted = (name for process in self.evidence for name in process.exact)
        others = (change.metric for change in self.others)
        metrics = tuple(dict.fromkeys((*timed, *counted, *others)))
        pack, word = (self.variant.pack,), (self.mark.word,)
        return {"verdict": word, "pack": pack, "tag": case.tags, "metric": metrics}

    @property
    def accepted(self) -> Mapping[str, tuple[float, ...]]:
        """The middles of the baseline's processes, by their card's short name."""
        metric = self.entry.metrics.get(TIME) if self.entry else None
        found = metric.values if metric else {}
        return {view.unit(unit): values for unit, values in found.items() if values}

    @property
    def brief(self) -> str:
        """The middle of each process now, and of those accepted, as one line of text."""
        like, digits = self.now(), self.digits()
        sides = {"now": self.middles.get(TIME, ())}
        sides |= {f"baseline, {unit}": values for unit, values in self.accepted.items()}
        return "; ".join(
            f"{side}: {', '.join(view.time(value, digits, like=like) for value in values)}"
            for side, values in sides.items()
            if values
        )

    @property
    def command(self) -> str:
        """The command that measures the variant again as in this run, whatever its tier."""
        against = [f"--perf-against={self.run.against.name}"] if self.run.against else []
        tier = ("--perf-tier", self.variant.tier.value)
        return view.command(self.variant.id, *tier, *_kept(self.run.command), *against)

    @property
    def state_changes(self) -> list[tuple[str, str, str]]:
        """What the accepted entry says of its machine that this one does not."""
        before = self.entry.state if self.entry else {}
        return differences(before, everything(self.run.facts))[0] if before else []

    @property
    def processes(self) -> list[Process]:
        """Those that counted, those that only screened, and what they are compared with."""
        stages = {"now": self.result, "screen": self.screen, "before": self.before}
        found = []
        for tone, result in stages.items():
            for index, one in enumerate(result.evidence if result else (), start=1):
                unit = f" · {view.unit(one.unit)}" if one.unit else ""
                if (centre := middle(one, TIME)) is not None:
                    blocks = one.samples(TIME)
                    found.append(Process(f"{tone} {index}{unit}", tone, blocks, [centre]))
        if found and not any(one.tone == "before" for one in found):
            for unit, values in self.accepted.items():
                found.append(Process(f"baseline · {unit}", "before", (), values))
        return found

    @cached_property
    def place(self) -> Place | None:
        """Where it stands; None where no work is stated or nothing was timed."""
        work, now, peaks = self.variant.work, self.now(), self.peaks
        amount = (work.flops or work.bytes) if work else 0
        # Where starts hold it up, neither axis says why it takes its time.
        if work is None or not now or not amount or roofline.is_held_by_starts(work, peaks):
            return None
        link, dtype = roofline.link_of(work, peaks), work.rate_dtype or "fp32"
        intensity = work.flops / work.bytes if work.bytes else math.inf
        wire, operations = peaks.links.get(link), peaks.operations.get(dtype)
        limit, ceiling = (dtype, operations) if work.flops else (link, wire)
        if wire and (operations is None or wire.value * intensity < operations.value):
            limit, ceiling = link, wire
        has_moved = self.verdict and self.verdict.word.asks_why and self.change
        before = self.baseline() if has_moved else None
        return Place(
            link=link,
            dtype=dtype if work.flops else "",
            intensity=intensity,
            rate=1e6 * amount / now,
            before=1e6 * amount / before if before else None,
            share=roofline.efficiency(work, peaks, now),
            limit=limit,
            ceiling=None if peaks.is_generic else ceiling,
        )


def middle(evidence: Evidence, metric: str) -> float | None:
    """Return the estimate of one process, as it is judged."""
    blocks = evidence.samples(metric)
    return estimate(blocks) if any(blocks) else None


def rate_of(work: Work | None, time_us: float | None, peaks: Peaks) -> tuple[str, float | None]:
    """Return the rate of the work that limits a launch, and its share of the ceiling."""
    if work is None or not time_us:
        return view.NOTHING, None
    found = roofline.rates(work, time_us)
    by_flops = work.flops and roofline.work_class(work, peaks) != roofline.MEMORY
    limit = "tflop_per_s" if by_flops else "gb_per_s"
    if roofline.is_held_by_starts(work, peaks):
        limit = "kernels_per_ms"
    rate = found.get(limit) or found.get("tflop_per_s") or found.get("kernels_per_ms")
    if rate is None:
        return view.NOTHING, None
    return view.rate(*rate), roofline.efficiency(work, peaks, time_us)


def everything(device: DeviceFacts) -> dict[str, str]:
    """Return all facts of a device by name."""
    return {**device.identity, **device.state, **device.environment}


def differences(
    before: Mapping[str, str], now: Mapping[str, str]
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Return the facts before and now that are known to have changed, and all others."""
    names = dict.fromkeys((*now, *before))
    found = [(name, before.get(name, ""), now.get(name, "")) for name in names]
    changed = [one for one in found if one[0] in before and one[1] != one[2]]
    return changed, [one for one in found if one not in changed]


@cache
def _kept(command: str) -> list[str]:
    """Return the options of a run without which a variant is not there, or another."""
    try:
        words = iter(shlex.split(command))
    except ValueError:  # typed by hand into a run file
        return []
    pairs = (word.partition("=") for word in words)
    found = (pair for pair in pairs if pair[0] in KEPT)
    return [f"{name}={value if equals else next(words, '')}" for name, equals, value in found]


def _moved(before: float | None, value: float | None) -> str:
    if before is None or value is None:
        return view.NOTHING
    if before == value:
        return "="
    return view.percent(value / before - 1) if before else "from none"


@dataclass(frozen=True)
class ClaimView:
    """One claim: its name, the axes that bind it, what its variants differ by, and its row."""

    verdict: ClaimVerdict
    pack: str
    name: str
    axes: str
    than: str
    anchor: str

    @property
    def mark(self) -> Mark:
        """The mark of the claim's word."""
        return mark(self.verdict.word.value)

    @property
    def logs(self) -> list[float]:
        """How many times the ratio asked for was found, with its ends, as logarithms."""
        found, asked = (
            (self.verdict.ratio, self.verdict.low, self.verdict.high),
            self.verdict.required,
        )
        known = [value for value in found if value and value > 0 and asked]
        return [math.log(value / asked) for value in known] if len(known) == len(found) else []


class Coverage(NamedTuple):
    """One pack: how many of its variants ran, how they ended, and by reason what did not run."""

    pack: str
    chosen: int
    ran: int
    tallies: list[tuple[Mark, int]]
    gaps: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RunView:
    """A run read for reporting: its variants in the order of how much they need a reader.

    ``baselines`` are the entries by variant that the run was judged against, ``source`` says in
    words what they are; ``previous`` is the run they come from, if it is at hand. ``peaks`` are
    what the SKU reaches, ``sections`` what packs have to say.
    """

    run: Run
    source: str
    previous: Run | None
    variants: tuple[VariantView, ...]
    baselines: Mapping[str, BaselineEntry]
    peaks: Peaks
    sections: tuple[Section, ...] = ()

    @cached_property
    def ran(self) -> tuple[VariantView, ...]:
        """The variants that have more to show than a reason."""
        return tuple(one for one in self.variants if not one.is_skipped)

    @property
    def is_lean(self) -> bool:
        """Say whether there are so many variants that quiet ones are told in short."""
        return len(self.ran) > FULL_DETAIL

    @cached_property
    def full(self) -> list[VariantView]:
        """The variants that the page tells all of."""
        if not self.is_lean:
            return list(self.ran)
        return [one for one in self.ran[:FULL_DETAIL] if not one.mark.is_quiet]

    @property
    def brief(self) -> list[VariantView]:
        """The variants that the page tells in short."""
        told = {one.anchor for one in self.full}
        return [one for one in self.ran if one.anchor not in told]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many variants each word holds for."""
        return Counter(one.mark.word for one in self.variants)

    @cached_property
    def tallies(self) -> list[tuple[Mark, int]]:
        """The counts with their marks, what needs a reader first."""
        return tallies(one.mark for one in self.variants)

    @cached_property
    def skips(self) -> list[tuple[str, str, list[str]]]:
        """Each word and reason for not running with its variants, the commonest first."""
        groups: dict[tuple[str, str], list[str]] = {}
        for one in self.variants:
            if one.is_skipped:
                key = one.mark.word, one.reason or "no reason given"
                groups.setdefault(key, []).append(one.variant.id)
        found = [(word, why, ids) for (word, why), ids in groups.items()]
        return sorted(found, key=lambda group: (-len(group[2]), group[1]))

    @cached_property
    def coverage(self) -> list[Coverage]:
        """What ran of each pack, by name."""
        packs: dict[str, list[VariantView]] = {}
        for one in self.variants:
            packs.setdefault(one.variant.pack, []).append(one)
        found = []
        for pack, views in sorted(packs.items()):
            gaps: dict[str, list[str]] = {}
            for one in views:
                if one.is_skipped:
                    gaps.setdefault(one.reason or "no reason given", []).append(one.variant.id)
            ordered = sorted(gaps.items(), key=lambda gap: (gap_kind(gap[0]), -len(gap[1]), gap[0]))
            ran, marks = (
                sum(not one.is_skipped for one in views),
                tallies(one.mark for one in views),
            )
            found.append(Coverage(pack, len(views), ran, marks, dict(ordered)))
        return found

    @cached_property
    def claims(self) -> list[ClaimView]:
        """The claims, those that need a reader first."""
        instances = {one.id: one for one in self.run.instances}
        anchors = {one.variant.id: one.anchor for one in self.ran}
        found = (_claim(one, instances.get(one.claim), anchors) for one in self.run.claims)
        return sorted(found, key=lambda one: (one.mark.rank, one.verdict.claim))

    @property
    def chapters(self) -> Mapping[str, Mapping[tuple[str, str], list[ClaimView]]]:
        """The claims by pack, then by name and source; what needs a reader is always first."""
        packs: dict[str, dict[tuple[str, str], list[ClaimView]]] = {}
        for one in self.claims:
            named = packs.setdefault(one.pack, {})
            named.setdefault((one.name, one.verdict.source), []).append(one)
        return packs

    @property
    def broken(self) -> list[ClaimVerdict]:
        """The claims whose ratio was not reached."""
        return [one.verdict for one in self.claims if one.verdict.word is ClaimWord.BROKEN]

    @cached_property
    def is_broken(self) -> bool:
        """Say whether a variant or a claim fails the run."""
        variants = any(one.fails for one in self.variants)
        return variants or any(one.fails for one in self.run.claims)

    @property
    def has_shifted(self) -> bool:
        """Say whether a change of the machine fails the run."""
        return self.run.shift is not None and self.run.shift.fails

    @property
    def fails(self) -> bool:
        """Say whether anything in the run fails it."""
        return self.is_broken or self.has_shifted

    @cached_property
    def headline(self) -> str:
        """The outcome of the run in one sentence, what needs a reader first."""
        counts, broken = self.counts, sum(claim.fails for claim in self.run.claims)
        failed = sum(count for mark, count in self.tallies if mark.tone == "fail")
        urgent = {"failed": failed, "over budget": counts["over-budget"]}
        urgent |= {word: counts[word] for word in ("slower", "disturbed", "unclear")}
        quiet = {word: counts[word] for word in QUIET if counts[word]}
        if any(urgent.values()):
            first = f"{_counted(urgent)} of {view.count(len(self.ran), 'variant')}"
        elif quiet.keys() == {"same"}:
            first = f"No change in {view.count(counts['same'], 'variant')}"
        elif quiet.keys() == {"new"}:
            first = f"{view.count(counts['new'], 'new variant')}, nothing to compare with yet"
        else:
            first = _counted(quiet) or "No variant ran"
        rest = [f"{view.count(broken, 'claim')} broken"] if broken else []
        excepted = sum(bool(each.verdict and each.verdict.excepted) for each in self.variants)
        unrun = {word: counts[word] for word in ("skipped", "not run", "left out")}
        rest += filter(None, [_counted({"excepted": excepted, **unrun})])
        said = [*self.run.gaps, first, *filter(None, [", ".join(rest)])]
        return "; ".join(["machine-shift", *said] if self.run.shift else said)

    @property
    def tone(self) -> str:
        """The tone of the whole run."""
        if self.fails:
            return "slower"
        doubts = self.run.shift or self.counts["unclear"] or self.counts["disturbed"]
        if doubts or self.run.gaps or not self.run.finished:
            return "unclear"
        return "faster" if self.ran else "other"

    @property
    def environment(self) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
        """What is known of the machine, before and now: what differs, and all else."""
        now = everything(self.run.facts)
        if self.previous:
            return differences(everything(self.previous.facts), now)
        states = [entry.state for entry in self.baselines.values()]
        seen = {name: {state[name] for state in states if name in state} for name in now}
        before = {name: ", ".join(sorted(values)) for name, values in seen.items() if values}
        return differences(before, now)

    @cached_property
    def filters(self) -> Mapping[str, list[tuple[str, int]]]:
        """The words that rows can be filtered by, with how many rows have each.

        A field with one choice chooses nothing.
        """
        fields: dict[str, Counter[str]] = {}
        for one in self.ran:
            for name, words in one.words.items():
                fields.setdefault(name, Counter()).update(words)
        # Verdicts come by urgency, time before all other metrics; the rest by name.
        return {
            name: sorted(words.items(), key=lambda one: (mark(one[0]).rank, one[0] != TIME, one[0]))
            for name, words in fields.items()
            if len(words) > 1
        }


def read(  # noqa: PLR0913 - all that is known of a run, by name
    run: Run,
    *,
    baselines: Mapping[str, BaselineEntry],
    source: str = "",
    previous: Run | None = None,
    history: Mapping[str, Series] | None = None,
    peaks: Peaks | None = None,
    sections: tuple[Section, ...] = (),
) -> RunView:
    """Gather a run for reporting; ``history`` is what earlier runs say of each variant."""
    run = view.worded(run)
    peaks = peaks or peaks_of(run.sku.slug)
    staged = {(result.variant, result.stage): result for result in run.results}
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    before = {result.variant: result for result in previous.asked} if previous else {}
    traces = {trace.variant: trace for trace in run.traces if trace.arm is Arm.B}
    left_out = {each.variant: each.reason for each in run.left_out}
    anchors: Counter[str] = Counter()
    found = []
    for variant in run.variants:
        screen = staged.get((variant.id, Stage.SCREEN))
        confirm = staged.get((variant.id, Stage.CONFIRM))
        stem = f"v-{view.slug(variant.id)}"
        anchors[stem] += 1
        found.append(
            VariantView(
                variant=variant,
                # Two dashes stand in no slug.
                anchor=stem if anchors[stem] == 1 else f"{stem}--{anchors[stem]}",
                run=run,
                peaks=peaks,
                result=confirm or screen,
                screen=screen if confirm else None,
                verdict=verdicts.get(variant.id),
                entry=baselines.get(variant.id),
                before=before.get(variant.id),
                history=(history or {}).get(variant.id),
                trace=traces.get(variant.id),
                left_out=left_out.get(variant.id, ""),
            )
        )
    return RunView(
        run, source, previous, tuple(sorted(found, key=_urgency)), baselines, peaks, sections
    )


def gap_kind(reason: str) -> str:
    """Return what would have to be different for a variant to run."""
    return next((kind for kind, words in GAPS.items() if words.search(reason)), "another reason")


def _urgency(one: VariantView) -> tuple[int, float, str]:
    return one.mark.rank, -abs(one.change.theta) if one.change else 0.0, one.variant.id


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{view.number(count, 0)} {word}" for word, count in counts.items() if count)


def _claim(
    verdict: ClaimVerdict, instance: ClaimInstance | None, anchors: Mapping[str, str]
) -> ClaimView:
    stem, _, axes = verdict.claim.partition("[")
    axes = axes.removesuffix("]").replace(",", " ")
    if instance is None:
        name = stem.rpartition(":")[2].replace("_", " ")
        return ClaimView(verdict, stem.rpartition(":")[2].partition(".")[0], name, axes, "", "")
    sides = [
        one.partition("[")[2].removesuffix("]").split(",")
        for one in (instance.faster, instance.than)
    ]
    own, other = (" ".join(axis for axis in a if axis not in b) for a, b in (sides, sides[::-1]))
    than = f"{own} over {other}" if own and other else ""
    if than and instance.metric:  # less of it is better: the ratio is of the other one's
        than = f"{instance.metric} of {other} over {own}"
    name, anchor = instance.name.replace("_", " "), anchors.get(instance.faster, "")
    return ClaimView(verdict, instance.pack, name, axes, than, anchor)
