"""The process that runs one variant, or a rank of a gang: jobs in, evidence or one reason out."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from perfsuite import wire
from perfsuite.boundary import plain
from perfsuite.device import Device, Gang, described, forget_compiled, join, open_device, waking
from perfsuite.engine import Quads, Session, dissect, show_once
from perfsuite.errors import DisturbedError, PackError, PerfError, WrongResultError
from perfsuite.isolation import UNTOLD, isolate, leave
from perfsuite.model import Case, Evidence, Status
from perfsuite.packs import load_pack
from perfsuite.tree import NOTHING_OF_IT, entries, has_any, refuse_strangers


def serve(connection: wire.Channel) -> NoReturn:
    """Answer the panel until the variant has ended; leaves the process, without exit handlers.

    Standard output and error are expected to be the worker's own file already.
    """
    padding = isolate()
    worker = Worker(connection)
    code = 0
    try:
        worker.run()
    except BaseException as error:  # noqa: BLE001 - whatever a case raises is its result
        # The reason first: its output may be closed, full, or a pipe that nobody reads.
        try:
            connection.send(worker.failure(error))
        except OSError:
            code = UNTOLD
        with contextlib.suppress(Exception):
            traceback.print_exc()
        worker.linger()
    finally:
        del padding
        leave(code)


class Worker:
    """One variant's life in this process: start, prepare, blocks, finish; a gang's go on."""

    def __init__(self, connection: wire.Channel) -> None:
        self._connection = connection
        self._device: Device | None = None
        self._gang: Gang | None = None

    def run(self) -> None:
        """Do what the panel asks, in its order, to the end; raises what the variant raises."""
        match self._connection.await_message():
            case wire.Describe(device=name, accelerator=own):
                self._connection.send(wire.Described(described(name, own)))
            case wire.Start(job=job) if job.ranks:
                self._serve_rank(job)
            case wire.Start(job=job):
                self._serve(job)
            case wire.TraceOne() as request:
                self._trace(request)
            case other:
                raise PerfError(f"a worker cannot begin with {other!r}")

    def failure(self, error: BaseException) -> wire.Failed:
        """Say how the variant ended that raised this."""
        reason = _reason(error)
        if isinstance(error, WrongResultError):
            return wire.Failed(Status.WRONG, reason)
        if isinstance(error, DisturbedError):
            return wire.Failed(Status.DISTURBED, reason)
        # Ranks have work in flight that waits for each other: it may never be done.
        sticky = "" if self._gang else self._sticky_error()
        if sticky:
            return wire.Failed(Status.CRASHED, f"{reason} (the device is lost: {sticky})")
        return wire.Failed(Status.ERROR, reason)

    def linger(self) -> None:
        """Wait to be let go, if this is a rank: its peers would fail for its leaving."""
        if self._gang is not None:
            with contextlib.suppress(OSError, EOFError):
                self._connection.await_message()

    def _serve_rank(self, job: wire.Job) -> None:
        """Serve one variant after the other in the same gang, until the panel lets go."""
        joined: wire.Job | None = job
        self._gang = Gang(job.rank, job.ranks)
        while joined is not None:
            self._serve(joined, is_first=joined is job)
            self._put_away()
            following = self._next(wire.Start)
            joined = following.job if following else None

    def _trace(self, request: wire.TraceOne) -> None:
        """Trace one variant after the other, until the panel lets go."""
        _import_from(request.job)
        following: wire.TraceOne | None = request
        while following is not None:
            job = following.job
            case = _case(job)
            self._device = device = _opened(job, None)
            launches = partial(_measuring(job, device, case).launches, following.sets)
            found = dissect(device, launches)
            _refuse_strangers(job)
            self._tell(wire.Traced(found.kernels, found.codes, found.texts, found.reason))
            del launches, found
            self._put_away()
            forget_compiled()
            following = self._next(wire.TraceOne)

    def _put_away(self) -> None:
        gc.collect()  # graphs and buffers of this variant must not weigh on the next
        if self._device is not None:
            self._device.close()
        self._device = None

    def _next(self, kind: type[wire.Reply]) -> wire.Reply | None:
        try:
            request = self._connection.await_message()
        except EOFError:
            return None
        if not isinstance(request, kind):
            raise PerfError(f"a worker between two variants cannot answer {request!r}")
        return request

    def _join(self, job: wire.Job) -> None:
        self._tell(wire.Progress("join"))
        self._gang = join(job.device, rank=job.rank, ranks=job.ranks, rendezvous=job.rendezvous)
        self._tell(wire.Progress("load"))

    def _serve(self, job: wire.Job, *, is_first: bool = False) -> None:
        started = time.monotonic()
        if is_first:
            self._join(job)
        session = self._begun(job)
        start_s = round(time.monotonic() - started, 6)
        self._tell(wire.Ready())
        while True:
            match self._connection.await_message():
                case wire.Check() as how:
                    session.check(self._announce, is_thorough=how.is_thorough)
                    self._tell(wire.Checked())
                case wire.Prepare() as how:
                    session.prepare(self._announce, how.sampling)
                    self._tell(wire.Prepared(session.sampling))
                case wire.Measure():
                    session.block()
                    self._tell(wire.Measured())
                case wire.Finish():
                    session.recheck(self._announce)
                    both = session.finish() if isinstance(session, Quads) else (session.finish(),)
                    self._tell(wire.Finished(*(_labelled(each, job, start_s) for each in both)))
                    return
                case other:
                    raise PerfError(f"a worker at work cannot answer {other!r}")

    def _begun(self, job: wire.Job) -> Session | Quads:
        _import_from(job)
        with waking(job.device, gang=self._gang):
            case = _case(job)
        self._device = _opened(job, self._gang)
        return _session(job, self._device, case)

    def _announce(self, phase: str) -> None:
        self._tell(wire.Progress(phase))

    def _tell(self, message: wire.Message) -> None:
        self._connection.send(message)

    def _sticky_error(self) -> str:
        """Return what the device still reports after a failure: its context is lost then."""
        try:
            if self._device is not None:
                self._device.synchronize()
        except BaseException as error:  # noqa: BLE001 - any answer but silence is the answer
            return _reason(error)
        return ""


def show(job: wire.Job) -> None:
    """Launch a variant once, warm, for the profiler that this process runs under."""
    _import_from(job)
    case = _case(job)
    device = _opened(job, None)
    show_once(device, partial(_measuring(job, device, case).launches, 1))
    _refuse_strangers(job)
    device.close()


def _session(job: wire.Job, device: Device, case: Case) -> Session | Quads:
    session = _measuring(job, device, case)
    if job.rival is None:
        return session
    rival = _measuring(replace(job, axes=job.rival.axes), device, case)
    return Quads(session, rival, sampling=job.rival.sampling, seed=job.seed)


def _measuring(job: wire.Job, device: Device, case: Case) -> Session:
    return Session(device, case, job.axes, job.settings, job.seed)


def _opened(job: wire.Job, gang: Gang | None) -> Device:
    return open_device(job.device, seed=job.seed, gang=gang, accelerator=job.accelerator)


def _import_from(job: wire.Job) -> None:
    if job.accelerator is not None and job.accelerator.folder not in {"", *sys.path}:
        sys.path.append(job.accelerator.folder)
    with contextlib.suppress(OSError):  # the folder may be gone
        # Last: a file of the project that is named as a module of Python's is not that module.
        sys.path += {str(Path.cwd())} - set(sys.path)
    if job.tree is not None:
        sys.path[:0] = entries(job.tree, sys.path)


def _case(job: wire.Job) -> Case:
    cases = load_pack(job.pack, job.origin, job.kernels).cases
    if job.case not in cases:
        raise PackError(
            f"pack {job.pack!r} has no case {job.case!r}",
            where=job.origin,
            remedy=f"its cases are {', '.join(sorted(cases))}; did the pack change meanwhile?",
        )
    return cases[job.case]


def _labelled(evidence: Evidence, job: wire.Job, start_s: float) -> Evidence:
    """Return the evidence as this job's, with a note if nothing of its revision was in it."""
    phases_s = {"start": start_s, **evidence.phases_s}
    evidence = replace(evidence, slot=job.slot, seed=job.seed, phases_s=phases_s)
    noted = () if _refuse_strangers(job) else (NOTHING_OF_IT,)
    return replace(evidence, notes=(*evidence.notes, *noted))


def _refuse_strangers(job: wire.Job) -> bool:
    """Say whether anything of the job's revision was imported; raises where another's was."""
    tree = job.tree
    if tree is None or tree.root == tree.repository:
        return True
    modules = tuple(sys.modules.values())
    refuse_strangers(tree, modules)
    return has_any(tree, modules)


def _reason(error: BaseException) -> str:
    """Return one line: a deliberate error's own words, else its type and first line."""
    kind = plain(type(error).__name__)
    try:
        text = str(error.what if isinstance(error, PerfError) else error)
    except BaseException as second:  # noqa: BLE001 - it is a case's own, too
        return f"{kind} (asked for its text it raises {plain(type(second).__name__)})"
    first = plain(text.strip().partition("\n")[0])
    if isinstance(error, PerfError):
        return first
    return f"{kind}: {first}" if first else kind
