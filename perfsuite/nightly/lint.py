"""Finds what is wrong with a folder of baselines: files, stale and missing entries, exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from perfsuite.boundary import StoreError
from perfsuite.model import Pack, Tier, Variant
from perfsuite.store.baselines import (
    folders_in,
    pack_path,
    packs_in,
    read_pack,
    read_runs,
    read_sku,
    run_path,
    runs_in,
)
from perfsuite.store.codec import StoredEntry
from perfsuite.store.exceptions import FILE, Exceptions

OLD_DAYS = 180


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it."""

    what: str
    where: str
    remedy: str

    def __str__(self) -> str:
        return " ".join(f"{self.where}: {self.what}; {self.remedy}".split())


@dataclass(frozen=True, slots=True)
class Linter:
    """What baselines are held against; ``packs`` with the variants of every tier.

    ``older_than`` is in days; with a ``tier`` its variants must have entries where others of the
    same case and needs have one.
    """

    packs: Sequence[Pack]
    today: date
    older_than: int = OLD_DAYS
    tier: Tier | None = None

    def problems(self, root: Path) -> Iterator[Problem]:
        """Yield what is wrong, the SKUs by name and the exceptions last."""
        for name in folders_in(root):
            try:
                yield from self._of_folder(root / name)
            except StoreError as error:
                yield _told(error, root / name)
        yield from self._of_exceptions(root)

    def _of_folder(self, folder: Path) -> Iterator[Problem]:
        stored: dict[str, StoredEntry] = {}
        is_whole = True
        try:
            read_sku(folder)
        except StoreError as error:
            yield _told(error, folder)
        for name in packs_in(folder):
            try:
                own = read_pack(folder, name)
            except StoreError as error:
                is_whole = False
                yield _told(error, folder / f"{name}.json")
                continue
            stored |= own
            yield from self._of_pack(pack_path(folder, name), name, own)
        yield from _of_runs(folder, stored, is_whole=is_whole)

    def _of_pack(self, path: Path, name: str, own: Mapping[str, StoredEntry]) -> Iterator[Problem]:
        pack = next((each for each in self.packs if each.name == name), None)
        if pack is None or pack.error:
            why = f"cannot be listed ({pack.error})" if pack else "is not installed"
            what = f"pack {name!r} {why}: its {len(own)} entries cannot be checked"
            remedy = "repair the pack" if pack else "install the pack, or remove the file"
            yield Problem(what, str(path), remedy)
        else:
            known = _variants(pack)
            yield from _stale(path, own, known)
            yield from self._missing(path, own, known)
        for variant, entry in own.items():
            yield from self._age(path, variant, entry.accepted.when)

    def _age(self, path: Path, variant: str, when: str) -> Iterator[Problem]:
        try:
            days = (self.today - datetime.fromisoformat(when).date()).days
        except ValueError:
            remedy = "accept a run again"
            yield Problem(f"{variant} was accepted at {when!r}, no moment", str(path), remedy)
            return
        if days > self.older_than:
            what = f"{variant} was accepted {days} days ago, limit {self.older_than}"
            yield Problem(what, str(path), "accept or propose it anew")

    def _missing(
        self, path: Path, own: Mapping[str, StoredEntry], known: Mapping[str, Variant]
    ) -> Iterator[Problem]:
        if self.tier is None:
            return
        tiers = list(Tier)[: list(Tier).index(self.tier) + 1]
        kinds = {_kind(known[name]) for name in own if name in known}
        for name, variant in known.items():
            if name not in own and variant.tier in tiers and _kind(variant) in kinds:
                what = f"{name} of tier {variant.tier} has no entry, others of its case have one"
                yield Problem(what, str(path), "measure and propose or accept it")

    def _of_exceptions(self, root: Path) -> Iterator[Problem]:
        try:
            exceptions = Exceptions.load([root], self.today)
        except StoreError as error:
            yield _told(error, root / FILE)
            return
        variants = [each for pack in self.packs for each in _variants(pack).values()]
        broken = [pack.name for pack in self.packs if pack.error]
        rest = f" of the packs that can be listed (not {', '.join(broken)})" if broken else ""
        for rule in exceptions.rules:
            what = f"the {rule.excepted.kind} of {rule.entry.select!r}"
            if not rule.acts(self.today):
                told = f"{what} expired on {rule.entry.expires}"
                yield Problem(told, rule.where, "repair the case and remove it, or prolong it")
            elif not any(rule.covers(variant) for variant in variants):
                yield Problem(f"{what} matches nothing{rest}", rule.where, "correct or remove it")


def _variants(pack: Pack) -> dict[str, Variant]:
    canaries = (variant for each in pack.canaries.values() for variant in each)
    return {variant.id: variant for variant in (*canaries, *pack.variants)}


def _kind(variant: Variant) -> tuple[object, ...]:
    """Return what tells where a variant can run: siblings that share it run alike."""
    return variant.case.name, variant.ranks, variant.target, str(variant.needs)


def _stale(
    path: Path, own: Mapping[str, StoredEntry], known: Mapping[str, Variant]
) -> Iterator[Problem]:
    for name, stored in own.items():
        remedy = "remove the entry, or accept the variant that took its place"
        if name not in known:
            yield Problem(f"{name} is stale: no such variant is left", str(path), remedy)
        elif stored.entry.case_version != (version := known[name].case.version):
            was = f"{name} is of version {stored.entry.case_version} of its case, now {version}"
            yield Problem(was, str(path), "propose or accept a run of the new version")


def _of_runs(
    folder: Path, stored: Mapping[str, StoredEntry], *, is_whole: bool
) -> Iterator[Problem]:
    used = {each.entry.run for each in stored.values()}
    for run in sorted(used):
        own = {name: each for name, each in stored.items() if each.entry.run == run}
        try:
            if not read_runs(folder, own):
                what = f"entries come from run {run!r}, of which no file is kept: {len(own)}"
                yield Problem(what, str(run_path(folder, run)), "restore it from git")
        except StoreError as error:
            yield _told(error, folder)
    # What a damaged file refers to is not known.
    for path in runs_in(folder) if is_whole else ():
        if path.stem not in used:
            yield Problem(f"no entry comes from run {path.stem!r}", str(path), "remove the file")


def _told(error: StoreError, path: Path) -> Problem:
    return Problem(error.what, error.where or str(path), error.remedy)
