"""The history of a project, as commands open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfsuite.cli.project import Project, say
from perfsuite.errors import PerfError, UsageError
from perfsuite.model import Run, Series

if TYPE_CHECKING:
    from perfsuite.history import History


def known_history(project: Project, run: Run) -> dict[str, Series]:
    """Return what is known of a run's variants; nothing where there is no history to ask."""
    try:
        with open_history(project) as store:
            from perfsuite.history import recent

            found = recent(store, run, {variant.id for variant in run.variants})
            say_notes(store)
            return found
    except PerfError:
        return {}


def say_notes(store: History) -> None:
    """Say what was damaged of what was read."""
    for note in store.notes:
        say(f"note: {note}", stderr=True)


def open_history(project: Project) -> History:
    """Open it; ``UsageError`` where there is none or a library is missing."""
    try:
        from perfsuite.history import History, url_of
    except ImportError as error:
        raise UsageError(
            f"a history needs {error.name}", remedy=f"pip install {error.name}"
        ) from error
    url = url_of(project.root)
    if not url:
        raise UsageError(
            "this project keeps no history", remedy="set perf_history, or PERFSUITE_HISTORY"
        )
    return History(url, project.root)
