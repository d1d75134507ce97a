"""Forms comparisons of processes that no other side shares, and lets the product judge them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfsuite.judge import Against, judge, wants_confirmation
from perfsuite.model import (
    BaselineEntry,
    Result,
    Stage,
    Variant,
    Verdict,
    Word,
)
from perfsuite.prove.deck import deck_of, entry_of, result_of
from perfsuite.prove.raw import Raw, Wave
from perfsuite.prove.subjects import Subject, subjects_of


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
            _Case(subject, change, variant, replace(entry, variant=variant.id), screen, confirm)
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
        entry = replace(entry_of(self._raw, base, [self._here[base.id]]), variant=name)
        against = replace(self._against, arms=frozenset({name}))
        first = case.confirm.evidence[: self._raw.header.settings.processes]

        def say(result: Result) -> Verdict:
            results, entries = {name: result}, {name: entry}
            return judge(results, variants=[case.variant], entries=entries, against=against)[0]

        found = say(replace(case.confirm, evidence=first))
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
