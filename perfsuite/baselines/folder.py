"""Where a SKU's baselines lie, and how their files are read and replaced without ever being half.

``<root>/<sku slug>/`` holds ``sku.json``, ``<pack>.json`` and ``runs/<run id>.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from perfsuite import files
from perfsuite.codec import RunFacts, StoredEntry, flat_text, read_baseline, read_flat
from perfsuite.errors import StoreError
from perfsuite.files import refusing, replace_file
from perfsuite.model import Run, Sku

T = TypeVar("T")

_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_PACK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_SKU_FILE = "sku.json"


def sku_folder(root: Path, slug: str) -> Path:
    """Return the folder of a SKU; a slug that would lead elsewhere is refused."""
    return root / _plain(slug, _SLUG, "SKU slug", where=root)


def pack_path(folder: Path, pack: str) -> Path:
    """Return the file of a pack; a name that would lead elsewhere is refused."""
    path = folder / f"{_plain(pack, _PACK, 'pack name', where=folder)}.json"
    if path.name == _SKU_FILE:
        raise StoreError(
            f"pack name {pack!r} is taken by {_SKU_FILE}",
            where=str(folder),
            remedy="rename the pack",
        )
    return path


def run_path(folder: Path, run_id: str, *, told: object = "") -> Path:
    """Return the file with what is kept of a run; ``told`` is where its id stands."""
    return folder / "runs" / f"{_plain(run_id, _SLUG, 'run id', where=told or folder)}.json"


def sku_path(folder: Path) -> Path:
    """Return the file that says which product the folder belongs to."""
    return folder / _SKU_FILE


def packs_in(folder: Path) -> list[str]:
    """Return the names of the packs that have a file in the folder."""
    return sorted(path.stem for path in folder.glob("*.json") if path.name != _SKU_FILE)


def _plain(name: str, pattern: re.Pattern[str], what: str, *, where: object) -> str:
    if not pattern.match(name):
        raise StoreError(
            f"{what} {name!r} cannot be a file name: it must match {pattern.pattern}",
            where=str(where),
            remedy="use letters, digits, hyphens and underscores",
        )
    return name


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
    if not path.exists():
        return {}
    return read_baseline(_bytes(path), sku=folder.name, pack=pack, where=str(path))


def read_all(folder: Path) -> dict[str, StoredEntry]:
    """Return the entries of every pack by variant."""
    packs = (read_pack(folder, pack) for pack in packs_in(folder))
    return {name: stored for own in packs for name, stored in own.items()}


def read_runs(folder: Path, stored: Mapping[str, StoredEntry]) -> dict[str, RunFacts]:
    """Return what is kept of the runs that entries, by variant, come from."""
    paths = {
        each.entry.run: run_path(
            folder, each.entry.run, told=f"{pack_path(folder, name.partition('.')[0])}, {name}"
        )
        for name, each in stored.items()
    }
    return {
        run: read_flat(_bytes(path), RunFacts, where=str(path))
        for run, path in paths.items()
        if path.exists()
    }


def _bytes(path: Path) -> bytes:
    remedy = "restore it from git, or remove the folder and accept a run again"
    with refusing("cannot read a baseline file", path, remedy=remedy):
        return path.read_bytes()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep every other acceptance out of the folder; waits for the one that is there."""
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
    if not sku_path(folder).exists():
        first[sku_path(folder)] = flat_text(sku)
    written = tuple(write(path, data) for path, data in {**first, **files}.items())
    _drop_unused_runs(folder)
    return written


def _facts(run: Run) -> RunFacts:
    return RunFacts(
        run=run.id,
        started=run.started,
        commit=run.commit,
        command=run.command,
        environment=run.facts.environment,
    )


def _drop_unused_runs(folder: Path) -> None:
    used = {stored.entry.run for stored in read_all(folder).values()}
    for path in (folder / "runs").glob("*.json"):
        if path.stem not in used:
            path.unlink()
