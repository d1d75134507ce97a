"""Accepts a run as baseline, and warns of what would be accepted with it."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean

from perfsuite.boundary import UsageError, is_plain
from perfsuite.judge.compare import (
    Against,
    Pair,
    Shift,
    Timing,
    between_units,
    by_unit,
    moves,
    paired,
    prior_of,
    shift_of,
    values_of_entry,
)
from perfsuite.judge.noise import AWAITED, LACK_OF_FIT, NoisePrior, entries_of, service_prior
from perfsuite.judge.verdict import learned
from perfsuite.model import (
    DEVICE_TIME,
    TIME,
    BaselineEntry,
    Change,
    Confirmation,
    Metric,
    Regime,
    Run,
    Sku,
    Status,
    Variant,
    Word,
)
from perfsuite.stats import Difference, Mixture, Variance, moderated, pooled
from perfsuite.store.baselines import (
    Acceptance,
    Merged,
    StoredEntry,
    baseline_text,
    has_sku,
    locked,
    merge,
    other_kind,
    pack_path,
    packs_in,
    read_all,
    read_pack,
    read_sku,
    sku_folder,
    write_files,
)
from perfsuite.store.sku import fingerprint_differs, sku_for

# A unit's processes in one night.
Cell = Sequence[float]


def level_changes(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> tuple[Change, ...]:
    """Return the change of every metric from an entry to its level over nights, time first.

    Processes of a night are no nights of their own: a night has its level, which each shares. Of
    metrics without noise there are those that changed, and in which all nights agree.
    """
    shifts = _shifts(variant, old, nights, against)
    return (*(shift.change(against.policy) for shift in shifts), *_exact(variant, old, nights))


def is_one_level(
    variant: Variant, night: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> bool:
    """Say whether a night is of the level of others: no verdict would tell them apart."""
    found = _shifts(variant, night, nights, against)
    moved = (shift.word(against.policy).moved for shift in found)
    return not any(moved) and not _exact(variant, night, nights)


def _exact(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry]
) -> Sequence[Change]:
    counted = {
        name: [night.metrics[name].center for night in nights if name in night.metrics]
        for name, metric in old.metrics.items()
        if not metric.values
    }
    return moves(counted, old, variant.case.metrics)


def _shifts(
    variant: Variant, old: BaselineEntry, nights: Sequence[BaselineEntry], against: Against
) -> Iterator[Shift]:
    if "time_us" in old.metrics and all("time_us" in night.metrics for night in nights):
        before, now = values_of_entry(old), [values_of_entry(night) for night in nights]
        prior = prior_of(variant, old, against)
        metric: Metric = TIME
        device = [values_of_entry(each, DEVICE_TIME) for each in (old, *nights)]
        at_home = {one.unit for one in before} & {one.unit for night in now for one in night}
        if variant.case.regime is Regime.END_TO_END and all(device) and not at_home:
            # Host time is another host's there.
            prior, metric = against.prior(AWAITED, variant.id), DEVICE_TIME
            before, *now = device
        yield _shift(before, now, prior=prior, against=against, metric=metric)
    for metric in variant.case.metrics:
        before, *now = [values_of_entry(each, metric) for each in (old, *nights)]
        if before and all(now):
            prior = against.prior(service_prior(against.facts.device), variant.id)
            yield _shift(before, now, prior=prior, against=against, metric=metric)


def _shift(
    before: Sequence[Timing],
    nights: Sequence[Sequence[Timing]],
    *,
    prior: NoisePrior,
    against: Against,
    metric: Metric,
) -> Shift:
    now = [one for night in nights for one in night]
    shift = shift_of(before, now, prior=prior, policy=against.policy, metric=metric)
    if shift.is_clock_lost:
        return shift
    pair = paired(before, now, prior)
    units = sorted({one.unit for one in pair.now})
    of_unit = [[[one for one in night if one.unit == unit] for night in nights] for unit in units]
    cells = [[[one.y(pair.prior.beta) for one in night] for night in unit if night]
             for unit in of_unit]  # fmt: skip
    difference = _difference(pair, by_unit(pair.before, pair.prior.beta), cells)
    return replace(shift, strict=(difference,), lenient=(difference,), values=None)


def _difference(
    pair: Pair, before: list[list[float]], nights: Sequence[Sequence[Cell]]
) -> Difference:
    """Return the change with the variances of processes, nights, units and clock.

    A night weighs as much as any other of its unit, and a unit as much as any other, so that
    a unit's own level cancels where both sides have it.
    """
    sides: list[Sequence[Sequence[Cell]]] = [[[unit] for unit in before], nights]
    shared = moderated(
        pooled([cell for side in sides for unit in side for cell in unit]),
        Variance(pair.prior.between**2, pair.prior.degrees),
    )
    centers = [fmean(fmean(map(fmean, unit)) for unit in side) for side in sides]
    of_nights = moderated(
        between_units(nights, shared.value).variance,
        Variance(pair.prior.run**2, pair.prior.run_degrees),
    )
    # Both sides of a unit have runs; of different units only those of the nights are beside them.
    runs = sum(sum(1 / len(unit) for unit in side) / len(side) ** 2
               for side in (sides if pair.same_unit else sides[1:]))  # fmt: skip
    parts: list[Variance | Mixture] = [
        shared.times(sum(map(_share, sides))),
        of_nights.times(runs),
        Variance((pair.prior.beta_sd**2 + LACK_OF_FIT**2) * pair.clock**2, math.inf),
    ]
    if not pair.same_unit:
        flat = [[y for cell in unit for y in cell] for unit in nights]
        level = pair.level([before, flat, []])
        parts.append(level.times(sum(1 / len(side) for side in sides)))
    return Difference(centers[1] - centers[0], tuple(parts))


def _share(side: Sequence[Sequence[Cell]]) -> float:
    """Return the part of one process's variance in the mean of a side."""
    of_units = (sum(1 / len(cell) for cell in unit) / len(unit) ** 2 for unit in side)
    return sum(of_units) / len(side) ** 2


def caution_of(run: Run, moved: Sequence[str], slower: Mapping[str, str]) -> str:
    """Say what a reader of the diff should know of the run that the moved entries come from."""
    # Against a revision the verdicts say nothing of what is replaced.
    verdicts = [v for v in run.verdicts if v.variant in moved] if run.against is None else []
    counts = {
        "of them slower than before": len(slower),
        "unclear": sum(verdict.word is Word.UNCLEAR for verdict in verdicts),
        "decided in turns on a card that no entry knew": sum(
            verdict.confirmation is Confirmation.IN_TURNS for verdict in verdicts
        ),
    }
    told = [f"{count} {what}" for what, count in counts.items() if count]
    told += [f"measured in turns with {run.against}"] if run.against and moved else []
    told += [f"of code that is in no commit ({run.commit})"] if run.is_dirty else []
    return ", ".join(told)


def slower_than(
    stored: Mapping[str, BaselineEntry],
    accepted: Mapping[str, BaselineEntry],
    *,
    variants: Sequence[Variant],
    against: Against,
) -> dict[str, str]:
    """Say how much worse than the stored entries accepted ones are, beyond the threshold."""
    against = learned(replace(against, known=tuple(stored.values())), variants)
    found = {}
    for variant in variants:
        old, new = stored.get(variant.id), accepted.get(variant.id)
        if old is None or new is None or other_kind(old, new):
            continue
        changes = level_changes(variant, old, [new], against)
        worse = [each for each in changes if each.theta > each.threshold]
        if worse:
            found[variant.id] = ", ".join(
                f"{c.metric} {c.theta:+.2%} (threshold {c.threshold:.2%})" for c in worse
            )
    return found


_ADDED = "added"
# An error message names this many variants and counts the rest.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What an acceptance did: files written, and variants by what became of them.

    ``changed`` says what changed, ``slower`` which of that is worse by more than its threshold,
    ``refused`` why a selected variant has nothing to accept. ``caution`` says what a reader of the
    diff should know of the run.
    """

    written: tuple[Path, ...]
    added: tuple[str, ...]
    changed: Mapping[str, str]
    unchanged: tuple[str, ...]
    refused: Mapping[str, str]
    caution: str = ""
    slower: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{len(self.added)} added, {len(self.changed)} changed, "
            f"{len(self.unchanged)} unchanged, {len(self.refused)} without a measurement"
            f"{'; ' if self.caution else ''}{self.caution}"
        )


def accept(run: Run, root: Path, *, reason: str, by: str, select: Sequence[str] = ()) -> Accepted:
    """Store the estimates of a run in ``root``, each for its variant's SKU.

    ``select`` narrows it to variants (ids), cases (``pack.case``) or packs. A selected variant that
    failed or was disturbed refuses the whole; of an interrupted run something must be selected.
    Entries of other variants stay as they are, and so do those that did not move by more than
    noise.
    """
    acceptance = acceptance_of(reason, by)
    chosen = _chosen(run, select)
    _refuse_failures(run, chosen)
    variants = {one.id: one.variant for one in run.variants}
    # Gangs and compilation targets have SKUs of their own.
    skus: dict[str, Sku] = {}
    entries: dict[str, dict[str, BaselineEntry]] = {}
    for name, entry in entries_of(run).items():
        if name in chosen:
            known = name in variants
            sku = sku_for(variants[name], run.facts, own=run.sku) if known else run.sku
            skus[sku.slug] = sku
            entries.setdefault(sku.slug, {})[name] = entry
    for slug, sku in skus.items():
        check_sku(sku, sku_folder(root, slug))
    written: list[Path] = []
    said: dict[str, str] = {}
    slower: dict[str, str] = {}
    for slug, new in entries.items():
        folder = sku_folder(root, slug)
        with locked(folder):
            before = {n: stored.entry for n, stored in read_all(folder).items()}
            moves, files = _moves(run, new, slug, folder, acceptance)
            said |= moves
            moved = {name: new[name] for name, what in moves.items() if what}
            against = Against(facts=run.facts, slug=slug)
            slower |= slower_than(before, moved, variants=[*variants.values()], against=against)
            written += write_files([run], skus[slug], folder, files)
    left = {n: why or "nothing was measured" for n, why in chosen.items() if n not in said}
    return Accepted(
        written=tuple(written),
        added=tuple(name for name, what in said.items() if what == _ADDED),
        changed={name: what for name, what in said.items() if what not in {"", _ADDED}},
        unchanged=tuple(name for name, what in said.items() if not what),
        refused=left,
        caution=caution_of(run, [name for name, what in said.items() if what], slower),
        slower=slower,
    )


def acceptance_of(reason: str, by: str) -> Acceptance:
    """Return who accepts something now, and why; without either it is refused."""
    words = {"reason": " ".join(reason.split()), "by": " ".join(by.split())}
    for name, text in words.items():
        if not text:
            raise UsageError(
                f"a baseline is not accepted without {name!r}",
                remedy='say why, as in --reason "the new driver is in use from today"',
            )
        if not is_plain(text):
            raise UsageError(
                f"{name!r} holds what cannot be stored: {reprlib.repr(text)}",
                remedy="write it in plain text of up to 4000 characters",
            )
    return Acceptance(**words, when=datetime.now(UTC).isoformat(timespec="seconds"))


def _chosen(run: Run, select: Sequence[str]) -> dict[str, str]:
    """Return the selected variants that have a result, each with the reason it gave."""
    if not run.finished and not select:
        raise UsageError(
            f"run {run.id!r} was interrupted",
            remedy="finish it with --perf-resume, or name the packs or variants to accept of it",
        )
    names = {result.variant: result.reason for result in run.results}
    for word in select:
        if not any(_is_selected(name, word) for name in names):
            raise UsageError(
                f"run {run.id!r} has no result of {word!r}",
                remedy="select by pack, by pack.case or by a whole variant id of this run",
            )
    words = select or list(names)
    return {n: why for n, why in names.items() if any(_is_selected(n, word) for word in words)}


def _is_selected(name: str, word: str) -> bool:
    return name == word or name.startswith((f"{word}.", f"{word}["))


def _refuse_failures(run: Run, chosen: Mapping[str, str]) -> None:
    last = {(result.variant, result.stage): result for result in run.asked}
    failed = {
        result.variant: result.status.value
        for result in last.values()
        if result.variant in chosen and result.status not in {Status.OK, Status.SKIPPED}
    }
    if failed:
        named = [f"{name} ({status})" for name, status in list(failed.items())[:_MOST_NAMED]]
        rest = f" and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
        raise UsageError(
            f"run {run.id!r} has selected variants that did not end ok: {', '.join(named)}{rest}",
            remedy="measure them again, or select the others by pack, pack.case or variant id",
        )


def check_sku(sku: Sku, folder: Path) -> None:
    """Refuse a folder that belongs to another product of the same slug."""
    if not has_sku(folder) and not packs_in(folder):
        return
    if problem := fingerprint_differs(sku, read_sku(folder).facts):
        raise UsageError(
            f"the run's device is not the product of these baselines: {problem}",
            where=str(folder),
            remedy="accept it under another root (ini perf_baselines), or remove the folder first",
        )


def _moves(
    run: Run, new: Mapping[str, BaselineEntry], slug: str, folder: Path, acceptance: Acceptance
) -> tuple[dict[str, str], dict[Path, bytes]]:
    """Return in words what becomes of each entry, and the packs' files that change by it."""
    other_code = {v.variant for v in run.verdicts if v.word.moved}
    said: dict[str, str] = {}
    files: dict[Path, bytes] = {}
    for pack, names in groupby(sorted(new), key=lambda name: name.partition(".")[0]):
        stored, changed = read_pack(folder, pack), {}
        for name in names:
            merged = Merged(new[name], _ADDED)
            if name in stored:
                # Against a revision the verdicts say nothing of how this compares with the baseline
                is_other_code = name in other_code or run.against is not None
                merged = merge(stored[name].entry, new[name], is_other_code=is_other_code)
            said[name] = merged.what
            if merged.what:
                changed[name] = StoredEntry(entry=merged.entry, accepted=acceptance)
        if changed:
            files[pack_path(folder, pack)] = baseline_text(slug, pack, {**stored, **changed})
    return said, files
