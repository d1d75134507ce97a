"""A row: what is done, what must be seen; and how what is seen is compared with it.

``see`` is what is asserted: ``word: part; part`` of a variant's ending, or
``exit 4: part; part`` of a process. Words may be alternatives (``a|b``); each part has to be in the
text, one that begins with ``not `` must not be. A text in no row may hold a traceback of
perfsuite's own, an INTERNALERROR of pytest's or an escape sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from faults.lab import Done, Ending, Played, Scene

MOST_TEXT = 20_000
# What reaches a terminal: no control characters but line ends and tabs, no bidi marks.
UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TRACEBACK = "\nTraceback (most recent call last)"


NOTHING_LEFT = "no process is left, no file beside the project"


class Fault(NamedTuple):
    """One line of the table."""

    group: str
    done: str
    see: str
    scene: Scene
    look: Callable[[Any, str], None]
    is_alone: bool = False

    def check(self, played: Played) -> None:
        """Raise AssertionError unless the scene showed what must be seen."""
        if isinstance(played.error, pytest.skip.Exception):
            raise played.error
        if played.error is not None:
            raise AssertionError(f"{type(played.error).__name__}: {played.error}")
        self.look(played.seen, self.see)
        # Of many rows one tells it for all.
        if self.look is left_nothing or self.is_alone:
            assert not played.left, played.left


def ending(variant: str) -> Callable[[Done, str], None]:
    """Look at how a variant of a run ended."""

    def look(done: Done, see: str) -> None:
        found = done.endings()
        assert variant in found, f"{variant} is in no verdict: {tail(done.out)}"
        match(see, *found[variant])
        same(found[variant])

    return look


def same(found: Ending) -> None:
    """Assert that a reason can be shown, and is short."""
    assert not UNSHOWABLE.search(found.reason), f"cannot be shown: {found.reason!r}"
    assert len(found.reason) < MOST_TEXT, f"a reason of {len(found.reason)} characters"


def exits(done: Done, see: str) -> None:
    """Look at the exit code and the output of a process, or of the last of several."""
    assert TRACEBACK not in "\n" + done.out, f"a traceback: {tail(done.out)}"
    ends(done, see)


def ends(done: Done, see: str) -> None:
    """Look at a run as ``exits`` does, where tracebacks of packs are part of the output."""
    match(see, f"exit {done.code}", done.out)
    assert "INTERNALERROR" not in done.out, f"INTERNALERROR: {tail(done.out)}"
    found = UNSHOWABLE.search(done.out)
    assert not found, f"{found and found[0]!r} reached the terminal: {tail(done.out)}"
    assert len(done.out) < 50 * MOST_TEXT, f"an output of {len(done.out)} characters"


def of(name: str, look: Callable[[Any, str], None] = exits) -> Callable[[Any, str], None]:
    """Look at one of several things that a scene showed."""
    return lambda seen, see: look(seen[name], see)


def as_a_whole(group: str, done: str, see: str, scene: Scene) -> tuple[Fault, ...]:
    """Return the rows that hold for a run of many faults: its end, and what it leaves."""
    last = Fault(group, done, NOTHING_LEFT, scene, left_nothing)
    return Fault(group, done, see, scene, ends), last


def left_nothing(seen: Any, see: str) -> None:
    """Leave what a scene left behind to the check that all single rows have too."""


def match(see: str, word: str, text: str) -> None:
    """Assert that a word and a text are what must be seen."""
    words, _, rest = see.partition(": ")
    told = f"{word}: {tail(text)}"
    assert word in words.split("|"), told
    for part in filter(None, rest.split("; ")):
        is_there = part.removeprefix("not ") in text
        assert is_there is not part.startswith("not "), f"{part!r} against {told}"


def tail(text: str) -> str:
    """Return the end of an output, which says most."""
    return ascii(text[-600:])
