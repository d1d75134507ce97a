"""What follows the last measurement, step by step: one that fails costs no other, and is told of.

What was measured and judged is worth more than anything that is made of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from perfsuite.boundary import plain
from perfsuite.errors import PerfError

T = TypeVar("T")
# Of an unexpected error's first line: its traceback has it whole.
MOST_FIRST = 300


@dataclass(slots=True)
class Steps:
    """The steps behind a measurement; ``tracebacks`` are of what nobody expected."""

    tracebacks: list[str] = field(default_factory=list)
    # What failed, by why and by what to do: one cause is told of once.
    _failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def are_done(self) -> bool:
        """Say whether all were done."""
        return not self._failed

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line for each cause of failure."""
        return tuple(
            plain("; ".join(filter(None, (f"{', '.join(failed)}: {why}", remedy))))
            for (why, remedy), failed in self._failed.items()
        )

    def take(self, failed: str, act: Callable[[], T], fallback: T, *, remedy: str = "") -> T:
        """Return what a step returns; if it fails the fallback, noting ``failed`` and why.

        Ctrl-C is no failure: it ends the rest.
        """
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the verdicts are worth more
            is_new = self.add(failed, why(error), remedy=remedy)
            if is_new and not isinstance(error, (PerfError, ImportError)):
                self.tracebacks.append("".join(traceback.format_exception(error)))
            return fallback

    def add(self, failed: str, why: str, *, remedy: str = "") -> bool:
        """Note a step that failed; say whether that was not known yet."""
        known = self._failed.setdefault((why, remedy), [])
        if failed in known:
            return False
        known.append(failed)
        return True


def why(error: Exception) -> str:
    """Return an error on one line: what, where and the remedy, or its type and first line."""
    if isinstance(error, PerfError):
        where, remedy = error.where, error.remedy
        found = (error.what, where and f"where: {where}", remedy and f"do: {remedy}")
        return " ".join("; ".join(filter(None, found)).split())
    if isinstance(error, ImportError) and error.name:
        return f"install {error.name}"
    try:
        first = str(error).strip().partition("\n")[0]
    except Exception as broken:  # noqa: BLE001 - an error may be unable to say what it is
        first = f"it cannot say why ({type(broken).__name__})"
    first = plain(first, most=MOST_FIRST)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
