"""One worker process: its device, its lock, its limits, and how it ended."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import msgspec
from msgspec.structs import replace

import perfsuite
from perfsuite.boundary import (
    NAME_CHARACTERS,
    DeviceError,
    PerfError,
    UsageError,
    from_environment,
    plain,
    python_path,
)
from perfsuite.model import (
    HOST_DEVICE,
    Accelerator,
    Arm,
    Gpu,
    Kernel,
    Result,
    Settings,
    Stage,
    Status,
    Tree,
    Variant,
)
from perfsuite.packs.listing import UNTOLD
from perfsuite.store.files import Closable, refuse_few_files
from perfsuite.workers.messages import (
    Channel,
    Exited,
    Failed,
    Fork,
    Forked,
    Hello,
    Job,
    Message,
    Ping,
    Progress,
    Reap,
    Reply,
    Rival,
    pair,
)

# How processes end: as errors, in words, and with what they printed.


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


# One worker as the controller sees it: what it says, how long it takes, how it ends.


TICK_S = 0.1
OUTPUT_LIMIT_BYTES = 64 << 20
# A worker that closes its socket is about to exit; one that is told to abort prints its stack.
GRACE_S = 2.0
# A worker that was just forked, or has just answered, reads what it is told at once.
SEND_LIMIT_S = 30.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What is waited for, for how long, and who is told meanwhile.

    ``watch`` is called between ticks and may raise; ``announce`` gets the phases as they begin.
    """

    phase: str
    limit_s: float
    watch: Callable[[], None]
    announce: Callable[[str], None]


class Home(Protocol):
    """What a worker asks of the slot that forked it; its servers are counted by ``generation``."""

    index: int
    generation: int

    @property
    def is_alive(self) -> bool:
        """Say whether the server runs."""

    @property
    def last_words(self) -> str:
        """How the server ended."""

    def reap(self, pid: int, grace_s: float) -> Exited:
        """End a worker's process group after ``grace_s``; raises ServerLostError."""


class WorkerProcess:
    """A forked worker: its socket, its output file, its memory and its death."""

    def __init__(self, slot: Home, pid: int, connection: Channel, output: IO[bytes]) -> None:
        self.pid = pid
        self.arm = Arm.B
        self.started = time.monotonic()
        self._slot = slot
        self._generation = slot.generation
        self._connection = connection
        self._output = output
        self._doom = ""
        self._phase = ""
        self._exited: Exited | None = None

    @property
    def phase(self) -> str:
        """The phase it last said that it is in, or is to be in."""
        return self._phase

    def last_output(self, most: int = TAIL_CHARACTERS) -> str:
        """Return the end of what it printed."""
        return tail(self._output, most)

    def fileno(self) -> int:
        """Return its socket's number, so that several can be waited for at once."""
        return self._connection.fileno()

    @property
    def is_orphan(self) -> bool:
        """Say whether the server that forked it is gone."""
        return self._generation != self._slot.generation or not self._slot.is_alive

    @property
    def is_fit(self) -> bool:
        """Say whether it lives, and the server that forked it."""
        return not self.is_orphan and resident_bytes(self.pid) > 0

    def await_news(self, limit_s: float) -> None:
        """Wait until it has said something or is gone, at most this long."""
        with contextlib.suppress(OSError):
            self._connection.has_news(limit_s)

    def tell(self, message: Message) -> None:
        """Send a message; a worker that is gone is noticed when its answer is awaited."""
        with contextlib.suppress(OSError):
            self._connection.send(message, SEND_LIMIT_S)

    def hear(self, kind: type[Reply], wait: Wait, *, since: float | None = None) -> Reply:
        """Wait for a message of this kind; raises EndedError for whatever else happens.

        The time limit counts from ``since``, or from now.
        """
        self.begin(wait)
        deadline = (time.monotonic() if since is None else since) + wait.limit_s
        while True:
            message = self.listen(kind, wait, TICK_S)
            if message is not None:
                return message
            if time.monotonic() > deadline:
                raise self._overdue(wait)
            wait.watch()

    def begin(self, wait: Wait) -> None:
        """Note what is waited for from now on."""
        self._phase = wait.phase

    def listen(self, kind: type[Reply], wait: Wait, patience_s: float) -> Reply | None:
        """Return a message of this kind if one comes soon; raises EndedError as ``hear`` does."""
        message = self._next(patience_s)
        if isinstance(message, kind):
            return message
        match message:
            case Progress(phase=phase):
                self._phase = plain(phase, most=NAME_CHARACTERS)
                wait.announce(self._phase)
            case Failed(status=status, reason=reason):
                raise self._ended(status, plain(reason), is_told=True)
        return None

    def abort(self) -> None:
        """Let it write the stack it hangs in to its output, and die."""
        self._signal(signal.SIGABRT)

    def kill(self) -> None:
        """End it and what it started, without waiting."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Let it go and see it out, killing it after a grace."""
        self.hang_up()
        with contextlib.suppress(ServerLostError):
            self._end()

    def limit(self, memory_bytes: int) -> None:
        """Kill it if it holds more host memory than this, or floods the disk with output."""
        if self._doom:
            return
        held = resident_bytes(self.pid)
        if held > memory_bytes:
            self._doom = f"held {held >> 20} MiB of host memory, limit {memory_bytes >> 20} MiB"
        elif os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT_BYTES:
            self._doom = f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
        if self._doom:
            self._signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Tell it to leave, without waiting."""
        self._connection.close()

    def close(self) -> None:
        """Make sure that it is gone, and forget it."""
        self.end()
        self._output.close()

    def _end(self) -> Exited:
        """See it out, killing its process group after a grace; raises ServerLostError."""
        if self._exited is None:
            try:
                self._exited = self._reaped()
            except ServerLostError:
                self._signal(signal.SIGKILL)
                raise
        return self._exited

    def _reaped(self) -> Exited:
        if self.is_orphan:
            reason = f"the server of slot {self._slot.index} is gone ({self._slot.last_words})"
            raise ServerLostError(reason, "")
        return self._slot.reap(self.pid, GRACE_S)

    def _ended(
        self, status: Status, reason: str, *, is_server_lost: bool = False, is_told: bool = False
    ) -> EndedError:
        self.end()
        ended = EndedError(
            status, reason, self.last_output(), is_server_lost=is_server_lost, is_told=is_told
        )
        ended.arm = self.arm
        return ended

    def _next(self, patience_s: float) -> Message | None:
        try:
            if (message := self._connection.receive(patience_s)) is not None:
                return message
        except (EOFError, OSError):
            raise self._death() from None
        except PerfError as error:
            raise self._ended(Status.ERROR, f"its worker sent a {error.what}") from error
        # What it forked may keep its socket open, so that its death shows no end of file.
        if resident_bytes(self.pid) == 0 and not self._connection.has_news(0):
            raise self._death()
        return None

    def _death(self) -> EndedError:
        try:
            exited = self._end()
        except ServerLostError as lost:
            return self._ended(Status.CRASHED, self._doom or str(lost), is_server_lost=True)
        is_cut_off = exited.is_forced or exited.code == UNTOLD
        words = "closed its socket" if is_cut_off else exit_words(exited.code)
        return self._ended(Status.CRASHED, self._doom or f"{words} during {self._phase}")

    def _overdue(self, wait: Wait) -> EndedError:
        self.abort()
        inner = f" (in {self._phase})" if self._phase != wait.phase else ""
        reason = f"{wait.phase} took longer than its limit of {wait.limit_s:g} s{inner}"
        return self._ended(Status.TIMED_OUT, reason)

    def _signal(self, number: signal.Signals) -> None:
        if self._exited is not None:
            return
        # While its server lives and has not reaped it, its id cannot be another process's.
        for kill in (os.killpg, os.kill) if number is signal.SIGKILL else (os.kill,):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, number)


def resident_bytes(pid: int) -> int:
    """Return the host memory a process holds; 0 when it is dead, waited for or not."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES


# Where and how a panel measures, and the environment its processes get.


# The share of the machine's memory that the workers of one panel may use together.
MEMORY_SHARE = 0.8
# They make a process trace itself from its start.
TRACERS = {"COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", "PYTHONTRACEMALLOC"}
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the workers of an arm load: its packs' origins by name, all kernels, and its tree."""

    origins: Mapping[str, str]
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One device to measure on, with what its workers need to know.

    ``gpus`` are those its workers see, none where the device is no GPU: one, or all of a gang's,
    by rank. ``kernels`` are all packs' kernels. ``origins`` gives each pack's origin by name.
    ``arms`` is the code of both arms where two are compared. ``accelerator`` is the device that a
    pack brings, with the one unit that is meant.
    ``memory_limit_bytes`` is the host memory one worker may hold (0: its share of the machine).
    """

    device: str
    gpus: tuple[Gpu, ...] = ()
    slots: int = 3
    settings: Settings = field(default_factory=Settings)
    origins: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    arms: Mapping[Arm, Code] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    memory_limit_bytes: int = 0

    def code(self, arm: Arm) -> Code:
        """Return what workers of an arm load."""
        return self.arms.get(arm) or Code(origins=self.origins, kernels=self.kernels)

    @property
    def is_host_measured(self) -> bool:
        """Say whether what is measured are the cores that a worker's start would take."""
        return self.device == HOST_DEVICE

    @property
    def worker_bytes(self) -> int:
        """The host memory one worker may hold."""
        return self.memory_limit_bytes or int(MEMORY_SHARE * host_bytes() / self.slots)

    def environment(self) -> dict[str, str]:
        """Return the environment of a server: its GPUs or none, and its own hash seed."""
        values = child_environment()
        values["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in self.gpus)
        # Processes are the unit of evidence: they must not share what a fresh start would vary.
        values.pop("PYTHONHASHSEED", None)
        # What is measured is not traced, also where coverage is asked to follow subprocesses.
        for name in TRACERS & values.keys():
            del values[name]
        return values


def child_environment() -> dict[str, str]:
    """Return this process's environment, in which a child finds this very perfsuite."""
    values = dict(os.environ)
    home = str(Path(perfsuite.__file__).parents[1])
    first = [] if home in sysconfig.get_paths().values() else [home]
    values["PYTHONPATH"] = python_path(*first)
    return values


def host_bytes() -> int:
    """Return the memory this machine, or the container around this process, has."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():  # "max" where there is no limit
            sizes.append(int(text))
    return min(sizes)


# One slot of a panel: a server process, and the workers it is asked to fork and reap.


# Forking takes milliseconds; reaping waits for the kernel, which may free a GPU's memory first.
REPLY_LIMIT_S = 30.0
LEAVE_LIMIT_S = 15.0
# What a slot has open at most: its server, workers of three crews, and its share of the run.
FILES = 9


class Slot:
    """Keeps one server alive; ``generation`` counts the servers it has had."""

    def __init__(self, index: int, site: Site) -> None:
        self.index = index
        self.generation = 0
        self._site = site
        self._launch()

    @property
    def is_alive(self) -> bool:
        """Say whether the server runs."""
        return not self._control.is_closed and self._server.poll() is None

    @property
    def last_words(self) -> str:
        """How the server ended."""
        return exit_words(self._server.poll())

    def hello(self) -> int:
        """Return the server's process id once it answers; raises DeviceError if it ends first."""
        try:
            self._await_up()
            self._ask(Ping(), Hello)
        except ServerLostError as lost:
            raise self._hopeless(lost) from lost
        return self._server.pid

    def fork(self) -> WorkerProcess:
        """Return a fresh worker, of a new server if the old one died; raises DeviceError."""
        try:
            return self._fork()
        except ServerLostError:
            self._launch()
        try:
            return self._fork()
        except ServerLostError as lost:
            raise self._hopeless(lost) from lost

    def reap(self, pid: int, grace_s: float) -> Exited:
        """End a worker's process group after ``grace_s``; raises ServerLostError."""
        return self._ask(Reap(pid, grace_s), Exited)

    def close(self) -> None:
        """End the server, which ends its workers."""
        self._control.close()
        try:
            self._server.wait(LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._log.close()

    def _launch(self) -> None:
        ours, theirs = pair()
        if self.generation:
            self._log.close()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        command = (sys.executable, "-P", "-m", "perfsuite.workers.server")
        own = self._site.accelerator
        preload = (own.folder, *own.preload) if own else ()
        self._server = subprocess.Popen(
            [*command, str(theirs.fileno()), self._site.device, *preload],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=self._site.environment(),
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        self._is_up = False
        self.generation += 1

    def _await_up(self) -> None:
        if not self._is_up:
            self._answer(Hello, self._site.settings.start_limit_s)
            self._is_up = True

    def _fork(self) -> WorkerProcess:
        self._await_up()
        ours, theirs = pair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the worker
        with theirs:
            try:
                pid = self._ask(Fork(), Forked, theirs.fileno(), output.fileno()).pid
            except ServerLostError:
                ours.close()
                output.close()
                raise
        return WorkerProcess(self, pid, ours, output)

    def _ask(self, request: Message, kind: type[Reply], *handles: int) -> Reply:
        try:
            self._control.send(request, REPLY_LIMIT_S)
            if handles:
                self._control.send_handles(*handles)
        except OSError:
            raise self._lost("is gone") from None
        return self._answer(kind, REPLY_LIMIT_S)

    def _answer(self, kind: type[Reply], limit_s: float) -> Reply:
        try:
            reply = self._control.receive(limit_s)
        except (EOFError, OSError):
            raise self._lost("is gone") from None
        except PerfError as error:
            raise self._lost(f"sent a {error.what}") from error
        if reply is None:
            raise self._lost(f"gave no answer within {limit_s:g} s")
        if not isinstance(reply, kind):
            raise self._lost(f"answered {reply!r}")
        return reply

    def _lost(self, what: str) -> ServerLostError:
        """End what is left of the server; it cannot be trusted any more."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(1.0)
        self._kill()
        reason = f"the server of slot {self.index} {what} ({self.last_words})"
        return ServerLostError(reason, tail(self._log))

    def _kill(self) -> None:
        if self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def _hopeless(self, lost: ServerLostError) -> DeviceError:
        last = lost.output.strip().rpartition("\n")[2]
        return DeviceError(
            f"{lost}: {last!r}" if last else str(lost),
            where=f"python -m perfsuite.workers.server for device {self._site.device!r}",
            remedy="run the command `perfsuite doctor`; the device's libraries may not import",
        )


def slots_of(site: Site) -> list[Slot]:
    """Return the slots of a panel; raises UsageError where too few files may be open for them."""
    refuse_few_files(FILES * site.slots)
    return [Slot(index, site) for index in range(site.slots)]


# Keeps two runs of one machine off the same device, whoever starts them and wherever.


# Runs with another word here do not see each other's locks: for tests that measure nothing real.
VARIABLE = "PERFSUITE_LOCKS"
# Whoever was refused stays in the queue for good: as many are told who holds the unit.
_QUEUE = 4096
_ASK_S = 1.0
_PEER = struct.Struct("3i")  # process, user and group


class UnitLock(Closable):
    """Holds a unit (a GPU's or a machine's short key) for this process until closed.

    The lock is the name of a socket: no file is in its way, TMPDIR and users make no difference,
    and the kernel gives it back when the process dies, however it dies. Containers with a network
    of their own do not see it. Raises ``UsageError`` naming the holder when the unit is taken.
    """

    def __init__(self, unit: str) -> None:
        key = hashlib.sha256(f"{from_environment(VARIABLE)}/{unit}".encode()).hexdigest()[:24]
        self._name = f"\0perfsuite-{key}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self._name)
            self._socket.listen(_QUEUE)
        except OSError as error:
            self._socket.close()
            where = f"the socket @{self._name[1:]} in /proc/net/unix"
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"unit {unit!r} is being measured by process {self._holder()}",
                    where=where,
                    remedy="wait until that run ends, stop it, or choose another device",
                ) from error
            raise UsageError(
                f"unit {unit!r} cannot be locked: {error.strerror}",
                where=where,
                remedy="let this user make Unix sockets; a sandbox may forbid them",
            ) from error

    def close(self) -> None:
        """Give the unit back."""
        self._socket.close()

    def _holder(self) -> str:
        """Return the id of the process that holds the name; a container may hide it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                asking.settimeout(_ASK_S)
                asking.connect(self._name)
                told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:
            return "unknown"
        process, user, _ = _PEER.unpack(told)
        mine = user == os.getuid()
        return f"{process or 'unknown'}{'' if mine else f' of user {user}'}"


# Asks a short-lived child which GPUs this node has, so that the controller touches none.


LIMIT_S = 60.0
_REMEDY = "run `nvidia-smi`: if it does not answer either, the driver is at fault"


def inventory() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible; empty where there is none."""
    command = [sys.executable, "-P", "-m", "perfsuite.devices.nvml"]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env=child_environment(),
        )
        return msgspec.json.decode(child.stdout, type=tuple[Gpu, ...])
    except subprocess.TimeoutExpired as error:
        what = f"listing the GPUs took longer than {LIMIT_S:g} s"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        what = f"listing the GPUs failed: {last!r}"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error
    except msgspec.MsgspecError as error:
        what = f"the list of GPUs is damaged: {child.stdout[:80]!r} ({error})"
        raise DeviceError(what, where=" ".join(command), remedy=_REMEDY) from error


# What one worker is told to measure.


@dataclass(frozen=True, slots=True)
class Turn:
    """One process of a variant, by number, and its arm."""

    variant: Variant
    stage: Stage
    process: int
    arm: Arm = Arm.B


def job_of(turn: Turn, slot: int, site: Site, rival: Rival | None = None) -> Job:
    """Return the job of a process in a slot."""
    variant, code = turn.variant, site.code(turn.arm)
    return Job(
        pack=variant.pack,
        origin=code.origins[variant.pack],
        case=variant.case.name,
        axes=variant.axes,
        device=site.device,
        accelerator=site.accelerator,
        settings=site.settings,
        seed=_seed(f"{site.settings.seed}/{turn.stage}/{variant.id}/{turn.process}"),
        slot=slot,
        kernels=code.kernels,
        tree=code.tree,
        rival=rival,
    )


def _seed(text: str) -> int:
    # From names only: a variant measured alone gets the seeds it has in the whole suite.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
