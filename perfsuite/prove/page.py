"""The figures and the page of a proof."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import structs

from perfsuite.boundary import UsageError
from perfsuite.cli import Device, find_project, say
from perfsuite.judge.compare import CLOCK_LIMIT, Against
from perfsuite.judge.noise import entries_of
from perfsuite.judge.verdict import judge, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    Block,
    Evidence,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
    seconds_of,
)
from perfsuite.prove.peers import CUPTI
from perfsuite.prove.raw import Process, Raw, Subject, Wave, subjects_of
from perfsuite.stats import hodges_lehmann, pooled
from perfsuite.store.files import refusing, replace_file

# Hands out recorded processes, each once, as the results and the entries of a run.


Deck = dict[tuple[str, str], list[Wave]]


def deck_of(raw: Raw, seed: int | None = None) -> Deck:
    """Return the whole waves of warm servers by variant and unit, their processes mixed by seed."""
    size = raw.header.settings.processes
    found: dict[tuple[str, str], list[Wave]] = defaultdict(list)
    for wave in raw.waves:
        if not wave.fresh and len(wave.processes) == size:
            found[wave.variant, wave.unit].append(wave)
    if seed is not None:
        for (variant, unit), waves in found.items():
            processes = [process for wave in waves for process in wave.processes]
            random.Random(f"{seed} {variant} {unit}").shuffle(processes)  # noqa: S311 - an order
            for index, wave in enumerate(waves):
                mixed = tuple(processes[index * size : (index + 1) * size])
                waves[index] = replace(wave, processes=mixed)
    return found


def result_of(variant: Variant, stage: Stage, waves: Sequence[Wave]) -> Result:
    """Return waves as the result of a stage."""
    return Result(
        variant=variant.id,
        status=Status.OK,
        stage=stage,
        case_version=variant.case.version,
        evidence=tuple(_evidence(process, wave) for wave in waves for process in wave.processes),
    )


def _evidence(process: Process, wave: Wave) -> Evidence:
    blocks = [
        Block(time_us=(time_us,), cycles=process.cycles[index : index + 1])
        for index, time_us in enumerate(process.time_us)
    ]
    return Evidence(
        slot=0,
        seed=0,
        unit=wave.unit,
        launches=wave.launches,
        backend=wave.backend,
        pace=wave.pace,
        sets=wave.sets,
        blocks=tuple(blocks),
    )


def entry_of(raw: Raw, variant: Variant, waves: Sequence[Wave]) -> BaselineEntry:
    """Return waves as the product would store them as a baseline."""
    run = Run(
        id="proof",
        started="",
        command="",
        sku=raw.header.sku,
        facts=raw.header.facts,
        settings=raw.header.settings,
        variants=(variant,),
        results=(result_of(variant, Stage.SCREEN, waves),),
    )
    return entries_of(run)[variant.id]


# Forms comparisons of processes that no other side shares, and lets the product judge them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One variant as the product judged it, against a baseline of the units ``before``."""

    subject: Subject
    change: float
    before: tuple[str, ...]
    unit: str
    verdict: Verdict

    @property
    def known(self) -> int:
        """Count the other units that the baseline came from; 0 is the same unit."""
        return 0 if self.before == (self.unit,) else len(self.before)


@dataclass(frozen=True, slots=True)
class _Case:
    """What one comparison is made of: the entry, the screen and the processes to confirm with."""

    subject: Subject
    change: float
    variant: Variant
    entry: BaselineEntry
    screen: Result
    confirm: Result


class Comparing:
    """All comparisons that the waves of a proof allow, each wave in one of them only.

    ``known`` is how many other units a baseline has, a wave of each; 0 is one of the same unit.

    A round is one run of the product: all subjects on one unit, unchanged, screened, and what is
    doubtful confirmed together. A planted change is judged as one more variant of its round; it
    shares the round's baseline, and no process of the run that is judged. What an unseen unit
    leaves unclear is held against the round's unchanged code there, as in turns.
    """

    def __init__(self, raw: Raw, *, known: int, seed: int | None = None) -> None:
        self._raw, self._known = raw, known
        self._against = Against(facts=raw.header.facts, slug=raw.header.sku.slug)
        self._deck = deck_of(raw, seed)
        self._entries: dict[str, BaselineEntry] = {}
        self._here: dict[str, Wave] = {}
        settings = raw.header.settings
        self._confirming = -(-settings.confirm_processes // settings.processes)

    def __iter__(self) -> Iterator[Comparison]:
        """Yield comparisons, round by round, until no pair of units has waves left."""
        left = len(pairs := self._pairs())
        for before, unit in itertools.cycle(pairs):
            found = list(self._round(before, unit))
            yield from found
            left = len(pairs) if found else left - 1
            if not left:
                return

    def _pairs(self) -> list[tuple[tuple[str, ...], str]]:
        """Return the units of a baseline with each unit that is compared with it."""
        units = self._raw.units
        if not self._known:
            return [((unit,), unit) for unit in units]
        others = {unit: [other for other in units if other != unit] for unit in units}
        if len(units) <= self._known:
            return []
        return [
            (tuple((2 * others[unit])[shift : shift + self._known]), unit)
            for shift in range(len(units) - 1)
            for unit in units
        ]

    def _round(self, before: tuple[str, ...], unit: str) -> Iterator[Comparison]:
        same, planted, self._entries, self._here = [], [], {}, {}
        for subject in subjects_of(self._raw.variants):
            entry = self._entry(subject, before, unit)
            if entry is None:
                continue
            self._entries[subject.base.id] = entry
            self._here[subject.base.id] = self._deck[subject.base.id, unit][0]
            same += self._cases(subject, 0.0, subject.base, entry=entry, unit=unit)
            for change, variant in subject.planted.items():
                planted += self._cases(subject, change, variant, entry=entry, unit=unit)
        verdicts, doubtful = self._judged(same)
        for case in same:
            yield self._comparison(case, verdicts[case.variant.id], used=case in doubtful)
        for case in planted:
            verdict, was_doubtful = self._judged_beside(case, doubtful)
            yield self._comparison(case, self._settled(case, verdict), used=was_doubtful)

    def _entry(self, subject: Subject, before: tuple[str, ...], unit: str) -> BaselineEntry | None:
        """Return a baseline of one wave of each unit, if a run can be judged against it."""
        decks = [self._deck[subject.base.id, each] for each in before]
        needed = 1 + self._confirming + (unit in before)
        if not all(decks) or len(self._deck[subject.base.id, unit]) < needed:
            return None
        return entry_of(self._raw, subject.base, [waves.pop(0) for waves in decks])

    def _cases(
        self, subject: Subject, change: float, variant: Variant, *, entry: BaselineEntry, unit: str
    ) -> list[_Case]:
        """Return the case of a variant, if its waves are there for whatever the screen says."""
        waves = self._deck[variant.id, unit]
        if len(waves) < 1 + self._confirming:
            return []
        screen = result_of(variant, Stage.SCREEN, waves[:1])
        confirm = result_of(variant, Stage.CONFIRM, waves[1 : 1 + self._confirming])
        return [
            _Case(
                subject,
                change,
                variant,
                structs.replace(entry, variant=variant.id),
                screen,
                confirm,
            )
        ]

    def _judged(self, cases: Sequence[_Case]) -> tuple[dict[str, Verdict], list[_Case]]:
        """Return the verdicts of a run by variant, and the cases that were confirmed."""
        verdicts = {each.variant: each for each in self._verdicts(cases, Stage.SCREEN)}
        doubtful = [case for case in cases if wants_confirmation(verdicts[case.variant.id])]
        verdicts |= {each.variant: each for each in self._verdicts(doubtful, Stage.CONFIRM)}
        return verdicts, doubtful

    def _judged_beside(self, case: _Case, doubtful: Sequence[_Case]) -> tuple[Verdict, bool]:
        """Return the verdict of one more variant of a run, and whether it was confirmed."""
        (verdict,) = self._verdicts([case], Stage.SCREEN)
        if not wants_confirmation(verdict):
            return verdict, False
        family = [each for each in doubtful if each.subject is not case.subject]
        return self._verdicts([case, *family], Stage.CONFIRM)[0], True

    def _settled(self, case: _Case, verdict: Verdict) -> Verdict:
        """Return what A against B says of what an unseen unit leaves unclear.

        As a run does, by one wave of each arm, then by as many as confirm where something seems to
        have moved. A run takes fresh ones for these; here the first is among them.
        """
        if not verdict.card:
            return verdict
        base, name = case.subject.base, case.variant.id
        entry = structs.replace(entry_of(self._raw, base, [self._here[base.id]]), variant=name)
        against = replace(self._against, arms=frozenset({name}))
        first = case.confirm.evidence[: self._raw.header.settings.processes]

        def say(result: Result) -> Verdict:
            results, entries = {name: result}, {name: entry}
            return judge(results, variants=[case.variant], entries=entries, against=against)[0]

        found = say(structs.replace(case.confirm, evidence=first))
        if wants_confirmation(found, is_brief=True):
            found = say(case.confirm)
        return found if found.word in {Word.SLOWER, Word.FASTER} else verdict

    def _verdicts(self, cases: Sequence[_Case], stage: Stage) -> tuple[Verdict, ...]:
        is_screen = stage is Stage.SCREEN
        # A run has the whole baseline at hand, of which a planted change replaces one variant.
        replaced = {case.subject.base.id for case in cases}
        rest = {name: each for name, each in self._entries.items() if name not in replaced}
        return judge(
            {case.variant.id: case.screen if is_screen else case.confirm for case in cases},
            variants=[case.variant for case in cases],
            entries={**rest, **{case.variant.id: case.entry for case in cases}},
            against=self._against,
        )

    def _comparison(self, case: _Case, verdict: Verdict, *, used: bool) -> Comparison:
        """Return the comparison and drop its waves; those it did not confirm with stay.

        Whether a wave is used depends on what was seen before it only.
        """
        unit = case.screen.evidence[0].unit
        before = tuple(case.entry.metrics["time_us"].values)
        del self._deck[case.variant.id, unit][: 1 + (self._confirming if used else 0)]
        return Comparison(
            subject=case.subject, change=case.change, before=before, unit=unit, verdict=verdict
        )


# Sums up comparisons: shares with exact bounds, cost, agreement with CUPTI, spread by server.


AGREEING_FROM_US = 20.0
BOOTSTRAPS = 2000


@dataclass(frozen=True, slots=True)
class Share:
    """``count`` of ``total`` with the exact 95 % bounds to either side (Clopper-Pearson)."""

    count: int
    total: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.count / self.total if self.total else math.nan

    def bounds(self) -> tuple[float, float]:
        """Return the least and the largest share that is not refuted, each at 95 %."""
        if not self.total:
            return 0.0, 1.0
        from scipy.stats import binomtest

        found = binomtest(self.count, self.total).proportion_ci(0.90, method="exact")
        return float(found.low), float(found.high)


@dataclass(frozen=True, slots=True)
class Tally:
    """The words on one kind of comparison; ``seen`` is the median change of the code."""

    words: Counter[Word]
    seen: float = math.nan
    units: int = 0

    def share(self, *words: Word) -> Share:
        """Return how often one of these words was given."""
        return Share(sum(self.words[word] for word in words), self.words.total())

    @property
    def wrong(self) -> Share:
        """Slower or faster where nothing changed."""
        return self.share(Word.SLOWER, Word.FASTER)

    @property
    def found(self) -> Share:
        """Slower where work was added."""
        return self.share(Word.SLOWER)

    @property
    def unclear(self) -> Share:
        """No word either way."""
        return self.share(Word.UNCLEAR)


def tally(comparisons: Iterable[Comparison]) -> Tally:
    """Count the words."""
    chosen = list(comparisons)
    seen = [each.verdict.changes[0].theta for each in chosen if each.verdict.changes]
    return Tally(
        Counter(each.verdict.word for each in chosen),
        median(seen) if seen else math.nan,
        len({(each.before, each.unit) for each in chosen}),
    )


def by_change(comparisons: Sequence[Comparison]) -> dict[float, Tally]:
    """Return a tally of each share of work that was added, structural subjects left out."""
    groups: dict[float, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        if each.change and not each.subject.is_structural:
            groups[each.change].append(each)
    return {change: tally(groups[change]) for change in sorted(groups)}


def by_subject(comparisons: Sequence[Comparison]) -> dict[tuple[str, float], Tally]:
    """Return a tally of each subject and change, 0 among them."""
    groups: dict[tuple[str, float], list[Comparison]] = defaultdict(list)
    for each in comparisons:
        groups[each.subject.name, each.change].append(each)
    return {key: tally(group) for key, group in groups.items()}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a variant costs on a warm panel; shares are of the wall time of its stretches."""

    wall_s: float
    waves: int
    busy: float | None
    timed: float
    spin: float
    failed: Mapping[str, int]


def cost(raw: Raw) -> Cost:
    """Return the median wall time of a variant, and where the GPU's time went."""
    warm = [wave for wave in raw.waves if not wave.fresh and wave.processes]
    wall_s = sum(each.wall_s for each in raw.stretches) or math.nan
    polled = [each for each in raw.stretches if each.busy is not None]
    return Cost(
        wall_s=median([wave.wall_s for wave in warm] or [math.nan]),
        waves=len(warm),
        busy=sum((each.busy or 0.0) * each.wall_s for each in polled)
        / sum(each.wall_s for each in polled)
        if polled
        else None,
        timed=sum(each.timed_s for each in raw.stretches) / wall_s,
        spin=sum(each.spin_s for each in raw.stretches) / wall_s,
        failed=Counter(wave.reason for wave in raw.waves if wave.reason),
    )


@dataclass(frozen=True, slots=True)
class Agreement:
    """A subject's time per launch against CUPTI's kernel duration.

    A graph's kernels follow each other without a gap: their starts and ends overlap (H200: kernels
    of 7 to 27 us take 0.1 to 0.4 us less than CUPTI says, those of 194 us as long).
    """

    subject: str
    time_us: float
    kernel_us: float

    @property
    def difference(self) -> float:
        """How far the sample's time is from what CUPTI explains."""
        return self.time_us / self.kernel_us - 1

    @property
    def is_judged(self) -> bool:
        """Say whether the kernel is long enough for the claim."""
        return self.time_us >= AGREEING_FROM_US


def agreements(raw: Raw) -> list[Agreement]:
    """Return the subjects of one kernel each that CUPTI was asked about."""
    names = {s.base.id: s.name for s in subjects_of(raw.variants) if not s.is_structural}
    found = []
    for reading in raw.readings:
        waves = _waves(raw, reading.variant, reading.unit)
        if (
            reading.tool != CUPTI
            or not reading.time_us
            or reading.variant not in names
            or not waves
        ):
            continue
        time_us = median(_time_us(process) for wave in waves for process in wave.processes)
        found.append(Agreement(names[reading.variant], time_us, reading.time_us))
    return found


def _waves(raw: Raw, variant: str, unit: str, *, fresh: bool = False) -> list[Wave]:
    return [
        wave
        for wave in raw.waves
        if (wave.variant, wave.unit, wave.fresh) == (variant, unit, fresh) and wave.processes
    ]


def _time_us(process: Process) -> float:
    return hodges_lehmann(process.time_us)


@dataclass(frozen=True, slots=True)
class Spread:
    """Between-process standard deviations of ln time: forked warm, and from fresh servers."""

    subject: str
    warm: float
    fresh: float
    counts: tuple[int, int]
    ratio: tuple[float, float] = (math.nan, math.nan)
    p_value: float = math.nan


def spreads(raw: Raw) -> list[Spread]:
    """Return the spread by subject, then all together with the test that they are the same."""
    found, groups = [], []
    for subject in subjects_of(raw.variants):
        own = [
            tuple(
                np.log([_time_us(p) for w in _waves(raw, subject.base.id, unit, fresh=fresh)
                        for p in w.processes])
                for fresh in (False, True)
            )
            for unit in raw.units
        ]  # fmt: skip
        own = [pair for pair in own if min(map(len, pair)) > 1]
        if own:
            warm, fresh = (_pooled([pair[side] for pair in own]) for side in (0, 1))
            counts = (sum(len(pair[0]) for pair in own), sum(len(pair[1]) for pair in own))
            found.append(Spread(subject.name, math.sqrt(warm[0]), math.sqrt(fresh[0]), counts))
            # Each subject has a spread of its own: what is compared is the ratio to its warm one.
            groups += [tuple(side / math.sqrt(warm[0] or 1.0) for side in pair) for pair in own]
    return [*found, _all(found, groups)] if found else []


def _all(found: Sequence[Spread], groups: Sequence[tuple[np.ndarray, ...]]) -> Spread:
    from scipy.stats import f

    (warm, n), (fresh, m) = (_pooled([pair[side] for pair in groups]) for side in (0, 1))
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(BOOTSTRAPS):
        sides = [_pooled([rng.choice(pair[side], len(pair[side])) for pair in groups])[0]
                 for side in (0, 1)]  # fmt: skip
        if min(sides) > 0:
            ratios.append(math.sqrt(sides[1] / sides[0]))
    quotient = fresh / warm if warm else math.nan
    p_value = 2 * min(f.sf(quotient, m, n), f.cdf(quotient, m, n))
    low, high = np.quantile(ratios, [0.025, 0.975]) if ratios else (math.nan, math.nan)
    counts = (sum(each.counts[0] for each in found), sum(each.counts[1] for each in found))
    return Spread(
        "all, in units of each one's warm spread",
        math.sqrt(warm), math.sqrt(fresh), counts, (float(low), float(high)), float(p_value),
    )  # fmt: skip


def _pooled(groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the variance inside groups and its degrees of freedom."""
    found = pooled([list(map(float, group)) for group in groups])
    return found.value, found.degrees


# Compares whole runs of unchanged code: all their variants, as the nights of one project.


def nights(runs: Sequence[Run]) -> Iterator[Comparison]:
    """Yield each run's variants against the newest earlier run of them, on each SKU.

    Twice, where there is one on the same unit and one on another. A run is judged by its screen,
    and by its confirmation where that has been measured; no process is on two sides.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    for place, run in enumerate(ordered):
        earlier = [each for each in ordered[:place] if each.sku.slug == run.sku.slug]
        home = [each for each in earlier if each.facts.unit == run.facts.unit]
        away = [each for each in earlier if each.facts.unit != run.facts.unit]
        for group in (home, away):
            yield from _judged(run, _newest(group))


def _newest(runs: Sequence[Run]) -> dict[str, BaselineEntry]:
    return {name: entry for run in runs for name, entry in entries_of(run).items()}


def _judged(run: Run, entries: dict[str, BaselineEntry]) -> Iterator[Comparison]:
    variants = [variant for variant in run.variants if variant.id in entries]
    if not variants:
        return
    against = Against(facts=run.facts, slug=run.sku.slug, known=tuple(entries.values()))
    screens, confirms = _of(run, Stage.SCREEN), _of(run, Stage.CONFIRM)
    verdicts = _by_variant(judge(screens, variants=variants, entries=entries, against=against))
    asked = [name for name, verdict in verdicts.items() if wants_confirmation(verdict)]
    doubtful = {name: confirms[name] for name in asked if name in confirms}
    again = judge(
        doubtful, variants=variants, entries=entries, against=replace(against, screened=screens)
    )
    for verdict in {**verdicts, **_by_variant(again)}.values():
        variant = next(each for each in variants if each.id == verdict.variant)
        yield _comparison(variant, run.facts.unit, entries[variant.id], verdict)


def _comparison(variant: Variant, unit: str, entry: BaselineEntry, verdict: Verdict) -> Comparison:
    subject = Subject(name=f"{variant.pack} pack, whole runs", base=variant, planted={})
    units = {name for metric in entry.metrics.values() for name in metric.values}
    return Comparison(
        subject=subject, change=0.0, before=tuple(sorted(units)), unit=unit, verdict=verdict
    )


def _of(run: Run, stage: Stage) -> dict[str, Result]:
    return {result.variant: result for result in run.asked if result.stage is stage}


def _by_variant(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
    return {verdict.variant: verdict for verdict in verdicts}


# Compares tools on the same kernels: what each would have called slower, at which false alarms.


OURS = "perfsuite"
SIDE = 3
# Comparisons drawn for each subject and pair of units. Draws share processes: curves, no proof.
DRAWS = 60
CLASSICAL = 0.05
# The false alarms that a threshold is fitted to, on other units than it is tried on.
FITTED = 0.005
# False-alarm rates of a curve, down to what the draws resolve.
RATES = np.geomspace(0.002, 1, 40)

Values = Mapping[tuple[str, str], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Score:
    """What a tool says of one comparison: larger is slower; ``is_planted`` if work was added."""

    subject: str
    before: str
    unit: str
    is_planted: bool
    value: float


@dataclass(frozen=True, slots=True)
class Trial:
    """How a tool fares with a threshold: what it calls slower wrongly, and rightly."""

    threshold: str
    false: float
    power: float


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's scores on one or on another unit, and what thresholds make of them."""

    name: str
    is_cross: bool
    scores: tuple[Score, ...]
    trials: tuple[Trial, ...]

    def curve(self) -> list[tuple[float, float]]:
        """Return false-alarm and detection rates, the strictest first: the mean over subjects.

        Each subject has its own threshold for each rate, fitted to the very draws: the best that
        any choice of thresholds could make of the tool.
        """
        arms = [self._arms(subject) for subject in sorted({each.subject for each in self.scores})]
        return [(float(rate), _power(arms, float(rate))) for rate in RATES]

    def power_at(self, false: float) -> float:
        """Return the share of changes found where each subject has these false alarms."""
        arms = [self._arms(subject) for subject in sorted({each.subject for each in self.scores})]
        return _power(arms, false)

    def _arms(self, subject: str) -> tuple[np.ndarray, np.ndarray]:
        own = [each for each in self.scores if each.subject == subject]
        return (
            np.array([each.value for each in own if not each.is_planted]),
            np.array([each.value for each in own if each.is_planted]),
        )


def _power(arms: Sequence[tuple[np.ndarray, np.ndarray]], false: float) -> float:
    thresholds = [np.quantile(null, 1 - false, method="higher") for null, _ in arms]
    found = [
        np.mean(planted > threshold)
        for threshold, (_, planted) in zip(thresholds, arms, strict=True)
    ]
    return float(np.mean(found))


def tools_of(raw: Raw, *, draws: int = DRAWS) -> list[Tool]:
    """Return each tool on the same and on another unit, on the subjects that all tools have."""
    found = []
    for is_cross in (False, True):
        scores = {}
        for name, values in _values(raw).items():
            rnd = random.Random(f"0 {name} {is_cross}")  # noqa: S311 - draws
            score = _judged_tools(raw) if name == OURS else _ratio
            scores[name] = list(_scores(raw, values, score, _Draws(rnd, is_cross, draws)))
        told = {name: _subjects(each) for name, each in scores.items() if _subjects(each)}
        common = set.intersection(*told.values()) if told else set()
        for name in told if common else ():
            chosen = tuple(each for each in scores[name] if each.subject in common)
            found.append(Tool(name, is_cross, chosen, _trials(chosen)))
    return found


def _subjects(scores: Sequence[Score]) -> set[str]:
    """Return the subjects of which both arms are known."""
    arms = {(each.subject, each.is_planted) for each in scores}
    return {subject for subject, _ in arms if {(subject, True), (subject, False)} <= arms}


def _values(raw: Raw) -> dict[str, Values]:
    """Return what each tool said by variant and unit: a process with its wave, or a time."""
    found: dict[str, dict[tuple[str, str], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for wave in raw.waves:
        if not wave.fresh:
            alone = [replace(wave, processes=(process,)) for process in wave.processes]
            found[OURS][wave.variant, wave.unit] += alone
    for reading in raw.readings:
        if reading.time_us and reading.tool != CUPTI:
            found[reading.tool][reading.variant, reading.unit].append(reading.time_us)
    return {name: dict(values) for name, values in found.items()}


Scoring = Callable[[Variant, Variant, Sequence[Any], Sequence[Any]], float]


def _ratio(base: Variant, variant: Variant, before: Sequence[float], now: Sequence[float]) -> float:
    del base, variant
    return math.log(median(now) / median(before))


def _judged_tools(raw: Raw) -> Scoring:
    """Return the product's own measure: the change of the code, none where the clock is lost."""
    against = Against(facts=raw.header.facts, slug=raw.header.sku.slug)

    def score(
        base: Variant, variant: Variant, before: Sequence[Wave], now: Sequence[Wave]
    ) -> float:
        entry = structs.replace(entry_of(raw, base, before), variant=variant.id)
        result = result_of(variant, Stage.SCREEN, now)
        (verdict,) = judge(
            {variant.id: result}, variants=[variant], entries={variant.id: entry}, against=against
        )
        change = verdict.changes[0]
        return math.log1p(change.theta) if abs(change.clock_change) <= CLOCK_LIMIT else 0.0

    return score


@dataclass(frozen=True, slots=True)
class _Draws:
    rnd: random.Random
    is_cross: bool
    count: int

    def sides(
        self, base: Sequence[Any], now: Sequence[Any]
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield two sides without a process in common, if there are processes enough."""
        if base is now:
            if len(base) >= 2 * SIDE:
                for _ in range(self.count):
                    both = self.rnd.sample(base, 2 * SIDE)
                    yield both[:SIDE], both[SIDE:]
        elif min(len(base), len(now)) >= SIDE:
            for _ in range(self.count):
                yield self.rnd.sample(base, SIDE), self.rnd.sample(now, SIDE)


def _scores(raw: Raw, values: Values, score: Scoring, draws: _Draws) -> Iterator[Score]:
    pairs = [
        (one, other) for one in raw.units for other in raw.units if (one != other) is draws.is_cross
    ]
    for subject in subjects_of(raw.variants):
        arms = [] if subject.is_structural else [subject.base, subject.compared()[1]]
        for (before, unit), variant in itertools.product(pairs, arms):
            base = values.get((subject.base.id, before), ())
            now = values.get((variant.id, unit), ())
            for sides in draws.sides(base, now):
                value = score(subject.base, variant, *sides)
                yield Score(subject.name, before, unit, variant is not subject.base, value)


def _trials(scores: Sequence[Score]) -> tuple[Trial, ...]:
    fixed = math.log1p(CLASSICAL)
    null = [each.value > fixed for each in scores if not each.is_planted]
    hits = [each.value > fixed for each in scores if each.is_planted]
    trials = [Trial(f"{CLASSICAL:.0%}", float(np.mean(null)), float(np.mean(hits)))]
    fitted = _fitted(scores)
    return (*trials, fitted) if fitted else tuple(trials)


def _fitted(scores: Sequence[Score]) -> Trial | None:
    """Try each kernel's own threshold, fitted on the units that the tried one is not."""
    thresholds, null, hits = [], [], []
    for subject in dict.fromkeys(each.subject for each in scores):
        own = [each for each in scores if each.subject == subject]
        for unit in dict.fromkeys(each.unit for each in own):
            others = [s.value for s in own if not s.is_planted and unit not in (s.unit, s.before)]
            if not others:
                return None
            threshold = float(np.quantile(others, 1 - FITTED))
            thresholds.append(threshold)
            tried = [each for each in own if each.unit == unit]
            null += [each.value > threshold for each in tried if not each.is_planted]
            hits += [each.value > threshold for each in tried if each.is_planted]
    low, high = (math.expm1(pick(thresholds)) for pick in (min, max))
    words = f"fitted on other units, {low:.2%} to {high:.2%}"
    return Trial(words, float(np.mean(null)), float(np.mean(hits)))


# Draws ROC curves as SVG files of their own: false alarms across, changes found upwards.


WIDTH, HEIGHT, LEFT, TOP, BOTTOM, KEY = 640, 400, 52, 16, 44, 190
# False alarms are on a logarithmic scale from here: rarer ones are not resolved by the draws.
LEAST = 2e-3
# Told apart without colour vision by their dashes as well (Okabe and Ito's palette).
STYLES = (("#0072b2", ""), ("#d55e00", "6 3"), ("#009e73", "2 3"), ("#cc79a7", "9 3 2 3"),
          ("#e69f00", "4 4"))  # fmt: skip


def draw(tools: Sequence[Tool], title: str) -> str:
    """Return the curves of several tools as one SVG."""
    lines = "".join(_curve(tool, row) for row, tool in enumerate(tools))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{_axes()}{lines}</svg>\n'
    )


def _x(rate: float) -> float:
    share = 1 - math.log(max(rate, LEAST)) / math.log(LEAST)
    return LEFT + share * (WIDTH - KEY - LEFT)


def _y(power: float) -> float:
    return TOP + (1 - power) * (HEIGHT - TOP - BOTTOM)


def _axes() -> str:
    parts = []
    for power in (0, 0.25, 0.5, 0.75, 1):
        y = _y(power)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - KEY}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{power:.0%}</text>'
        )
    for rate in (LEAST, 0.01, 0.1, 1):
        x, label = _x(rate), f"{rate:.1%}".replace(".0%", "%")
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>'
        )
    middle = (LEFT + WIDTH - KEY) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">false alarms (A/A)</text>'
        f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {HEIGHT / 2})">changes found</text>'
    )
    return "".join(parts)


def _curve(tool: Tool, row: int) -> str:
    color, dashes = STYLES[row % len(STYLES)]
    points = " ".join(f"{_x(rate):.1f},{_y(power):.1f}" for rate, power in tool.curve())
    line = (
        f'fill="none" stroke="{color}" stroke-width="{3 if tool.name == OURS else 2}" '
        f'stroke-dasharray="{dashes}"'
    )
    x, y = WIDTH - KEY + 14, TOP + 14 + 20 * row
    return str(
        Markup('<polyline points="{}" {}/>').format(points, Markup(line))  # noqa: S704 - ours
        + Markup('<path d="M{} {}h24" {}/>').format(x, y, Markup(line))  # noqa: S704 - ours
        + Markup('<text x="{}" y="{}">{}</text>').format(x + 30, y + 4, tool.name)
    )


# Renders raw data as a page of the documentation, with its drawings beside it.


MET, MISSED, SHORT, NONE = "met", "**missed**", "not shown", "not measured"
DASH = "\N{EN DASH}"
WALL_S, BUSY, AGREEING = 1.5, 0.7, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What verdicts are held to: shares of comparisons, and how many show it.

    ``same`` and ``other``, of a baseline of the same unit and of others, are shares of work added
    and the share of comparisons that must find it.
    """

    false: float = 0.0
    compared: int = 3000
    unclear: float = 0.05
    same: tuple[tuple[float, float], ...] = ((0.005, 0.9), (0.01, 0.99))
    other: tuple[tuple[float, float], ...] = ((0.01, 0.9), (0.02, 0.99))


GPU_LIMITS = Limits()
# A CPU drifts by 5 to 16 % between processes.
CPU_LIMITS = Limits(false=0.01, compared=300, unclear=0.2, same=((0.3, 0.9),), other=())


@dataclass(frozen=True, slots=True)
class Target:
    """What the engine is held to, what was found, and whether that is enough."""

    item: str
    what: str
    figure: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Proof:
    """All figures of a page."""

    raw: Raw
    comparisons: tuple[Comparison, ...]
    cost: Cost
    agreements: tuple[Agreement, ...]
    spreads: tuple[Spread, ...]
    tools: tuple[Tool, ...]

    @property
    def relations(self) -> dict[int, str]:
        """How a baseline is related to what is compared with it, by the units it knows."""
        return relations_of(self.raw)

    def of(self, known: int) -> list[Comparison]:
        """Return the comparisons with a baseline of so many other units."""
        return [each for each in self.comparisons if each.known == known]

    def unchanged(self, known: int) -> Tally:
        """Return the words where nothing changed."""
        return tally(each for each in self.of(known) if not each.change)

    def targets(self) -> list[Target]:
        """Return what the engine is held to, in the order it is asked for."""
        is_cpu = self.raw.header.facts.is_host
        limits = CPU_LIMITS if is_cpu else GPU_LIMITS
        verdicts = [
            _false_alarms(words, self.unchanged(known), limits)
            for known, words in self.relations.items()
        ]
        for known, words in self.relations.items():
            found = by_change(self.of(known))
            for change, least in limits.other if known else limits.same:
                verdicts.append(_power_page(words, change, least, found.get(change)))
        if is_cpu:
            return verdicts
        return [*verdicts, *_costs(self.cost), _agreement(self.agreements)]


def relations_of(raw: Raw) -> dict[int, str]:
    """Return the relations that the units of raw data allow: the most of them is all others."""
    most = len(raw.units) - 1
    many = {most: f"{most} other units"} if most > 1 else {}
    return {0: "same unit", 1: "another unit", **many}


def prove(raw: Raw, *, runs: Sequence[Run] = (), draws: int = DRAWS) -> Proof:
    """Return the figures of raw data, and of whole ``runs`` of unchanged code.

    ``draws`` is for the curves of tools only.
    """
    compared = chain.from_iterable(Comparing(raw, known=known) for known in relations_of(raw))
    return Proof(
        raw,
        (*compared, *nights(runs)),
        cost(raw),
        tuple(agreements(raw)),
        tuple(spreads(raw)),
        tuple(tools_of(raw, draws=draws)),
    )


def write_page(proof: Proof, path: Path) -> list[Path]:
    """Write the page and its drawings beside it; return what was written."""
    drawings = {}
    for is_cross, words in ((False, "same unit"), (True, "another unit")):
        tools = [tool for tool in proof.tools if tool.is_cross is is_cross]
        if tools:
            drawings[words] = path.with_name(f"{path.stem}-roc-{words.replace(' ', '-')}.svg")
            replace_file(drawings[words], draw(tools, f"ROC, {words}").encode())
    page = _rendered(proof, {words: each.name for words, each in drawings.items()})
    replace_file(path, page.encode())
    return [path, *drawings.values()]


def _rendered(proof: Proof, drawings: dict[str, str]) -> str:
    # The page is Markdown: nothing in it is HTML but what stands in the template.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("perfsuite.prove"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "share": share}
    subjects = {words: by_subject(proof.of(known)) for known, words in proof.relations.items()}
    return environment.get_template("proof.md.j2").render(
        proof=proof,
        header=proof.raw.header,
        relations=proof.relations.items(),
        changes={words: by_change(proof.of(known)) for known, words in proof.relations.items()},
        subjects=subjects,
        rows=sorted({key for each in subjects.values() for key in each}),
        drawings=drawings,
        refusals=_refusals(proof.raw),
        seconds=_seconds(proof.raw),
        processes=sum(len(wave.processes) for wave in proof.raw.waves),
        agreeing_from=AGREEING_FROM_US,
    )


def _refusals(raw: Raw) -> dict[str, str]:
    """Return why a tool had no time to give, by tool, where it never had one."""
    told = {reading.tool for reading in raw.readings if reading.time_us}
    return {each.tool: each.reason for each in raw.readings if each.tool not in told}


def _seconds(raw: Raw) -> dict[str, float]:
    """Return the median seconds that a process of each tool measured for."""
    found: dict[str, list[float]] = {OURS: [wave.busy_s for wave in raw.waves if wave.processes]}
    for reading in raw.readings:
        if reading.time_us:
            found.setdefault(reading.tool, []).append(reading.seconds)
    return {tool: median(each) for tool, each in found.items() if each}


def percent(value: float, digits: int = 2) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return DASH if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def share(found: Share) -> str:
    """Return a share with its count and exact bounds."""
    if not found.total:
        return DASH
    low, high = found.bounds()
    return f"{found.count} of {found.total} ({percent(low, 1)} to {percent(high, 1)})"


def _false_alarms(relation: str, same: Tally, limits: Limits) -> Target:
    most = percent(limits.false, 0) if limits.false else "none"
    what = f"unchanged, {relation}: {most} slower or faster in {limits.compared} comparisons, "
    what += f"at most {percent(limits.unclear, 0)} unclear"
    if not same.wrong.total:
        return Target("1", what, "", NONE)
    high = same.wrong.bounds()[1]
    figure = f"{same.wrong.count} of {same.wrong.total} (below {percent(high)}), "
    figure += f"unclear {percent(same.unclear.value, 1)}"
    is_met = same.wrong.value <= limits.false and same.unclear.value <= limits.unclear
    is_enough = same.wrong.total >= limits.compared
    return Target("1", what, figure, MISSED if not is_met else MET if is_enough else SHORT)


def _power_page(relation: str, change: float, least: float, found: Tally | None) -> Target:
    what = f"{percent(change, 1)} more work found, {relation}: at least {percent(least, 0)}"
    if found is None:
        return Target("2", what, "", NONE)
    return Target("2", what, share(found.found), _met(found.found.value >= least))


def _met(is_met: bool) -> str:  # noqa: FBT001 - the one thing it says
    return MET if is_met else MISSED


def _costs(found: Cost) -> list[Target]:
    wall = f"median wall time of a variant on a warm panel: at most {WALL_S:g} s"
    busy = f"GPU not idle: at least {percent(BUSY, 0)} of the wall time"
    targets = [Target("3", wall, "", NONE), Target("3", busy, "", NONE)]
    if found.waves:
        targets[0] = Target("3", wall, f"{found.wall_s:.2f} s", _met(found.wall_s <= WALL_S))
    if found.busy is not None:
        figure = f"{percent(found.busy, 0)}; in samples {percent(found.timed, 0)}, "
        figure += f"in the spin about {percent(found.spin, 0)}"
        targets[1] = Target("3", busy, figure, _met(found.busy >= BUSY))
    return targets


def _agreement(found: Sequence[Agreement]) -> Target:
    what = f"samples within {percent(AGREEING, 0)} of CUPTI's kernel, "
    what += f"from {AGREEING_FROM_US:g} us"
    judged = [abs(each.difference) for each in found if each.is_judged]
    if not judged:
        return Target("5", what, "", NONE)
    within = sum(each <= AGREEING for each in judged)
    figure = f"{within} of {len(judged)}, worst {percent(max(judged))}"
    return Target("5", what, figure, _met(within == len(judged)))


# The command that proves what the engine is held to.


# Options with a metavar are named: typer 0.27.0 takes the metavar for the name.


def prove_proof(  # noqa: PLR0913, PLR0917 - a command line
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="To measure for: 90s, 20m, 1h")
    ] = "20m",
    device: Device = "auto",
    raw: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="RAW", help="Measure nothing, use these; repeatable"),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", metavar="RUN", help="A run file of unchanged code, to count too; repeatable"
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--raw", metavar="FILE", help="Where to keep what is measured"),
    ] = None,
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="What to write")] = Path(
        "reports/proof.md"
    ),
) -> None:
    """Measure planted changes and none, beside other tools, and write a page about it."""
    figures = prove
    from perfsuite.prove.raw import read_raw
    from perfsuite.store.runs import load_run

    whole = [load_run(path) for path in runs or []]
    if len({run.id for run in whole}) < len(whole):
        raise UsageError("the same run is named twice: it would be compared with itself")
    data = read_raw(raw or [_collected(_seconds_proof(time), device, keep)])
    _refuse_strangers(whole, data.header.facts.name)
    proof = figures(data, runs=whole)
    for target in proof.targets():
        say(f"{target.item}. {target.what}: {target.figure or '-'} {target.outcome}")
    if not any(target.figure for target in proof.targets()):
        say("next: too few processes to compare any; measure longer, with --time 20m or more")
    remedy = "what was measured is kept: perfsuite prove --from RAW --page FILE"
    with refusing("cannot write the page", page, remedy=remedy):
        for path in write_page(proof, page):
            say(f"wrote {path}")


def _refuse_strangers(runs: Sequence[Run], name: str) -> None:
    # By name: the slug of a board's revision is younger than some raw data.
    if others := {run.facts.name for run in runs} - {name}:
        raise UsageError(
            f"runs of {', '.join(sorted(others))} beside raw data of {name}",
            remedy="name runs of the device that the raw data is of",
        )


def _collected(budget_s: float, device: str, keep: Path | None) -> Path:
    from perfsuite.prove.collect import Plan, collect

    project = find_project()
    name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S.jsonl")
    path = keep or project.folder / "proofs" / name
    collect(Plan(path=path, root=project.root, device=device, budget_s=budget_s), say)
    say(f"raw data: {path}")
    return path


def _seconds_proof(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise UsageError(f"--time {error}", remedy="write 90s, 20m or 1h30m") from error
