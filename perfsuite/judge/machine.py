"""Tells a changed machine from changed code: variants and canaries that moved alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from perfsuite.judge.compare import SHIFTED, Grounds, shift_of
from perfsuite.judge.noise import ENDS, by_unit, sampling_of, values_of
from perfsuite.judge.verdict import draft_of
from perfsuite.model import (
    Change,
    Confirmation,
    MachineShift,
    Reason,
    Run,
    Verdict,
    Word,
    because,
)

# A share of fewer variants than these is no pattern.
FEWEST_COMPARABLE = 3
SHARE = 0.5
# On a card that the baseline has never seen, so many that moved are the card's doing: on boards of
# another revision a fifth had, and none of either canary (H200).
FEWEST_STRANGE, STRANGE_SHARE = 5, 0.1
WAYS = (Word.SLOWER, Word.FASTER)


@dataclass(frozen=True, slots=True)
class Machine:
    """What became of the run as a whole, and of its variants' verdicts because of that."""

    shift: MachineShift | None
    verdicts: tuple[Verdict, ...]
    notes: tuple[Reason, ...]


class _Crowd(NamedTuple):
    """The comparable variants of one unit, and those of them that moved one way."""

    unit: str
    word: Word
    comparable: Sequence[str]
    moved: Sequence[str]


def judge_machine(run: Run, verdicts: Sequence[Verdict], grounds: Grounds) -> Machine:
    """Return the run's verdict on its machine, and the variants' verdicts in its light.

    A unit has shifted if half of three or more comparable variants moved one way there and a
    canary did too, or a tenth did, either way, on a unit that no entry has processes of. Their
    verdicts are unclear then, but for what metrics without noise say.
    """
    canaries = list(_moves(run, grounds))
    notes = (*canaries, *_drifts(run, grounds))
    alike = {(reason.facts["unit"], reason.facts["word"]) for reason in canaries}
    crowds = [
        crowd
        for crowd in _crowds(run, verdicts)
        if len(crowd.comparable) >= FEWEST_COMPARABLE
        and len(crowd.moved) >= SHARE * len(crowd.comparable)
        and (crowd.unit, crowd.word.value) in alike
    ]
    if not crowds and not any(one.expected.in_turns for one in run.every):
        crowds = _strange(run, verdicts)
    shifts = [
        _shift(own, canaries, fails=SHIFTED in grounds.policy.fail_on)
        for word in WAYS
        if (own := [crowd for crowd in crowds if crowd.word is word])
    ]
    if not shifts:
        return Machine(None, tuple(verdicts), notes)
    fails = Word.UNCLEAR.value in grounds.policy.fail_on
    for each in shifts:
        verdicts = [_put_off(verdict, each, fails=fails) for verdict in verdicts]
    # The way in which most moved; the other's is in its reasons.
    shifts.sort(key=lambda shift: -shift.moved)
    whole = replace(
        shifts[0],
        reasons=tuple(reason for each in shifts for reason in each.reasons),
        variants=tuple(name for each in shifts for name in each.variants),
    )
    return Machine(whole, tuple(verdicts), notes)


def _shift(crowds: Sequence[_Crowd], canaries: Sequence[Reason], *, fails: bool) -> MachineShift:
    """Return the shift of one direction, on all the units that moved so."""
    word, units = crowds[0].word, tuple(crowd.unit for crowd in crowds)
    moved = tuple(dict.fromkeys(name for crowd in crowds for name in crowd.moved))
    comparable = len({name for crowd in crowds for name in crowd.comparable})
    told = [
        reason
        for reason in canaries
        if reason.facts["word"] == word.value and reason.facts["unit"] in units
    ]
    why = because(
        "shifted" if told else "shifted_card",
        word=word.value,
        moved=len(moved),
        comparable=comparable,
        units=units,
    )
    return MachineShift(
        word=word,
        reasons=(why, *told),
        moved=len(moved),
        comparable=comparable,
        units=units,
        canaries=tuple(dict.fromkeys(str(reason.facts["name"]) for reason in told)),
        variants=moved,
        fails=fails,
    )


def _put_off(verdict: Verdict, shift: MachineShift, *, fails: bool) -> Verdict:
    exact = any(not change.degrees and change.theta > 0 for change in verdict.changes)
    if verdict.variant not in shift.variants or verdict.word is not shift.word or exact:
        return verdict
    kind = "machine_shift" if shift.canaries else "strange_card"
    why = because(kind, moved=shift.moved, comparable=shift.comparable)
    return replace(
        verdict,
        word=Word.UNCLEAR,
        reasons=(why, *verdict.reasons),
        confirmation=Confirmation.NONE,
        fails=fails,
    )


def _strange(run: Run, verdicts: Sequence[Verdict]) -> list[_Crowd]:
    """Return the units without a process in any entry where many variants moved, either way.

    One card's word alone is unclear, so that it is the changes that count. What a card that is
    seen was asked as well is not this card's doing; where a unit is unknown none can be told.
    """
    entries = [one.entry for one in run.every if one.entry]
    seen = {unit for entry in entries for m in entry.metrics.values() for unit in m.values}
    if not seen or "" in seen:
        return []
    asked = ((each.variant, process.unit) for each in run.asked for process in each.evidence)
    at_home = {variant for variant, unit in asked if unit in {"", *seen}}
    away = [verdict for verdict in verdicts if verdict.variant not in at_home]
    counts: dict[str, int] = {}
    crowds = _crowds(run, away, with_unclear=True)
    for crowd in crowds:
        counts[crowd.unit] = counts.get(crowd.unit, 0) + len(crowd.moved)
    return [
        crowd
        for crowd in crowds
        if crowd.moved
        and crowd.unit not in seen
        and counts[crowd.unit] >= max(FEWEST_STRANGE, STRANGE_SHARE * len(crowd.comparable))
    ]


def _crowds(run: Run, verdicts: Sequence[Verdict], *, with_unclear: bool = False) -> list[_Crowd]:
    """Return by unit and way the variants that can be compared, and those whose time moved so."""
    measured = {result.variant: result for result in run.asked}
    by_unit: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if any(change.degrees for change in verdict.changes):
            for unit in sorted({each.unit for each in measured[verdict.variant].evidence}):
                by_unit.setdefault(unit, []).append(verdict)
    crowds = []
    for unit, own in by_unit.items():
        for word in WAYS:
            called = {*WAYS, Word.UNCLEAR} if with_unclear else {word}
            moved = [
                verdict.variant
                for verdict in own
                if verdict.word in called and any(_is_beyond(c, word) for c in verdict.changes)
            ]
            crowds.append(_Crowd(unit, word, [verdict.variant for verdict in own], moved))
    return crowds


def _is_beyond(change: Change, word: Word) -> bool:
    is_beyond = change.low > change.threshold
    if word is Word.FASTER:
        is_beyond = change.high < -change.threshold
    return is_beyond and bool(change.degrees)


# The canaries.


def _moves(run: Run, grounds: Grounds) -> Iterator[Reason]:
    """Yield each canary that is not as its baseline, by unit, at either end of the run."""
    for canary, stage in itertools.product(run.canaries, ENDS):
        for unit, result in by_unit(canary, stage).items():
            draft = draft_of(canary, result, grounds)
            if draft.shifts and draft.shifts[0].word.moved:
                yield because(
                    "canary",
                    name=canary.id,
                    word=draft.shifts[0].word.value,
                    stage=stage.value,
                    theta=draft.shifts[0].strict.theta,
                    source=canary.expected.source or "before",
                    unit=unit,
                )


def _drifts(run: Run, grounds: Grounds) -> Iterator[Reason]:
    """Yield how canaries moved from the start of the run to its end."""
    for canary, entry in ((one, one.entry) for one in run.canaries if one.entry):
        start, end = (by_unit(canary, stage) for stage in ENDS)
        for unit in (unit for unit in start if unit in end):
            ways = {sampling_of(each[unit].evidence) for each in (start, end)} - {None}
            if len(ways) > 1:
                continue
            try:
                sides = values_of(start[unit]), values_of(end[unit])
                prior = grounds.time_prior(canary, entry)
                drift = shift_of(*sides, prior=prior, grounds=grounds)
            except (ValueError, KeyError):  # an entry of no time, or of a regime not known here
                continue
            if drift.word.moved:
                yield because("drift", name=canary.id, theta=drift.strict.theta, unit=unit)
