"""Sums up comparisons: shares with exact bounds, cost, agreement with CUPTI, spread by server."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from perfsuite import stats
from perfsuite.model import Word
from perfsuite.prove.comparisons import Comparison
from perfsuite.prove.peers import CUPTI
from perfsuite.prove.raw import Process, Raw, Wave
from perfsuite.prove.subjects import subjects_of

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
    return stats.hodges_lehmann(process.time_us)


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
    found = stats.pooled([list(map(float, group)) for group in groups])
    return found.value, found.degrees
