"""The catalogue child: forks once per pack, so that a bad one ends alone and is named."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, NoReturn

import msgspec

from perfsuite.catalogue.listing import PackListing, Request, list_pack
from perfsuite.errors import PackError
from perfsuite.packs import PackSource, load_pack

POLL_MS = 20
# As much of a failed pack's output as helps; a traceback's end is what matters.
OUTPUT_BYTES = 2000
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Load:
    """One pack being listed by a fork."""

    source: PackSource
    pid: int
    pipe: int
    log: IO[bytes]
    data: bytearray = field(default_factory=bytearray)

    def read(self) -> bool:
        """Take what the fork has written so far; say whether more may come."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.pipe, 1 << 20):
                self.data += chunk
            return False
        return True

    def has_ended(self) -> bool:
        """Say whether the fork is gone; its status is still to be had from ``end``."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def end(self) -> int:
        """Kill the fork, with what it started, and return its wait status."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


def main() -> None:
    """Answer the request on stdin: one line of JSON per pack, on the descriptor in argv."""
    answer = int(sys.argv[1])
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    sys.path += [path for path in request.paths if path not in sys.path]
    gc.freeze()
    loads = [_start(source, request, answer) for source in request.sources]
    with suppress(BrokenPipeError), os.fdopen(answer, "wb") as stream:
        _collect(loads, stream, request.time_limit_s)


def _start(source: PackSource, request: Request, answer: int) -> Load:
    pipe, write_end = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the fork
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        os.close(pipe)
        _isolate(parent, log)
        _run_fork(source, request, write_end)
    os.close(write_end)
    os.set_blocking(pipe, False)
    return Load(source, pid, pipe, log)


def _isolate(parent: int, log: IO[bytes]) -> None:
    """Give the fork a session and an output of its own, and tie its life to its parent's."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(2)


def _run_fork(source: PackSource, request: Request, write_end: int) -> NoReturn:
    status = 1
    try:
        line = msgspec.json.encode(_listing(source, request)) + b"\n"
        with os.fdopen(write_end, "wb") as stream:
            stream.write(line)
        status = 0
    except BaseException:  # noqa: BLE001 - the log is shown as the pack's error
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _listing(source: PackSource, request: Request) -> PackListing:
    try:
        listing = list_pack(source, load_pack(source.name, source.origin), request.tier)
    except PackError as error:
        return PackListing(source.origin, error=str(error))
    heavy = [name for name in request.heavy if name in sys.modules]
    if not heavy:
        return listing
    refused = PackError(
        f"the pack imports {', '.join(heavy)} when it is listed",
        where=f"pack {source.name!r} ({source.origin})",
        remedy="import it in the case's builder, so that listing needs no GPU library",
    )
    return PackListing(source.origin, error=str(refused))


def _collect(loads: list[Load], stream: IO[bytes], time_limit_s: float) -> None:
    """Pass each pack's line on as it ends; leave when all have, or nobody listens any more."""
    deadline = time.monotonic() + time_limit_s
    poller = select.poll()
    poller.register(stream, 0)  # only tells of the other end's going
    for load in loads:
        poller.register(load.pipe, select.POLLIN)
    waiting = list(loads)
    while waiting:
        ready = {descriptor for descriptor, _ in poller.poll(POLL_MS)}
        for load in [each for each in loads if each.pipe in ready]:
            if not load.read():
                poller.unregister(load.pipe)
        is_late = time.monotonic() > deadline
        for load in [each for each in waiting if is_late or each.has_ended()]:
            waiting.remove(load)
            stream.write(_line(load, time_limit_s))
            stream.flush()
        if stream.fileno() in ready:
            break
    for load in waiting:
        load.end()


def _line(load: Load, time_limit_s: float) -> bytes:
    has_ended = load.has_ended()
    status = load.end()
    load.read()
    if has_ended and status == 0 and load.data.endswith(b"\n"):
        return bytes(load.data)
    if not has_ended:
        what = f"listing the pack took longer than {time_limit_s:g} s"
    elif os.WIFSIGNALED(status):
        what = f"listing the pack ended with {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        what = f"the pack ended its process with exit status {os.waitstatus_to_exitcode(status)}"
    load.log.seek(0)
    output = load.log.read()[-OUTPUT_BYTES:].decode(errors="replace").strip()
    error = PackError(
        what + (f"; its output:\n{output}" if output else ""),
        where=f"pack {load.source.name!r} ({load.source.origin})",
        remedy="a pack's module declares cases and does nothing else when imported",
    )
    return msgspec.json.encode(PackListing(load.source.origin, error=str(error))) + b"\n"


if __name__ == "__main__":
    main()
