"""The figures and the page of a proof."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain, cycle, product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from msgspec.structs import replace

from perfsuite.boundary import UsageError
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
    VariantRun,
    Verdict,
    Word,
    seconds_of,
)
from perfsuite.prove.peers import CUPTI
from perfsuite.prove.raw import Raw, Subject, Wave, read_raw, subjects_of
from perfsuite.run.project import Device, find_project, say
from perfsuite.stats import hodges_lehmann, pooled
from perfsuite.store.files import refusing, replace_file
from perfsuite.store.runs import load_run

# Recorded processes, each dealt out once, as the results and the entries of a run.


def deal(raw: Raw, seed: int | None = None) -> dict[tuple[str, str], list[Wave]]:
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
        evidence=tuple(
            Evidence(
                slot=0,
                seed=0,
                unit=wave.unit,
                launches=wave.launches,
                backend=wave.backend,
                pace=wave.pace,
                sets=wave.sets,
                blocks=tuple(
                    Block(time_us=(time_us,), cycles=process.cycles[index : index + 1])
                    for index, time_us in enumerate(process.time_us)
                ),
            )
            for wave in waves
            for process in wave.processes
        ),
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
        variants=(VariantRun(variant=variant, results=(result_of(variant, Stage.SCREEN, waves),)),),
    )
    return entries_of(run)[variant.id]


# Comparisons of processes that no other side shares, judged by the product.


class Comparison(NamedTuple):
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


class Case(NamedTuple):
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
    leaves unclear is held against the round's unchanged code there, as in A against B.
    """

    def __init__(self, raw: Raw, *, known: int, seed: int | None = None) -> None:
        self._raw, self._known = raw, known
        self._against = Against(facts=raw.header.facts, slug=raw.header.sku.slug)
        self._waves = deal(raw, seed)
        settings = raw.header.settings
        # So many waves confirm a screen.
        self._confirming = -(-settings.confirm_processes // settings.processes)

    def __iter__(self) -> Iterator[Comparison]:
        """Yield comparisons, round by round, until no pair of units has waves left."""
        units, known = self._raw.units, self._known
        pairs: list[tuple[tuple[str, ...], str]] = [((unit,), unit) for unit in units]
        if known:
            others = {unit: [each for each in units if each != unit] for unit in units}
            shifts = range(len(units) - 1 if len(units) > known else 0)
            pairs = [
                (tuple((2 * others[unit])[shift : shift + known]), unit)
                for shift in shifts
                for unit in units
            ]
        left = len(pairs)
        for before, unit in cycle(pairs):
            found = list(self._round(before, unit))
            yield from found
            left = len(pairs) if found else left - 1
            if not left:
                return

    def _round(self, before: tuple[str, ...], unit: str) -> Iterator[Comparison]:
        same: list[Case] = []
        planted: list[Case] = []
        here: dict[str, Wave] = {}
        for subject in subjects_of(self._raw.variants):
            there = [self._waves[subject.base.id, each] for each in before]
            # Enough that a run can be judged against a baseline of one wave of each unit.
            needed = 1 + self._confirming + (unit in before)
            if not all(there) or len(self._waves[subject.base.id, unit]) < needed:
                continue
            entry = entry_of(self._raw, subject.base, [waves.pop(0) for waves in there])
            here[subject.base.id] = self._waves[subject.base.id, unit][0]
            for change, variant in {0.0: subject.base, **subject.planted}.items():
                waves = self._waves[variant.id, unit][: 1 + self._confirming]
                if len(waves) == 1 + self._confirming:
                    screen = result_of(variant, Stage.SCREEN, waves[:1])
                    confirm = result_of(variant, Stage.CONFIRM, waves[1:])
                    own = replace(entry, variant=variant.id)
                    case = Case(subject, change, variant, own, screen, confirm)
                    (planted if change else same).append(case)
        entries = {case.variant.id: case.entry for case in same}
        screened = self._verdicts(same, entries, Stage.SCREEN)
        doubtful = [case for case in same if wants_confirmation(screened[case.variant.id])]
        confirmed = self._verdicts(doubtful, entries, Stage.CONFIRM)
        for case in same:
            name = case.variant.id
            verdict = confirmed.get(name, screened[name])
            yield self._comparison(case, verdict, used=name in confirmed)
        for case in planted:
            name = case.variant.id
            verdict = self._verdicts([case], entries, Stage.SCREEN)[name]
            was_doubtful = wants_confirmation(verdict)
            if was_doubtful:
                family = [each for each in doubtful if each.subject is not case.subject]
                verdict = self._verdicts([case, *family], entries, Stage.CONFIRM)[name]
            if verdict.card:
                verdict = self._decided(case, verdict, here[case.subject.base.id])
            yield self._comparison(case, verdict, used=was_doubtful)

    def _verdicts(
        self, cases: Sequence[Case], entries: Mapping[str, BaselineEntry], stage: Stage
    ) -> dict[str, Verdict]:
        # A run has the whole baseline at hand, of which a planted change replaces one variant.
        replaced = {case.subject.base.id for case in cases}
        rest = {name: each for name, each in entries.items() if name not in replaced}
        is_screen = stage is Stage.SCREEN
        found = judge(
            {case.variant.id: case.screen if is_screen else case.confirm for case in cases},
            variants=[case.variant for case in cases],
            entries={**rest, **{case.variant.id: case.entry for case in cases}},
            against=self._against,
        )
        return {verdict.variant: verdict for verdict in found}

    def _decided(self, case: Case, verdict: Verdict, here: Wave) -> Verdict:
        """Return what A against B says of what an unseen unit leaves unclear.

        As a run does, by one wave of each side, then by as many as confirm where something seems to
        have moved. A run takes fresh ones for these; here the first is among them.
        """
        header, name, base = self._raw.header, case.variant.id, case.subject.base
        entry = replace(entry_of(self._raw, base, [here]), variant=name)
        against = Against(facts=header.facts, slug=header.sku.slug, arms=frozenset({name}))

        def say(result: Result) -> Verdict:
            results, entries = {name: result}, {name: entry}
            return judge(results, variants=[case.variant], entries=entries, against=against)[0]

        first = case.confirm.evidence[: header.settings.processes]
        found = say(replace(case.confirm, evidence=first))
        if wants_confirmation(found, is_brief=True):
            found = say(case.confirm)
        return found if found.word in {Word.SLOWER, Word.FASTER} else verdict

    def _comparison(self, case: Case, verdict: Verdict, *, used: bool) -> Comparison:
        """Return the comparison and drop its waves; those it did not confirm with stay.

        Whether a wave is used depends on what was seen before it only.
        """
        unit = case.screen.evidence[0].unit
        del self._waves[case.variant.id, unit][: 1 + (self._confirming if used else 0)]
        before = tuple(case.entry.metrics["time_us"].values)
        return Comparison(case.subject, case.change, before, unit, verdict)


# Whole runs of unchanged code are compared as the nights of one project.


def nights(runs: Sequence[Run]) -> Iterator[Comparison]:
    """Yield each run's variants against the newest earlier run of them, on each SKU.

    Twice, where there is one on the same unit and one on another. A run is judged by its screen,
    and by its confirmation where that has been measured; no process is on two sides.
    """
    ordered = sorted(runs, key=lambda run: run.started)
    for place, run in enumerate(ordered):
        earlier = [each for each in ordered[:place] if each.sku.slug == run.sku.slug]
        for is_home in (True, False):
            before = [one for one in earlier if (one.facts.unit == run.facts.unit) is is_home]
            entries = {name: entry for one in before for name, entry in entries_of(one).items()}
            if variants := [one.variant for one in run.variants if one.id in entries]:
                yield from _night(run, variants, entries)


def _night(
    run: Run, variants: Sequence[Variant], entries: Mapping[str, BaselineEntry]
) -> Iterator[Comparison]:
    against = partial(Against, facts=run.facts, slug=run.sku.slug, known=tuple(entries.values()))
    screens, confirms = (
        {result.variant: result for result in run.asked if result.stage is stage}
        for stage in (Stage.SCREEN, Stage.CONFIRM)
    )
    screened = judge(screens, variants=variants, entries=entries, against=against())
    doubtful = {each.variant for each in screened if wants_confirmation(each)} & confirms.keys()
    confirmed = judge(
        {name: confirms[name] for name in confirms if name in doubtful},
        variants=variants,
        entries=entries,
        against=against(screened=screens),
    )
    for verdict in {each.variant: each for each in (*screened, *confirmed)}.values():
        variant = next(each for each in variants if each.id == verdict.variant)
        name = f"{variant.pack} pack, whole runs"
        metrics = entries[variant.id].metrics.values()
        units = sorted({unit for metric in metrics for unit in metric.values})
        subject = Subject(name=name, base=variant, planted={})
        yield Comparison(subject, 0.0, tuple(units), run.facts.unit, verdict)


# What comparisons come to: shares with exact bounds, by change and by subject.


class Share(NamedTuple):
    """``part`` of ``total`` with the exact 95 % bounds to either side (Clopper-Pearson)."""

    part: int
    total: int

    @property
    def value(self) -> float:
        """The share; NaN of nothing."""
        return self.part / self.total if self.total else math.nan

    def bounds(self) -> tuple[float, float]:
        """Return the least and the largest share that is not refuted, each at 95 %."""
        if not self.total:
            return 0.0, 1.0
        from scipy.stats import binomtest

        found = binomtest(self.part, self.total).proportion_ci(0.90, method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        if not self.total:
            return DASH
        low, high = self.bounds()
        return f"{self.part} of {self.total} ({percent(low, 1)} to {percent(high, 1)})"


class Tally:
    """The words on some comparisons; ``seen`` is the median change of the code."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        chosen = list(comparisons)
        seen = [each.verdict.changes[0].theta for each in chosen if each.verdict.changes]
        self.words = Counter(each.verdict.word for each in chosen)
        self.seen = median(seen) if seen else math.nan
        self.units = len({(each.before, each.unit) for each in chosen})
        # Slower or faster where nothing changed; slower where work was added; no word either way.
        self.wrong = self._share(Word.SLOWER, Word.FASTER)
        self.found = self._share(Word.SLOWER)
        self.unclear = self._share(Word.UNCLEAR)

    def _share(self, *words: Word) -> Share:
        return Share(sum(self.words[word] for word in words), self.words.total())


def by_change(comparisons: Iterable[Comparison]) -> dict[float, Tally]:
    """Return a tally of each share of work that was added, structural subjects left out."""
    groups: dict[float, list[Comparison]] = defaultdict(list)
    for each in comparisons:
        if each.change and not each.subject.is_structural:
            groups[each.change].append(each)
    return {change: Tally(groups[change]) for change in sorted(groups)}


def by_subject(comparisons: Iterable[Comparison]) -> dict[tuple[str, float], Tally]:
    """Return a tally of each subject and change, 0 among them."""
    groups: dict[tuple[str, float], list[Comparison]] = defaultdict(list)
    for each in comparisons:
        groups[each.subject.name, each.change].append(each)
    return {key: Tally(group) for key, group in groups.items()}


# What measuring costs, how it agrees with CUPTI, and how far fresh servers spread.

AGREEING_FROM_US = 20.0
BOOTSTRAPS = 2000


class Cost(NamedTuple):
    """What a variant costs on a warm panel; shares are of the wall time of its stretches."""

    wall_s: float
    waves: int
    busy: float | None
    timed: float
    spin: float
    failed: Mapping[str, int]


def cost(raw: Raw) -> Cost:
    """Return the median wall time of a variant, and where the GPU's time went."""
    warm = [wave.wall_s for wave in raw.waves if not wave.fresh and wave.processes]
    wall_s = sum(each.wall_s for each in raw.stretches) or math.nan
    polled = [(each.busy, each.wall_s) for each in raw.stretches if each.busy is not None]
    busy_s = sum(busy * seconds for busy, seconds in polled)
    return Cost(
        wall_s=median(warm or [math.nan]),
        waves=len(warm),
        busy=busy_s / sum(seconds for _, seconds in polled) if polled else None,
        timed=sum(each.timed_s for each in raw.stretches) / wall_s,
        spin=sum(each.spin_s for each in raw.stretches) / wall_s,
        failed=Counter(wave.reason for wave in raw.waves if wave.reason),
    )


class Agreement(NamedTuple):
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


def agreements(raw: Raw) -> Iterator[Agreement]:
    """Yield the subjects of one kernel each that CUPTI was asked about."""
    names = {s.base.id: s.name for s in subjects_of(raw.variants) if not s.is_structural}
    for reading in raw.readings:
        times = _times_us(raw, reading.variant, reading.unit) if reading.tool == CUPTI else []
        if times and reading.time_us and reading.variant in names:
            yield Agreement(names[reading.variant], median(times), reading.time_us)


def _times_us(raw: Raw, variant: str, unit: str, *, fresh: bool = False) -> list[float]:
    """Return the time of each process of a variant on a unit."""
    return [
        hodges_lehmann(process.time_us)
        for wave in raw.waves
        if (wave.variant, wave.unit, wave.fresh) == (variant, unit, fresh)
        for process in wave.processes
    ]


class Spread(NamedTuple):
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
        pairs = [
            tuple(
                np.log(_times_us(raw, subject.base.id, unit, fresh=each)) for each in (False, True)
            )
            for unit in raw.units
        ]
        pairs = [pair for pair in pairs if min(map(len, pair)) > 1]
        if pairs:
            (warm, _), (fresh, _) = _pooled(pairs)
            counts = (sum(len(pair[0]) for pair in pairs), sum(len(pair[1]) for pair in pairs))
            found.append(Spread(subject.name, math.sqrt(warm), math.sqrt(fresh), counts))
            # Each subject has a spread of its own: what is compared is the ratio to its warm one.
            groups += [tuple(side / math.sqrt(warm or 1.0) for side in pair) for pair in pairs]
    if not found:
        return []
    from scipy.stats import f

    (warm, n), (fresh, m) = _pooled(groups)
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(BOOTSTRAPS):
        drawn = [[rng.choice(pair[side], len(pair[side])) for pair in groups] for side in (0, 1)]
        (one, _), (other, _) = _pooled(list(zip(*drawn, strict=True)))
        if min(one, other) > 0:
            ratios.append(math.sqrt(other / one))
    quotient = fresh / warm if warm else math.nan
    p_value = 2 * min(f.sf(quotient, m, n), f.cdf(quotient, m, n))
    low, high = np.quantile(ratios, [0.025, 0.975]) if ratios else (math.nan, math.nan)
    counts = (sum(each.counts[0] for each in found), sum(each.counts[1] for each in found))
    name = "all, in units of each one's warm spread"
    spread = math.sqrt(warm), math.sqrt(fresh)
    return [*found, Spread(name, *spread, counts, (float(low), float(high)), float(p_value))]


def _pooled(pairs: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return of each side the variance inside its groups and the degrees of freedom."""
    sides = [
        pooled([list(map(float, group)) for group in side]) for side in zip(*pairs, strict=True)
    ]
    return [(found.value, found.degrees) for found in sides]


# Tools on the same kernels: what each would have called slower, at which false alarms.

OURS = "perfsuite"
SIDE = 3
# Comparisons drawn for each subject and pair of units. Draws share processes: curves, no proof.
DRAWS = 60
CLASSICAL = 0.05
# The false alarms that a threshold is fitted to, on other units than it is tried on.
FITTED = 0.005
# False-alarm rates of a curve, down to what the draws resolve.
RATES = np.geomspace(0.002, 1, 40)


class Score(NamedTuple):
    """What a tool says of one comparison: larger is slower; ``is_planted`` if work was added."""

    subject: str
    before: str
    unit: str
    is_planted: bool
    value: float


class Trial(NamedTuple):
    """How a tool fares with a threshold: what it calls slower wrongly, and rightly."""

    threshold: str
    false: float
    power: float


class Tool(NamedTuple):
    """A tool's scores on one or on another unit."""

    name: str
    is_cross: bool
    scores: Sequence[Score]

    def curve(self) -> list[tuple[float, float]]:
        """Return false-alarm and detection rates, the strictest first."""
        return [(float(rate), self.power_at(float(rate))) for rate in RATES]

    def power_at(self, false: float) -> float:
        """Return the share of changes found where each subject has these false alarms: their mean.

        Each subject has its own threshold, fitted to the very draws: the best that any choice of
        thresholds could make of the tool.
        """
        sides: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for each in self.scores:
            sides[each.subject][each.is_planted].append(each.value)
        found = [
            np.mean(np.array(planted) > np.quantile(null, 1 - false, method="higher"))
            for _, (null, planted) in sorted(sides.items())
        ]
        return float(np.mean(found))

    def trials(self) -> list[Trial]:
        """Try a threshold of 5 %, and each kernel's own, fitted on the units that it is not on."""
        classical = [(each, math.log1p(CLASSICAL)) for each in self.scores]
        fitted, thresholds = [], []
        for subject, unit in dict.fromkeys((each.subject, each.unit) for each in self.scores):
            own = [each for each in self.scores if each.subject == subject]
            nulls = [s.value for s in own if not s.is_planted and unit not in (s.unit, s.before)]
            if not nulls:
                return [_trial(f"{CLASSICAL:.0%}", classical)]
            thresholds.append(float(np.quantile(nulls, 1 - FITTED)))
            fitted += [(each, thresholds[-1]) for each in own if each.unit == unit]
        low, high = math.expm1(min(thresholds)), math.expm1(max(thresholds))
        words = f"fitted on other units, {low:.2%} to {high:.2%}"
        return [_trial(f"{CLASSICAL:.0%}", classical), _trial(words, fitted)]


def _trial(words: str, tried: Sequence[tuple[Score, float]]) -> Trial:
    false, power = (
        float(np.mean([score.value > least for score, least in tried if score.is_planted is each]))
        for each in (False, True)
    )
    return Trial(words, false, power)


def tools_of(raw: Raw, *, draws: int = DRAWS) -> list[Tool]:
    """Return each tool on the same and on another unit, on the subjects that all tools have."""
    said: dict[str, dict[tuple[str, str], list[Any]]] = defaultdict(lambda: defaultdict(list))
    for wave in raw.waves:
        if not wave.fresh:
            alone = [replace(wave, processes=(process,)) for process in wave.processes]
            said[OURS][wave.variant, wave.unit] += alone
    for reading in raw.readings:
        if reading.time_us and reading.tool != CUPTI:
            said[reading.tool][reading.variant, reading.unit].append(reading.time_us)
    found = []
    for is_cross in (False, True):
        scores = {
            name: list(_scores(raw, name, values, is_cross=is_cross, draws=draws))
            for name, values in said.items()
        }
        sides = {name: {(s.subject, s.is_planted) for s in each} for name, each in scores.items()}
        told = {
            name: {subject for subject, _ in each if {(subject, True), (subject, False)} <= each}
            for name, each in sides.items()
        }
        told = {name: subjects for name, subjects in told.items() if subjects}
        common = set.intersection(*told.values()) if told else set()
        for name in told if common else ():
            chosen = [each for each in scores[name] if each.subject in common]
            found.append(Tool(name, is_cross, chosen))
    return found


def _scores(
    raw: Raw, name: str, values: Mapping[Any, Sequence[Any]], *, is_cross: bool, draws: int
) -> Iterator[Score]:
    """Yield what a tool says of draws of two sides that have no process in common."""
    rnd = random.Random(f"0 {name} {is_cross}")  # noqa: S311 - draws
    score = _judged(raw) if name == OURS else _ratio
    pairs = [pair for pair in product(raw.units, repeat=2) if (pair[0] != pair[1]) is is_cross]
    for subject in subjects_of(raw.variants):
        chosen = [] if subject.is_structural else [subject.base, subject.compared()]
        for (before, unit), variant in product(pairs, chosen):
            base = values.get((subject.base.id, before), ())
            now = values.get((variant.id, unit), ())
            is_one = base is now
            if min(len(base), len(now)) < SIDE * (1 + is_one):
                continue
            for _ in range(draws):
                both = rnd.sample(base, SIDE * (1 + is_one))
                other = both[SIDE:] if is_one else rnd.sample(now, SIDE)
                value = score(subject.base, variant, both[:SIDE], other)
                yield Score(subject.name, before, unit, variant is not subject.base, value)


def _ratio(_: Variant, __: Variant, before: Sequence[float], now: Sequence[float]) -> float:
    return math.log(median(now) / median(before))


def _judged(raw: Raw) -> Callable[[Variant, Variant, Sequence[Wave], Sequence[Wave]], float]:
    """Return the product's own measure: the change of the code, none where the clock is lost."""
    against = Against(facts=raw.header.facts, slug=raw.header.sku.slug)

    def score(
        base: Variant, variant: Variant, before: Sequence[Wave], now: Sequence[Wave]
    ) -> float:
        entry = replace(entry_of(raw, base, before), variant=variant.id)
        result = result_of(variant, Stage.SCREEN, now)
        (verdict,) = judge(
            {variant.id: result}, variants=[variant], entries={variant.id: entry}, against=against
        )
        change = verdict.changes[0]
        return math.log1p(change.theta) if abs(change.clock_change) <= CLOCK_LIMIT else 0.0

    return score


# The page of the documentation, with ROC curves beside it: false alarms across, found upwards.

MET, MISSED, SHORT, NONE = "met", "**missed**", "not shown", "not measured"
DASH = "\N{EN DASH}"
WALL_S, BUSY, AGREEING = 1.5, 0.7, 0.01


class Limits(NamedTuple):
    """What verdicts are held to: shares of comparisons, and how many show it.

    ``same`` and ``other``, of a baseline of the same unit and of others, are shares of work added
    and the share of comparisons that must find it.
    """

    false: float = 0.0
    compared: int = 3000
    unclear: float = 0.05
    same: tuple[tuple[float, float], ...] = ((0.005, 0.9), (0.01, 0.99))
    other: tuple[tuple[float, float], ...] = ((0.01, 0.9), (0.02, 0.99))


# A CPU drifts by 5 to 16 % between processes.
CPU_LIMITS = Limits(false=0.01, compared=300, unclear=0.2, same=((0.3, 0.9),), other=())


class Target(NamedTuple):
    """What the engine is held to, what was found, and whether that is enough."""

    item: str
    what: str
    figure: str
    outcome: str


class Proof:
    """All figures of raw data and of whole ``runs`` of unchanged code; ``draws`` is for curves."""

    def __init__(self, raw: Raw, *, runs: Sequence[Run] = (), draws: int = DRAWS) -> None:
        self.raw = raw
        most = len(raw.units) - 1
        # How a baseline is related to what is compared with it, by the other units it knows.
        self.relations = {0: "same unit", 1: "another unit"}
        self.relations |= {most: f"{most} other units"} if most > 1 else {}
        compared = chain.from_iterable(Comparing(raw, known=known) for known in self.relations)
        self.comparisons = (*compared, *nights(runs))
        self.cost = cost(raw)
        self.agreements = list(agreements(raw))
        self.spreads = spreads(raw)
        self.tools = tools_of(raw, draws=draws)

    def of(self, known: int) -> list[Comparison]:
        """Return the comparisons with a baseline of so many other units."""
        return [each for each in self.comparisons if each.known == known]

    def unchanged(self, known: int) -> Tally:
        """Return the words where nothing changed."""
        return Tally(each for each in self.of(known) if not each.change)

    def targets(self) -> Iterator[Target]:
        """Yield what the engine is held to, in the order it is asked for."""
        is_host = self.raw.header.facts.is_host
        limits = CPU_LIMITS if is_host else Limits()
        for known, words in self.relations.items():
            most = percent(limits.false, 0) if limits.false else "none"
            what = f"unchanged, {words}: {most} slower or faster in {limits.compared} comparisons, "
            what += f"at most {percent(limits.unclear, 0)} unclear"
            same = self.unchanged(known)
            part, total = same.wrong
            figure = f"{part} of {total} (below {percent(same.wrong.bounds()[1])}), "
            figure += f"unclear {percent(same.unclear.value, 1)}"
            is_met = same.wrong.value <= limits.false and same.unclear.value <= limits.unclear
            is_enough = MET if total >= limits.compared else SHORT
            yield _target("1", what, figure if total else "", is_enough if is_met else MISSED)
        for known, words in self.relations.items():
            found = by_change(self.of(known))
            for change, least in limits.other if known else limits.same:
                what = f"{percent(change, 1)} more work found, {words}: "
                what += f"at least {percent(least, 0)}"
                share = found[change].found if change in found else Share(0, 0)
                figure = str(share) if share.total else ""
                yield _target("2", what, figure, MET if share.value >= least else MISSED)
        if is_host:
            return
        spent = self.cost
        what = f"median wall time of a variant on a warm panel: at most {WALL_S:g} s"
        figure = f"{spent.wall_s:.2f} s" if spent.waves else ""
        yield _target("3", what, figure, MET if spent.wall_s <= WALL_S else MISSED)
        what = f"GPU not idle: at least {percent(BUSY, 0)} of the wall time"
        figure = f"{percent(spent.busy, 0)}; in samples {percent(spent.timed, 0)}, "
        figure += f"in the spin about {percent(spent.spin, 0)}"
        is_met = spent.busy is not None and spent.busy >= BUSY
        yield _target("3", what, "" if spent.busy is None else figure, MET if is_met else MISSED)
        what = f"samples within {percent(AGREEING, 0)} of CUPTI's kernel, "
        what += f"from {AGREEING_FROM_US:g} us"
        away = [abs(each.difference) for each in self.agreements if each.is_judged]
        within = sum(each <= AGREEING for each in away)
        figure = f"{within} of {len(away)}, worst {percent(max(away, default=0.0))}"
        yield _target("5", what, figure if away else "", MET if within == len(away) else MISSED)

    def seconds(self) -> dict[str, float]:
        """Return the median seconds that a process of each tool measured for."""
        found = defaultdict(list, {OURS: [w.busy_s for w in self.raw.waves if w.processes]})
        for reading in self.raw.readings:
            if reading.time_us:
                found[reading.tool].append(reading.seconds)
        return {tool: median(each) for tool, each in found.items() if each}

    def refusals(self) -> dict[str, str]:
        """Return why a tool had no time to give, by tool, where it never had one."""
        told = {reading.tool for reading in self.raw.readings if reading.time_us}
        return {each.tool: each.reason for each in self.raw.readings if each.tool not in told}


def _target(item: str, what: str, figure: str, outcome: str) -> Target:
    return Target(item, what, figure, outcome if figure else NONE)


def percent(value: float | None, digits: int = 2) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return DASH if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def write_page(proof: Proof, path: Path) -> list[Path]:
    """Write the page and its drawings beside it; return what was written."""
    # The page is Markdown: nothing in it is HTML but what stands in the template.
    environment = Environment(
        loader=PackageLoader("perfsuite.prove"),
        autoescape=select_autoescape(["svg.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["percent"] = percent
    drawings = {}
    for is_cross, words in ((False, "same unit"), (True, "another unit")):
        if tools := [tool for tool in proof.tools if tool.is_cross is is_cross]:
            drawings[words] = path.with_name(f"{path.stem}-roc-{words.replace(' ', '-')}.svg")
            drawn = environment.get_template("roc.svg.j2").render(
                title=f"ROC, {words}", tools=tools, ours=OURS, log=math.log
            )
            replace_file(drawings[words], drawn.encode())
    subjects = {words: by_subject(proof.of(known)) for known, words in proof.relations.items()}
    page = environment.get_template("proof.md.j2").render(
        proof=proof,
        header=proof.raw.header,
        relations=proof.relations.items(),
        changes={words: by_change(proof.of(known)) for known, words in proof.relations.items()},
        subjects=subjects,
        rows=sorted({key for each in subjects.values() for key in each}),
        drawings={words: each.name for words, each in drawings.items()},
        seconds=proof.seconds(),
        processes=sum(len(wave.processes) for wave in proof.raw.waves),
    )
    replace_file(path, page.encode())
    return [path, *drawings.values()]


# The command. Options with a metavar are named: typer 0.27.0 takes the metavar for the name.

Paths = list[Path] | None


def prove(  # noqa: PLR0913, PLR0917 - a command line
    time: Annotated[
        str, typer.Option("--time", metavar="TIME", help="To measure for: 90s, 20m, 1h")
    ] = "20m",
    device: Device = "auto",
    raw: Annotated[
        Paths, typer.Option("--from", metavar="RAW", help="Measure nothing, use these; repeatable")
    ] = None,
    runs: Annotated[
        Paths,
        typer.Option(
            "--run", metavar="RUN", help="A run file of unchanged code, to count too; repeatable"
        ),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--raw", metavar="FILE", help="Where to keep what is measured")
    ] = None,
    page: Annotated[Path, typer.Option("--page", metavar="FILE", help="What to write")] = Path(
        "reports/proof.md"
    ),
) -> None:
    """Measure planted changes and none, beside other tools, and write a page about it."""
    whole = [load_run(path) for path in runs or []]
    if len({run.id for run in whole}) < len(whole):
        raise UsageError("the same run is named twice: it would be compared with itself")
    data = read_raw(raw or [_collected(time, device, keep)])
    # By name: the slug of a board's revision is younger than some raw data.
    name = data.header.facts.name
    if others := {run.facts.name for run in whole} - {name}:
        raise UsageError(
            f"runs of {', '.join(sorted(others))} beside raw data of {name}",
            remedy="name runs of the device that the raw data is of",
        )
    proof = Proof(data, runs=whole)
    targets = list(proof.targets())
    for target in targets:
        say(f"{target.item}. {target.what}: {target.figure or '-'} {target.outcome}")
    if not any(target.figure for target in targets):
        say("next: too few processes to compare any; measure longer, with --time 20m or more")
    remedy = "what was measured is kept: perfsuite prove --from RAW --page FILE"
    with refusing("cannot write the page", page, remedy=remedy):
        for path in write_page(proof, page):
            say(f"wrote {path}")


def _collected(time: str, device: str, keep: Path | None) -> Path:
    from perfsuite.prove.collect import collect

    try:
        budget_s = seconds_of(time)
    except ValueError as error:
        raise UsageError(f"--time {error}", remedy="write 90s, 20m or 1h30m") from error
    project = find_project()
    path = keep or project.folder / "proofs" / datetime.now(UTC).strftime("%Y%m%d-%H%M%S.jsonl")
    collect(path, root=project.root, device=device, budget_s=budget_s, say=say)
    say(f"raw data: {path}")
    return path
