"""Tells a changed machine from changed code: variants and canaries that moved alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from perfsuite.judge.compare import SHIFTED, Against, shift_of
from perfsuite.judge.noise import Timing, usable_of, values_of, values_of_entry
from perfsuite.judge.verdict import draft_of
from perfsuite.model import (
    TIME,
    BaselineEntry,
    Change,
    Confirmation,
    MachineShift,
    Reason,
    Result,
    Run,
    Stage,
    Status,
    Variant,
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
ENDS = (Stage.CANARY_START, Stage.CANARY_END)


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


def judge_machine(
    run: Run, verdicts: Sequence[Verdict], *, entries: Mapping[str, BaselineEntry], against: Against
) -> Machine:
    """Return the run's verdict on its machine, and the variants' verdicts in its light.

    A unit has shifted if half of three or more comparable variants moved one way there and a
    canary did too, or a tenth did, either way, on a unit that no entry has processes of. Their
    verdicts are unclear then, but for what metrics without noise say.
    """
    canaries = list(_moves(run, entries, against))
    notes = (*canaries, *_drifts(run, entries, against))
    alike = {(reason.facts["unit"], reason.facts["word"]) for reason in canaries}
    crowds = [
        crowd
        for crowd in _crowds(run, verdicts)
        if len(crowd.comparable) >= FEWEST_COMPARABLE
        and len(crowd.moved) >= SHARE * len(crowd.comparable)
        and (crowd.unit, crowd.word.value) in alike
    ]
    if not crowds and not against.arms:
        crowds = _strange(run, verdicts, entries)
    shifts = [
        _shift(own, canaries, fails=SHIFTED in against.policy.fail_on)
        for word in WAYS
        if (own := [crowd for crowd in crowds if crowd.word is word])
    ]
    if not shifts:
        return Machine(None, tuple(verdicts), notes)
    fails = Word.UNCLEAR.value in against.policy.fail_on
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


def _strange(
    run: Run, verdicts: Sequence[Verdict], entries: Mapping[str, BaselineEntry]
) -> list[_Crowd]:
    """Return the units without a process in any entry where many variants moved, either way.

    One card's word alone is unclear, so that it is the changes that count. What a card that is
    seen was asked as well is not this card's doing; where a unit is unknown none can be told.
    """
    seen = {unit for entry in entries.values() for m in entry.metrics.values() for unit in m.values}
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


def _moves(run: Run, entries: Mapping[str, BaselineEntry], against: Against) -> Iterator[Reason]:
    """Yield each canary that is not as its baseline, by unit, at either end of the run."""
    for canary, stage in itertools.product((one.variant for one in run.canaries), ENDS):
        for unit, result in _by_unit(run, canary, stage).items():
            draft = draft_of(canary, result, entry=entries.get(canary.id), against=against)
            if draft.shifts and draft.shifts[0].word.moved:
                yield because(
                    "canary",
                    name=canary.id,
                    word=draft.shifts[0].word.value,
                    stage=stage.value,
                    theta=draft.shifts[0].strict.theta,
                    source=against.source_of(canary.id) or "before",
                    unit=unit,
                )


def _drifts(run: Run, entries: Mapping[str, BaselineEntry], against: Against) -> Iterator[Reason]:
    """Yield how canaries moved from the start of the run to its end."""
    for canary in (one.variant for one in run.canaries if one.id in entries):
        start, end = (_by_unit(run, canary, stage) for stage in ENDS)
        for unit in (unit for unit in start if unit in end):
            try:
                sides = values_of(start[unit]), values_of(end[unit])
                prior = against.time_prior(canary, entries[canary.id])
                drift = shift_of(*sides, prior=prior, policy=against.policy)
            except (ValueError, KeyError):  # an entry of no time, or of a regime not known here
                continue
            if drift.word.moved:
                yield because("drift", name=canary.id, theta=drift.strict.theta, unit=unit)


def _by_unit(run: Run, canary: Variant, stage: Stage) -> dict[str, Result]:
    """Return a canary's last result of a stage, apart by unit; none if it is not ok."""
    found = [r for r in run.results if (r.variant, r.stage) == (canary.id, stage)]
    by_unit = {}
    for result in [r for r in found[-1:] if r.status is Status.OK]:
        for unit in sorted({each.unit for each in result.evidence}):
            own = tuple(each for each in result.evidence if each.unit == unit)
            by_unit[unit] = replace(result, evidence=own)
    return by_unit


def canary_clocks(
    run: Run, entries: Mapping[str, BaselineEntry]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the compute canary's SM clock in MHz by unit, in its baseline and in this run.

    It is the canary with the most operations per second: what draws the most power.
    """
    measured: dict[float, tuple[BaselineEntry, list[Timing]]] = {}
    for canary in (one.variant for one in run.canaries):
        entry = entries.get(canary.id)
        ended = [_by_unit(run, canary, stage).values() for stage in ENDS]
        timings = [one for results in ended for each in results for one in usable_of(each)]
        if entry and TIME.name in entry.metrics and canary.work and canary.work.flops and timings:
            rate = canary.work.flops / median(item.time_us for item in timings)
            measured[rate] = entry, timings
    if not measured:
        return {}, {}
    chosen, timings = measured[max(measured)]
    before, now = _clocks(values_of_entry(chosen)), _clocks(timings)
    # A unit that the baseline does not know is held against those that it does.
    usual = dict.fromkeys(now, median(before.values())) if before else {}
    return {**usual, **before}, now


def _clocks(timings: Sequence[Timing]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for item in timings:
        if item.cycles:
            found.setdefault(item.unit, []).append(item.cycles / item.time_us)
    return {unit: median(values) for unit, values in found.items()}
