"""How processes end: as errors, in words, and with what they printed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import IO

from perfsuite.boundary import plain
from perfsuite.model import Arm, Result, Status

TAIL_CHARACTERS = 4000
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


def tail(output: IO[bytes]) -> str:
    """Return the last characters of a file that others write to."""
    size = os.fstat(output.fileno()).st_size
    start = max(0, size - 4 * TAIL_CHARACTERS)
    text = os.pread(output.fileno(), size - start, start).decode(errors="replace")
    return plain(text[-TAIL_CHARACTERS:])


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
