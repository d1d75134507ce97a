"""Tells a changed machine from changed code: variants and canaries that moved alike."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perfsuite.judge.compare import Against
from perfsuite.judge.verdict import draft_of, drift_of, percent, word_of
from perfsuite.model import (
    BaselineEntry,
    Change,
    MachineShift,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
)

# A share of fewer variants than these is no pattern.
FEWEST_COMPARABLE = 3
SHARE = 0.5
# On a card that the baseline has never seen, so many that moved are the card's doing: on boards of
# another revision a fifth had, and none of either canary (H200).
FEWEST_STRANGE, STRANGE_SHARE = 5, 0.1
SHIFTED = "machine-shift"
MOVED = (Word.SLOWER, Word.FASTER)
WHEN = {Stage.CANARY_START: "at the start", Stage.CANARY_END: "at the end"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What became of the run as a whole, and of its variants' verdicts because of that."""

    shift: MachineShift | None
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Move:
    """A canary that moved beyond its threshold on one unit."""

    canary: str
    unit: str
    word: Word
    text: str


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
    drifts = [*_drifts(run, entries, against)]
    crowds = [
        crowd
        for word in MOVED
        for crowd in _crowds(run, verdicts, word)
        if any((move.unit, move.word) == (crowd.unit, word) for move in moves)
    ]
    if not against.arms:
        crowds = crowds or [*_strange(run, verdicts, entries)]
    notes = (*(move.text for move in moves), *drifts)
    if not crowds:
        return Machine(None, tuple(verdicts), notes)
    fails = SHIFTED in against.policy.fail_on
    shifts = [
        _shift([crowd for crowd in crowds if crowd.word is word], moves, fails=fails)
        for word in MOVED
        if word in {crowd.word for crowd in crowds}
    ]
    fails = Word.UNCLEAR.value in against.policy.fail_on
    for each in shifts:
        verdicts = [_put_off(verdict, each, fails=fails) for verdict in verdicts]
    return Machine(_joined(shifts), tuple(verdicts), notes)


def _joined(shifts: Sequence[MachineShift]) -> MachineShift:
    """Return the shift of the direction in which most moved; the other's is in its reason."""
    first, *others = sorted(shifts, key=lambda shift: -shift.moved)
    return replace(
        first,
        reason="; ".join(each.reason for each in (first, *others)),
        variants=tuple(name for each in (first, *others) for name in each.variants),
    )


def _shift(chosen: Sequence[_Crowd], moves: Sequence[_Move], *, fails: bool) -> MachineShift:
    """Return the shift of one direction, on all the units that moved so."""
    word = chosen[0].word
    units = tuple(crowd.unit for crowd in chosen)
    told = [move for move in moves if move.word is word and move.unit in units]
    moved = tuple(dict.fromkeys(name for crowd in chosen for name in crowd.moved))
    comparable = {name for crowd in chosen for name in crowd.comparable}
    cause = "which the baseline has never seen: the card itself, its driver or libraries differ"
    if told:
        texts = "; ".join(move.text for move in told)
        cause = f"and so is the machine itself (hardware, driver or libraries): {texts}"
    return MachineShift(
        word=word,
        reason=f"{len(moved)} of {len(comparable)} comparable variants are {word.value} on "
        f"{_units(units)}, {cause}",
        moved=len(moved),
        comparable=len(comparable),
        units=units,
        canaries=tuple(dict.fromkeys(move.canary for move in told)),
        variants=moved,
        fails=fails,
    )


def _put_off(verdict: Verdict, shift: MachineShift, *, fails: bool) -> Verdict:
    exact = any(not change.degrees and change.theta > 0 for change in verdict.changes)
    if verdict.variant not in shift.variants or verdict.word is not shift.word or exact:
        return verdict
    alike = "moved alike, canaries too" if shift.canaries else "moved on a card never seen before"
    why = f"{SHIFTED}: {shift.moved} of {shift.comparable} variants {alike}"
    reason = f"{why}; {verdict.reason}"
    return replace(verdict, word=Word.UNCLEAR, reason=reason, confirmation="", fails=fails)


def _crowds(run: Run, verdicts: Sequence[Verdict], word: Word) -> Iterator[_Crowd]:
    """Yield the units where enough variants moved this way."""
    for crowd in _moved(run, verdicts, word):
        comparable = len(crowd.comparable)
        if comparable >= FEWEST_COMPARABLE and len(crowd.moved) >= SHARE * comparable:
            yield crowd


def _strange(
    run: Run, verdicts: Sequence[Verdict], entries: Mapping[str, BaselineEntry]
) -> Iterator[_Crowd]:
    """Yield the units without a process in any entry where many variants moved, either way.

    One card's word alone is unclear, so that it is the changes that count. What a card that is
    seen was asked as well is not this card's doing; where a unit is unknown none can be told.
    """
    seen = {unit for entry in entries.values() for m in entry.metrics.values() for unit in m.values}
    if "" in seen:
        return
    asked = ((each.variant, process.unit) for each in run.asked for process in each.evidence)
    at_home = {variant for variant, unit in asked if unit in {"", *seen}}
    verdicts = [verdict for verdict in verdicts if verdict.variant not in at_home]
    told = [v for v in verdicts if v.word in {*MOVED, Word.UNCLEAR}]
    ways = [
        [*_moved(run, [replace(v, word=word) if v in told else v for v in verdicts], word)]
        for word in MOVED
    ]
    for both in zip(*ways, strict=True):
        count = sum(len(crowd.moved) for crowd in both)
        least = max(FEWEST_STRANGE, STRANGE_SHARE * len(both[0].comparable))
        if seen and both[0].unit not in seen and count >= least:
            yield from (crowd for crowd in both if crowd.moved)


def _moved(run: Run, verdicts: Sequence[Verdict], word: Word) -> Iterator[_Crowd]:
    measured = {result.variant: result for result in run.asked}
    by_unit: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if any(change.degrees for change in verdict.changes):
            for unit in sorted({each.unit for each in measured[verdict.variant].evidence}):
                by_unit.setdefault(unit, []).append(verdict)
    for unit, comparable in by_unit.items():
        moved = [v.variant for v in comparable if v.word is word and _is_timed(v, word)]
        yield _Crowd(unit, word, [v.variant for v in comparable], moved)


def _is_timed(verdict: Verdict, word: Word) -> bool:
    return any(_is_beyond(c, word) for c in verdict.changes if c.degrees)


def _is_beyond(change: Change, word: Word) -> bool:
    if word is Word.SLOWER:
        return change.low > change.threshold
    return change.high < -change.threshold


def _against_baseline(
    run: Run, entries: Mapping[str, BaselineEntry], against: Against
) -> Iterator[_Move]:
    """Yield each canary that is not as its baseline, by unit, at either end of the run."""
    for canary, stage in itertools.product(run.canaries, WHEN):
        for unit, result in _by_unit(run, canary, stage):
            draft = draft_of(canary, result, entry=entries.get(canary.id), against=against)
            shift = draft.shifts[0] if draft.shifts else None
            if shift and (word := word_of(shift, against.policy)) in MOVED:
                theta = percent(shift.change(against.policy).theta)
                source = against.source_of(canary.id) or "before"
                text = f"canary {canary.id} {word.value} {WHEN[stage]} ({theta} against {source})"
                yield _Move(canary.id, unit, word, f"{text} on {_units([unit])}")


def _drifts(run: Run, entries: Mapping[str, BaselineEntry], against: Against) -> Iterator[str]:
    """Yield in words how canaries moved from the start of the run to its end."""
    for canary in (one for one in run.canaries if one.id in entries):
        ends = [dict(_by_unit(run, canary, stage)) for stage in WHEN]
        for unit in [unit for unit in ends[0] if unit in ends[1]]:
            drift = drift_of(
                canary, ends[0][unit], ends[1][unit], entry=entries[canary.id], against=against
            )
            if drift and word_of(drift, against.policy) in MOVED:
                theta = percent(drift.change(against.policy).theta)
                where = _units([unit])
                yield f"canary {canary.id} drifted by {theta} from start to end on {where}"


def _by_unit(run: Run, canary: Variant, stage: Stage) -> Iterator[tuple[str, Result]]:
    """Yield a canary's last ok result of a stage, apart by unit."""
    found = [r for r in run.results if (r.variant, r.stage) == (canary.id, stage)]
    for result in [r for r in found[-1:] if r.status is Status.OK]:
        for unit in sorted({each.unit for each in result.evidence}):
            own = tuple(each for each in result.evidence if each.unit == unit)
            yield unit, replace(result, evidence=own)


def _units(units: Sequence[str]) -> str:
    return ", ".join(f"unit {unit[:4]}" if unit else "an unknown unit" for unit in units)
