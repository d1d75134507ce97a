"""What comes in from outside: its limits, text made safe to show, and the errors that refuse it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from unicodedata import category

# Bytes of a file that is read whole, and of a message between our processes.
FILE_BYTES = 512 << 20
MESSAGE_BYTES = 256 << 20
# Characters of a name (of a pack, case, axis value, run), of a text that explains (a reason, a
# note, an exception), of a value that an error shows, and of what a pack writes for the page.
NAME_CHARACTERS = 200
TEXT_CHARACTERS = 4_000
SHOWN_CHARACTERS = 60
# Of an error the frames that a pack began with, and those that it ended in.
SHOWN_FRAMES = 6
PAGE_CHARACTERS = 100_000
# Whole numbers beyond 64 bits are read as floats, which no counter of ours takes.
MOST_WHOLE = (1 << 63) - 1
# No measurement is a greater number, or a smaller one than one through it; what is can neither be
# added up nor drawn.
MAGNITUDE = 1e100

OURS = Path(__file__).parent
# How a crash shows a frame of perfsuite, or of the start of Python.
FRAME = re.compile(rf'  File "({re.escape(str(OURS))}/|<frozen runpy>).*", line \d+ in .*\n')
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Escape sequences, what turns the direction of text, halves of characters, line separators.
CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

_NAMED = r"(?:passw(?:or)?d|secret|token|credential|api[_-]?key)"
_SECRETS = (
    re.compile(r"(://)(?:[^\s/:@]*:\S*|[^\s/@]+)(?=@)"),
    re.compile(rf"(?i)({_NAMED}=|--[\w-]*{_NAMED}[\w-]*[=\s])(?:'[^']*'|\"[^\"]*\"|[^\s&;|'\"]+)"),
)


def is_measurable(number: float) -> bool:
    """Say whether a number can be reckoned with: nothing, or of a magnitude that things have."""
    return number == 0 or 1 / MAGNITUDE <= abs(number) <= MAGNITUDE


def is_plain(text: str) -> bool:
    """Say whether text can be stored and shown as it is."""
    return plain(text) == str.__str__(text)


def hidden(text: str) -> str:
    """Return a command line's text without the passwords of URLs and of words that name one."""
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    return text


def plain(text: str, *, most: int = TEXT_CHARACTERS, instead: str = REPLACEMENT) -> str:
    """Return text that any file, page and terminal can hold.

    No control characters, escape sequences, marks that turn the direction of reading, or halves of
    characters: ``instead`` stands in their place. Of a text of more than ``most`` characters the
    middle is left out, which the text says.
    """
    # A class of text of somebody else's may say that it is printable, or bring markup of its own.
    text = str.__str__(text)
    if len(text) > most:
        told = f" [{len(text) - most} characters left out] "
        half = most // 2
        text = f"{text[:half]}{told}{text[-half:]}"
    if text.isprintable():
        return text
    odd = {c for c in set(text) - {"\n", "\t"} if category(c) in CONTROLS}
    return text.translate(dict.fromkeys(map(ord, odd), instead))


def print_failure(error: BaseException) -> None:
    """Print an error as Python does, without the frames of perfsuite: they say nothing of a case.

    Of an error that perfsuite found by itself nothing is left to print: its text is the reason.
    """
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each:
        outside = [one for one in each.stack if not Path(one.filename).is_relative_to(OURS)]
        each.stack = traceback.StackSummary.from_list(outside)
        each = each.__cause__ or each.__context__
    if told.stack or not isinstance(error, PerfError):
        lines = [*told.format()]
        if (more := len(lines) - 2 * SHOWN_FRAMES) > 0:
            middle = f"  [{more} frames left out]\n"
            lines = [*lines[:SHOWN_FRAMES], middle, *lines[-SHOWN_FRAMES:]]
        print("".join(lines), end="", file=sys.stderr)  # noqa: T201


def shown(value: object) -> str:
    """Return a value as an error shows it: what is wrong with it may be its length."""
    try:
        return plain(repr(value), most=SHOWN_CHARACTERS)
    except ValueError:  # Python writes no integer of thousands of digits
        return "an integer of very many digits"


def from_environment(variable: str) -> str:
    """Return what an environment variable says; nothing if it is not set."""
    return plain(os.environ.get(variable, ""))


def python_path(*first: str) -> str:
    """Return the PYTHONPATH of a child: these folders, then those of ours that have a name.

    One without a name, such as behind a last colon, is the current folder, whose files may be named
    as modules of Python's.
    """
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, (*first, *own)))


def user_name() -> str:
    """Return who runs this; a number where a container runs a user whom nobody named."""
    import getpass

    try:
        name = plain(getpass.getuser(), most=NAME_CHARACTERS)
    except (KeyError, OSError, ImportError):
        name = ""
    return name or f"uid {os.getuid()}"


class PerfError(Exception):
    """Base of every deliberate error; its message is meant to be read by a person."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__(what, where, remedy)

    def __str__(self) -> str:
        place = f"\n  where: {self.where}" if self.where else ""
        remedy = f"\n  do: {self.remedy}" if self.remedy else ""
        # A name, a path or another program's words may hold what a terminal obeys.
        return plain(f"{self.what}{place}{remedy}")


def in_a_line(error: BaseException) -> str:
    """Return a deliberate error's own words, else its type and first line."""
    kind = plain(type(error).__name__)
    try:
        text = error.what if isinstance(error, PerfError) else str(error)
    except BaseException as second:  # noqa: BLE001 - it is a case's own, too
        return f"{kind} (asked for its text it raises {plain(type(second).__name__)})"
    first = plain(text.strip().partition("\n")[0])
    if isinstance(error, PerfError):
        return first
    return f"{kind}: {first}" if first else kind


class PackError(PerfError):
    """A pack could not be loaded or declares something that does not hold."""


class CaseError(PerfError):
    """A variant's own code failed: its builder, inputs, function or reference."""


class WrongResultError(CaseError):
    """A variant's output differs from its reference."""


class StoreError(PerfError):
    """A stored file (baseline, run file) is missing, damaged or of an unknown version."""


class DeviceError(PerfError):
    """A device is missing, misbehaves or cannot measure what was asked of it."""


class UsageError(PerfError):
    """The person who started the run asked for something that cannot be done."""


class DisturbedError(DeviceError):
    """The device was disturbed (slowdown, foreign load, lost stamps) for too much of a block."""
