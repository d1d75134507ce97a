"""Writes the start of a pack: a distribution that can be installed, run and made one's own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import perfsuite
from perfsuite.errors import UsageError
from perfsuite.files import refusing
from perfsuite.packs.sources import TAKEN_NAMES

# It becomes a module's, a distribution's and a file's name: lower-case, with a letter first.
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
LONGEST = 40
# Left off, so that no tool takes a template for the file that is made of it.
SUFFIX = ".txt"
RENAMED = {"gitignore": ".gitignore", "github": ".github"}


def new_pack(name: str, folder: Path | None = None, *, taken: Sequence[str] = ()) -> Path:
    """Write the pack ``name`` and return its folder, by default ``NAME-perf`` in the current one.

    All of it or nothing is written. A name that cannot be a pack's or is ``taken``, and a folder
    that exists or cannot be written, is a ``UsageError``.
    """
    _check(name, taken)
    project = f"{name.replace('_', '-')}-perf"
    place = folder or Path(project)
    if place.exists() or place.is_symlink():
        raise UsageError(
            f"{str(place)!r} exists already; nothing was written",
            where=str(place.absolute()),
            remedy="name another with --folder DIR, or move it away",
        )
    words = {"pack": name, "package": f"{name}_perf", "project": project}
    words["version"] = ".".join(perfsuite.__version__.split(".")[:2])
    remedy = "name a folder that can be written with --folder DIR"
    with refusing("cannot write the pack", place.absolute(), remedy=remedy, kind=UsageError):
        _write(place, dict(_files(words)))
    return place


def _check(name: str, taken: Sequence[str]) -> None:
    if not NAME.match(name) or len(name) > LONGEST or name in TAKEN_NAMES:
        raise UsageError(
            f"{name!r} cannot be a pack's name",
            remedy=f"take up to {LONGEST} lower-case letters, digits and single underscores, a "
            "letter first, as in acme or acme_kernels; 'sku' is taken",
        )
    if name in taken:
        raise UsageError(
            f"there is a pack of the name {name!r} already",
            remedy="take another; perfsuite list shows the packs of this environment and project",
        )


def _write(place: Path, files: Mapping[Path, str]) -> None:
    """Write the files beside the place and move them there at once."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        for path, text in files.items():
            file = beside / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        beside.rename(place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _files(words: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield each file of the pack by its path inside it."""
    root = resources.files("perfsuite.cli").joinpath("templates", "new_pack")
    for template, parts in _templates(root):
        *folders, last = parts
        name = last.removesuffix(SUFFIX)
        named = RENAMED | {"package": words["package"]}
        inside = [named.get(part, part) for part in folders]
        text = Template(template.read_text("utf-8")).substitute(words)
        yield Path(*inside, RENAMED.get(name, name)), text


def _templates(
    folder: Traversable, above: tuple[str, ...] = ()
) -> Iterator[tuple[Traversable, tuple[str, ...]]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        parts = (*above, entry.name)
        if entry.is_dir():
            yield from _templates(entry, parts)
        elif entry.name.endswith(SUFFIX):
            yield entry, parts
