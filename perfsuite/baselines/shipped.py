"""Baselines that a pack ships inside its package, found without importing the pack."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfsuite.errors import StoreError
from perfsuite.model import Pack
from perfsuite.packs import PackSource

FOLDER = "baselines"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A folder of baselines that a pack ships; only numbers of its own variants count."""

    pack: str
    folder: Path

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the pack in what is wrong with its files: who runs it cannot correct them."""
        try:
            yield
        except StoreError as error:
            raise StoreError(
                f"a baseline that the pack {self.pack!r} ships is not usable: {error.what}",
                where=error.where,
                remedy=f"install the pack again or tell its author; without it: --perf-packs "
                f"with the others, or pip uninstall what brings {self.pack!r}",
            ) from error


# Where accepted numbers are looked for, in this order.
Root = Path | Shipped


def shipped_by(packs: Iterable[Pack | PackSource]) -> tuple[Shipped, ...]:
    """Return the folders of baselines inside the packs' packages; a single file ships none."""
    places = ((pack.name, _package(pack.origin)) for pack in packs)
    return tuple(
        Shipped(name, place / FOLDER)
        for name, place in places
        if place is not None and os.path.lexists(place / FOLDER)
    )


def _package(origin: str) -> Path | None:
    """Return the folder of the innermost package of ``module:NAME@FOLDER``."""
    kind, _, value = origin.partition(":")
    name, _, folder = value.partition("@")
    top, *inner = name.partition(":")[0].split(".")
    if kind != "module" or not top:
        return None
    place = Path(folder, top) if folder else _installed(top)
    if place is None or not place.is_dir():
        return None
    for part in inner:
        if not (place / part).is_dir():
            break
        place /= part
    return place


def _installed(top: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None
