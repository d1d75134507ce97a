"""Makes the results of a run the baseline of its SKU, by an explicit act with a reason."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from perfsuite.baselines.caution import caution_of, slower_than
from perfsuite.baselines.folder import (
    has_sku,
    locked,
    pack_path,
    packs_in,
    read_all,
    read_pack,
    read_sku,
    sku_folder,
    sku_path,
    write_files,
)
from perfsuite.baselines.merge import Merged, merge
from perfsuite.boundary import is_plain
from perfsuite.codec import Acceptance, StoredEntry, baseline_text
from perfsuite.errors import UsageError
from perfsuite.judge import Against
from perfsuite.model import BaselineEntry, Run, Sku, Status, Word
from perfsuite.runs import entries_of
from perfsuite.sku import fingerprint_differs, sku_for

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


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The entries of one SKU, and the folder they belong to."""

    sku: Sku
    folder: Path
    entries: Mapping[str, BaselineEntry]


def accept(run: Run, root: Path, *, reason: str, by: str, select: Sequence[str] = ()) -> Accepted:
    """Store the estimates of a run in ``root``, each for its variant's SKU.

    ``select`` narrows it to variants (ids), cases (``pack.case``) or packs. A selected variant that
    failed or was disturbed refuses the whole; of an interrupted run something must be selected.
    Entries of other variants stay as they are, and so do
    those that did not move by more than noise.
    """
    acceptance = acceptance_of(reason, by)
    chosen = _chosen(run, select)
    _refuse_failures(run, chosen)
    estimates = entries_of(run)
    entries = {name: estimates[name] for name in chosen if name in estimates}
    shelves = _shelves(run, root, entries)
    for shelf in shelves:
        check_sku(shelf.sku, shelf.folder)
    written: list[Path] = []
    said: dict[str, str] = {}
    slower: dict[str, str] = {}
    for shelf in shelves:
        with locked(shelf.folder):
            before = {n: stored.entry for n, stored in read_all(shelf.folder).items()}
            moves, files = _moves(run, shelf, acceptance)
            said |= moves
            moved = {n: shelf.entries[n] for n, what in moves.items() if what}
            against = Against(facts=run.facts, slug=shelf.sku.slug)
            slower |= slower_than(before, moved, variants=run.variants, against=against)
            written += write_files([run], shelf.sku, shelf.folder, files)
    return Accepted(
        written=tuple(written),
        added=tuple(name for name, what in said.items() if what == _ADDED),
        changed={name: what for name, what in said.items() if what not in {"", _ADDED}},
        unchanged=tuple(name for name, what in said.items() if not what),
        refused={
            name: why or "nothing was measured"
            for name, why in chosen.items()
            if name not in entries
        },
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
    return {
        name: reason
        for name, reason in names.items()
        if not select or any(_is_selected(name, word) for word in select)
    }


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


def _shelves(run: Run, root: Path, entries: Mapping[str, BaselineEntry]) -> list[_Shelf]:
    """Return the entries by SKU; gangs and compilation targets have SKUs of their own."""
    variants = {variant.id: variant for variant in run.variants}
    skus: dict[str, Sku] = {}
    found: dict[str, dict[str, BaselineEntry]] = {}
    for name, entry in entries.items():
        sku = sku_for(variants[name], run.facts, own=run.sku) if name in variants else run.sku
        skus[sku.slug] = sku
        found.setdefault(sku.slug, {})[name] = entry
    return [_Shelf(skus[slug], sku_folder(root, slug), each) for slug, each in found.items()]


def check_sku(sku: Sku, folder: Path) -> None:
    """Refuse a folder that belongs to another product of the same slug."""
    if not has_sku(folder) and not packs_in(folder):
        return
    if problem := fingerprint_differs(sku, read_sku(folder).facts):
        raise UsageError(
            f"the run's device is not the product of these baselines: {problem}",
            where=str(sku_path(folder)),
            remedy="accept it under another root (ini perf_baselines), or remove the folder first",
        )


def _moves(
    run: Run, shelf: _Shelf, acceptance: Acceptance
) -> tuple[dict[str, str], dict[Path, bytes]]:
    """Return in words what becomes of each entry, and the packs' files that change by it."""
    other_code = {v.variant for v in run.verdicts if v.word in {Word.SLOWER, Word.FASTER}}
    said: dict[str, str] = {}
    files: dict[Path, bytes] = {}
    for pack, names in groupby(sorted(shelf.entries), key=lambda name: name.partition(".")[0]):
        stored = read_pack(shelf.folder, pack)
        changed = {}
        for name in names:
            merged = Merged(shelf.entries[name], _ADDED)
            if name in stored:
                old, new = stored[name].entry, shelf.entries[name]
                # Against a revision the verdicts say nothing of how this compares with the baseline
                is_other_code = name in other_code or run.against is not None
                merged = merge(old, new, is_other_code=is_other_code)
            said[name] = merged.what
            if merged.what:
                changed[name] = StoredEntry(entry=merged.entry, accepted=acceptance)
        if changed:
            text = baseline_text(shelf.sku.slug, pack, {**stored, **changed})
            files[pack_path(shelf.folder, pack)] = text
    return said, files
