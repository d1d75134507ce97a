"""The hooks of packs that run in pytest's own process, contained: they can harm no run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pluggy

from perfsuite.errors import PerfError
from perfsuite.hookspecs import Controller
from perfsuite.model import Pack, Run, Section
from perfsuite.packs.loader import import_folder, told
from perfsuite.packs.sources import GROUP
from perfsuite.packs.validity import Place

# What may not come into pytest's process by a pack.
HEAVY = ("torch",)
# A page is read by a person.
MOST_ROWS = 1000


class Listeners:
    """The controller hooks of packs; ``notes`` say what went wrong in them."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self.notes: list[str] = []
        self._hooks: dict[str, pluggy.PluginManager] = {}
        self._silenced: set[tuple[str, str]] = set()
        for pack in packs:
            if pack.controller and not pack.error:
                with self._contained(pack.name, f"module {pack.controller!r}"):
                    self._hooks[pack.name] = _registered(pack)

    def tell(self, run: Run) -> None:
        """Tell of each result and each verdict of a run."""
        variants = {variant.id: variant for variant in run.variants}
        for result in run.asked if self._hooks else ():
            if variant := variants.get(result.variant):
                self._call("perf_result", result=result, variant=variant)
        for verdict in run.verdicts if self._hooks else ():
            self._call("perf_verdict", verdict=verdict, variant=variants[verdict.variant], run=run)

    def sections(self, run: Run) -> tuple[Section, ...]:
        """Return what packs add to the report of a run."""
        found: list[Section] = []
        self._call(
            "perf_report_section", lambda returned: found.extend(_sections(returned)), run=run
        )
        return tuple(found)

    def _call(self, hook: str, take: Callable[[Any], object] = bool, **arguments: Any) -> None:
        for pack, manager in self._hooks.items():
            if (pack, hook) in self._silenced:
                continue
            with self._contained(pack, hook):
                take(getattr(manager.hook, hook)(**arguments))

    @contextmanager
    def _contained(self, pack: str, what: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it becomes a note
            why = error.what if isinstance(error, PerfError) else told(error)
            self.notes.append(f"pack {pack}, {what}: {why}")
            self._silenced.add((pack, what))


def _registered(pack: Pack) -> pluggy.PluginManager:
    place = Place(pack.name, pack.origin)
    folder = import_folder(place)
    # Last of all: nothing of a pack may stand before what pytest and its plugins import.
    if folder and folder not in sys.path:
        sys.path.append(folder)
    before = {name for name in HEAVY if name in sys.modules}
    module = importlib.import_module(pack.controller)
    if heavy := [name for name in HEAVY if name in sys.modules and name not in before]:
        raise place.refuse(f"it imports {heavy[0]} into pytest's process; its hooks are not called")
    if folder and not str(module.__file__).startswith(folder):
        raise place.refuse(
            f"{module.__file__} is another one of that name; its hooks are not called"
        )
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Controller)
    manager.register(module, name=pack.name)
    manager.check_pending()
    return manager


def _sections(returned: Sequence[Any]) -> Iterator[Section]:
    """Yield the sections that one pack's hook returned, their tables cut to what is read."""
    for each in returned:
        for section in (each,) if isinstance(each, Section) else each:
            if not isinstance(section, Section):
                raise TypeError(f"returned {section!r}, which is no perfsuite.Section")
            rows = section.rows
            more = f" The table ends after {MOST_ROWS} of {len(rows)} rows."
            yield Section(
                title=section.title,
                text=section.text + more * (len(rows) > MOST_ROWS),
                columns=section.columns,
                rows=rows[:MOST_ROWS],
            )
