"""The process that forks workers, and the worker that it forks."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from msgspec import structs

import perfsuite
from perfsuite.boundary import DisturbedError, PackError, PerfError, WrongResultError, plain
from perfsuite.devices.protocol import (
    Device,
    Gang,
    described,
    device_class,
    join,
    open_device,
    waking,
)
from perfsuite.devices.sass import forget_compiled
from perfsuite.engine.measure import Quads, Session
from perfsuite.engine.trace import dissect, show_once
from perfsuite.model import Case, Evidence, Status, Tree
from perfsuite.packs.listing import (
    KILL_LIMIT_S,
    UNTOLD,
    adopt_orphans,
    end_orphans,
    has_exited,
    isolate,
    leave,
)
from perfsuite.packs.load import load_pack
from perfsuite.workers.messages import (
    Channel,
    Check,
    Checked,
    Describe,
    Described,
    Exited,
    Failed,
    Finish,
    Finished,
    Fork,
    Forked,
    Hello,
    Job,
    Measure,
    Measured,
    Message,
    Prepare,
    Prepared,
    Progress,
    Ready,
    Reap,
    Reply,
    Start,
    Traced,
    TraceOne,
)

# Lets a process import an arm's code, and tells whether it did; perfsuite itself stays.


# The instrument is the same in both arms, also where its own repository is under test.
INSTRUMENT = Path(perfsuite.__file__).resolve().parent
# What is installed inside the repository, such as a virtual environment, is both arms' own.
INSTALLED = frozenset({"site-packages", "dist-packages"})
BY_PATH = (
    "let nothing but sys.path decide where it is imported from (an editable install with a finder "
    "of its own does)"
)
BY_BUILD = "make it there: --perf-against-build (make, git submodule update --init)"
NOTHING_OF_IT = "no Python module came from there: both arms ran the same code"


def moved(path: str, tree: Tree) -> str:
    """Return where a path of the repository lies in an arm's tree; others stay."""
    place = Path(path).resolve()
    if not path or not place.is_relative_to(tree.repository) or place.is_relative_to(tree.root):
        return path
    return str(tree.root / place.relative_to(tree.repository))


def moved_origin(origin: str, tree: Tree) -> str:
    """Return where a pack is loaded from in an arm's tree."""
    kind, _, value = origin.partition(":")
    if kind == "file":
        return f"file:{moved(value, tree)}"
    name, _, folder = value.partition("@")
    return f"{kind}:{name}@{moved(folder, tree)}"


def entries(tree: Tree, paths: Iterable[str]) -> list[str]:
    """Return what is to stand first on ``sys.path``: the tree's front, and its twin of each path.

    A path that the tree lacks, such as a virtual environment inside the repository, has no twin.
    """
    twins = [twin for path in paths if (twin := moved(path, tree)) != path]
    own = [twin for twin in twins if Path(twin).is_relative_to(tree.root)]
    return [path for path in dict.fromkeys((*tree.front, *own)) if Path(path).is_dir()]


def refuse_strangers(tree: Tree, modules: Iterable[ModuleType]) -> None:
    """Raise ``PackError`` if a module came from the repository and not from the tree.

    What the tree lacks (a submodule, what is built) would be the working tree's in both arms.
    """
    for file in _files(modules):
        twin = moved(str(file), tree)
        is_there = Path(twin).is_file()
        if twin == str(file) or not (is_there or _is_own(file, tree)):
            continue
        raise PackError(
            f"{str(file)!r} was imported from the working tree, not from the other revision"
            f"{'' if is_there else ', whose checkout lacks it'}",
            where=tree.root,
            remedy=BY_PATH if is_there else BY_BUILD,
        )


def _is_own(file: Path, tree: Tree) -> bool:
    """Say whether a file is the repository's own: neither installed nor temporary inside it.

    Some modules name a file that is none (torch.ops does).
    """
    homes = [Path(home).resolve() for home in (sys.prefix, sys.base_prefix, tempfile.gettempdir())]
    inside = [home for home in homes if Path(tree.repository) in home.parents]
    is_installed = not INSTALLED.isdisjoint(file.parts) or any(map(file.is_relative_to, inside))
    return file.is_file() and not is_installed


def has_any(tree: Tree, modules: Iterable[ModuleType]) -> bool:
    """Say whether a module came from the tree."""
    return any(file.is_relative_to(tree.root) for file in _files(modules))


def _files(modules: Iterable[ModuleType]) -> Iterator[Path]:
    """Yield the files of modules that are not the instrument's."""
    for module in modules:
        name = getattr(module, "__file__", None)
        file = Path(name).resolve() if isinstance(name, str) else INSTRUMENT
        if not file.is_relative_to(INSTRUMENT):
            yield file


# The process that runs one variant, or a rank of a gang: jobs in, evidence or one reason out.


def serve(connection: Channel) -> NoReturn:
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

    def __init__(self, connection: Channel) -> None:
        self._connection = connection
        self._device: Device | None = None
        self._gang: Gang | None = None

    def run(self) -> None:
        """Do what the panel asks, in its order, to the end; raises what the variant raises."""
        match self._connection.await_message():
            case Describe(device=name, accelerator=own):
                self._connection.send(Described(described(name, own)))
            case Start(job=job) if job.ranks:
                self._serve_rank(job)
            case Start(job=job):
                self._serve(job)
            case TraceOne() as request:
                self._trace(request)
            case other:
                raise PerfError(f"a worker cannot begin with {other!r}")

    def failure(self, error: BaseException) -> Failed:
        """Say how the variant ended that raised this."""
        reason = _reason(error)
        if isinstance(error, WrongResultError):
            return Failed(Status.WRONG, reason)
        if isinstance(error, DisturbedError):
            return Failed(Status.DISTURBED, reason)
        # Ranks have work in flight that waits for each other: it may never be done.
        sticky = "" if self._gang else self._sticky_error()
        if sticky:
            return Failed(Status.CRASHED, f"{reason} (the device is lost: {sticky})")
        return Failed(Status.ERROR, reason)

    def linger(self) -> None:
        """Wait to be let go, if this is a rank: its peers would fail for its leaving."""
        if self._gang is not None:
            with contextlib.suppress(OSError, EOFError):
                self._connection.await_message()

    def _serve_rank(self, job: Job) -> None:
        """Serve one variant after the other in the same gang, until the panel lets go."""
        joined: Job | None = job
        self._gang = Gang(job.rank, job.ranks)
        while joined is not None:
            self._serve(joined, is_first=joined is job)
            self._put_away()
            following = self._next(Start)
            joined = following.job if following else None

    def _trace(self, request: TraceOne) -> None:
        """Trace one variant after the other, until the panel lets go."""
        _import_from(request.job)
        following: TraceOne | None = request
        while following is not None:
            job = following.job
            case = _case(job)
            self._device = device = _opened(job, None)
            launches = partial(_measuring(job, device, case).launches, following.sets)
            found = dissect(device, launches)
            _refuse_strangers(job)
            self._tell(Traced(found.kernels, found.codes, found.texts, found.reason))
            del launches, found
            self._put_away()
            forget_compiled()
            following = self._next(TraceOne)

    def _put_away(self) -> None:
        gc.collect()  # graphs and buffers of this variant must not weigh on the next
        if self._device is not None:
            self._device.close()
        self._device = None

    def _next(self, kind: type[Reply]) -> Reply | None:
        try:
            request = self._connection.await_message()
        except EOFError:
            return None
        if not isinstance(request, kind):
            raise PerfError(f"a worker between two variants cannot answer {request!r}")
        return request

    def _join(self, job: Job) -> None:
        self._tell(Progress("join"))
        self._gang = join(job.device, rank=job.rank, ranks=job.ranks, rendezvous=job.rendezvous)
        self._tell(Progress("load"))

    def _serve(self, job: Job, *, is_first: bool = False) -> None:
        started = time.monotonic()
        if is_first:
            self._join(job)
        session = self._begun(job)
        start_s = round(time.monotonic() - started, 6)
        self._tell(Ready())
        while True:
            match self._connection.await_message():
                case Check() as how:
                    session.check(self._announce, is_thorough=how.is_thorough)
                    self._tell(Checked())
                case Prepare() as how:
                    session.prepare(self._announce, how.sampling)
                    self._tell(Prepared(session.sampling))
                case Measure():
                    session.block()
                    self._tell(Measured())
                case Finish():
                    session.recheck(self._announce)
                    both = session.finish() if isinstance(session, Quads) else (session.finish(),)
                    self._tell(Finished(*(_labelled(each, job, start_s) for each in both)))
                    return
                case other:
                    raise PerfError(f"a worker at work cannot answer {other!r}")

    def _begun(self, job: Job) -> Session | Quads:
        _import_from(job)
        with waking(job.device, gang=self._gang):
            case = _case(job)
        self._device = _opened(job, self._gang)
        return _session(job, self._device, case)

    def _announce(self, phase: str) -> None:
        self._tell(Progress(phase))

    def _tell(self, message: Message) -> None:
        self._connection.send(message)

    def _sticky_error(self) -> str:
        """Return what the device still reports after a failure: its context is lost then."""
        try:
            if self._device is not None:
                self._device.synchronize()
        except BaseException as error:  # noqa: BLE001 - any answer but silence is the answer
            return _reason(error)
        return ""


def show(job: Job) -> None:
    """Launch a variant once, warm, for the profiler that this process runs under."""
    _import_from(job)
    case = _case(job)
    device = _opened(job, None)
    show_once(device, partial(_measuring(job, device, case).launches, 1))
    _refuse_strangers(job)
    device.close()


def _session(job: Job, device: Device, case: Case) -> Session | Quads:
    session = _measuring(job, device, case)
    if job.rival is None:
        return session
    rival = _measuring(replace(job, axes=job.rival.axes), device, case)
    return Quads(session, rival, sampling=job.rival.sampling, seed=job.seed)


def _measuring(job: Job, device: Device, case: Case) -> Session:
    return Session(device, case, job.axes, job.settings, job.seed)


def _opened(job: Job, gang: Gang | None) -> Device:
    return open_device(job.device, seed=job.seed, gang=gang, accelerator=job.accelerator)


def _import_from(job: Job) -> None:
    if job.accelerator is not None and job.accelerator.folder not in {"", *sys.path}:
        sys.path.append(job.accelerator.folder)
    with contextlib.suppress(OSError):  # the folder may be gone
        # Last: a file of the project that is named as a module of Python's is not that module.
        sys.path += {str(Path.cwd())} - set(sys.path)
    if job.tree is not None:
        sys.path[:0] = entries(job.tree, sys.path)


def _case(job: Job) -> Case:
    cases = load_pack(job.pack, job.origin, job.kernels).cases
    if job.case not in cases:
        raise PackError(
            f"pack {job.pack!r} has no case {job.case!r}",
            where=job.origin,
            remedy=f"its cases are {', '.join(sorted(cases))}; did the pack change meanwhile?",
        )
    return cases[job.case]


def _labelled(evidence: Evidence, job: Job, start_s: float) -> Evidence:
    """Return the evidence as this job's, with a note if nothing of its revision was in it."""
    phases_s = {"start": start_s, **evidence.phases_s}
    evidence = structs.replace(evidence, slot=job.slot, seed=job.seed, phases_s=phases_s)
    noted = () if _refuse_strangers(job) else (NOTHING_OF_IT,)
    return structs.replace(evidence, notes=(*evidence.notes, *noted))


def _refuse_strangers(job: Job) -> bool:
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


# The process that imports the heavy libraries once and forks a fresh worker for each job.


_PR_SET_PDEATHSIG = 1


class Server:
    """Forks, kills and reaps the workers of one slot, as its control socket asks."""

    def __init__(self, control: Channel, *, before_fork: Callable[[], object]) -> None:
        self._control = control
        self._before_fork = before_fork
        self._workers: set[int] = set()

    def run(self) -> None:
        """Answer requests until the controller is gone, then leave no process behind."""
        try:
            while True:
                self._control.send(self._answer(self._control.await_message()))
        except (EOFError, OSError):
            pass
        finally:
            for pid in tuple(self._workers):
                self._reap(Reap(pid))

    def _answer(self, request: Message) -> Message:
        match request:
            case Fork():
                return self._fork()
            case Reap():
                return self._reap(request)
            case _:
                return Hello(os.getpid())

    def _fork(self) -> Forked:
        link, output = self._control.receive_handles(2)
        server = os.getpid()
        self._before_fork()
        pid = os.fork()
        if pid == 0:
            self._become_worker(server, link, output)
        self._workers.add(pid)
        # The worker's death must show as end of file on its socket: keep no copy of it here.
        os.close(link)
        os.close(output)
        return Forked(pid)

    def _become_worker(self, server: int, link: int, output: int) -> NoReturn:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # it died before the line above
                os._exit(1)
            self._control.close()
            for stream in (1, 2):
                os.dup2(output, stream)
            os.close(output)
            serve(Channel.at(link))
        finally:
            os._exit(1)

    def _reap(self, request: Reap) -> Exited:
        pid = request.pid
        if pid not in self._workers:
            return Exited(pid, None)
        is_forced = not has_exited(pid, request.grace_s)
        # While it is not waited for, its id cannot be another's: kill its group only now.
        _kill_group(pid)
        if not has_exited(pid, KILL_LIMIT_S):
            return Exited(pid, None, is_forced)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._workers.discard(pid)
        # As a subreaper the server inherits what a dead worker started, even in other sessions.
        end_orphans(self._workers)
        return Exited(pid, code, is_forced)


def _kill_group(pid: int) -> None:
    # A worker that was forked a moment ago may not lead its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _hash_triton() -> None:
    """Let Triton hash its own files, which each process does anew before its first kernel.

    It reads some 200 MB and takes 0.7 s; the forked workers inherit the result.
    """
    cache = sys.modules.get("triton.runtime.cache")
    key = getattr(cache, "triton_key", None)
    if key is not None:
        key()


def main() -> None:
    """Serve the control socket whose number is the first argument, for the device named second.

    Of a device that a pack brings, the others are its folder and what is to be imported for it.
    """
    control = Channel.at(int(sys.argv[1]))
    folder, *own = sys.argv[3:] or [""]
    sys.path += [folder] if folder else []
    kind = device_class(sys.argv[2])
    # No pack: workers must be fresh.
    for module in (*kind.preload, *own):
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    _hash_triton()
    kind.prepare_server()
    adopt_orphans()
    # What is imported now is shared with the workers; their collector need not touch it.
    gc.collect()
    gc.freeze()
    control.send(Hello(os.getpid()))
    Server(control, before_fork=kind.before_fork).run()


if __name__ == "__main__":
    main()
