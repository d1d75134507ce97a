"""The catalogue child: forks once per pack, so that a bad one ends alone and is named.

Packs that want the kernels of all packs are forked a second time, when those are known.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, NoReturn

import msgspec

from perfsuite.boundary import MESSAGE_BYTES
from perfsuite.catalogue.listing import Outline, PackListing, Request, list_pack
from perfsuite.errors import PackError
from perfsuite.isolation import adopt_orphans, end_orphans
from perfsuite.model import Kernel
from perfsuite.packs import PackSource, Place, load_pack

POLL_MS = 20
# Bytes that one pack may write to a file, its output among them, and hold while it is listed.
MOST = {resource.RLIMIT_FSIZE: 64 << 20, resource.RLIMIT_DATA: 16 << 30}
# Less than the controller's grace.
AGAIN_S = 3.0
# As much of a failed pack's output as helps; a traceback's end is what matters.
OUTPUT_BYTES = 8000
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

    def is_over(self) -> bool:
        """Say whether nothing more is to be waited for."""
        return self.has_ended() or len(self.data) > MESSAGE_BYTES

    def is_answered(self) -> bool:
        """Say whether what came is one line, and the listing of this very pack."""
        try:
            listing = msgspec.json.decode(self.data, type=PackListing)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return self.data.find(b"\n") == len(self.data) - 1 and listing.origin == self.source.origin

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
    sys.path[:0] = request.front
    deadline = time.monotonic() + request.time_limit_s
    gc.freeze()
    adopt_orphans()
    with suppress(BrokenPipeError), os.fdopen(answer, "wb") as stream:
        try:
            _answer(request, stream, deadline)
        finally:  # before the pipe ends, upon which this process is killed
            end_orphans()


def _answer(request: Request, stream: IO[bytes], deadline: float) -> None:
    outlines = _list_all(request, stream, deadline)
    kernels = tuple(kernel for outline in outlines for kernel in outline.kernels)
    asking = {outline.origin for outline in outlines if outline.wants_kernels}
    again = [
        _start(source, request, kernels) for source in request.sources if source.origin in asking
    ]
    # A pack that hung must not make another one late.
    deadline = max(deadline, time.monotonic() + AGAIN_S)
    for line in _collect(again, stream, request, deadline):
        _write(stream, line)


def _list_all(request: Request, stream: IO[bytes], deadline: float) -> list[Outline]:
    """List every pack, but hold back what is not complete without the kernels of the others."""
    loads = [_start(source, request, None) for source in request.sources]
    outlines: dict[str, Outline] = {}
    for line in _collect(loads, stream, request, deadline):
        outline = msgspec.json.decode(line, type=Outline)
        outlines[outline.origin] = outline
        if not outline.wants_kernels:
            _write(stream, line)
    # In the order of the packs: which one ends first is chance.
    return [outlines[source.origin] for source in request.sources]


def _write(stream: IO[bytes], line: bytes) -> None:
    stream.write(line)
    stream.flush()


def _start(source: PackSource, request: Request, kernels: Sequence[Kernel] | None) -> Load:
    pipe, write_end = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the fork
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _isolate(parent, log, write_end)
        _run_fork(write_end, lambda: _listing(source, request, kernels))
    os.close(write_end)
    os.set_blocking(pipe, False)
    return Load(source, pid, pipe, log)


def _isolate(parent: int, log: IO[bytes], answer: int) -> None:
    """Give the fork a session and an output of its own, and tie its life to its parent's.

    Of what is open it keeps ``answer`` alone.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.enable(2)
    # What it writes to is its own answer and its own output, not another pack's.
    os.closerange(3, answer)
    os.closerange(answer + 1, os.sysconf("SC_OPEN_MAX"))
    # Neither the disk nor the memory of this machine is a pack's: it gets an error instead.
    for limit, most in MOST.items():
        known = {*resource.getrlimit(limit), most} - {resource.RLIM_INFINITY}
        resource.setrlimit(limit, (min(known), min(known)))


def _run_fork(write_end: int, listing: Callable[[], PackListing]) -> NoReturn:
    status, own = 1, os.getpid()
    try:
        line = _readable(listing()) + b"\n"
        if os.getpid() != own:  # the pack forked, and this is the child that it let go on
            os._exit(0)
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


def _readable(listing: PackListing) -> bytes:
    """Return a listing that whoever reads it understands: a pack's data may be of any type."""
    try:
        line = msgspec.json.encode(listing)
        msgspec.json.decode(line, type=PackListing)
    except (TypeError, msgspec.MsgspecError) as error:
        what = f"the pack declares something of a wrong type: {error}"
        refused = PackError(what, where=listing.origin, remedy="compare it with perfsuite's types")
        return msgspec.json.encode(PackListing(listing.origin, error=str(refused)))
    return line


def _listing(source: PackSource, request: Request, kernels: Sequence[Kernel] | None) -> PackListing:
    try:
        loaded = load_pack(source.name, source.origin, kernels)
        listing = replace(list_pack(source, loaded, request.tier), given=tuple(kernels or ()))
    except PackError as error:
        return PackListing(source.origin, error=str(error))
    heavy = [name for name in request.heavy if name in sys.modules]
    if not heavy:
        return listing
    refused = Place(source.name, source.origin).refuse(
        f"the pack imports {', '.join(heavy)} when it is listed",
        remedy="import it in the case's builder, so that listing needs no GPU library",
    )
    return PackListing(source.origin, error=str(refused))


def _collect(
    loads: list[Load], stream: IO[bytes], request: Request, deadline: float
) -> Iterator[bytes]:
    """Yield each pack's line as it ends; end when all have, or nobody listens any more."""
    poller = select.poll()
    poller.register(stream, 0)  # only tells of the other end's going
    for load in loads:
        poller.register(load.pipe, select.POLLIN)
    waiting = list(loads)
    try:
        while waiting:
            _read_ready(poller, loads, stream.fileno())
            is_late = time.monotonic() > deadline
            for load in [each for each in waiting if is_late or each.is_over()]:
                waiting.remove(load)
                yield _line(load, request.time_limit_s)
    finally:
        for load in waiting:
            load.end()


def _read_ready(poller: select.poll, loads: list[Load], listener: int) -> None:
    """Read what the forks wrote within a moment; ``BrokenPipeError`` if nobody listens."""
    ready = {descriptor for descriptor, _ in poller.poll(POLL_MS)}
    for load in [each for each in loads if each.pipe in ready]:
        if not load.read():
            poller.unregister(load.pipe)
    if listener in ready:
        raise BrokenPipeError


def _line(load: Load, time_limit_s: float) -> bytes:
    has_ended = load.has_ended()
    status = load.end()
    load.read()
    if has_ended and status == 0 and load.is_answered():
        return bytes(load.data)
    if len(load.data) > MESSAGE_BYTES or (has_ended and status == 0 and load.data):
        what = "something else than its listing was written to the pipe that the pack inherited"
    elif not has_ended:
        what = f"listing the pack took longer than {time_limit_s:g} s"
    elif os.WIFSIGNALED(status):
        what = f"listing the pack ended with {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        what = f"the pack ended its process with exit status {os.waitstatus_to_exitcode(status)}"
    load.log.seek(0)
    output = load.log.read()[-OUTPUT_BYTES:].decode(errors="replace").strip()
    error = Place(load.source.name, load.source.origin).refuse(
        what + (f"; its output:\n{output}" if output else ""),
        remedy="a pack's module declares cases and does nothing else when imported",
    )
    return msgspec.json.encode(PackListing(load.source.origin, error=str(error))) + b"\n"


if __name__ == "__main__":
    main()
