"""Accepted numbers in reviewable files, by product, pack and case."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from perfsuite.boundary import StoreError, hidden, plain
from perfsuite.model import BaselineEntry, BaselineMetric, Pack, Regime, Run, Sampling, Sku
from perfsuite.packs.find import PackSource
from perfsuite.stats import hodges_lehmann, pooled
from perfsuite.store import files
from perfsuite.store.codec import (
    RunFacts,
    StoredEntry,
    flat_text,
    read_baseline,
    read_flat,
    round_digits,
)
from perfsuite.store.files import (
    checked_name,
    inside,
    is_absent,
    listed,
    read,
    refusing,
    replace_file,
)
from perfsuite.store.sku import board_suffix, fingerprint_differs

# Where a SKU's baselines lie, and how their files are read and replaced without ever being half.
#
# ``<root>/<sku slug>/`` holds ``sku.json``, ``<pack>.json`` and ``runs/<run id>.json``. Nothing is
# there where there is no file at all: what is there and cannot be read is an error.


T = TypeVar("T")

_SKU_FILE = "sku.json"
_REMEDY = "restore it from git, or remove the folder and accept a run again"


def sku_folder(root: Path, slug: str) -> Path:
    """Return the folder of a SKU; a slug that would lead elsewhere is refused."""
    return root / checked_name(slug, "SKU slug", where=root)


def pack_path(folder: Path, pack: str) -> Path:
    """Return the file of a pack; a name that would lead elsewhere is refused."""
    path = folder / f"{checked_name(pack, 'pack name', where=folder)}.json"
    if path.name == _SKU_FILE:
        raise StoreError(
            f"pack name {pack!r} is taken by {_SKU_FILE}",
            where=str(folder),
            remedy="rename the pack",
        )
    return path


def run_path(folder: Path, run_id: str) -> Path:
    """Return the file with what is kept of a run."""
    return inside(folder, "runs", f"{checked_name(run_id, 'run id', where=folder)}.json")


def sku_path(folder: Path) -> Path:
    """Return the file that says which product the folder belongs to."""
    return folder / _SKU_FILE


def packs_in(folder: Path) -> list[str]:
    """Return the names of the packs that have a file in the folder."""
    found = [name for name in _names(folder) if name.endswith(".json") and name != _SKU_FILE]
    return [name.removesuffix(".json") for name in found]


def skus_in(root: Path) -> list[str]:
    """Return the slugs of the products that have baselines under a root."""
    return [name for name in folders_in(root) if _SKU_FILE in _names(root / name)]


def folders_in(root: Path) -> list[str]:
    """Return the names of all that is no file under a root, sorted."""
    with _reading(root):
        return [name for name in listed(root) if not (root / name).is_file()]


def has_sku(folder: Path) -> bool:
    """Say whether the folder says which product it belongs to."""
    return _SKU_FILE in _names(folder)


def _names(folder: Path) -> list[str]:
    with _reading(folder):
        return listed(folder)


def _reading(path: Path) -> AbstractContextManager[None]:
    return refusing("cannot read the baselines", path, remedy=_REMEDY)


def read_sku(folder: Path) -> Sku:
    """Return the product that the folder belongs to."""
    path = sku_path(folder)
    sku = read_flat(_bytes(path), Sku, where=str(path))
    if sku.slug != folder.name:
        raise StoreError(
            f"key 'slug' is {sku.slug!r}, the file's place says {folder.name!r}",
            where=str(path),
            remedy="move the folder to its own place, or accept a run here",
        )
    return sku


def read_pack(folder: Path, pack: str) -> dict[str, StoredEntry]:
    """Return the entries of a pack by variant; only a file that is not there is empty."""
    path = pack_path(folder, pack)
    data = _bytes_if_there(path)
    if data is None:
        return {}
    return read_baseline(data, sku=folder.name, pack=pack, where=str(path))


def read_all(folder: Path) -> dict[str, StoredEntry]:
    """Return the entries of every pack by variant."""
    packs = (read_pack(folder, pack) for pack in packs_in(folder))
    return {name: stored for own in packs for name, stored in own.items()}


def read_runs(folder: Path, stored: Mapping[str, StoredEntry]) -> dict[str, RunFacts]:
    """Return what is kept of the runs that entries, by variant, come from."""
    paths = {run: run_path(folder, run) for run in sorted({e.entry.run for e in stored.values()})}
    found = {run: _bytes_if_there(path) for run, path in paths.items()}
    return {
        run: read_flat(data, RunFacts, where=str(paths[run]))
        for run, data in found.items()
        if data is not None
    }


def runs_in(folder: Path) -> list[Path]:
    """Return the files with what is kept of runs."""
    place = folder / "runs"
    return [place / name for name in _names(place) if name.endswith(".json")]


def _bytes(path: Path) -> bytes:
    with refusing("cannot read a baseline file", path, remedy=_REMEDY):
        return read(path)


def _bytes_if_there(path: Path) -> bytes | None:
    with refusing("cannot read a baseline file", path, remedy=_REMEDY):
        return None if is_absent(path) else read(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other acceptance out of a SKU's folder; waits for the one that is there."""
    inside(folder.parent, folder.name, _SKU_FILE)  # a link may lead out of the root
    with ExitStack() as stack:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(folder))
        yield


def write(path: Path, data: bytes) -> Path:
    """Put ``data`` in the file's place at once and for good, or leave the old file as it is."""
    with _writing(path):
        return replace_file(path, data)


def _writing(path: Path) -> AbstractContextManager[None]:
    remedy = "make the folder writable and make room on the disk; what was there still holds"
    return refusing("cannot write a baseline", path, remedy=remedy)


def write_files(
    runs: Sequence[Run], sku: Sku, folder: Path, files: Mapping[Path, bytes]
) -> tuple[Path, ...]:
    """Write the packs' files, with what they refer to before them."""
    if not files:
        return ()
    first = {run_path(folder, run.id): flat_text(_facts(run)) for run in runs}
    if not has_sku(folder):
        first[sku_path(folder)] = flat_text(sku)
    written = tuple(write(path, data) for path, data in {**first, **files}.items())
    _drop_unused_runs(folder)
    return written


def _facts(run: Run) -> RunFacts:
    return RunFacts(
        run=run.id,
        started=run.started,
        commit=run.commit,
        command=hidden(plain(run.command)),
        environment=run.facts.environment,
    )


def _drop_unused_runs(folder: Path) -> None:
    used = {stored.entry.run for stored in read_all(folder).values()}
    for path in runs_in(folder):
        if path.stem not in used:
            path.unlink()


# Baselines that a pack ships inside its package, found without importing the pack.


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


# The accepted estimates of one SKU, from the first root that has each: the project's, a pack's.


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


# Decides what becomes of a baseline entry when a new estimate of its variant is accepted.


# A third of the smallest threshold (0.25 %): what moves less is noise, and only makes diffs.
LEAST_MOVE = 0.0025 / 3
# Units of one SKU differ by up to 3.5 % in time but by under 1 % in cycles, so that code that is
# the same agrees within this in one of the two.
MOST_UNIT_DIFFERENCE = 0.03
# Single kernels of short launches differ by more (6 % in both clocks, of 281 variants on cards of
# one board), but kernels that are the same may also be launched more often, or otherwise.
MOST_SAME_KERNELS_DIFFERENCE = 0.1


@dataclass(frozen=True, slots=True)
class Merged:
    """The entry to store, and in words what it changes; no words, no change."""

    entry: BaselineEntry
    what: str


def merge(old: BaselineEntry, new: BaselineEntry, *, is_other_code: bool) -> Merged:
    """Return what to store for a variant.

    Values of the new run's units replace those of the same units. Those of other units stay as
    long as they are of the same code: not when ``is_other_code`` (a verdict found a change), when
    the artefact is another, or when both clocks moved by more than units differ, which is more
    where the artefact is known. What a host issues and awaits moves with the host.
    """
    if reason := other_kind(old, new):
        return Merged(new, reason)
    moves = _moves(old, new)
    others = sorted(_units(old) - _units(new))
    if is_other_code or _is_other_code(old, new):
        dropped = [f"values of other units dropped: {', '.join(others)}"] if others else []
        changed = moves or (["other code"] if others or old.artefact != new.artefact else [])
        return Merged(new, "; ".join(changed + dropped) if changed else "")
    added = [f"unit {unit} added" for unit in sorted(_units(new) - _units(old))]
    recorded = [
        f"{what} recorded"
        for what, is_new in (
            ("sampling", new.sampling and not old.sampling),
            ("kernels", new.kernels and not old.kernels),
            ("counters", old.kernels and _has_counters(new) and not _has_counters(old)),
            ("artefact", new.artefact and not old.artefact),
        )
        if is_new
    ]
    return Merged(_joined(old, new), "; ".join(moves + added + recorded))


def _has_counters(entry: BaselineEntry) -> bool:
    return any(kernel.counters for kernel in entry.kernels)


def pooled_entry(entries: Sequence[BaselineEntry]) -> BaselineEntry:
    """Return the newest of entries of one level, the last of them, with every process of all."""
    *_, last = entries
    traced = next((each for each in reversed(entries) if each.kernels), last)
    rows = {name: _pooled([each.metrics[name] for each in entries]) for name in _clocks(last)}
    return replace(
        last, metrics={**last.metrics, **rows}, kernels=traced.kernels, codes=traced.codes
    )


def _pooled(metrics: Sequence[BaselineMetric]) -> BaselineMetric:
    values: dict[str, tuple[float, ...]] = {}
    for metric in metrics:
        for unit, row in metric.values.items():
            values[unit] = (*values.get(unit, ()), *row)
    counts = [sum(map(len, metric.values.values())) for metric in metrics]
    squares = sum(n * metric.within**2 for n, metric in zip(counts, metrics, strict=True))
    return _centered(metrics[-1], values, math.sqrt(squares / sum(counts)))


def other_kind(old: BaselineEntry, new: BaselineEntry) -> str:
    """Say why two entries are not estimates of one thing; nothing where they are."""
    for name in ("case_version", "regime", "state"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            return f"{name.replace('_', ' ')} was {before} and is {now}"
    if old.sampling and old.sampling != new.sampling:
        return f"sampling was {_words(old.sampling)} and is {_words(new.sampling)}"
    if set(old.metrics) != set(new.metrics):
        return (
            f"metrics were {', '.join(sorted(old.metrics))}; are {', '.join(sorted(new.metrics))}"
        )
    return ""


def _words(sampling: Sampling | None) -> str:
    if sampling is None:
        return "unknown"
    return f"{sampling.launches} launches over {sampling.sets} input sets"


def _clocks(entry: BaselineEntry) -> dict[str, BaselineMetric]:
    return {name: metric for name, metric in sorted(entry.metrics.items()) if metric.values}


def _units(entry: BaselineEntry) -> set[str]:
    return {unit for metric in _clocks(entry).values() for unit in metric.values}


def _is_other_code(old: BaselineEntry, new: BaselineEntry) -> bool:
    is_known = bool(old.artefact and new.artefact)
    if is_known and old.artefact != new.artefact:
        return True
    # Hosts of one board differ by a third, also in the device's own time of what waits for them.
    if new.regime == Regime.END_TO_END:
        return False
    moves = [
        abs(math.log(metric.center / old.metrics[name].center))
        for name, metric in _clocks(new).items()
    ]
    most = MOST_SAME_KERNELS_DIFFERENCE if is_known else MOST_UNIT_DIFFERENCE
    return bool(moves) and min(moves) > most


def _moves(old: BaselineEntry, new: BaselineEntry) -> list[str]:
    """Say which metrics moved: exact ones at all, clocks on a unit that both entries have."""
    found = []
    for name, metric in sorted(new.metrics.items()):
        before = old.metrics[name]
        if not metric.values:
            if metric.center != before.center:
                found.append(f"{name} was {before.center:.15g} and is {metric.center:.15g}")
            continue
        shared = metric.values.keys() & before.values.keys()
        moves = [_center(metric.values[u]) - _center(before.values[u]) for u in shared]
        move = max(moves, key=abs, default=0.0)
        if abs(move) > LEAST_MOVE:
            found.append(f"{name} {math.expm1(move):+.2%}")
    return found


def _center(values: Sequence[float]) -> float:
    """Return the log of the centre of process values."""
    return hodges_lehmann([math.log(value) for value in values])


def _joined(old: BaselineEntry, new: BaselineEntry) -> BaselineEntry:
    clocks = {name: _with_units(old.metrics[name], now) for name, now in _clocks(new).items()}
    # What was not traced, because nothing moved, is what was traced before.
    return replace(
        new,
        metrics={**new.metrics, **clocks},
        artefact=new.artefact or old.artefact,
        kernels=new.kernels or old.kernels,
        codes=new.codes if new.kernels else old.codes,
    )


def _with_units(old: BaselineMetric, new: BaselineMetric) -> BaselineMetric:
    """Return the new metric with the values of the old one's other units."""
    kept = {unit: row for unit, row in old.values.items() if unit not in new.values}
    if not kept:
        return new
    shares = [sum(map(len, part.values())) for part in (kept, new.values)]
    within = (shares[0] * old.within + shares[1] * new.within) / sum(shares)
    return _centered(new, {**kept, **new.values}, within)


def _centered(
    metric: BaselineMetric, values: Mapping[str, tuple[float, ...]], within: float
) -> BaselineMetric:
    """Return the metric with these processes and what follows from them."""
    logs = [[math.log(value) for value in row] for row in values.values()]
    return replace(
        metric,
        center=round_digits(math.exp(hodges_lehmann([value for row in logs for value in row]))),
        within=round_digits(within),
        between=round_digits(math.sqrt(pooled(logs).value)),
        values=values,
    )


# Tells two folders of baselines apart: which entries changed, by how much, and why.


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
