"""Finds packs: installed distributions, folders and files; nothing of them is imported."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import perfsuite
from perfsuite.boundary import PackError, UsageError
from perfsuite.model import NAME
from perfsuite.store.files import read

# Where packs come from: installed entry points, pack folders and single files; none imported.


GROUP = "perfsuite"
# sku.json lies beside the packs' files of accepted numbers.
TAKEN_NAMES = frozenset({"sku"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSource:
    """A pack that was found and not imported; ``error`` says why it cannot be used.

    ``origin`` is the one of ``model.Pack``: ``module:NAME@FOLDER`` or ``file:PATH``.
    """

    name: str
    origin: str
    version: str = ""
    error: str = ""


def discover(
    root: Path | None, *, extra: Sequence[Path] = (), allow: Sequence[str] = ()
) -> tuple[PackSource, ...]:
    """Return the packs of ``extra``, of this environment and of ``root/plugins``, in this order.

    A pack that is installed and also lies in a folder is taken once: from ``extra`` if named
    there, else as installed. ``allow`` keeps only packs of these names. A path of ``extra`` that
    is no pack, or a name of ``allow`` that is not found, is a ``UsageError``; anything wrong with
    a pack nobody named is that source's ``error``.
    """
    found = [source for path in extra for source in packs_at(path)]
    found += _installed()
    found += _in_folders(root)
    return _allowed(_distinct(found), allow)


def packs_at(path: Path) -> list[PackSource]:
    """Return the pack of a Python file, or those of a folder; a ``UsageError`` if it is neither."""
    place = path.expanduser().resolve()
    if place.suffix == ".py" and place.is_file():
        return [_checked(PackSource(name=place.stem, origin=f"file:{place}"))]
    if (place / "pyproject.toml").is_file():
        return _in_folder(place)
    raise UsageError(
        f"{str(path)!r} is no pack",
        where=str(place),
        remedy="name a .py file, or a folder with a pyproject.toml that declares an entry point "
        f"in the group {GROUP!r}",
    )


def _installed() -> list[PackSource]:
    return [
        _checked(
            PackSource(
                name=entry.name,
                origin=f"module:{entry.value}@",
                version=entry.dist.version if entry.dist else "",
            ),
            (entry.dist.requires or ()) if entry.dist else (),
        )
        for entry in entry_points(group=GROUP)
    ]


def _in_folders(root: Path | None) -> list[PackSource]:
    if root is None:
        return []
    files = sorted((root.resolve() / "plugins").glob("*/pyproject.toml"))
    return [source for file in files for source in _in_folder(file.parent)]


def _in_folder(folder: Path) -> list[PackSource]:
    """Return the packs that a folder's own pyproject.toml declares: the only list of them."""
    try:
        return _declared(folder)
    except PackError as error:
        return [PackSource(name=folder.name, origin=f"module:@{folder}", error=str(error))]


def _declared(folder: Path) -> list[PackSource]:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(read(file).decode()).get("project", {})
        entries = project.get("entry-points", {}).get(GROUP, {})
        version = str(project.get("version", ""))
        requires = [each for each in project.get("dependencies", ()) if isinstance(each, str)]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise PackError(
            f"a pack's pyproject.toml cannot be read: {error}",
            where=str(file),
            remedy="correct the file, or move the folder away",
        ) from error
    if not entries:
        raise PackError(
            f"the pack folder {folder.name!r} declares no entry point in the group {GROUP!r}",
            where=str(file),
            remedy=f'add [project.entry-points.{GROUP}] with {folder.name} = "its_module"',
        )
    place = folder / "src" if (folder / "src").is_dir() else folder
    return [
        _checked(PackSource(name=name, origin=f"module:{value}@{place}", version=version), requires)
        for name, value in entries.items()
    ]


def _checked(source: PackSource, requires: Iterable[str] = ()) -> PackSource:
    """Return the source, with an error if its name can be no id's or it needs another perfsuite."""
    what, remedy = _unmet(requires), "install the perfsuite that it asks for, or an older pack"
    if not NAME.match(source.name):
        what = f"pack name {source.name!r} must match {NAME.pattern}"
        remedy = "rename the entry point or the file"
    elif source.name in TAKEN_NAMES:
        what = f"pack name {source.name!r} is taken: its baselines would be the SKU's own file"
        remedy = "rename the entry point or the file"
    elif what:
        what = f"the pack {source.name!r} {source.version} {what}"
    error = PackError(what, where=source.origin, remedy=remedy) if what else ""
    return replace(source, error=str(error))


def _unmet(requires: Iterable[str]) -> str:
    """Say which requirement of a distribution this perfsuite does not meet; nothing if none.

    Pip looks at it when it installs, and never again; of a folder nobody else does.
    """
    named = [text for text in requires if "perfsuite" in text.lower() and text != "perfsuite"]
    for text in named:
        from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
        from packaging.requirements import InvalidRequirement, Requirement
        from packaging.utils import canonicalize_name

        try:
            wanted = Requirement(text)
            applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            return f"declares a dependency that is none: {text!r}"
        is_met = wanted.specifier.contains(perfsuite.__version__, prereleases=True)
        if canonicalize_name(wanted.name) == GROUP and applies and not is_met:
            return f"requires perfsuite {wanted.specifier}, and this is {perfsuite.__version__}"
    return ""


def _distinct(found: Iterable[PackSource]) -> list[PackSource]:
    """Drop what was found twice; a second pack of a taken name is kept with an error."""
    first: dict[str, PackSource] = {}
    kept = []
    for source in found:
        rival = first.setdefault(source.name, source)
        if rival is source:
            kept.append(source)
        elif not _is_same(rival, source):
            kept.append(replace(source, error=source.error or _clash(rival, source)))
    return kept


def _is_same(one: PackSource, other: PackSource) -> bool:
    if one.origin == other.origin:
        return True
    module, _, folder = one.origin.partition("@")
    other_module, _, other_folder = other.origin.partition("@")
    return module == other_module and "" in {folder, other_folder}


def _clash(first: PackSource, second: PackSource) -> str:
    return str(
        PackError(
            f"two packs have the name {second.name!r}; the second is left out",
            where=f"{first.origin} (first) and {second.origin} (second)",
            remedy="rename the entry point of one of them, or uninstall it",
        )
    )


def _allowed(found: Sequence[PackSource], allow: Sequence[str]) -> tuple[PackSource, ...]:
    known = {source.name for source in found}
    unknown = [name for name in allow if name not in known]
    if unknown:
        raise UsageError(
            f"no pack has the name {unknown[0]!r}",
            remedy=f"choose among {', '.join(sorted(known)) or 'none: no pack was found'}",
        )
    return tuple(source for source in found if not allow or source.name in allow)
