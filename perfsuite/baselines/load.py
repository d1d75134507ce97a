"""The accepted estimates of one SKU, from the first root that has each: the project's, a pack's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfsuite.baselines.folder import (
    packs_in,
    read_pack,
    read_runs,
    read_sku,
    sku_folder,
    skus_in,
)
from perfsuite.baselines.shipped import Root, Shipped
from perfsuite.codec import RunFacts, StoredEntry
from perfsuite.model import BaselineEntry, Sku
from perfsuite.sku import board_suffix, fingerprint_differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """What was accepted for a SKU.

    ``shipped`` are the variants whose entry came with their pack, ``shippers`` the packs that ship.
    ``fingerprint_problem`` says why nothing may be compared with it (the folder belongs to another
    product of the same slug), or is empty. What a pack ships for another product is left out,
    which ``notes`` say. ``runs`` are those that entries come from, as far as they are kept.
    """

    sku: Sku
    stored: Mapping[str, StoredEntry] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    shippers: frozenset[str] = frozenset()
    fingerprint_problem: str = ""
    notes: tuple[str, ...] = ()
    runs: Mapping[str, RunFacts] = field(default_factory=dict)

    @classmethod
    def load(cls, roots: Sequence[Root], sku: Sku) -> Baselines:
        """Read the folders of a SKU; a damaged file is an error, whatever root it lies in."""
        own = [_read(sku_folder(root, sku.slug), sku) for root in roots if isinstance(root, Path)]
        theirs = []
        notes: list[str] = []
        for root in (root for root in roots if isinstance(root, Shipped)):
            with root.named():
                found = _read(sku_folder(root.folder, sku.slug), sku, only=root.pack)
            if found.problem:
                notes.append(f"the baseline that {root.pack} ships is not used: {found.problem}")
            else:
                theirs.append(found)
        if not any(each.stored for each in own) and (others := _boards_beside(roots, sku)):
            what = "another board of this product, whose numbers are others"
            notes.append(f"not compared with {', '.join(others)}: {what}")
        stored: dict[str, StoredEntry] = {}
        for each in (*own, *theirs):
            stored = each.stored | stored
        return cls(
            sku=sku,
            stored=stored,
            shipped=frozenset(stored).difference(*(each.stored for each in own)),
            shippers=frozenset(name.partition(".")[0] for each in theirs for name in each.stored),
            fingerprint_problem="; ".join(each.problem for each in own if each.problem),
            notes=tuple(notes),
            runs={name: facts for each in (*own, *theirs) for name, facts in each.runs.items()},
        )

    @classmethod
    def load_each(cls, roots: Sequence[Root], skus: Iterable[Sku]) -> dict[str, Baselines]:
        """Read the folders of several SKUs, by slug; one that is named for each variant, once."""
        several = {sku.slug: sku for sku in skus}
        return {slug: cls.load(roots, sku) for slug, sku in several.items()}

    @property
    def entries(self) -> dict[str, BaselineEntry]:
        """The entries by variant."""
        return {variant: stored.entry for variant, stored in self.stored.items()}

    def entry(self, variant_id: str) -> BaselineEntry | None:
        """Return a variant's entry, if it has one."""
        stored = self.stored.get(variant_id)
        return stored.entry if stored else None

    def covers(self, variant_id: str) -> bool:
        """Say whether the project has baselines of this SKU, or the variant's pack ships some."""
        is_own = self.fingerprint_problem or len(self.stored) > len(self.shipped)
        return bool(is_own) or variant_id.partition(".")[0] in self.shippers

    def name_of(self, variant_id: str) -> str:
        """Return which baseline a variant is compared with."""
        by = f" shipped by {variant_id.partition('.')[0]}" if variant_id in self.shipped else ""
        return f"baseline {self.sku.slug}{by}"


def _boards_beside(roots: Sequence[Root], sku: Sku) -> tuple[str, ...]:
    """Return the slugs that have baselines of the same product on other boards."""
    product = sku.slug.removesuffix(board_suffix(sku))
    own = [root for root in roots if isinstance(root, Path)]
    places = [root / slug for root in own for slug in skus_in(root)]
    found = [read_sku(place) for place in places if place.name.startswith(f"{product}-")]
    return tuple(
        each.slug
        for each in found
        if each.slug != sku.slug and each.slug == f"{product}{board_suffix(each)}"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What one folder holds, and why it may not be compared with."""

    stored: dict[str, StoredEntry] = field(default_factory=dict)
    problem: str = ""
    runs: dict[str, RunFacts] = field(default_factory=dict)


def _read(folder: Path, sku: Sku, *, only: str = "") -> _Found:
    packs = [pack for pack in packs_in(folder) if only in {"", pack}]
    if not packs:
        return _Found()
    problem = fingerprint_differs(sku, read_sku(folder).facts)
    stored = {name: entry for pack in packs for name, entry in read_pack(folder, pack).items()}
    return _Found(stored, f"{folder}: {problem}" if problem else "", read_runs(folder, stored))
