"""The process that forks workers, and the worker that it forks."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_type_hints

import msgspec
from msgspec.structs import replace

import perfsuite
from perfsuite.boundary import DisturbedError, PackError, PerfError, WrongResultError, in_a_line
from perfsuite.devices import protocol
from perfsuite.devices.protocol import Device, Gang
from perfsuite.devices.sass import forget_compiled
from perfsuite.engine.check import Checked
from perfsuite.engine.measure import Session
from perfsuite.engine.trace import Anatomy, dissect, warmed_up
from perfsuite.model import Accelerator, DeviceFacts, Evidence, Pack, Sampling, Status, Tree
from perfsuite.packs.load import Listing, list_pack, load_pack
from perfsuite.workers import messages
from perfsuite.workers.messages import Call, Channel, Done, Ending, Failed, Job, raw

# Workers of one server share an address-space layout; each shifts its own by up to this much.
PADDING_BYTES = 64 << 20
# If memory runs out, the kernel is to choose the worker, not the controller.
OOM_SCORE = "800"
# A process that was killed may be busy in a driver.
KILL_LIMIT_S = 10.0
_POLL_S = 0.002
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ORPHAN_PASSES = 20
# What a variant ends as that raises this; whatever else it raises is an error.
STATUSES: dict[type[BaseException], Status] = {
    WrongResultError: Status.WRONG,
    DisturbedError: Status.DISTURBED,
}
# Bytes that a pack may write to a file, its output among them, and hold while it is listed.
MOST = {resource.RLIMIT_FSIZE: 64 << 20, resource.RLIMIT_DATA: 16 << 30}


def attend(channel: Channel, owner: object) -> None:
    """Let ``owner`` do the steps that are asked for, until nobody asks; raises what they raise."""
    while True:
        try:
            call = channel.receive(None)
        except EOFError:
            return
        if not (isinstance(call, Call) and (do := getattr(owner, f"do_{call.step}", None))):
            raise PerfError(f"a worker cannot answer {call!r}")
        value = do(messages.read(call.given, types_of(call.step)[0]))
        channel.send(Done(raw(value), call.step))


@cache
def types_of(step: str) -> tuple[Any, ...]:
    """Return what a step takes and what it gives, as its method says; None where it has none."""
    do = getattr(Worker, f"do_{step}", None) or getattr(Server, f"do_{step}", None)
    return tuple(get_type_hints(do).values()) if do else (None, None)


class Late:
    """What takes seconds: a server does it once a worker had to, for all workers after.

    ``things`` are modules to import, or ``module:function`` whose answer is kept by lru_cache.
    """

    def __init__(self, things: Sequence[str]) -> None:
        self._left = {bytes([place]): thing for place, thing in enumerate(things)}
        self._needs, self._needed = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def tell(self) -> None:
        """Let the server, whose worker this process is, do what this one had to."""
        for key, thing in self._left.items():
            module, _, name = thing.partition(":")
            function = getattr(sys.modules.get(module), name, None)
            info = getattr(function, "cache_info", None)
            is_done = info().currsize if info else not name
            if module in sys.modules and is_done:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._needed, key)

    def catch_up(self) -> None:
        """Do what a worker told of; nothing where that fails here."""
        with contextlib.suppress(Exception):
            while key := os.read(self._needs, 1):
                module, _, name = self._left.pop(key, "").partition(":")
                if module:
                    load([module])
                    getattr(sys.modules[module], name, bool)()


class Server:
    """Forks, kills and reaps the workers of one slot, as its control socket asks."""

    def __init__(self, control: Channel, late: Sequence[str] = ()) -> None:
        self._control, self._late = control, Late(late)
        self._workers: set[int] = set()

    def run(self) -> None:
        """Answer requests until the controller is gone, then leave no process behind."""
        try:
            with contextlib.suppress(OSError):
                attend(self._control, self)
        finally:
            for pid in tuple(self._workers):
                self.do_reap((pid, 0.0))

    def do_fork(self, _: None) -> int:
        """Fork a worker, whose socket and output file came along; return its process id."""
        link, output = self._control.handles
        server = os.getpid()
        self._late.catch_up()
        if pid := os.fork():
            self._workers.add(pid)
            # The worker's death must show as end of file on its socket: keep no copy of it here.
            os.close(link)
            os.close(output)
            return pid
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:  # it died before the line above
                os._exit(1)
            self._control.close()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            serve(Channel(socket.socket(fileno=link)), self._late.tell)
        finally:
            os._exit(1)

    def do_reap(self, asked: tuple[int, float]) -> Ending:
        """Kill a worker's process group after a grace, and say how the worker ended."""
        pid, grace_s = asked
        if pid not in self._workers:  # reaped before, by one who did not wait for the answer
            return Ending(None, is_forced=False)
        is_forced = not has_exited(pid, grace_s)
        # While it is not waited for, its id cannot be another's: kill its group only now. A worker
        # that was forked a moment ago may not lead its group yet.
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        if not has_exited(pid, KILL_LIMIT_S):
            return Ending(None, is_forced)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._workers.discard(pid)
        # As a subreaper the server inherits what a dead worker started, even in other sessions.
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        for _ in range(_ORPHAN_PASSES if children.exists() else 0):
            for orphan in {*map(int, children.read_text("ascii").split())} - self._workers:
                os.kill(orphan, signal.SIGKILL)
                if has_exited(orphan, KILL_LIMIT_S):
                    os.waitpid(orphan, 0)
        return Ending(code, is_forced)


def has_exited(pid: int, limit_s: float) -> bool:
    """Wait for a child to end without taking its status, at most ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def load(modules: Iterable[str]) -> None:
    """Import what there is of these, to be shared with workers."""
    for module in modules:
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    # The workers' collector need not touch it.
    gc.collect()
    gc.freeze()


def serve(connection: Channel, tell: Callable[[], object]) -> NoReturn:
    """Do what the panel asks until it lets go; leaves the process, without exit handlers.

    Standard output and error are expected to be the worker's own file already. ``tell`` is called
    when a variant was checked.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # files, as promised
    padding = bytearray(random.SystemRandom().randrange(PADDING_BYTES))
    worker = Worker(connection, tell)
    code = 0
    try:
        attend(connection, worker)
    except BaseException as error:  # noqa: BLE001 - whatever a case raises is its result
        # The reason first: its output may be closed, full, or a pipe that nobody reads.
        try:
            connection.send(worker.failure(error))
        except OSError:
            code = messages.UNTOLD
        with contextlib.suppress(Exception):
            perfsuite.boundary.print_failure(error)
        worker.linger()
    finally:
        del padding
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # What C code printed is still in C's buffer, and os._exit would drop it.
        ctypes.CDLL(None).fflush(None)
        os._exit(code)


class Worker:
    """Does one step after the other; between two steps it knows its job, device and session."""

    # Of the variant that was started.
    _job: Job
    _session: Session

    def __init__(self, connection: Channel, tell: Callable[[], object]) -> None:
        self._connection, self._tell = connection, tell
        self._device: Device | None = None
        self._gang: Gang | None = None

    def failure(self, error: BaseException) -> Failed:
        """Say how the variant ended that raised this."""
        status, reason = STATUSES.get(type(error), Status.ERROR), in_a_line(error)
        # Ranks have work in flight that waits for each other: it may never be done.
        if status is Status.ERROR and self._device is not None and self._gang is None:
            try:
                self._device.synchronize()
            except BaseException as lost:  # noqa: BLE001 - its context is lost
                status = Status.CRASHED
                reason = f"{reason} (the device is lost: {in_a_line(lost)})"
        return Failed(status, reason)

    def linger(self) -> None:
        """Wait to be let go, if this is a rank: its peers would fail for its leaving."""
        if self._gang is not None:
            with contextlib.suppress(OSError, EOFError):
                self._connection.receive(None)

    def do_describe(self, device: tuple[str, Accelerator | None]) -> DeviceFacts:
        """Say what the device is."""
        name, accelerator = device
        return protocol.open_device(name, accelerator=accelerator).facts()

    def do_list(self, asked: Listing) -> Pack | str:
        """List a pack, or say why it has nothing: its data may be of any type."""
        own, source = os.getpid(), asked.source
        sys.path += [path for path in asked.paths if path not in sys.path]
        move_into(asked.tree)
        # Neither the disk nor the memory of this machine is a pack's: it gets an error instead.
        for limit, most in MOST.items():
            least = min({*resource.getrlimit(limit), most} - {resource.RLIM_INFINITY})
            resource.setrlimit(limit, (least, least))
        try:
            listed = list_pack(asked, load_pack(source.name, source.origin, asked.kernels))
            refuse_strangers(asked.tree, sys.modules.values())
            msgspec.json.decode(msgspec.json.encode(listed), type=Pack)
        except PackError as refused:
            return str(refused)
        except (TypeError, AttributeError, msgspec.MsgspecError) as odd:
            what = f"the pack declares something of a wrong type: {odd}"
            return str(source.refuse(what, remedy="compare it with perfsuite's types"))
        finally:
            if os.getpid() != own:  # the pack forked, and this is the child that it let go on
                os._exit(0)
        if heavy := [name for name in asked.heavy if name in sys.modules]:
            what = f"the pack imports {', '.join(heavy)} when it is listed"
            remedy = "import it in the case's builder, so that listing needs no GPU library"
            return str(source.refuse(what, remedy=remedy))
        return listed

    def do_call(self, asked: tuple[str, msgspec.Raw]) -> msgspec.Raw:
        """Return what a feature's function, ``module:name``, says of what it is given."""
        module, _, name = asked[0].partition(":")
        return raw(getattr(importlib.import_module(module), name)(asked[1]))

    def do_start(self, job: Job) -> None:
        """Open the device and load the pack, launch nothing yet."""
        started = time.monotonic()
        self._put_away()
        if job.ranks and self._gang is None:
            self._gang = Gang(job.rank, job.ranks)
            self._announce("join")
            self._gang = protocol.join(
                job.device, rank=job.rank, ranks=job.ranks, rendezvous=job.rendezvous
            )
            self._announce("load")
        self._job, self._session = job, opened(job, self._gang)
        self._device = self._session.device
        self._session.announce = self._announce
        self._session.phases_s["start"] = round(time.monotonic() - started, 6)

    def do_check(self, is_thorough: bool) -> Checked:  # noqa: FBT001 - what a step takes
        """Build and check; others may do the same meanwhile. Return what was found."""
        self._session.check(is_thorough=is_thorough)
        if self._gang and not is_thorough:
            self._session.match()
        self._tell()
        return self._session.checked

    def do_match(self, known: Checked | None) -> None:
        """Match what another process found, if one did, or compare with the reference."""
        self._session.match(known)

    def do_prepare(self, sampling: Sampling | None) -> Sampling | None:
        """Calibrate and settle, with the device to itself; return how the variant is sampled."""
        return self._session.prepare(sampling)

    def do_measure(self, _: None) -> None:
        """Take a block."""
        self._session.block()

    def do_finish(self, _: None) -> Evidence:
        """Check once more, and say what was found."""
        self._session.recheck()
        # Where nothing of its revision was imported, the evidence says so.
        if not refuse_strangers(self._job.tree, sys.modules.values()):
            self._session.notes.append(NOTHING_OF_IT)
        return replace(self._session.finish(), slot=self._job.slot)

    def do_trace(self, asked: tuple[Job, int]) -> Anatomy:
        """Say what a launch of a variant is made of."""
        job, sets = asked
        self._put_away()
        forget_compiled()
        session = opened(job)
        self._device = session.device
        found = dissect(session.device, lambda: session.launches(sets))
        refuse_strangers(job.tree, sys.modules.values())
        return found

    def _put_away(self) -> None:
        """Drop the variant before: its graphs and buffers must not weigh on the next."""
        vars(self).pop("_session", None)
        gc.collect()
        if self._device is not None:
            self._device.close()
        self._device = None

    def _announce(self, phase: str) -> None:
        self._connection.send(messages.Progress(phase))


def show(job: Job) -> None:
    """Launch a variant once, warm, for the profiler that this process runs under."""
    session = opened(job)
    launches = session.launches(1)
    warmed_up(session.device, launches)
    session.device.shown(launches[0])
    refuse_strangers(job.tree, sys.modules.values())
    session.device.close()


def opened(job: Job, gang: Gang | None = None) -> Session:
    """Import a job's case, and open its device."""
    with contextlib.suppress(OSError):  # the folder may be gone
        # Last: a file of the project that is named as a module of Python's is not that module.
        sys.path += {str(Path.cwd())} - set(sys.path)
    move_into(job.tree)
    with ThreadPoolExecutor(1) as pool:
        # Meanwhile the driver makes this process's context, which takes tenths of a second. A rank
        # has joined its gang on a GPU of its own, which only the thread that joined knows.
        if gang is None:
            pool.submit(protocol.device_class(job.device).wake)
        cases = load_pack(job.pack, job.origin, job.kernels).cases
        if job.case not in cases:
            raise PackError(
                f"pack {job.pack!r} has no case {job.case!r}",
                where=job.origin,
                remedy=f"its cases are {', '.join(sorted(cases))}; did the pack change meanwhile?",
            )
    how: dict[str, Any] = {"seed": job.seed, "gang": gang, "accelerator": job.accelerator}
    device = protocol.open_device(job.device, **how)
    return Session(device, cases[job.case], job.axes, job.settings, job.seed, job.check_seed)


# The instrument is the same on both sides, also where its own repository is under test.
INSTRUMENT = Path(perfsuite.__file__).resolve().parent
# What is installed inside the repository, such as a virtual environment, is both sides' own.
INSTALLED = frozenset({"site-packages", "dist-packages"})
FROM_THERE = (
    "make it there: -o perf_against_build=CMD (make, git submodule update --init), or import it "
    "by name"
)
NOTHING_OF_IT = "no Python module came from there: both sides ran the same code"


def moved(path: str, tree: Tree) -> str:
    """Return where a path of the repository lies in another revision's tree; others stay."""
    place = Path(path).resolve()
    if not path or not place.is_relative_to(tree.repository) or place.is_relative_to(tree.root):
        return path
    return str(tree.root / place.relative_to(tree.repository))


def moved_origin(origin: str, tree: Tree) -> str:
    """Return where a pack is loaded from in another revision's tree."""
    mark = ":" if origin.startswith("file:") else "@"
    head, _, place = origin.partition(mark)
    return f"{head}{mark}{moved(place, tree)}"


def entries(tree: Tree, paths: Iterable[str]) -> list[str]:
    """Return what is to stand first on ``sys.path``: the tree's front, and its twin of each path.

    A path that the tree lacks, such as a virtual environment inside the repository, has no twin.
    """
    twins = [twin for path in paths if (twin := moved(path, tree)) != path]
    return [path for path in dict.fromkeys((*tree.front, *twins)) if Path(path).is_dir()]


class Mover:
    """Has modules of the repository imported from another tree, whoever finds them.

    An editable install may bring a finder of its own, which knows the working tree alone. What the
    tree lacks is left where it was found.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders find, in the tree if it is there."""
        if name.partition(".")[0] == perfsuite.__name__:
            return None  # the instrument, which is the same on both sides, stays where it is
        others = (each for each in sys.meta_path if each is not self)
        found = (o.find_spec(name, path, target) for o in others if hasattr(o, "find_spec"))
        spec = next(filter(None, found), None)
        if spec is None or (spec.origin and not spec.has_location):  # built in, or frozen
            return spec
        if spec.origin:
            twin = moved(spec.origin, self._tree)
            is_there = twin != spec.origin and Path(twin).is_file()
            return (is_there and importlib.util.spec_from_file_location(name, twin)) or spec
        # A namespace: several folders may have a part of it.
        parts = [*(spec.submodule_search_locations or ())]
        twins = [twin if Path(twin := moved(part, self._tree)).is_dir() else part for part in parts]
        if twins != parts:
            spec.submodule_search_locations = list(dict.fromkeys(twins))
        return spec


def move_into(tree: Tree | None) -> None:
    """Import from a tree what is of its repository, from now on."""
    if tree is None:
        return
    sys.path[:] = dict.fromkeys((*entries(tree, sys.path), *sys.path))
    if tree.root != tree.repository and not any(isinstance(one, Mover) for one in sys.meta_path):
        sys.meta_path.insert(0, Mover(tree))


def refuse_strangers(tree: Tree | None, modules: Iterable[ModuleType]) -> bool:
    """Raise ``PackError`` if a module came from the repository and not from the tree.

    What the tree lacks (a submodule, what is built) would be the working tree's on both sides.
    Return whether any module came from the tree.
    """
    if tree is None or tree.root == tree.repository:
        return True
    homes = [Path(home).resolve() for home in (sys.prefix, sys.base_prefix, tempfile.gettempdir())]
    inside = [home for home in homes if Path(tree.repository) in home.parents]
    is_any = False
    for module in tuple(modules):
        name = getattr(module, "__file__", None)
        file = Path(name).resolve() if isinstance(name, str) else INSTRUMENT
        if file.is_relative_to(INSTRUMENT):
            continue
        is_any = is_any or file.is_relative_to(tree.root)
        is_installed = not INSTALLED.isdisjoint(file.parts) or any(map(file.is_relative_to, inside))
        twin = moved(str(file), tree)
        # Some modules name a file that is none (torch.ops does).
        if twin == str(file) or is_installed or not file.is_file():
            continue
        lacks = "" if Path(twin).is_file() else ", whose checkout lacks it"
        raise PackError(
            f"{str(file)!r} was imported from the working tree, not from the other revision{lacks}",
            where=tree.root,
            remedy=FROM_THERE,
        )
    return is_any


def main() -> None:
    """Serve the control socket whose number is the first argument, for the device named second.

    Without a device it lists packs. Of a device that a pack brings, the other arguments are its
    folder and what is to be imported for it.
    """
    # A segmentation fault, of a worker too, shows where it was, and leaves no core file with the
    # GPU's mappings.
    faulthandler.enable(file=2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    folder, *own = sys.argv[3:] or [""]
    sys.path += [folder] if folder else []
    kind = protocol.device_class(sys.argv[2])
    # No pack: workers must be fresh.
    with kind.prepare_server():
        load((*kind.preload, *own))
    # It becomes the parent of what its workers leave behind, even in other sessions.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    control.send(Done(raw(None), "up"))
    Server(control, kind.late).run()


if __name__ == "__main__":
    main()
