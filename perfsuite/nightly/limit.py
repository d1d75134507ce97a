"""Which variants fit into a time limit, by value and age."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import median

from perfsuite.model import (
    BaselineEntry,
    ClaimInstance,
    LeftOut,
    Regime,
    Result,
    Run,
    Stage,
    Status,
    Variant,
    Verdict,
    Word,
    words_of,
)
from perfsuite.packs.select import bundles_of
from perfsuite.run.config import Request
from perfsuite.store.runs import last_run
from perfsuite.store.sku import touched_since

# What earlier runs on a unit know of each variant: when it was measured, how, at what cost.


# A variant that none of these runs measured counts as never measured.
MOST_RUNS = 30
# Of a variant's last runs: what a machine does on one night is no estimate.
COSTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A variant's last measuring: in which run and of which commit, and what was left to be said.

    ``doubt`` is why it needs another look, empty if none; ``word`` how it ended. ``costs_s`` are
    seconds of one process of its screens, the newest first.
    """

    run: str
    commit: str
    word: str
    doubt: str = ""
    case_version: int = 1
    costs_s: tuple[float, ...] = ()

    def cost_s(self, processes: int) -> float | None:
        """Return what so many processes of it would take; None where that is not known."""
        return processes * median(self.costs_s) if self.costs_s else None


def past_of(
    folder: Path, *, sku: str, unit: str, variants: Iterable[str], before: str = ""
) -> dict[str, Past]:
    """Return what the runs before one say of variants (ids); those never measured are left out."""
    found: dict[str, Past] = {}
    wanted = set(variants)
    for run in _runs(folder, sku, unit, before):
        for name, past in _of_run(run).items():
            known = found.get(name)
            if known is None:
                found[name] = past
            elif len(known.costs_s) < COSTS:
                found[name] = replace(known, costs_s=(*known.costs_s, *past.costs_s))
        if wanted <= found.keys():
            break
    return found


def _runs(folder: Path, sku: str, unit: str, before: str) -> Iterator[Run]:
    for _ in range(MOST_RUNS):
        run = last_run(folder, sku=sku, unit=unit, before=before)
        if run is None:
            return
        yield run
        before = run.id


def _of_run(run: Run) -> dict[str, Past]:
    verdicts = {verdict.variant: verdict for verdict in run.verdicts}
    found: dict[str, Past] = {}
    for result in run.asked:
        verdict = verdicts.get(result.variant)
        known = found.get(result.variant)
        if result.status is Status.SKIPPED:
            continue
        word = verdict.word if verdict else result.status
        found[result.variant] = Past(
            run=run.id,
            commit=run.commit,
            word=word.value,
            doubt=_doubt(result, verdict),
            case_version=result.case_version,
            costs_s=known.costs_s if known else _costs(result),
        )
    return found


def _doubt(result: Result, verdict: Verdict | None) -> str:
    """Return why a variant needs another look: what fails is looked at until it does not."""
    if result.status is not Status.OK:
        return result.status.value
    if verdict is None:
        return ""
    if verdict.fails or verdict.word in {Word.UNCLEAR, Word.OVER_BUDGET, Word.SLOWER}:
        return verdict.word.value
    is_unconfirmed = verdict.word.moved and not verdict.confirmation
    return f"{verdict.word.value}, unconfirmed" if is_unconfirmed else ""


def _costs(result: Result) -> tuple[float, ...]:
    is_screen = result.stage is Stage.SCREEN and result.wall_s > 0
    return (result.wall_s / max(1, len(result.evidence)),) if is_screen else ()


# What of a run fits into its time limit, and what is told of the rest.


# Of the whole time: what is planned for the screen; when no variant begins to be screened any more,
# and none to be confirmed. The rest is for claims, traces and what takes longer than before.
PLANNED, SCREEN_END, CONFIRM_END = 0.6, 0.75, 0.9
# What needs another look gets so much of the planned time at most, so that all else has a turn.
URGENT = 0.5
# Seconds of a process, where no variant was ever measured.
UNKNOWN_S = 1.0
# The urgency of what nothing asks for.
CALM = 9


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long a run may take in seconds, by this process's clock; an infinite one cuts nothing.

    ``spent_s`` is what the run had taken before it was interrupted.
    """

    seconds: float = float("inf")
    spent_s: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def is_set(self) -> bool:
        """Say whether there is a limit at all."""
        return self.seconds < float("inf")

    def left_s(self, share: float = 1.0) -> float:
        """Return the seconds until this share of the time is over."""
        return max(0.0, self.seconds * share - self.spent_s - (time.monotonic() - self.started))

    def is_over(self, share: float = 1.0) -> bool:
        """Say whether this share of the time is over."""
        return self.left_s(share) <= 0.0

    def __str__(self) -> str:
        return f"--perf-time {words_of(self.seconds)}" if self.is_set else "no time limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known before a run: the past of variants, their entries, what a change touched.

    It measures with so many ``processes`` each on so many ``devices``, all of which a gang takes.
    """

    past: Mapping[str, Past] = field(default_factory=dict)
    entries: Mapping[str, BaselineEntry] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    processes: int = 3
    devices: int = 1

    def costs_s(self, variants: Sequence[Variant]) -> dict[str, float]:
        """Return the seconds that the screen of each takes; unknown ones cost as their like."""
        known = {v.id: c for v in variants if (c := self._cost_s(v)) is not None}
        of_kind: dict[tuple[str, ...], list[float]] = {}
        for variant in (each for each in variants if each.id in known):
            for kind in _kinds(variant):
                of_kind.setdefault(kind, []).append(known[variant.id])
        default = UNKNOWN_S * self.processes
        guesses = {kind: median(costs) for kind, costs in of_kind.items()}
        return {
            v.id: known.get(v.id) or next((guesses[k] for k in _kinds(v) if k in guesses), default)
            for v in variants
        }

    def _cost_s(self, variant: Variant) -> float | None:
        past = self.past.get(variant.id)
        processes = self.processes if variant.case.regime is not Regime.EXACT else 1
        found = past.cost_s(processes) if past else None
        return found * self.devices if found and variant.is_gang else found

    def urgency(self, variant: Variant) -> tuple[int, str]:
        """Return how much a variant needs a look, least is most, and why."""
        past = self.past.get(variant.id)
        if past is None:
            return CALM, "never measured here"
        when = "when last measured"
        entry = self.entries.get(variant.id)
        if past.doubt:
            return 0, f"{past.doubt} {when}"
        if variant.id in self.touched:
            return 1, "changed since it was measured"
        if entry is None or entry.case_version != variant.case.version:
            return 2, f"no baseline, {past.word} {when}"
        return CALM, f"{past.word} {when}"

    def last(self, variant: Variant) -> str:
        """Return the run that measured it last; nothing sorts first."""
        past = self.past.get(variant.id)
        return past.run if past else ""


@dataclass(frozen=True, slots=True)
class _Turn:
    """Variants that stay together, with what they cost and how much they need a look."""

    variants: tuple[Variant, ...]
    cost_s: float
    urgency: int
    last: str

    @property
    def age(self) -> tuple[str, float, str]:
        return self.last, self.cost_s, self.variants[0].id


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a time limit has room for: ``room_s`` seconds of screening, over all devices.

    ``whole_s`` is the room of a run that was not interrupted, where that is another.
    """

    limit: TimeLimit
    knowledge: Knowledge
    claims: tuple[ClaimInstance, ...] = ()
    room_s: float
    whole_s: float

    def chosen(self, variants: Sequence[Variant]) -> tuple[Variant, ...]:
        """Return what fits, in the order it is to be measured: the most valuable first.

        The oldest that fits at all is always taken. Then comes what needs a look (unclear, failing
        or unconfirmed; touched by a change; without a baseline), in half of the room at most; then
        what was not measured for longest. So everything that fits by itself has its turn.
        """
        turns = [turn for turn in self._turns(variants) if turn.cost_s <= self.room_s]
        oldest = sorted(turns, key=lambda turn: turn.age)
        urgent = sorted((t for t in turns if t.urgency < CALM), key=lambda t: (t.urgency, t.age))
        found: dict[str, _Turn] = {}
        left_s, others_s = self.room_s, self.room_s * (1 - URGENT)
        for some, kept_s in ((oldest[:1], 0.0), (urgent, others_s), (oldest, 0.0)):
            for turn in some:
                name = turn.variants[0].id
                if name not in found and turn.cost_s <= left_s - kept_s:
                    found[name] = turn
                    left_s -= turn.cost_s
        return tuple(variant for turn in found.values() for variant in turn.variants)

    def left_out(self, run: Run) -> tuple[LeftOut, ...]:
        """Return what a run that is through with its screen did not measure, and why."""
        if not self.limit.is_set:
            return ()
        measured = {result.variant for result in run.results if result.stage is Stage.SCREEN}
        costs = self.knowledge.costs_s(run.variants)
        return tuple(
            LeftOut(
                variant=variant.id,
                kind=(why := self._why(variant, turn))[0],
                reason=f"{self.limit} has no room: {'; '.join(filter(None, why))}",
                cost_s=round(costs[variant.id], 3),
            )
            for turn in self._turns(run.variants)
            for variant in turn.variants
            if variant.id not in measured
        )

    def told(self, run: Run) -> Iterator[str]:
        """Say what was left out of a run in one sentence; nothing where nothing was."""
        whole, gone = len(run.variants), len(run.left_out)
        if not gone:
            return
        cost = words_of(sum(each.cost_s for each in run.left_out))
        counts = Counter(sorted(each.kind for each in run.left_out))
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        yield (
            f"{self.limit}: {whole - gone} of {whole} variants had room, {gone} were left out "
            f"(about {cost} of measuring): {kinds}"
        )

    def _turns(self, variants: Sequence[Variant]) -> list[_Turn]:
        known, costs = self.knowledge, self.knowledge.costs_s(variants)
        return [
            _Turn(
                members,
                sum(costs[variant.id] for variant in members),
                min(known.urgency(variant)[0] for variant in members),
                min(known.last(variant) for variant in members),
            )
            for members in bundles_of(variants, self.claims)
        ]

    def _why(self, variant: Variant, turn: _Turn) -> tuple[str, str]:
        """Return the kind of a reason, and what belongs to the variant alone."""
        if turn.cost_s > self.whole_s:
            room, cost = words_of(self.whole_s), words_of(turn.cost_s)
            return "too long for it", f"{cost} of the {room} that it leaves for measuring"
        return self.knowledge.urgency(variant)[1], self.knowledge.last(variant)[:8]


def fit_of(
    run: Run,
    request: Request,
    *,
    limit: TimeLimit,
    entries: Mapping[str, BaselineEntry],
    devices: int,
) -> Fit:
    """Return what has room in a run that was just opened; canaries take theirs at both ends."""
    if not limit.is_set:
        return Fit(limit=limit, knowledge=Knowledge(), room_s=inf, whole_s=inf)
    ids = [each.id for each in (*run.variants, *run.canaries)]
    sku, unit = run.sku.slug, run.facts.unit
    past = past_of(request.folder, sku=sku, unit=unit, variants=ids, before=run.id)
    commits = {name: each.commit for name, each in past.items()}
    project = request.against.project if request.against else request.root
    knowledge = Knowledge(
        past=past,
        entries=entries,
        touched=touched_since(project, request.packs, run.variants, commits),
        processes=run.settings.processes * (2 if run.against else 1),
        devices=devices,
    )
    canaries_s = 2 * sum(knowledge.costs_s(run.canaries).values())
    room_s, whole_s = (
        devices * max(0.0, each.left_s(PLANNED) - canaries_s)
        for each in (limit, replace(limit, spent_s=0.0))
    )
    return Fit(
        limit=limit, knowledge=knowledge, claims=run.instances, room_s=room_s, whole_s=whole_s
    )


def _kinds(variant: Variant) -> Iterator[tuple[str, ...]]:
    yield variant.pack, variant.case.name
    yield (variant.pack,)
    yield ()
