"""Where a SKU's baselines lie, and how their files are read and replaced without ever being half.

``<root>/<sku slug>/`` holds ``sku.json``, ``<pack>.json`` and ``runs/<run id>.json``. Nothing is
there where there is no file at all: what is there and cannot be read is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from perfsuite import files
from perfsuite.boundary import hidden, plain
from perfsuite.codec import RunFacts, StoredEntry, flat_text, read_baseline, read_flat
from perfsuite.errors import StoreError
from perfsuite.files import checked_name, inside, is_absent, listed, read, refusing, replace_file
from perfsuite.model import Run, Sku

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
