"""One view of a run and one of each variant: all that page, texts and terminal tell is read here.

A view reads the values handed to it and opens no store, so that a report can be made again.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import asdict, replace

from perfsuite import model
from perfsuite.boundary import plain
from perfsuite.devices import peaks as roofline
from perfsuite.devices.peaks import Peaks, Rate, peaks_of
from perfsuite.hooks import features
from perfsuite.report import view
from perfsuite.report.view import Mark, mark, tallies
from perfsuite.stats import estimate, grouped, pooled

# Without these of the run's options a variant is not there, or is another: as a run keeps them.
KEPT = (
    *("--perf-packs=", "--perf-device=", "--perf-processes="),
    *("--override-ini=perf_seed=", "--override-ini=perf_repo="),
    *("--override-ini=perf_against_build=", "--override-ini=perf_baselines="),
)

TIME, CYCLES = model.CLOCKS
# A browser has to hold the whole page: above so many variants quiet ones are a row alone, and only
# so many others have a section, fewer of those of a case that ended alike.
FULL_DETAIL, MOST_SECTIONS, MOST_ALIKE = 100, 30, 10
# Below this what others take of a device is workers' own ends and starts, as in judge.verdict.
NOTABLE_LOAD_PERCENT = 10
# A headline has room for so much of a cause.
MOST_WHY = 300
# Reasons that say why the evidence does not decide.
DOUBTS = {"clock_lost", "lost", "no_turns", "stored_time", "too_many", "unconfirmed", "unusable"}
# What is no reason of a change: its explanation tells the clock, it was found, and time may stay.
NO_CHANGE = {"clocks", "detectable", "within"}

# What is known of the machine: a name, what it was and what it is.
Fact = tuple[str, str, str]


def case_of(variant: str) -> str:
    """Return the case of a variant's id."""
    return variant.partition("[")[0]


def axes_of(variant: str) -> list[str]:
    """Return the axes of a variant's id, as they stand there."""
    axes = variant.partition("[")[2].removesuffix("]")
    return axes.split(",") if axes else []


class Explained(NamedTuple):
    """What a change is made of: in a sentence, and as facts, which other variants may share.

    ``share`` is how much of the change its traced kernels explain, None where nothing is known.
    ``doubt`` is what stands against one number, also in the sentence.
    """

    text: str = ""
    facts: tuple[Fact, ...] = ()
    share: float | None = None
    doubt: str = ""


class Compared(NamedTuple):
    """What a row tells of a variant; ``name`` is that of its metric, empty for the time."""

    name: str
    baseline: str
    now: str
    change: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric that is no clock; ``better`` is empty where nobody declares it."""

    name: str
    unit: str
    better: str
    value: float | None
    baseline: float | None


class Process(NamedTuple):
    """One process; of an accepted card nothing but the ``middles`` of its processes is known."""

    label: str
    tone: str
    evidence: model.Evidence | None
    middles: Sequence[float]


class SideView(Struct, frozen=True):
    """A variant before or now, as far as that is known.

    ``health`` is that of each block, ``times`` are the middles of processes in microseconds.
    """

    kernels: tuple[model.TracedKernel, ...] = ()
    codes: tuple[model.Code, ...] = ()
    artefact: str = ""
    environment: Mapping[str, str] = {}
    health: tuple[model.Health, ...] = ()
    times: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        entry: model.BaselineEntry,
        environment: Mapping[str, str],
        result: model.Result | None = None,
    ) -> SideView:
        """Return what an entry knows, and the health of the result that it is of."""
        return cls(entry.kernels, entry.codes, entry.artefact, environment, _health(result))


class Place(NamedTuple):
    """Where a variant stands: rates in bytes/s or FLOP/s, ``intensity`` in FLOP/byte.

    ``link`` names its wire, ``dtype`` the rate of its operations; without operations there is
    neither a dtype nor an intensity. ``before`` is its rate in the baseline, if it has moved.
    ``limit`` names the nearest ``ceiling``, which is None where it is not known.
    """

    link: str
    dtype: str
    intensity: float | None
    rate: float
    before: float | None
    share: float | None
    limit: str
    ceiling: Rate | None

    @property
    def said(self) -> str:
        """The rate, and the share of the ceiling where that is known."""
        rate = self.shown(self.rate)
        return f"{rate}, {view.share(self.share)} of the ceiling" if self.share else rate

    def shown(self, rate: float | None) -> str:
        """Return a rate in its unit."""
        return view.flow(rate, "FLOP/s" if self.dtype else "B/s")


class VariantView(model.VariantRun, frozen=True, kw_only=True, dict=True):
    """All that a run says of one variant; ``before`` is the result of the run before.

    ``anchor`` is where the page tells of it, ``peaks`` are what the SKU reaches, ``history`` is
    what a feature knows of its past, and what it shows in a section of its own.
    """

    anchor: str
    run: model.Run
    peaks: Peaks
    before: model.Result | None = None
    history: Any = None

    @cached_property
    def mark(self) -> Mark:
        """The verdict's word, or how the variant ended where there is no verdict."""
        if self.last is None:
            return mark("left out" if self.left_out else "not run")
        if self.last.status is not model.Status.OK:
            return mark(self.last.status.value)
        if self.verdict is None:
            return mark("measured" if self.middles[TIME] else "checked")
        return mark(self.verdict.word.value)

    @property
    def reason(self) -> str:
        """Why the variant ended as it did, in words."""
        if self.last is None:
            return self.left_out.reason if self.left_out else "the run ended before it"
        if self.last.status is not model.Status.OK or self.verdict is None:
            return self.last.reason
        return self.verdict.reason

    @property
    def fails(self) -> bool:
        """Say whether the variant alone fails the run."""
        is_bad = self.mark.word in self.run.settings.failing or self.unmeasured is not None
        return is_bad or bool(self.verdict and self.verdict.fails)

    @property
    def unmeasured(self) -> model.Reason | None:
        """Why the revision that the run was to be compared with has nothing to say of it."""
        asked = self.verdict if self.run.against else None
        reasons = asked.reasons if asked and not asked.excepted else ()
        return next((each for each in reasons if each.kind == "unmeasured"), None)

    @cached_property
    def evidence(self) -> tuple[model.Evidence, ...]:
        """What the judged processes have to say."""
        return self.last.evidence if self.last else ()

    @property
    def health(self) -> tuple[model.Health, ...]:
        """How the device fared while the judged processes measured."""
        return _health(self.last)

    @cached_property
    def middles(self) -> Mapping[str, tuple[float, ...]]:
        """The middle of each process by clock, and by each other metric that has samples."""
        names = dict.fromkeys(n for one in self.evidence for b in one.blocks for n in b.metrics)
        found = {n: [middle(one, n) for one in self.evidence] for n in (TIME, CYCLES, *names)}
        return {n: tuple(value for value in row if value is not None) for n, row in found.items()}

    @cached_property
    def change(self) -> model.Change | None:
        """The change of time, with the clocks beside it; None where time was not compared."""
        changes = self.verdict.changes if self.verdict else ()
        return next((change for change in changes if change.metric == TIME), None)

    @property
    def others(self) -> list[model.Change]:
        """The changes of metrics that are no clock."""
        changes = self.verdict.changes if self.verdict else ()
        return [change for change in changes if change.metric not in model.CLOCKS]

    @property
    def telling(self) -> model.Change | None:
        """The change that the verdict is about: a worse one, and of these that of time, if any."""
        known = [change for change in (self.change, *self.others) if change]
        worse = [change for change in known if change.low > change.threshold]
        return (*worse, *(c for c in known if c.high < -c.threshold), self.change)[0]

    def now(self, metric: str = TIME) -> float | None:
        """Return the metric's middle over the judged processes."""
        if metric == TIME and self.change:
            return self.change.current
        found = self.middles.get(metric)
        return statistics.median(found) if found else None

    def baseline(self, metric: str = TIME) -> float | None:
        """Return what the metric was, or None where it may not be compared."""
        if self.verdict is None or self.verdict.word is model.Word.INCOMPARABLE:
            return None
        if metric == TIME and self.change:
            return self.change.baseline
        stored = self.entry.metrics.get(metric) if self.entry else None
        return stored.center if stored else None

    def noise(self, metric: str = TIME) -> float | None:
        """Return the relative standard deviation from process to process in this run."""
        logs = [math.log(value) for value in self.middles.get(metric, ()) if value > 0]
        return math.sqrt(pooled([logs]).value) if len(logs) > 1 else None

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
            found = {one.name: one for one in self.measured}
            told = [self.telling.metric] if self.telling else []
            told += [one.metric for one in case.budgets] + [one.name for one in case.metrics]
            for name in (*told, *found):
                if one := found.get(name):
                    return Compared(name, *view.beside(one.baseline, one.value, one.unit))
        if self.change is None or self.verdict is None:
            before = view.time(self.baseline(), digits, like=now)
            return Compared("", before, view.time(now, digits), view.NOTHING)
        before, shown, moved = view.judged(self.change)
        if any(each.kind == "clock_lost" for each in self.verdict.reasons):
            # No number of the code's: that is what is not known.
            time, clock = self.change.time_change, self.change.clock_change
            moved = f"time {view.log_change(time)}, cycles {view.log_change(time + clock)}"
        return Compared("", before, shown, moved)

    @property
    def told(self) -> str:
        """How it ended in a few words: its mark, the change that it is about, its time."""
        found = [self.mark.word]
        if self.telling and not self.mark.is_quiet:
            other = f"{view.judged(self.telling)[2]} in {self.telling.metric}"
            found.append(self.shown.change if self.telling is self.change else other)
        if self.now() is not None and self.mark.tone != "fail":
            found.append(self.shown.now)
        return f"{found[0]} {', '.join(found[1:])}".strip()

    @cached_property
    def rates(self) -> list[Measured]:
        """The rates of a launch's work, that of what limits it first."""
        work, now, before = self.variant.work, self.now(), self.baseline()
        if work is None or not now:
            return []
        old = roofline.rates(work, before, self.peaks) if before else {}
        return [
            Measured(name, unit, "", value, old[name][0] if name in old else None)
            for name, (value, unit) in roofline.rates(work, now, self.peaks).items()
        ]

    @cached_property
    def share(self) -> float | None:
        """The share of the ceiling that it reaches, where that is known."""
        work, now = self.variant.work, self.now()
        return roofline.efficiency(work, self.peaks, now) if work and now else None

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The metrics that are no clock, of this run and of the baseline."""
        now = {name: value for one in self.evidence for name, value in one.exact.items()}
        noisy = {name: found for name, found in self.middles.items() if name not in model.CLOCKS}
        now |= {name: statistics.median(found) for name, found in noisy.items() if found}
        changes = {change.metric: change for change in self.others}
        declared = model.metrics_by_name(self.variant.case.metrics)
        lines = []
        for name in dict.fromkeys((*now, *changes)):
            change, own = changes.get(name), declared.get(name)
            stored = self.entry.metrics.get(name) if self.entry else None
            unit = (own.unit if own else "") or (change.unit if change else "")
            # What was judged, where something was: of an exact metric the worst process counts.
            value = change.current if change else now.get(name)
            before = change.baseline if change else stored.center if stored else None
            lines.append(Measured(name, unit, own.better if own else "", value, before))
        return tuple(lines)

    @property
    def processes(self) -> list[Process]:
        """Those that counted, those of the first pass, and what they are compared with."""
        first, confirm = self.result(model.Stage.SCREEN), self.result(model.Stage.CONFIRM)
        first = first if confirm and not self.is_paired else None
        names = {"now": "now", "screen": "first pass", "before": "baseline"}
        found = []
        for (tone, told), result in zip(
            names.items(), (self.last, first, self.before), strict=True
        ):
            for index, one in enumerate(result.evidence if result else (), start=1):
                if (centre := middle(one, TIME)) is not None:
                    label = f"{told} {index}{self.on(one.unit)}"
                    found.append(Process(label, tone, one, [centre]))
        if found and not any(one.tone == "before" for one in found):
            metric = self.entry.metrics.get(TIME) if self.entry else None
            for unit, values in metric.values.items() if metric else ():
                label = f"baseline{self.on(unit)}"
                found += [Process(label, "before", None, values)] if values else []
        return found

    def on(self, unit: str) -> str:
        """Return the short name of one device, where there is one."""
        return f" · {'device' if self.run.facts.is_host else 'GPU'} {unit[:4]}" if unit else ""

    @property
    def command(self) -> str:
        """The command that measures the variant again as in this run, and accepts nothing."""
        return self.again(self.id)

    def again(self, select: str, *options: str) -> str:
        """Return the command that measures what is selected again, in the variant's tier."""
        names = {option.partition("=")[0] for option in options}
        kept = [o for o in _kept(self.run.command) if o.partition("=")[0] not in names]
        beside = self.run.against
        if beside and beside.name:  # which may be another commit's by then
            kept.append(f"--perf-against={view.commit(beside.commit) or beside.name}")
        if beside and beside.place:
            kept.append(f"--perf-against-env={beside.place}")
        if self.variant.tier != "smoke":
            kept.append(f"--perf-tier={self.variant.tier.value}")
        return view.command(select, *kept, *options)

    @property
    def base(self) -> tuple[str, str]:
        """The commit whose code it is held against, and the day of its run if that is another."""
        day = view.day(self.entry.run) if self.entry and not self.expected.in_turns else ""
        return self.expected.commit, day

    @cached_property
    def place(self) -> Place | None:
        """Where it stands; None where no work is stated or nothing was timed."""
        work, now, peaks = self.variant.work, self.now(), self.peaks
        amount = (work.flops or work.bytes) if work else 0
        # Where starts hold it up, neither axis says why it takes its time.
        if work is None or not now or not amount or roofline.is_held_by_starts(work, peaks):
            return None
        link, dtype = roofline.link_of(work, peaks), work.rate_dtype or "fp32"
        is_wire = self.rates[0].name == "gb_per_s"
        limit, ceiling = (link, peaks.links) if is_wire else (dtype, peaks.operations)
        has_moved = self.verdict and self.verdict.word.asks_why and self.change
        before = self.baseline() if has_moved else None
        return Place(
            link=link,
            dtype=dtype if work.flops else "",
            intensity=work.flops / work.bytes if work.flops and work.bytes else None,
            rate=1e6 * amount / now,
            before=1e6 * amount / before if before else None,
            share=self.share,
            limit=limit,
            ceiling=None if peaks.is_generic else ceiling.get(limit),
        )

    @property
    def sides(self) -> tuple[SideView, SideView] | None:
        """The variant before and now, where it may have moved; None where it did not."""
        entry, trace = self.entry, self.trace() or model.Trace(variant=self.id)
        word = self.verdict.word if self.verdict else model.Word.SAME
        if entry is None or not (word.asks_why or word is model.Word.UNCLEAR):
            return None
        artefact = next((one.artefact for one in self.evidence if one.artefact), "")
        known = trace.kernels, trace.codes, artefact, self.run.facts.environment
        now = SideView(*known, self.health, self.middles[TIME])
        # Side A of pairs was measured here: on this machine, if in another environment.
        here = (self.run.against and self.run.against.environment) or self.run.facts.environment
        then = here if self.verdict and self.verdict.in_turns else self.expected.environment
        return SideView.of(entry, then, self.before), now

    @property
    def timing(self) -> model.Change | None:
        """The change of time that kernels explain: of the device's own, if that is what moved."""
        told = self.telling
        return told if told and told.metric == model.DEVICE_TIME.name else self.change

    @cached_property
    def explanation(self) -> Explained:
        """What a change is made of, as far as that is known."""
        return explained_by(self.timing, *self.sides) if self.sides else Explained()

    @property
    def because(self) -> str:
        """The reasons of its word, without what the change beside them says."""
        reasons = self.verdict.reasons if self.verdict else ()
        moved = self.verdict is not None and self.verdict.word.moved
        known = ({"interval", "time"} if self.telling else set()) | (NO_CHANGE if moved else set())
        shown = [each for each in reasons if each.kind not in known]
        return "; ".join(dict.fromkeys(map(view.sentence, shown))) if reasons else self.reason

    @property
    def cause(self) -> str:
        """What the change and its interval do not say; of doubts what they come from."""
        reasons = self.verdict.reasons if self.verdict else ()
        if self.mark.tone == "unclear":
            load = max((each.foreign_percent or 0.0 for each in self.health), default=0.0)
            others = f"load by others up to {view.number(load, 0)}{view.SPACE}%"
            told = [others] * (load >= NOTABLE_LOAD_PERCENT)
            doubts = [view.sentence(each) for each in reasons if each.kind in DOUBTS]
            told += doubts or [self.reason] * (self.telling is None)
            if self.telling:
                told.append(self.explanation.doubt)
                found, most = self.telling, view.share(self.telling.threshold)
                ends = view.interval(found.low, found.high)
                told.append(f"the change may be anything from {ends}; the threshold is {most}")
        else:
            # What stands last is cut off first.
            explained = self.explanation.text
            told = [explained, self.because if reasons or not explained else ""]
            told = told[::-1] if self.mark.tone == "budget" else told
        why = "; ".join(filter(None, dict.fromkeys(told)))
        excepted = self.verdict.excepted if self.verdict else None
        return f"{excepted.short}; {why}" if excepted else why

    @property
    def does(self) -> tuple[str, ...]:
        """What it does, by whichever implementation: its case, of whichever pack, and its axes."""
        axes = [one for one in axes_of(self.id) if not one.startswith("impl=")]
        return self.variant.case.name, self.variant.case.source, *axes

    @property
    def sections(self) -> Markup:
        """What features show of it on the page."""
        return Markup("").join(features().hook.perf_variant_section(variant_view=self))


def rarest(views: Iterable[VariantView]) -> VariantView:
    """Return the one of the rarest tier, which has the others, too."""
    return max(views, key=lambda one: [*model.Tier].index(one.variant.tier))


@cache
def _kept(command: str) -> tuple[str, ...]:
    try:
        words = shlex.split(command)
    except ValueError:  # typed by hand into a run file
        return ()
    return tuple(word for word in words if word.startswith(KEPT))


def explained_by(change: model.Change | None, before: SideView, now: SideView) -> Explained:
    """Return what a change from one side to the other is made of, as a feature tells it."""
    found: Explained | None = features().hook.perf_explained(change=change, before=before, now=now)
    return found or Explained()


def middle(evidence: model.Evidence, metric: str) -> float | None:
    """Return the estimate of one process, as it is judged."""
    blocks = evidence.samples(metric)
    return estimate(blocks) if any(blocks) else None


def everything(device: model.DeviceFacts) -> dict[str, str]:
    """Return all facts of a device by name."""
    return {**device.identity, **device.state, **device.environment}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[list[Fact], list[Fact]]:
    """Return the facts before and now that are known to have changed, and all others."""
    names = dict.fromkeys((*now, *before))
    found = [(name, before.get(name, ""), now.get(name, "")) for name in names]
    changed = [one for one in found if one[0] in before and one[1] != one[2]]
    return changed, [one for one in found if one not in changed]


def _health(result: model.Result | None) -> tuple[model.Health, ...]:
    evidence = result.evidence if result else ()
    return tuple(block.health for one in evidence for block in one.blocks if block.health)


class ClaimView(NamedTuple):
    """One claim: its verdict, as it is declared, and the view of the faster variant."""

    verdict: model.ClaimVerdict
    mark: Mark
    instance: model.ClaimInstance
    faster: VariantView | None

    @property
    def outcome(self) -> str:
        """What was found against what, and whether that fails the run."""
        found, asked = view.ratio(self.verdict.ratio), view.ratio(self.verdict.required)
        one = self.instance
        told = f"{one.faster} is {found} as fast as {one.than}, {asked} claimed"
        if one.metric:
            told = f"{one.metric} of {one.than} is {found} that of {one.faster}, {asked} claimed"
        return f"broken: {told}; {'fails' if self.verdict.fails else 'does not fail the run'}"


@dataclass(frozen=True)
class RunView:
    """A run read for reporting: its variants in the order of how much they need a reader.

    ``source`` says in words what it was compared with; ``previous`` is the run that this comes
    from, if it is at hand. ``peaks`` are what the SKU reaches, ``sections`` what packs have to say,
    ``trends`` is where the page of trends lies, if it is there.
    """

    run: model.Run
    source: str
    previous: model.Run | None
    variants: tuple[VariantView, ...]
    peaks: Peaks
    sections: tuple[model.Section, ...] = ()
    trends: str = ""

    @cached_property
    def ran(self) -> tuple[VariantView, ...]:
        """The variants that have more to show than a reason."""
        return tuple(one for one in self.variants if one.mark.tone != "skip")

    @cached_property
    def beside(self) -> Mapping[tuple[str, ...], list[VariantView]]:
        """The variants that ran by what they do: all implementations of it, of all packs."""
        return grouped((o for o in self.ran if o.now() and o.mark.tone != "fail"), lambda o: o.does)

    @property
    def is_lean(self) -> bool:
        """Say whether there are so many variants that quiet ones have a row alone."""
        return len(self.ran) > FULL_DETAIL

    @cached_property
    def full(self) -> list[VariantView]:
        """The variants that the page tells all of."""
        if not self.is_lean:
            return list(self.ran)
        loud = [one for one in self.ran if not one.mark.is_quiet]
        kinds = grouped(loud, lambda one: (one.mark, one.variant.pack, one.variant.case.name))
        few = {one.id for kind in kinds.values() for one in kind[:MOST_ALIKE]}
        return [one for one in loud if one.id in few][:MOST_SECTIONS]

    @cached_property
    def counts(self) -> Counter[str]:
        """How many variants each word holds for."""
        return Counter(one.mark.word for one in self.variants)

    @cached_property
    def tallies(self) -> list[tuple[Mark, int]]:
        """The counts with their marks, what needs a reader first."""
        return tallies(one.mark for one in self.variants)

    @cached_property
    def claims(self) -> list[ClaimView]:
        """The claims, those that need a reader first."""
        instances = {one.id: one for one in self.run.instances}
        views = {one.variant.id: one for one in self.ran}
        found = []
        for verdict in self.run.claims:
            one = instances[verdict.claim]
            found.append(ClaimView(verdict, mark(verdict.word), one, views.get(one.faster)))
        return sorted(found, key=lambda one: (one.mark.rank, one.verdict.claim))

    @property
    def chapters(self) -> Mapping[str, Mapping[tuple[str, str], list[ClaimView]]]:
        """The claims by pack, then by name and source; what needs a reader is always first."""
        packs = grouped(self.claims, lambda one: one.instance.pack)
        return {
            pack: grouped(claims, lambda one: (one.instance.name, one.verdict.source))
            for pack, claims in packs.items()
        }

    @property
    def broken(self) -> list[ClaimView]:
        """The claims whose ratio was not reached."""
        return [one for one in self.claims if one.mark.word == "broken"]

    @cached_property
    def fails(self) -> bool:
        """Say whether a variant or a claim fails the run."""
        return any(one.fails for one in self.variants) or any(c.fails for c in self.run.claims)

    @property
    def is_environment(self) -> bool:
        """Say whether all that fails the run is its environment."""
        words = {one.mark.word for one in self.variants if one.fails}
        return words == {model.Word.ENVIRONMENT.value} and not any(
            one.fails for one in self.run.claims
        )

    @cached_property
    def unmeasured(self) -> str:
        """How much of a revision that was asked for was not measured, why, and what to do."""
        left = [one.unmeasured for one in self.variants if one.unmeasured]
        kinds = ({each.kind for each in verdict.reasons} for verdict in self.run.verdicts)
        measured = sum(each.isdisjoint({"unmeasured", "other_side"}) for each in kinds)
        if not left:
            return ""
        first = max(left, key=left.count)  # the commonest: each variant says its own
        counts = {"count": measured, "total": measured + len(left)}
        why = plain(str(first.facts["why"]), most=MOST_WHY)
        return view.sentence(model.Reason("measured", {**first.facts, **counts, "why": why}))

    @property
    def gaps(self) -> list[str]:
        """What of all that was asked for the run lacks."""
        return [*self.run.gaps, *filter(None, [self.unmeasured])]

    @cached_property
    def headline(self) -> str:
        """The outcome of the run in one sentence, what needs a reader first."""
        failing = tallies(one.mark for one in self.variants if one.fails)
        urgent = view.tallied(each for each in self.tallies if each[0].is_urgent)
        ran = view.count(len(self.ran), "variant")
        nothing = f"No variant ran: {view.tallied(self.tallies)}".removesuffix(": ")
        first = view.tallied(tallies(one.mark for one in self.ran)) or nothing
        if failing:
            total = view.number(sum(number for _, number in failing), 0)
            kinds = view.tallied(failing).removeprefix(f"{total} ")  # of one kind once
            first = f"{total} of {ran} fail{'s' * (total == '1')}: {kinds}"
        elif urgent:
            first = f"{urgent} of {ran}"
        elif self.ran and self.counts["same"] == len(self.ran):
            first = f"No change in {ran}"
        elif self.ran and self.counts["new"] == len(self.ran):
            first = f"{view.count(len(self.ran), 'new variant')}, nothing to compare with yet"
        broken = sum(claim.fails for claim in self.run.claims)
        excepted = sum(bool(one.verdict and one.verdict.excepted) for one in self.variants)
        claims = view.count(broken, "claim fails", "claims fail") if broken else ""
        others = f"{excepted} excepted" if excepted else ""
        return "; ".join(filter(None, [*self.gaps, first, claims, others]))

    @property
    def tone(self) -> str:
        """The tone of the whole run."""
        if self.fails:
            return "slower"
        is_unclear = any(one.tone == "unclear" for one, _ in self.tallies)
        if is_unclear or self.gaps or not self.run.finished:
            return "unclear"
        return "faster" if self.ran else "other"

    @cached_property
    def bases(self) -> list[tuple[str, str]]:
        """The commits that most is held against and the days of their runs, that of most first."""
        found = Counter(one.base for one in self.ran if one.entry)
        earlier = self.previous.commit if self.previous else ""
        if 2 * found.total() < len(self.ran) or not found:
            return [(earlier, "")] if earlier else []
        return [(commit or earlier, day) for (commit, day), _ in found.most_common()]

    @property
    def environment(self) -> tuple[list[Fact], list[Fact]]:
        """What is known of the machine, before and now: what differs, and all else."""
        now = everything(self.run.facts)
        earlier = everything(self.previous.facts) if self.previous else {}
        if then := (self.run.against and self.run.against.environment) or earlier:
            return differences(then, now)
        states = [{**o.expected.environment, **o.entry.state} for o in self.variants if o.entry]
        seen = {name: {state[name] for state in states if name in state} for name in now}
        before = {name: ", ".join(sorted(values)) for name, values in seen.items() if values}
        return differences(before, now)


def skips(views: Iterable[VariantView]) -> list[tuple[str, str, list[str]]]:
    """Return each word and reason for not running with its variants, the commonest first."""
    idle = (one for one in views if one.mark.tone == "skip")
    groups = grouped(idle, lambda one: (one.mark.word, one.reason or "no reason given"))
    found = [(*key, [one.variant.id for one in group]) for key, group in groups.items()]
    return sorted(found, key=lambda group: (-len(group[2]), group[1]))


def read(  # noqa: PLR0913 - all that is known of a run, by name
    run: model.Run,
    *,
    baselines: Mapping[str, model.BaselineEntry],
    source: str = "",
    previous: model.Run | None = None,
    history: Mapping[str, Any] | None = None,
    peaks: Peaks | None = None,
    sections: tuple[model.Section, ...] = (),
) -> RunView:
    """Gather a run for reporting; ``history`` is what earlier runs say of each variant."""
    run = view.worded(run)
    peaks = peaks or peaks_of(run.sku.slug)
    before = {one.id: one.last for one in previous.variants} if previous else {}
    anchors: Counter[str] = Counter()
    found = []
    for one in run.variants:
        stem = f"v-{view.slug(one.id)}"
        anchors[stem] += 1
        known = asdict(one) | {"expected": replace(one.expected, entry=baselines.get(one.id))}
        found.append(
            VariantView(
                **known,
                # Two dashes stand in no slug.
                anchor=stem if anchors[stem] == 1 else f"{stem}--{anchors[stem]}",
                run=run,
                peaks=peaks,
                before=before.get(one.id),
                history=(history or {}).get(one.id),
            )
        )
    found.sort(key=lambda o: (o.mark.rank, -abs(o.change.theta) if o.change else 0.0, o.id))
    return RunView(run, source, previous, tuple(found), peaks, sections)
