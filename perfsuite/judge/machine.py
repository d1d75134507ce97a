"""Tells a changed machine from changed code: variants and canaries that moved alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perfsuite.judge.compare import SHIFTED, Against
from perfsuite.judge.verdict import draft_of, drift_of
from perfsuite.model import (
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


@dataclass(frozen=True, slots=True)
class _Move:
    """A canary that moved beyond its threshold on one unit."""

    canary: str
    unit: str
    word: Word
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Crowd:
    """The comparable variants of one unit, and those of them that moved one way."""

    unit: str
    word: Word
    comparable: Sequence[str]
    moved: Sequence[str]


def judge_machine(
    run: Run,
    verdicts: Sequence[Verdict],
    *,
    entries: Mapping[str, BaselineEntry],
    against: Against,
) -> Machine:
    """Return the run's verdict on its machine, and the variants' verdicts in its light.

    A unit has shifted if half of three or more comparable variants moved one way there and a
    canary did too, or a tenth did, either way, on a unit that no entry has processes of. Their
    verdicts are unclear then, but for what metrics without noise say.
    """
    moves = [*_against_baseline(run, entries, against)]
    notes = (*(move.reason for move in moves), *_drifts(run, entries, against))
    alike = {(move.unit, move.word) for move in moves}
    crowds = [
        crowd
        for word in WAYS
        for crowd in _crowds(run, verdicts, word)
        if len(crowd.comparable) >= FEWEST_COMPARABLE
        and len(crowd.moved) >= SHARE * len(crowd.comparable)
        and (crowd.unit, word) in alike
    ]
    if not crowds and not against.arms:
        crowds = [*_strange(run, verdicts, entries)]
    if not crowds:
        return Machine(None, tuple(verdicts), notes)
    fail_on = against.policy.fail_on
    chosen = [[crowd for crowd in crowds if crowd.word is word] for word in WAYS]
    shifts = [_shift(each, moves, fails=SHIFTED in fail_on) for each in chosen if each]
    for each in shifts:
        fails = Word.UNCLEAR.value in fail_on
        verdicts = [_put_off(verdict, each, fails=fails) for verdict in verdicts]
    # The way in which most moved; the other's is in its reasons.
    shifts.sort(key=lambda shift: -shift.moved)
    whole = replace(
        shifts[0],
        reasons=tuple(reason for each in shifts for reason in each.reasons),
        variants=tuple(name for each in shifts for name in each.variants),
    )
    return Machine(whole, tuple(verdicts), notes)


def _shift(chosen: Sequence[_Crowd], moves: Sequence[_Move], *, fails: bool) -> MachineShift:
    """Return the shift of one direction, on all the units that moved so."""
    word = chosen[0].word
    units = tuple(crowd.unit for crowd in chosen)
    told = [move for move in moves if move.word is word and move.unit in units]
    moved = tuple(dict.fromkeys(name for crowd in chosen for name in crowd.moved))
    comparable = len({name for crowd in chosen for name in crowd.comparable})
    crowd = because(
        "shifted" if told else "shifted_card",
        word=word.value,
        moved=len(moved),
        comparable=comparable,
        units=units,
    )
    return MachineShift(
        word=word,
        reasons=(crowd, *(move.reason for move in told)),
        moved=len(moved),
        comparable=comparable,
        units=units,
        canaries=tuple(dict.fromkeys(move.canary for move in told)),
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
) -> Iterator[_Crowd]:
    """Yield the units without a process in any entry where many variants moved, either way.

    One card's word alone is unclear, so that it is the changes that count. What a card that is
    seen was asked as well is not this card's doing; where a unit is unknown none can be told.
    """
    seen = {unit for entry in entries.values() for m in entry.metrics.values() for unit in m.values}
    if not seen or "" in seen:
        return
    asked = ((each.variant, process.unit) for each in run.asked for process in each.evidence)
    at_home = {variant for variant, unit in asked if unit in {"", *seen}}
    away = [verdict for verdict in verdicts if verdict.variant not in at_home]
    both_ways = [[*_crowds(run, away, word, with_unclear=True)] for word in WAYS]
    for both in zip(*both_ways, strict=True):
        count = sum(len(crowd.moved) for crowd in both)
        least = max(FEWEST_STRANGE, STRANGE_SHARE * len(both[0].comparable))
        if both[0].unit not in seen and count >= least:
            yield from (crowd for crowd in both if crowd.moved)


def _crowds(
    run: Run, verdicts: Sequence[Verdict], word: Word, *, with_unclear: bool = False
) -> Iterator[_Crowd]:
    """Yield of each unit the variants that can be compared, and those whose time moved this way."""
    measured = {result.variant: result for result in run.asked}
    by_unit: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if any(change.degrees for change in verdict.changes):
            for unit in sorted({each.unit for each in measured[verdict.variant].evidence}):
                by_unit.setdefault(unit, []).append(verdict)
    called = {*WAYS, Word.UNCLEAR} if with_unclear else {word}
    for unit, comparable in by_unit.items():
        moved = [
            verdict.variant
            for verdict in comparable
            if verdict.word in called
            and any(_is_beyond(c, word) for c in verdict.changes if c.degrees)
        ]
        yield _Crowd(unit, word, [verdict.variant for verdict in comparable], moved)


def _is_beyond(change: Change, word: Word) -> bool:
    if word is Word.SLOWER:
        return change.low > change.threshold
    return change.high < -change.threshold


def _against_baseline(
    run: Run, entries: Mapping[str, BaselineEntry], against: Against
) -> Iterator[_Move]:
    """Yield each canary that is not as its baseline, by unit, at either end of the run."""
    for canary, stage in itertools.product((one.variant for one in run.canaries), ENDS):
        for unit, result in _by_unit(run, canary, stage):
            draft = draft_of(canary, result, entry=entries.get(canary.id), against=against)
            word = draft.shifts[0].word(against.policy) if draft.shifts else Word.SAME
            if word.moved:
                reason = because(
                    "canary",
                    name=canary.id,
                    word=word.value,
                    stage=stage.value,
                    theta=draft.shifts[0].change(against.policy).theta,
                    source=against.source_of(canary.id) or "before",
                    unit=unit,
                )
                yield _Move(canary.id, unit, word, reason)


def _drifts(run: Run, entries: Mapping[str, BaselineEntry], against: Against) -> Iterator[Reason]:
    """Yield how canaries moved from the start of the run to its end."""
    for canary in (one.variant for one in run.canaries if one.id in entries):
        start, end = (dict(_by_unit(run, canary, stage)) for stage in ENDS)
        for unit in (unit for unit in start if unit in end):
            drift = drift_of(
                canary, start[unit], end[unit], entry=entries[canary.id], against=against
            )
            if drift and drift.word(against.policy).moved:
                theta = drift.change(against.policy).theta
                yield because("drift", name=canary.id, theta=theta, unit=unit)


def _by_unit(run: Run, canary: Variant, stage: Stage) -> Iterator[tuple[str, Result]]:
    """Yield a canary's last ok result of a stage, apart by unit."""
    found = [r for r in run.results if (r.variant, r.stage) == (canary.id, stage)]
    for result in [r for r in found[-1:] if r.status is Status.OK]:
        for unit in sorted({each.unit for each in result.evidence}):
            own = tuple(each for each in result.evidence if each.unit == unit)
            yield unit, replace(result, evidence=own)
