"""The hooks of packs that run in pytest's own process, contained as far as a process allows.

What a hook raises is a note. One that hangs stops pytest until Ctrl-C, and one that ends the
process leaves nothing to write. The run file is whole before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import pluggy

from perfsuite.boundary import NAME_CHARACTERS, PAGE_CHARACTERS, plain
from perfsuite.errors import PerfError
from perfsuite.hookspecs import Controller
from perfsuite.model import Pack, Run, Section
from perfsuite.packs.loader import import_folder, told
from perfsuite.packs.sources import GROUP
from perfsuite.packs.validity import Place

T = TypeVar("T")

# What may not come into pytest's process by a pack.
HEAVY = ("torch",)
# A page is read by a person.
MOST_ROWS, MOST_COLUMNS, MOST_SECTIONS = 1000, 50, 20


class Listeners:
    """The controller hooks of packs; ``notes`` say what went wrong in them."""

    def __init__(self, packs: Sequence[Pack]) -> None:
        self.notes: list[str] = []
        self._hooks: dict[str, pluggy.PluginManager] = {}
        self._silenced: set[tuple[str, str]] = set()
        for pack in packs:
            if pack.controller and not pack.error:
                act = partial(_registered, pack)
                found = self._contained(pack.name, f"module {pack.controller!r}", act)
                if found is not None:
                    self._hooks[pack.name] = found

    def tell(self, run: Run) -> None:
        """Tell of each result and each verdict of a run, in a copy: a hook may change its own."""
        if not self._hooks:
            return
        run = deepcopy(run)
        variants = {variant.id: variant for variant in run.variants}
        results = [(each, variants.get(each.variant)) for each in run.asked]
        verdicts = [(each, variants[each.variant]) for each in run.verdicts]
        for result, variant in results:
            if variant:
                self._call("perf_result", result=result, variant=variant)
        for verdict, variant in verdicts:
            self._call("perf_verdict", verdict=verdict, variant=variant, run=run)

    def sections(self, run: Run) -> tuple[Section, ...]:
        """Return what packs add to the report of a run."""
        if not self._hooks:
            return ()
        run = deepcopy(run)
        found: list[Section] = []
        self._call(
            "perf_report_section", lambda returned: found.extend(_sections(returned)), run=run
        )
        return tuple(found)

    def _call(self, hook: str, take: Callable[[Any], object] = bool, **arguments: Any) -> None:
        for pack, manager in self._hooks.items():
            if (pack, hook) in self._silenced:
                continue
            call = getattr(manager.hook, hook)
            self._contained(pack, hook, partial(_taken, call, take, arguments))

    def _contained(self, pack: str, what: str, act: Callable[[], T]) -> T | None:
        """Return what the pack's code returns; what it raises is a note."""
        try:
            return act()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a pack costs no run
            self.notes.append(plain(f"pack {pack}, {what}: {_why(error)}"))
        self._silenced.add((pack, what))
        return None


def _why(error: BaseException) -> str:
    try:
        return plain(error.what if isinstance(error, PerfError) else told(error))
    except BaseException as broken:  # noqa: BLE001 - an error may be unable to say what it is
        return f"{type(error).__name__}: it cannot say why ({type(broken).__name__})"


def _taken(call: Callable[..., Any], take: Callable[[Any], object], given: dict[str, Any]) -> None:
    take(call(**given))


def _registered(pack: Pack) -> pluggy.PluginManager:
    place = Place(pack.name, pack.origin)
    folder = import_folder(place)
    # Last of all: nothing of a pack may stand before what pytest and its plugins import.
    if folder and folder not in sys.path:
        sys.path.append(folder)
    before = {name for name in HEAVY if name in sys.modules}
    module = importlib.import_module(pack.controller)  # noqa: TID251 - a pack names it
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
    """Yield the sections that one pack's hook returned, cut to what is read."""
    for each in returned:
        found = (each,) if isinstance(each, Section) else tuple(each)
        for section in found[:MOST_SECTIONS]:
            if not isinstance(section, Section):
                raise TypeError(f"returned {section!r}, which is no perfsuite.Section")
            yield _cut(section)
        if more := found[MOST_SECTIONS:]:
            yield Section(title=f"{len(more)} more sections are left out")


def _cut(section: Section) -> Section:
    """Return the section with as much of its table as a page has room for."""
    rows: list[tuple[str, ...]] = []
    room = PAGE_CHARACTERS
    for row in section.rows[:MOST_ROWS]:
        cells = tuple(map(plain, row[:MOST_COLUMNS]))
        room -= sum(map(len, cells))
        if room < 0:
            break
        rows.append(cells)
    cut = len(section.rows) - len(rows)
    more = f" The table ends after {len(rows)} of {len(section.rows)} rows." if cut else ""
    if wide := len(section.columns[MOST_COLUMNS:]):
        more += f" {wide} columns are left out."
    return Section(
        title=plain(section.title, most=NAME_CHARACTERS),
        text=plain(section.text, most=PAGE_CHARACTERS) + more,
        columns=tuple(map(plain, section.columns[:MOST_COLUMNS])),
        rows=tuple(rows),
    )
