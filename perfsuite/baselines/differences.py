"""Tells two folders of baselines apart: which entries changed, by how much, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfsuite.baselines.folder import folders_in, read_all
from perfsuite.baselines.merge import merge
from perfsuite.codec import StoredEntry


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that two folders do not share; ``what`` says how it differs."""

    sku: str
    variant: str
    what: str
    old: StoredEntry | None
    new: StoredEntry | None

    @property
    def change(self) -> float | None:
        """The relative change of the first metric that both have, time if there is one."""
        if self.old is None or self.new is None:
            return None
        sides = self.old.entry.metrics, self.new.entry.metrics
        name = next((n for n in ("time_us", *sorted(sides[0])) if n in sides[0]), "")
        if name not in sides[1] or not sides[0][name].center:
            return None
        return sides[1][name].center / sides[0][name].center - 1


def differences(before: Path, now: Path) -> Iterator[Difference]:
    """Yield the entries that are not the same in two folders, by SKU and variant."""
    for sku in sorted({name for root in (before, now) for name in folders_in(root)}):
        old, new = (read_all(root / sku) for root in (before, now))
        for name in sorted(old.keys() | new.keys()):
            sides = old.get(name), new.get(name)
            if sides[0] != sides[1]:
                yield Difference(sku, name, _what(*sides), *sides)


def _what(old: StoredEntry | None, new: StoredEntry | None) -> str:
    if old is None or new is None:
        return "added" if old is None else "removed"
    moved = merge(old.entry, new.entry, is_other_code=False).what
    return moved or ("who and why" if old.entry == new.entry else "evidence alone")
