"""Finds packs: installed distributions, folders and files; nothing of them is imported."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import re
import shutil
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, distributions, entry_points
from pathlib import Path

from msgspec.structs import replace

import perfsuite
from perfsuite.boundary import FILE_BYTES, PackError, UsageError
from perfsuite.model import NAME, Pack, Wheel
from perfsuite.store.files import locked, read

GROUP = "perfsuite"
# sku.json lies beside the packs' files of accepted numbers.
TAKEN_NAMES = frozenset({"sku"})
# What is wrong, and what to do about it.
Fault = tuple[str, str]
# Of a wheel's place for what is installed elsewhere than where it is unpacked.
DATA = re.compile(r"[^/]+\.data/(?:purelib|platlib)/")


def discover(root: Path | None, *, allow: Sequence[str] = ()) -> tuple[Pack, ...]:
    """Return the packs of this environment and of ``root/plugins``, in this order.

    ``allow`` keeps only packs of these names, and those at these paths, which come first: what is
    no plain name is a path. A pack that is installed and also lies in a folder is taken once: from
    the path if that is named, else as installed. A path that is no pack, or a name that is not
    found, is a ``UsageError``; anything wrong with a pack nobody named is its ``error``.
    """
    found = [s for w in allow if not w.isidentifier() for s in packs_at(Path(w))]
    allow = [*filter(str.isidentifier, allow), *(source.name for source in found)]
    for entry in entry_points(group=GROUP):
        version = entry.dist.version if entry.dist else ""
        requires = (entry.dist.requires or ()) if entry.dist else ()
        found.append(_source(entry.name, f"module:{entry.value}@", version, requires))
    files = sorted((root.resolve() / "plugins").glob("*/pyproject.toml")) if root else ()
    found += [source for file in files for source in _in_folder(file.parent)]

    first: dict[str, Pack] = {}
    kept = []
    for source in found:
        rival = first.setdefault(source.name, source)
        if rival is source:
            kept.append(source)
        elif not _is_same(rival, source):
            clash = PackError(
                f"two packs have the name {source.name!r}; the second is left out",
                where=f"{rival.origin} (first) and {source.origin} (second)",
                remedy="rename the entry point of one of them, or uninstall it",
            )
            kept.append(replace(source, error=source.error or str(clash)))
    if unknown := [name for name in allow if name not in first]:
        raise UsageError(
            f"no pack has the name {unknown[0]!r}",
            remedy=f"choose among {', '.join(sorted(first)) or 'none: no pack was found'}; "
            f"a folder is named as ./{unknown[0]}",
        )
    return tuple(source for source in kept if not allow or source.name in allow)


def packs_at(path: Path) -> list[Pack]:
    """Return the pack of a Python file, or those of a folder; a ``UsageError`` if it is neither."""
    place = path.expanduser().resolve()
    if place.suffix == ".py" and place.is_file():
        return [_source(place.stem, f"file:{place}")]
    if (place / "pyproject.toml").is_file():
        return _in_folder(place)
    raise UsageError(
        f"{str(path)!r} is no pack",
        where=str(place),
        remedy="name a .py file, or a folder with a pyproject.toml that declares an entry point "
        f"in the group {GROUP!r}",
    )


def _is_same(one: Pack, other: Pack) -> bool:
    """Say whether two sources are of one pack: what is installed also lies in some folder."""
    module, _, folder = one.origin.partition("@")
    other_module, _, other_folder = other.origin.partition("@")
    return one.origin == other.origin or (module == other_module and "" in {folder, other_folder})


def _in_folder(folder: Path) -> list[Pack]:
    """Return the packs that a folder's own pyproject.toml declares: the only list of them."""
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(read(file).decode()).get("project", {})
        entries = project.get("entry-points", {}).get(GROUP, {}).items()
        version = str(project.get("version", ""))
        requires = [each for each in project.get("dependencies", ()) if isinstance(each, str)]
        what = f"the pack folder {folder.name!r} declares no entry point in the group {GROUP!r}"
        remedy = f'add [project.entry-points.{GROUP}] with {folder.name} = "its_module"'
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        entries, what = (), f"a pack's pyproject.toml cannot be read: {error}"
        remedy = "correct the file, or move the folder away"
    if not entries:
        told = str(PackError(what, where=str(file), remedy=remedy))
        return [Pack(name=folder.name, origin=f"module:@{folder}", error=told)]
    place = folder / "src" if (folder / "src").is_dir() else folder
    return [_source(name, f"module:{value}@{place}", version, requires) for name, value in entries]


def _source(name: str, origin: str, version: str = "", requires: Iterable[str] = ()) -> Pack:
    """Return the source, with an error if its name can be no id's or it needs another perfsuite."""
    what, remedy = "", "rename the entry point or the file"
    if not NAME.match(name):
        what = f"pack name {name!r} must match {NAME.pattern}"
    elif name in TAKEN_NAMES:
        what = f"pack name {name!r} is taken: its baselines would be the SKU's own file"
    elif unmet := _unmet(requires):
        what = " ".join(filter(None, ("the pack", repr(name), version, unmet)))
        remedy = "install the perfsuite that it asks for, or an older pack"
    error = str(PackError(what, where=origin, remedy=remedy)) if what else ""
    return Pack(name=name, origin=origin, version=version, error=error)


def _unmet(requires: Iterable[str]) -> str:
    """Say which requirement of a distribution this perfsuite does not meet; nothing if none.

    Pip looks at it when it installs, and never again; of a folder nobody else does.
    """
    for text in (each for each in requires if "perfsuite" in each.lower()):
        from packaging.requirements import Requirement

        try:
            needed = Requirement(text)
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        except (ValueError, KeyError):
            return f"declares a dependency that is none: {text!r}"
        is_met = needed.specifier.contains(perfsuite.__version__, prereleases=True)
        if needed.name.lower() == GROUP and applies and not is_met:
            return f"requires perfsuite {needed.specifier}, and this is {perfsuite.__version__}"
    return ""


def modules_of(pack: Pack) -> list[str]:
    """Return the names of a pack's module: its package's first."""
    return re.split(r"[:@\[ ]", pack.origin.partition(":")[2])[0].split(".")


def file_of(pack: Pack) -> Path | None:
    """Return the file of a pack's module, wherever it is installed; None where there is none."""
    if pack.origin.startswith("file:"):
        return Path(pack.place)
    with suppress(ImportError, ValueError):
        spec = spec_of(modules_of(pack), pack.folder)
        if spec and spec.has_location and spec.origin:
            return Path(spec.origin).resolve()
    return None


def spec_of(names: Sequence[str], folder: str = "") -> ModuleSpec | None:
    """Return what a module of these names, one in the other, is imported by, first of a folder.

    Python itself would import each package above it. ValueError for one that was made by hand.
    """
    spec = PathFinder.find_spec(names[0], [folder]) if folder else None
    spec = spec or importlib.util.find_spec(names[0])
    for name in names[1:]:
        places = spec and spec.submodule_search_locations
        spec = PathFinder.find_spec(name, [*places]) if places else None
    return spec


def wheels_of(packs: Iterable[Pack]) -> dict[str, Wheel]:
    """Return by pack the wheel that it was installed from; what is installed editable has none."""
    asked = {(pack.name, pack.origin): pack for pack in packs if not pack.place}
    found = {}
    for entry in entry_points(group=GROUP) if asked else ():
        pack = asked.get((entry.name, f"module:{entry.value}@"))
        file = file_of(pack) if pack else None
        if file and entry.dist:
            root = Path(str(entry.dist.locate_file(""))).resolve()
            if file.is_relative_to(root) and str(file.relative_to(root)) in _files(entry.dist):
                found[entry.name] = _wheel(entry.dist)
    return found


def _wheel(dist: Distribution) -> Wheel:
    lines = "".join(f"{name},{digest}\n" for name, digest in sorted(_files(dist).items()))
    return Wheel(dist.name, dist.version, hashlib.sha256(lines.encode()).hexdigest())


def _files(dist: Distribution) -> dict[str, str]:
    """Return the hashes of a distribution's files: those that are the same however installed."""
    rows = csv.reader((dist.read_text("RECORD") or "").splitlines())
    files = {DATA.sub("", row[0]): row[1] for row in rows if row[1:] and row[1]}
    own = re.compile(r"\.\./|/|[^/]+\.(?:dist-info|data)/|.*\.pyc\Z")
    return {name: digest for name, digest in files.items() if not own.match(name)}


def unpacked(wheel: Wheel, folders: Iterable[Path], home: Path) -> Path | None:
    """Return where a wheel's code can be imported from, if a folder has it, packed or not.

    What is packed is unpacked below ``home``, once. UsageError for what may not be unpacked.
    """
    there = [folder for folder in folders if folder.is_dir()]
    for place in (place for folder in there for place in (folder, *sorted(folder.iterdir()))):
        for dist in distributions(name=wheel.name, path=[str(place)]):
            if (dist.version, _wheel(dist).record) == (wheel.version, wheel.record):
                return place if place.is_dir() else _unzipped(place, home / wheel.record)
    return None


def _unzipped(file: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    with locked(place.parent), zipfile.ZipFile(file) as packed:
        names = packed.namelist()
        size = sum(each.file_size for each in packed.infolist())
        if size > FILE_BYTES or any(n.startswith("/") or ".." in n.split("/") for n in names):
            what = "the wheel holds a file of another folder, or too much"
            raise UsageError(what, where=str(file), remedy="download it again")
        if not place.is_dir():
            shutil.rmtree(part, ignore_errors=True)
            packed.extractall(part)
            part.rename(place)
    return place
