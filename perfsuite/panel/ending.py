"""How processes end: as errors, in words, and with what they printed."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from typing import IO

from perfsuite.boundary import plain
from perfsuite.model import Arm, Result, Status

TAIL_CHARACTERS = 4000
# The stacks of all threads, a hundred frames each, with the names of all extension modules.
_READ_BYTES = 256 << 10
# What faulthandler prints when a process is ended: why, other threads' stacks, and the one's.
_FATAL = "Fatal Python error: "
_STACKS = re.compile(
    r"(?P<cause>Fatal Python error: .*\n)(?P<others>(?:.*\n)*?)"
    r"(?P<current>Current thread 0x.*\n(?: .*\n?)*)"
)
# Where Python and its packages lie says nothing, and may be longer than all else.
_HOME = re.compile(r'File "[^"\n]*/(?:site-packages|lib/python3\.\d+)/')
# Of a device that spoils more of all samples than this, the others cannot be trusted either.
VOIDED_MOST = 0.2


class ServerLostError(Exception):
    """A server died or stopped answering; ``output`` is the end of what it printed."""

    def __init__(self, reason: str, output: str) -> None:
        self.output = output
        super().__init__(reason)


class StoppedError(Exception):
    """The panel was told to stop in the middle of a variant."""


class EndedError(Exception):
    """A worker ended early: its variant's status and reason, and the end of what it printed.

    ``is_told`` says that the reason is the worker's own, not what its death looked like; ``arm``
    is the worker's.
    """

    def __init__(
        self,
        status: Status,
        reason: str,
        output: str = "",
        *,
        is_server_lost: bool = False,
        is_told: bool = False,
    ) -> None:
        self.status = status
        self.reason = reason
        self.output = output
        self.is_server_lost = is_server_lost
        self.is_told = is_told
        self.arm = Arm.B
        super().__init__(status, reason)


def doubted(result: Result) -> Result:
    """Return the result, as disturbed where too many of its samples were voided."""
    blocks = [block for process in result.evidence for block in process.blocks]
    voided = sum(block.voided for block in blocks)
    taken = voided + sum(len(block.time_us) for block in blocks)
    if result.status is not Status.OK or voided <= VOIDED_MOST * taken:
        return result
    notes = [note for process in result.evidence for note in process.notes if "voided" in note]
    reason = f"{voided} of {taken} samples voided ({notes[0] if notes else 'they have no time'})"
    return replace(result, status=Status.DISTURBED, reason=reason)


def tail(output: IO[bytes], most: int = TAIL_CHARACTERS) -> str:
    """Return the end of a file that others write to; of a stack there, its innermost frames."""
    size = os.fstat(output.fileno()).st_size
    start = max(0, size - _READ_BYTES)
    text = os.pread(output.fileno(), size - start, start).decode(errors="replace")
    return plain(_last_words(text, most))


def _last_words(text: str, most: int) -> str:
    """Return what matters most of a text: of stacks the current thread's head, then the others'."""
    found = _STACKS.search(text, max(0, text.rfind(_FATAL)))
    if len(text) <= most or not found:
        return text[-most:]
    before = text[: found.start()] + found["cause"]
    stacks = _HOME.sub('File "', f"{found['current']}\n{found['others']}")
    return (before[-most // 4 :] + stacks)[:most]


def exit_words(code: int | None) -> str:
    """Return an exit code in words; negative codes are signals."""
    if code is None:
        return "does not die"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
