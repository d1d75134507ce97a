"""Lets a process import an arm's code, and tells whether it did; perfsuite itself stays."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import perfsuite
from perfsuite.errors import PackError
from perfsuite.model import Tree

# The instrument is the same in both arms, also where its own repository is under test.
INSTRUMENT = Path(perfsuite.__file__).resolve().parent
# What is installed inside the repository, such as a virtual environment, is both arms' own.
INSTALLED = frozenset({"site-packages", "dist-packages"})
BY_PATH = (
    "let nothing but sys.path decide where it is imported from (an editable install with a finder "
    "of its own does)"
)
BY_BUILD = "make it there: --perf-against-build (make, git submodule update --init)"
NOTHING_OF_IT = "no Python module came from there: both arms ran the same code"


def moved(path: str, tree: Tree) -> str:
    """Return where a path of the repository lies in an arm's tree; others stay."""
    place = Path(path).resolve()
    if not path or not place.is_relative_to(tree.repository) or place.is_relative_to(tree.root):
        return path
    return str(tree.root / place.relative_to(tree.repository))


def moved_origin(origin: str, tree: Tree) -> str:
    """Return where a pack is loaded from in an arm's tree."""
    kind, _, value = origin.partition(":")
    if kind == "file":
        return f"file:{moved(value, tree)}"
    name, _, folder = value.partition("@")
    return f"{kind}:{name}@{moved(folder, tree)}"


def entries(tree: Tree, paths: Iterable[str]) -> list[str]:
    """Return what is to stand first on ``sys.path``: the tree's front, and its twin of each path.

    A path that the tree lacks, such as a virtual environment inside the repository, has no twin.
    """
    twins = [twin for path in paths if (twin := moved(path, tree)) != path]
    own = [twin for twin in twins if Path(twin).is_relative_to(tree.root)]
    return [path for path in dict.fromkeys((*tree.front, *own)) if Path(path).is_dir()]


def refuse_strangers(tree: Tree, modules: Iterable[ModuleType]) -> None:
    """Raise ``PackError`` if a module came from the repository and not from the tree.

    What the tree lacks (a submodule, what is built) would be the working tree's in both arms.
    """
    for file in _files(modules):
        twin = moved(str(file), tree)
        is_there = Path(twin).is_file()
        if twin == str(file) or not (is_there or _is_own(file, tree)):
            continue
        raise PackError(
            f"{str(file)!r} was imported from the working tree, not from the other revision"
            f"{'' if is_there else ', whose checkout lacks it'}",
            where=tree.root,
            remedy=BY_PATH if is_there else BY_BUILD,
        )


def _is_own(file: Path, tree: Tree) -> bool:
    """Say whether a file is the repository's own: neither installed nor temporary inside it.

    Some modules name a file that is none (torch.ops does).
    """
    homes = [Path(home).resolve() for home in (sys.prefix, sys.base_prefix, tempfile.gettempdir())]
    inside = [home for home in homes if Path(tree.repository) in home.parents]
    is_installed = not INSTALLED.isdisjoint(file.parts) or any(map(file.is_relative_to, inside))
    return file.is_file() and not is_installed


def has_any(tree: Tree, modules: Iterable[ModuleType]) -> bool:
    """Say whether a module came from the tree."""
    return any(file.is_relative_to(tree.root) for file in _files(modules))


def _files(modules: Iterable[ModuleType]) -> Iterator[Path]:
    """Yield the files of modules that are not the instrument's."""
    for module in modules:
        name = getattr(module, "__file__", None)
        file = Path(name).resolve() if isinstance(name, str) else INSTRUMENT
        if not file.is_relative_to(INSTRUMENT):
            yield file
