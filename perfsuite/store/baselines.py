"""Accepted numbers in reviewable files, by product, pack and case.

``<root>/<sku slug>/`` holds ``sku.json``, ``<pack>.json`` and ``runs/<run id>.json``. Nothing is
there where there is no file at all: what is there and cannot be read is an error.

A pack's file reads like a table in a git diff. Each variant has a line for what it is, one for
who accepted it, one for each metric and each kernel that it launches. The lines that open and close
it never change, so that git merges what two people did to neighbours without a conflict. For the
same reason variants share no table: what is known of a run has a file of its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from perfsuite.boundary import StoreError, hidden, plain, shown
from perfsuite.model import CLOCKS, BaselineEntry, BaselineMetric, Pack, Record, Run, Sku, Source
from perfsuite.packs.find import file_of, modules_of
from perfsuite.stats import hodges_lehmann, pooled
from perfsuite.store import files
from perfsuite.store.sku import differs

T = TypeVar("T")

BASELINE_SCHEMA = "perfsuite.baseline/1"
# The folder of baselines inside a package, and the file that says which product a folder is of.
FOLDER, SKU_FILE = "baselines", "sku.json"
_MISPLACED = "move it to its own place, or accept a run here"


class Acceptance(Record, frozen=True, kw_only=True):
    """Who made a result the baseline, when (UTC), and why."""

    by: str
    when: str
    reason: str


class RunFacts(Record, frozen=True, kw_only=True):
    """What a baseline keeps of a run its entries come from.

    ``boards`` are the part numbers of its cards' boards, ``sources`` are by pack.
    """

    run: str
    started: str
    commit: str = ""
    command: str = ""
    environment: Mapping[str, str] = {}
    boards: Mapping[str, str] = {}
    sources: Mapping[str, Source] = {}

    def source_of(self, variant: str) -> Source | None:
        """Return where the code of a variant's pack came from, None where nothing says so."""
        source = Source.at(self.commit) if self.commit else None  # of files that say no more
        return self.sources.get(variant.partition(".")[0], source)


NO_FACTS = RunFacts(run="", started="")


def facts_of(run: Run) -> RunFacts:
    """Return what a baseline keeps of a run."""
    return RunFacts(
        run=run.id,
        started=run.started,
        commit=run.commit,
        command=hidden(plain(run.command)),
        environment=run.facts.environment,
        boards={unit: board for unit, board in run.boards.items() if board},
        sources=run.sources,
    )


class StoredEntry(BaselineEntry, frozen=True, kw_only=True):
    """A variant's baseline: an entry with its acceptance."""

    accepted: Acceptance

    @classmethod
    def of(cls, entry: BaselineEntry, accepted: Acceptance) -> StoredEntry:
        """Return an entry as accepted."""
        return cls(**asdict(entry) | {"accepted": accepted})


class _Sheet(Record, frozen=True):
    sku: str
    pack: str
    variants: Mapping[str, dict[str, Any]]


def sku_folder(root: Path, slug: str) -> Path:
    """Return the folder of a SKU; a slug that would lead elsewhere is refused."""
    return root / files.checked_name(slug, "SKU slug", where=root)


def pack_path(folder: Path, pack: str) -> Path:
    """Return the file of a pack; a name that would lead elsewhere is refused."""
    return folder / f"{files.checked_name(pack, 'pack name', where=folder)}.json"


def run_path(folder: Path, run_id: str) -> Path:
    """Return the file with what is kept of a run."""
    return files.inside(
        folder, "runs", f"{files.checked_name(run_id, 'run id', where=folder)}.json"
    )


def _reading(path: Path) -> AbstractContextManager[None]:
    remedy = "restore it from git, or remove the folder and accept a run again"
    return files.refusing("cannot read the baselines", path, remedy=remedy)


def folders_in(root: Path) -> list[str]:
    """Return the names of all that is no file under a root, sorted."""
    with _reading(root):
        return [name for name in files.listed(root) if not (root / name).is_file()]


def has_sku(folder: Path) -> bool:
    """Say whether the folder says which product it belongs to."""
    with _reading(folder):
        return SKU_FILE in files.listed(folder)


def skus_in(root: Path) -> list[str]:
    """Return the slugs of the products that have baselines under a root."""
    return [name for name in folders_in(root) if has_sku(root / name)]


def packs_in(folder: Path) -> list[str]:
    """Return the names of the packs that have a file in the folder."""
    with _reading(folder):
        found = [Path(name) for name in files.listed(folder) if name != SKU_FILE]
    return [path.stem for path in found if path.suffix == ".json"]


def runs_in(folder: Path) -> list[Path]:
    """Return the files with what is kept of runs."""
    with _reading(folder / "runs"):
        found = [folder / "runs" / name for name in files.listed(folder / "runs")]
    return [path for path in found if path.suffix == ".json"]


def _object_in(path: Path) -> dict[str, Any] | None:
    """Return what a file of ours holds but its schema; None only where there is no file."""
    with _reading(path):
        return files.read_stored(path, BASELINE_SCHEMA)


def read_sku(folder: Path) -> Sku:
    """Return the product that the folder belongs to."""
    path = folder / SKU_FILE
    with _reading(path):
        path.stat()
    sku = files.convert(_object_in(path), Sku, where=str(path))
    if sku.slug != folder.name:
        told = f"key 'slug' is {shown(sku.slug)}, the file's place says {folder.name!r}"
        raise StoreError(told, where=str(path), remedy=_MISPLACED)
    return sku


def read_pack(folder: Path, pack: str) -> dict[str, StoredEntry]:
    """Return the entries of a pack by variant, each checked by itself."""
    path = pack_path(folder, pack)
    if (found := _object_in(path)) is None:
        return {}
    sheet = files.convert(found, _Sheet, where=str(path))
    if (sheet.sku, sheet.pack) != (folder.name, pack):
        known = f"SKU {shown(sheet.sku)} and pack {shown(sheet.pack)}"
        told = f"its sku and pack are {known}, its place's not"
        raise StoreError(told, where=str(path), remedy=_MISPLACED)
    entries = {}
    for variant, value in sheet.variants.items():
        place = f"{path}, variant {shown(variant)}"
        if not variant.startswith(f"{pack}."):
            raise files.damaged(f"the variant is not of pack {pack!r}", place)
        entry = entries[variant] = files.convert(
            {**value, "variant": variant}, StoredEntry, where=place
        )
        for run in runs_of([entry]):
            files.checked_name(run, "run id", where=place)
        metrics = entry.metrics
        if not metrics or any(n in CLOCKS and not metrics[n].values for n in metrics):
            raise files.damaged("it has no metric, or a clock without values", place)
    return entries


def read_all(folder: Path) -> dict[str, StoredEntry]:
    """Return the entries of every pack by variant."""
    packs = (read_pack(folder, pack) for pack in packs_in(folder))
    return {name: stored for own in packs for name, stored in own.items()}


def runs_of(entries: Iterable[BaselineEntry]) -> set[str]:
    """Return the runs that entries come from, those of single cards among them."""
    return {run for each in entries for run in (each.run, *each.runs.values())}


def read_runs(folder: Path, runs: Iterable[str]) -> dict[str, RunFacts]:
    """Return what is kept of runs, by their id."""
    paths = {run: run_path(folder, run) for run in runs}
    found = {run: _object_in(path) for run, path in sorted(paths.items())}
    return {
        run: files.convert(value, RunFacts, where=str(paths[run]))
        for run, value in found.items()
        if value is not None
    }


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _short(value: Any) -> Any:
    """Return numbers as people write them: whole ones without a point."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def baseline_text(sku: str, pack: str, entries: Mapping[str, StoredEntry]) -> bytes:
    """Return the file of one pack on one SKU, variants and metrics sorted."""
    head = {"schema": BASELINE_SCHEMA, "sku": sku, "pack": pack}
    blocks = []
    for variant, stored in sorted(entries.items()):
        entry = msgspec.to_builtins(stored)
        metrics = _short(msgspec.to_builtins(stored.metrics, order="deterministic"))
        lists = {"kernels": entry["kernels"], "codes": entry["codes"]}
        for kernel in entry["kernels"]:
            if not kernel["counters"]:
                del kernel["counters"]
        for name in ("runs", "sampling", "work"):  # no diff for what is not known
            if not entry[name]:
                del entry[name]
        accepted = entry.pop("accepted")
        for name in ("variant", "metrics", *lists):
            del entry[name]
        rows = ",\n".join(f"    {_json(name)}: {_json(row)}" for name, row in metrics.items())
        block = f'{_json(variant)}: {{\n  {_json(entry)[1:-1]},\n  "accepted": {_json(accepted)}'
        block += f',\n  "metrics": {{\n{rows}\n}}'
        for name, items in lists.items():
            if rows := ",\n".join(f"    {_json(item)}" for item in items):
                block += f',\n  "{name}": [\n{rows}\n  ]'
        blocks.append(block + "}")
    lines = ["{", *(f"{_json(key)}: {_json(value)}," for key, value in head.items())]
    text = "\n".join([*lines, '"variants": {', "\n,\n".join(blocks), "}", "}", ""])
    return text.encode("utf-8", "replace")


def _flat_text(value: Record) -> bytes:
    """Return a small record as a stored file, one line a key."""
    whole = {"schema": BASELINE_SCHEMA, **msgspec.to_builtins(value)}
    return json.dumps(whole, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other acceptance out of a SKU's folder; waits for the one that is there."""
    files.inside(folder.parent, folder.name, SKU_FILE)  # a link may lead out of the root
    with ExitStack() as stack:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(folder))
        yield


def _writing(path: Path) -> AbstractContextManager[None]:
    remedy = "make the folder writable and make room on the disk; what was there still holds"
    return files.refusing("cannot write a baseline", path, remedy=remedy)


def write_entries(
    runs: Sequence[Run], sku: Sku, folder: Path, entries: Mapping[str, StoredEntry]
) -> tuple[Path, ...]:
    """Put entries of ``runs`` into their packs' files, with what they refer to before them."""
    if not entries:
        return ()
    first, sheets = {}, {}
    for pack in sorted({name.partition(".")[0] for name in entries}):
        own = {name: each for name, each in entries.items() if name.startswith(f"{pack}.")}
        whole = {**read_pack(folder, pack), **own}
        sheets[pack_path(folder, pack)] = baseline_text(sku.slug, pack, whole)
    for run in runs:
        first[run_path(folder, run.id)] = _flat_text(facts_of(run))
    if not has_sku(folder):
        first[folder / SKU_FILE] = _flat_text(sku)
    written = []
    for path, data in {**first, **sheets}.items():
        with _writing(path):
            written.append(files.replace_file(path, data))
    used = runs_of(read_all(folder).values())
    for path in runs_in(folder):
        if path.stem not in used:
            path.unlink()
    return tuple(written)


@dataclass(frozen=True, slots=True)
class Shipped:
    """A folder of baselines that a pack ships; only numbers of its own variants count."""

    pack: str
    folder: Path


# Where accepted numbers are looked for, in this order.
Root = Path | Shipped


def shipped_by(packs: Iterable[Pack]) -> tuple[Shipped, ...]:
    """Return the folders of baselines inside the packs' packages; a single file ships none."""
    found = []
    for pack in packs:
        file = None if pack.origin.startswith("file:") else file_of(pack)
        # A module that stands alone is in no package; the innermost is the one that ships.
        if file and (file.name == "__init__.py" or modules_of(pack)[1:]):
            folder = file.parent / FOLDER
            found += [Shipped(pack.name, folder)] if os.path.lexists(folder) else []
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """What was accepted for a SKU.

    ``shipped`` are the variants whose entry came with their pack, ``shippers`` the packs that ship.
    ``fingerprint_problem`` says why nothing may be compared with it (the folder belongs to another
    product of the same slug), or is empty. What a pack ships for another product is left out,
    which ``notes`` say. ``runs`` are those that entries come from, as far as they are kept.
    """

    sku: Sku
    entries: Mapping[str, StoredEntry] = field(default_factory=dict)
    shipped: frozenset[str] = frozenset()
    shippers: frozenset[str] = frozenset()
    fingerprint_problem: str = ""
    notes: tuple[str, ...] = ()
    runs: Mapping[str, RunFacts] = field(default_factory=dict)

    @classmethod
    def load(cls, roots: Sequence[Root], sku: Sku) -> Baselines:
        """Read the folders of a SKU; a damaged file is an error, whatever root it lies in."""
        own: dict[str, StoredEntry] = {}
        theirs: dict[str, StoredEntry] = {}
        runs: dict[str, RunFacts] = {}
        problems, notes = [], []
        for root in roots:
            shipper = root.pack if isinstance(root, Shipped) else ""
            folder = sku_folder(root.folder if isinstance(root, Shipped) else root, sku.slug)
            try:
                packs = [shipper] if shipper else packs_in(folder)
                found = {k: v for pack in packs for k, v in read_pack(folder, pack).items()}
                problem = differs(read_sku(folder).facts, sku.facts) if found else ""
                runs |= read_runs(folder, runs_of(found.values()))
            except StoreError as error:
                if not shipper:
                    raise
                # Who runs the pack cannot correct its files.
                raise StoreError(
                    f"a baseline that the pack {shipper!r} ships is not usable: {error.what}",
                    where=error.where,
                    remedy="install the pack again or tell its author; without it: --perf-packs "
                    f"with the others, or pip uninstall what brings {shipper!r}",
                ) from error
            if shipper and problem:
                notes.append(f"the baseline that {shipper} ships is not used: {folder}: {problem}")
            elif shipper:
                theirs = found | theirs
            else:
                own = found | own
                problems += [f"{folder}: {problem}"] if problem else []
        return cls(
            sku=sku,
            entries=theirs | own,
            shipped=frozenset(theirs.keys() - own.keys()),
            shippers=frozenset(name.partition(".")[0] for name in theirs),
            fingerprint_problem="; ".join(problems),
            notes=tuple(notes),
            runs=runs,
        )

    @classmethod
    def load_each(cls, roots: Sequence[Root], skus: Iterable[Sku]) -> dict[str, Baselines]:
        """Read the folders of several SKUs, by slug; one that is named for each variant, once."""
        several = {sku.slug: sku for sku in skus}
        return {slug: cls.load(roots, sku) for slug, sku in several.items()}

    def covers(self, variant_id: str) -> bool:
        """Say whether the project has baselines of this SKU, or the variant's pack ships some."""
        is_own = self.fingerprint_problem or len(self.entries) > len(self.shipped)
        return bool(is_own) or variant_id.partition(".")[0] in self.shippers

    def name_of(self, variant_id: str) -> str:
        """Return which baseline a variant is compared with."""
        by = f" shipped by {variant_id.partition('.')[0]}" if variant_id in self.shipped else ""
        what = "accepted machine code for" if "target" in self.sku.facts else "baseline"
        return f"{what} {self.sku.slug}{by}"


# A third of the smallest threshold (0.25 %): what moves less is noise, and only makes diffs.
LEAST_MOVE = 0.0025 / 3
ADDED = "added"  # what becomes of an entry that was not there


class Standing(StrEnum):
    """What is known of the code of a new run, beside that of an entry's reference."""

    ONE_CODE = "one code"
    PAIRED = "same in pairs"
    OTHER = "another"
    OPEN = "not known"


def merge(
    old: BaselineEntry | None,
    new: BaselineEntry,
    standing: Standing,
    *,
    environment: Sequence[str] = (),
) -> tuple[BaselineEntry, str]:
    """Return what to store for a variant, and in words what that changes: no words, no change.

    A card's processes replace its own and stand beside other cards' where the code is the
    reference's, by its source or in pairs. Other code starts a new entry, with the new cards alone.
    What is not known to be either changes nothing. ``environment`` names what of it is another than
    where the cards were measured before.
    """
    if old is None or (reason := other_kind(old, new)):
        return new, reason if old else ADDED
    if standing is Standing.OPEN:
        return old, ""
    moves, others = _moves(old, new), old.cards - new.cards
    if standing is Standing.OTHER:
        dropped = (
            [f"values of other units go to history: {', '.join(sorted(others))}"] if others else []
        )
        changed = moves or (["other code"] if others or old.artefact != new.artefact else [])
        return new, "; ".join(changed + dropped) if changed else ""
    added = [f"unit {unit} added" for unit in sorted(new.cards - old.cards)]
    added += [f"environment: {', '.join(environment)}"] if environment else []
    counted = [any(kernel.counters for kernel in each.kernels) for each in (old, new)]
    added += [f"{name} recorded" for name in ("sampling", "kernels")
              if getattr(new, name) and not getattr(old, name)]  # fmt: skip
    added += ["artefact recorded"] if new.artefact not in {"", old.artefact} else []
    added += ["counters recorded"] if old.kernels and counted[1] and not counted[0] else []
    # What was not traced, because nothing moved, is what was traced before.
    entry = replace(
        new,
        artefact=new.artefact or old.artefact,
        kernels=new.kernels or old.kernels,
        codes=new.codes if new.kernels else old.codes,
    )
    if others or standing is Standing.PAIRED:
        entry = _beside(old, entry, others)
    return entry, "; ".join(moves + added)


def _beside(old: BaselineEntry, new: BaselineEntry, others: Collection[str]) -> BaselineEntry:
    """Return a new entry whose reference is the old one's, with the processes of other cards."""
    metrics = dict(new.metrics)
    for name, metric in _clocks(new).items():
        was = old.metrics[name]
        if kept := {unit: row for unit, row in was.values.items() if unit in others}:
            metrics[name] = _pooled([replace(was, values=kept), metric])
    runs = {card: old.run_of([card]) for card in others} | {c: new.run_of([c]) for c in new.cards}
    own = {card: run for card, run in sorted(runs.items()) if run != old.run}
    return replace(new, run=old.run, runs=own, metrics=metrics)


def pooled_entry(entries: Sequence[BaselineEntry]) -> BaselineEntry:
    """Return the newest of entries of one level, the last of them, with every process of all."""
    *_, last = entries
    traced = next((each for each in reversed(entries) if each.kernels), last)
    rows = {name: _pooled([each.metrics[name] for each in entries]) for name in _clocks(last)}
    runs = {card: each.run_of([card]) for each in entries for card in each.cards}
    return replace(
        last,
        metrics={**last.metrics, **rows},
        runs={card: run for card, run in sorted(runs.items()) if run != last.run},
        kernels=traced.kernels,
        codes=traced.codes,
    )


def _pooled(metrics: Sequence[BaselineMetric]) -> BaselineMetric:
    """Return the last of metrics with the processes of all, and what follows from them."""
    values: dict[str, tuple[float, ...]] = {}
    squares = 0.0
    for metric in metrics:
        for unit, row in metric.values.items():
            values[unit] = (*values.get(unit, ()), *row)
            squares += len(row) * metric.within**2
    logs = [[math.log(value) for value in row] for row in values.values()]
    flat = [value for row in logs for value in row]
    return replace(
        metrics[-1],
        center=files.round_digits(math.exp(hodges_lehmann(flat))),
        within=files.round_digits(math.sqrt(squares / len(flat))),
        between=files.round_digits(math.sqrt(pooled(logs).value)),
        values=values,
    )


def other_kind(old: BaselineEntry, new: BaselineEntry) -> str:
    """Say why two entries are not estimates of one thing; nothing where they are."""
    for name in ("case_version", "regime", "state"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            return f"{name.replace('_', ' ')} was {before} and is {now}"
    if why := other_sampling(old, new):
        return why
    before, now = (", ".join(sorted(each.metrics)) for each in (old, new))
    return f"metrics were {before}; are {now}" if before != now else ""


def other_sampling(old: BaselineEntry, new: BaselineEntry) -> str:
    """Say how the times of two entries were taken differently; nothing where they were not."""
    if not old.sampling or old.sampling == new.sampling:
        return ""
    return f"sampling was {old.sampling} and is {new.sampling or 'unknown'}"


def _clocks(entry: BaselineEntry) -> dict[str, BaselineMetric]:
    return {name: metric for name, metric in sorted(entry.metrics.items()) if metric.values}


def _moves(old: BaselineEntry, new: BaselineEntry) -> list[str]:
    """Say which metrics moved: exact ones at all, clocks on a unit that both entries have."""

    def center(values: Sequence[float]) -> float:
        return hodges_lehmann([math.log(value) for value in values])

    found = []
    for name, metric in sorted(new.metrics.items()):
        before = old.metrics[name]
        if not metric.values:
            if metric.center != before.center:
                found.append(f"{name} was {before.center:.15g} and is {metric.center:.15g}")
            continue
        shared = metric.values.keys() & before.values.keys()
        moves = [center(metric.values[unit]) - center(before.values[unit]) for unit in shared]
        move = max(moves, key=abs, default=0.0)
        if abs(move) > LEAST_MOVE:
            found.append(f"{name} {100 * math.expm1(move):+.2f} %")
    return found


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
        before, now = self.old.metrics, self.new.metrics
        name = next((name for name in ("time_us", *sorted(before)) if name in before), "")
        if name not in now or not before[name].center:
            return None
        return now[name].center / before[name].center - 1


def differences(before: Path, now: Path) -> Iterator[Difference]:
    """Yield the entries that are not the same in two folders, by SKU and variant."""
    for sku in sorted({*folders_in(before), *folders_in(now)}):
        old, new = (read_all(root / sku) for root in (before, now))
        for name in sorted(old.keys() | new.keys()):
            was, found = old.get(name), new.get(name)
            if was is None or found is None:
                yield Difference(sku, name, ADDED if was is None else "removed", was, found)
            elif was != found:
                _, moved = merge(was, found, Standing.ONE_CODE)
                is_same = replace(was, accepted=found.accepted) == found
                told = "who and why" if is_same else "evidence alone"
                yield Difference(sku, name, moved or told, was, found)
