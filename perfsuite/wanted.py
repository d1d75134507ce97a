"""Which files and items a session under --perf takes: cases, quick looks, and what was named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.errors import UsageError
from perfsuite.model import ClaimInstance, Pack, Variant

if TYPE_CHECKING:
    import pytest

# The file part of the ids of a project without case modules.
MODULE = "perf"
FIXTURE = "perf"
# Where the fixture is defined.
PLUGIN = "perfsuite.plugin"
# What an item reports on.
Subject = Variant | ClaimInstance | Pack


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a session takes: ``named`` are files and folders, ``ids`` node ids in ``MODULE``."""

    folders: tuple[Path, ...]
    named: frozenset[Path]
    ids: tuple[str, ...]

    @property
    def needs_packs(self) -> bool:
        """Say whether packs are asked for, and not only files with quick looks."""
        files = [path for path in self.named if path.is_file()]
        only_files = files and not any(self.is_case(path) for path in files)
        return bool(self.ids) or not only_files

    @property
    def needs_module(self) -> bool:
        """Say whether variants have no case module to stand in."""
        return bool(self.ids) or (not self.folders and self.needs_packs)

    def is_case(self, path: Path) -> bool:
        """Say whether a path lies in a folder of case modules."""
        return any(path.is_relative_to(folder) for folder in self.folders)

    def takes(self, path: Path) -> bool:
        """Say whether a file is to be collected; what it holds besides is left out later."""
        return self.is_case(path) or any(path.resolve().is_relative_to(each) for each in self.named)

    def chosen(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the items that the ids name, all if there are none; ``UsageError`` if unknown."""
        found = [item for item in items if any(_is_named(item.nodeid, name) for name in self.ids)]
        for name in self.ids:
            if not any(_is_named(item.nodeid, name) for item in found):
                raise UsageError(
                    f"not found: {name}",
                    remedy="list the ids: pytest --perf --collect-only -q (of another tier: "
                    "--perf-tier nightly or full)",
                )
        return found if self.ids else list(items)


def wanted_of(config: pytest.Config) -> Wanted:
    """Take what the command line names; node ids of ``MODULE``, which is no file, out of it."""
    is_given = config.args_source.name == "ARGS"
    ids = tuple(arg for arg in config.args if is_given and is_module_id(arg, config))
    config.args = [arg for arg in config.args if arg not in ids]
    paths = (config.invocation_params.dir / arg.partition("::")[0] for arg in config.args)
    return Wanted(
        folders=tuple(config.getini("perf_cases")),
        named=frozenset(path.resolve() for path in paths if is_given),
        ids=ids,
    )


def is_module_id(arg: str, config: pytest.Config) -> bool:
    """Say whether an argument is the id of an item in ``MODULE``."""
    folder = config.invocation_params.dir / MODULE
    return arg.startswith(f"{MODULE}::") and not folder.exists()


def _is_named(nodeid: str, name: str) -> bool:
    return nodeid == name or nodeid.startswith(f"{name}[")


def takes_look(item: pytest.Item) -> bool:
    """Say whether an ordinary test takes a quick look; a project's own fixture may hide ours."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for each in reversed(known.get(FIXTURE, ())):
        if each.func.__module__ == PLUGIN:
            return True
        if FIXTURE not in each.argnames:
            return False
    return False


def subjects_of(item: pytest.Item) -> Iterable[Subject]:
    """Return the variant or claim that an item reports."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return [params[name] for name in ("variant", "claim") if isinstance(params.get(name), Subject)]


def id_of(subject: Subject) -> str:
    """Return the id of an item's subject."""
    return subject.name if isinstance(subject, Pack) else subject.id
