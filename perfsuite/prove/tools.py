"""Compares tools on the same kernels: what each would have called slower, at which false alarms."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from perfsuite.judge import Against, judge
from perfsuite.judge.change import CLOCK_LIMIT
from perfsuite.model import Stage, Variant
from perfsuite.prove.deck import entry_of, result_of
from perfsuite.prove.peers import CUPTI
from perfsuite.prove.raw import Raw, Wave
from perfsuite.prove.subjects import subjects_of

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
            score = _judged(raw) if name == OURS else _ratio
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


def _judged(raw: Raw) -> Scoring:
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
