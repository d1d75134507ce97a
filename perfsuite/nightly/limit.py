"""Which variants fit into a time limit, by value and age, and what is told of the rest."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from perfsuite import model
from perfsuite.judge.rule import looks_of
from perfsuite.packs.select import bundles_of
from perfsuite.run.config import Config, TimeLimit
from perfsuite.store.git import touched_since
from perfsuite.store.runs import ended_runs, list_runs

# A variant that none of this many runs has measured is new; one that had no room for
# all does not count among them, up to so many.
RUNS_BACK, MOST_BACK = 10, 30
# Of a variant's last runs: what a machine does on one night is no estimate.
COSTS = 3
# Of the whole time: what is planned for the screen. What needs another look gets so much of that at
# most, so that all else has a turn.
PLANNED, URGENT = 0.6, 0.5
# Seconds of a process, where no variant was ever measured.
UNKNOWN_S = 1.0
# The urgency of what nothing asks for.
CALM = 9


class Past(Struct, frozen=True, kw_only=True):
    """A variant's last measuring: in which run, of which commit, and how it ended.

    ``doubt`` is why it needs another look, empty if none. ``costs_s`` are seconds of one process
    of its screens, the newest first.
    """

    run: str
    commit: str
    word: str
    doubt: str = ""
    costs_s: list[float] = []


def past_of(run: model.Run, folder: Path) -> dict[str, Past]:
    """Return what the runs before one say of its variants; those never measured are left out."""
    ids = {one.id for one in run.every}
    found: dict[str, Past] = {}
    for earlier in earlier_runs(folder, run):
        for one in earlier.variants:
            last, screen = one.last, one.result(model.Stage.SCREEN)
            if one.id not in ids or last is None or last.status is model.Status.SKIPPED:
                continue
            word = one.verdict.word if one.verdict else last.status
            doubt = _doubt(last.status, one.verdict)
            past = Past(run=earlier.id, commit=earlier.commit, word=word.value, doubt=doubt)
            costs_s = found.setdefault(one.id, past).costs_s
            if screen and screen.wall_s > 0 and len(costs_s) < COSTS:
                costs_s.append(screen.wall_s / max(1, len(screen.evidence)))
        if found.keys() >= ids:
            break
    return found


def earlier_runs(folder: Path, run: model.Run) -> Iterator[model.Run]:
    """Yield the last runs on a unit before this one, newest first."""
    paths = (path for path in list_runs(folder) if path.stem < run.id)
    whole = 0
    found = ended_runs(paths, sku=run.sku.slug, unit=run.facts.unit)
    for earlier in itertools.islice(found, MOST_BACK):
        yield earlier
        whole += not earlier.left_out
        if whole == RUNS_BACK:
            return


def _doubt(status: model.Status, verdict: model.Verdict | None) -> str:
    if verdict is None or status is not model.Status.OK:
        return "" if status is model.Status.OK else status.value
    word = verdict.word
    if verdict.fails or word in {"over-budget", "slower", "unclear"}:
        return word.value
    return "faster, unconfirmed" if word is model.Word.FASTER and not verdict.confirmation else ""


class _Bundle(NamedTuple):
    """Variants that stay together; in order of age, by the last run that measured them.

    Of those alike a digest chooses: what there is room for comes from all packs.
    """

    last: str
    cost_s: float
    digest: str
    urgency: int
    variants: tuple[model.Variant, ...]


class Fit(Struct, frozen=True, kw_only=True):
    """What a time limit has room for: ``room_s`` seconds of screening, over all devices.

    Of variants ``past``, their ``entries`` and what a change ``touched`` are known. Each is
    measured by so many ``processes`` on one of so many ``devices``, all of which a gang takes.
    Canaries take ``canaries_s`` at both ends.
    """

    limit: TimeLimit
    room_s: float = inf
    claims: tuple[model.ClaimInstance, ...] = ()
    past: Mapping[str, Past] = {}
    entries: Mapping[str, model.BaselineEntry] = {}
    touched: frozenset[str] = frozenset()
    processes: int = 3
    devices: int = 1
    canaries_s: float = 0.0

    def chosen(self, variants: Sequence[model.Variant]) -> tuple[model.Variant, ...]:
        """Return what fits, in the order it is to be measured: the most valuable first.

        The oldest that fits at all is always taken. Then comes what needs a look (unclear, failing
        or unconfirmed; touched by a change; without a baseline), in half of the room at most; then
        what was not measured for longest. So everything that fits by itself has its turn.
        """
        oldest = sorted(each for each in self._bundles(variants) if each.cost_s <= self.room_s)
        urgent = sorted((one for one in oldest if one.urgency < CALM), key=lambda one: one.urgency)
        found: dict[str, _Bundle] = {}
        left_s = self.room_s
        for some, kept_s in ((oldest[:1], 0.0), (urgent, left_s * (1 - URGENT)), (oldest, 0.0)):
            for each in some:
                if each.digest not in found and each.cost_s <= left_s - kept_s:
                    found[each.digest] = each
                    left_s -= each.cost_s
        return tuple(variant for each in found.values() for variant in each.variants)

    def still(self, run: model.Run) -> Fit:
        """Return what the time that is left has room for, if all cost as what was screened did."""
        screened = [
            one
            for one in run.variants
            if (own := one.result(model.Stage.SCREEN)) and own.status is not model.Status.SKIPPED
        ]
        costs_s = self.costs_s([one.variant for one in screened])
        took_s = [
            result.wall_s * (self.devices if one.variant.is_gang else 1)
            for one in screened
            for side in model.Side
            if (result := one.result(model.Stage.SCREEN, side))
        ]
        ratio = sum(took_s) / sum(costs_s.values()) if sum(took_s) else 1.0
        left_s = max(0.0, self.limit.left_s() * PLANNED - self.canaries_s / 2)
        return replace(self, room_s=self.devices * left_s / ratio)

    def cut(self, run: model.Run) -> model.Run:
        """Return a run that is through with its screen, with what it left out, and a note of it."""
        measured = {result.variant for result in run.results if result.stage is model.Stage.SCREEN}
        variants = [one.variant for one in run.variants]
        costs_s = self.costs_s(variants)
        # The room of a run that was not interrupted.
        whole_s = self.devices * (self.limit.seconds * PLANNED - self.canaries_s)
        left_out: list[model.LeftOut] = []
        kinds: Counter[str] = Counter()
        for bundle in self._bundles(variants):
            for variant in bundle.variants:
                if variant.id in measured:
                    continue
                kind, detail = self._need(variant)[1:]
                if bundle.cost_s > whole_s:
                    room, cost = model.words_of(max(0.0, whole_s)), model.words_of(bundle.cost_s)
                    kind = "too long for it"
                    detail = f"; {cost} of the {room} that it leaves for measuring"
                kinds[kind] += 1
                reason = f"{self.limit} has no room: {kind}{detail}"
                cost_s = round(costs_s[variant.id], 3)
                left_out.append(model.LeftOut(variant=variant.id, reason=reason, cost_s=cost_s))
        if not left_out:
            return run
        whole, gone = len(run.variants), len(left_out)
        note = (
            f"{self.limit}: {whole - gone} of {whole} variants had room, {gone} were left out "
            f"(about {model.words_of(sum(each.cost_s for each in left_out))} of measuring): "
            f"{', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}"
        )
        return replace(run.having(left_out=left_out), notes=(note, *run.notes))

    def costs_s(self, variants: Sequence[model.Variant]) -> dict[str, float]:
        """Return the seconds that the screen of each takes; unknown ones cost as their like."""
        known: dict[str, float] = {}
        alike: dict[str, list[float]] = {}
        for variant in variants:
            past = self.past.get(variant.id)
            if past is None or not past.costs_s:
                continue
            processes = 1 if variant.case.regime is model.Regime.EXACT else self.processes
            devices = self.devices if variant.is_gang else 1
            known[variant.id] = median(past.costs_s) * processes * devices
            for kind in _kinds(variant):
                alike.setdefault(kind, []).append(known[variant.id])
        guesses = {kind: median(costs) for kind, costs in alike.items()}
        default = UNKNOWN_S * self.processes
        for variant in variants:
            guess = next((guesses[kind] for kind in _kinds(variant) if kind in guesses), default)
            known.setdefault(variant.id, guess)
        return known

    def _need(self, variant: model.Variant) -> tuple[int, str, str]:
        """Return how much a variant needs a look, least is most, why, and since which run."""
        past, entry = self.past.get(variant.id), self.entries.get(variant.id)
        if past is None:
            return CALM, "never measured here", ""
        since = f", {past.run[:4]}-{past.run[4:6]}-{past.run[6:8]}"
        if past.doubt:
            return 0, f"{past.doubt} when last measured", since
        if variant.id in self.touched:
            return 1, "changed since it was measured", since
        if entry is None or entry.case_version != variant.case.version:
            return 2, f"no baseline, {past.word} when last measured", since
        return CALM, f"{past.word} when last measured", since

    def _bundles(self, variants: Sequence[model.Variant]) -> Iterator[_Bundle]:
        costs_s = self.costs_s(variants)
        for members in bundles_of(variants, self.claims):
            pasts = [self.past.get(variant.id) for variant in members]
            yield _Bundle(
                last=min(past.run if past else "" for past in pasts),
                cost_s=sum(costs_s[variant.id] for variant in members),
                digest=hashlib.blake2b(members[0].id.encode()).hexdigest(),
                urgency=min(self._need(variant)[0] for variant in members),
                variants=members,
            )


def fit_of(
    run: model.Run,
    config: Config,
    *,
    limit: TimeLimit,
    entries: Mapping[str, model.BaselineEntry],
    devices: int,
) -> Fit:
    """Return what has room in a run that was just opened; canaries take theirs at both ends."""
    past = past_of(run, config.folder)
    commits = {name: each.commit for name, each in past.items()}
    fit = Fit(
        limit=limit,
        claims=run.instances,
        past=past,
        entries=entries,
        touched=touched_since(config.project, config.packs, config.variants, commits),
        processes=2 * looks_of(run.settings).step if run.against else run.settings.processes,
        devices=devices,
    )
    canaries_s = 2 * sum(fit.costs_s([one.variant for one in run.canaries]).values())
    room_s = devices * max(0.0, limit.left_s(PLANNED) - canaries_s)
    return replace(fit, room_s=room_s, canaries_s=canaries_s)


def _kinds(variant: model.Variant) -> tuple[str, ...]:
    return f"{variant.pack}.{variant.case.name}", variant.pack, ""
