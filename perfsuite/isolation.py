"""Makes a worker's death cheap and telling, and its leaving quick; waits for a child's end."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

# Workers of one server share an address-space layout; each shifts its own by up to this much.
PADDING_BYTES = 64 << 20
# If memory runs out, the kernel is to choose the worker, not the controller.
OOM_SCORE = "800"
# How a worker exits that failed and could not say why: its socket was closed under it.
UNTOLD = 70
# A process that was killed may be busy in a driver.
KILL_LIMIT_S = 10.0
_POLL_S = 0.002
_PR_SET_CHILD_SUBREAPER = 36
_ORPHAN_PASSES = 20


def isolate() -> bytearray:
    """Make death cheap and telling; return padding that is to be kept alive."""
    # A segmentation fault shows where it was, and leaves no core file with the GPU's mappings.
    faulthandler.enable(file=2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # files, as promised
    return bytearray(random.SystemRandom().randrange(PADDING_BYTES))


def has_exited(pid: int, limit_s: float) -> bool:
    """Wait for a child to end without taking its status, at most ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind, even in other sessions."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(own: Collection[int] = ()) -> None:
    """Kill and reap all children but these."""
    for _ in range(_ORPHAN_PASSES):
        orphans = _children().difference(own)
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if has_exited(pid, KILL_LIMIT_S):
                os.waitpid(pid, 0)


def _children() -> set[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except OSError:
        return set()
    return {int(pid) for pid in text.split()}


def leave(code: int = 0) -> NoReturn:
    """End the process without its exit handlers, nothing that was printed lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # What C code printed is still in C's buffer, and os._exit would drop it.
    ctypes.CDLL(None).fflush(None)
    os._exit(code)
