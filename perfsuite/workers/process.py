"""One worker process: the server that forks it, its limits, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

import perfsuite
from perfsuite.boundary import DeviceError, PerfError, plain, python_path
from perfsuite.model import Accelerator, Arm, Gpu, Kernel, Settings, Status, Tree, built_in
from perfsuite.workers.messages import (
    UNTOLD,
    Call,
    Channel,
    Done,
    Failed,
    Fork,
    Message,
    Reap,
    pair,
    raw,
    read,
)

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
OUTPUT_LIMIT_BYTES = 64 << 20
# A worker that closes its socket is about to exit; one that is told to abort prints its stack.
GRACE_S = 2.0
# A worker that was just forked, or has just answered, reads what it is told at once.
SEND_LIMIT_S = 30.0
# Forking takes milliseconds; reaping waits for the kernel, which may free a GPU's memory first.
REPLY_LIMIT_S = 30.0
LEAVE_LIMIT_S = 15.0
# The share of the machine's memory that the workers of one panel may use together.
MEMORY_SHARE = 0.8
# They make a process trace itself from its start.
TRACERS = {"COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", "PYTHONTRACEMALLOC"}
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# How long a child may take to list the GPUs.
LIMIT_S = 60.0


class ServerLostError(Exception):
    """A server died or stopped answering; ``output`` is the end of what it printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        self.output = output
        super().__init__(reason)


@dataclass(eq=False)
class EndedError(Exception):
    """A worker ended early: its variant's status and reason, and the end of what it printed.

    ``is_told`` says that the reason is the worker's own, not what its death looked like; ``code``
    is its exit code, where it had one. ``arm`` is the worker's.
    """

    status: Status
    reason: str
    output: str = ""
    is_told: bool = False
    is_server_lost: bool = False
    code: int | None = None
    arm: Arm = Arm.B


def tail(output: IO[bytes], most: int = TAIL_CHARACTERS) -> str:
    """Return the end of a file that others write to.

    Of stacks there, the innermost frames of the current thread matter most, then the others'.
    """
    size = os.fstat(output.fileno()).st_size
    start = max(0, size - _READ_BYTES)
    text = os.pread(output.fileno(), size - start, start).decode(errors="replace")
    found = _STACKS.search(text, max(0, text.rfind(_FATAL)))
    if len(text) <= most or not found:
        return plain(text[-most:])
    before = text[: found.start()] + found["cause"]
    stacks = _HOME.sub('File "', f"{found['current']}\n{found['others']}")
    return plain((before[-most // 4 :] + stacks)[:most])


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


def resident_bytes(pid: int) -> int:
    """Return the host memory a process holds; 0 when it is dead, waited for or not."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES


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
    Without a ``device`` nothing is measured: packs are listed.
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
        return built_in(self.device).is_host

    @property
    def worker_bytes(self) -> int:
        """The host memory one worker may hold."""
        return self.memory_limit_bytes or int(MEMORY_SHARE * host_bytes() / self.slots)

    def environment(self) -> dict[str, str]:
        """Return the environment of a server: its GPUs or none, and its own hash seed."""
        values = child_environment()
        if self.device:
            values["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in self.gpus)
            # Processes are the unit of evidence: they must not share what a fresh start would vary.
            values.pop("PYTHONHASHSEED", None)
        # What is measured is not traced, also where coverage is asked to follow subprocesses.
        return {name: value for name, value in values.items() if name not in TRACERS}


def child_environment() -> dict[str, str]:
    """Return this process's environment, in which a child finds this very perfsuite."""
    home = str(Path(perfsuite.__file__).parents[1])
    first = [] if home in sysconfig.get_paths().values() else [home]
    return {**os.environ, "PYTHONPATH": python_path(*first)}


def host_bytes() -> int:
    """Return the memory this machine, or the container around this process, has."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():  # "max" where there is no limit
            sizes.append(int(text))
    return min(sizes)


class WorkerProcess:
    """A forked worker as the panel sees it: what it says, what it holds, and how it ends."""

    def __init__(self, slot: Slot, pid: int, connection: Channel, output: IO[bytes]) -> None:
        self.pid = pid
        self.phase = ""
        self._slot = slot
        self._generation = slot.generation
        self._connection = connection
        self._output = output
        self._doom = ""
        self._ending: tuple[int | None, bool] | None = None

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

    def tell(self, step: str, given: Any = None) -> None:
        """Ask for a step; a worker that is gone is noticed when its answer is awaited."""
        with contextlib.suppress(OSError):
            self._connection.send(Call(step, raw(given)), SEND_LIMIT_S)

    def listen(self) -> Message | None:
        """Return what it has said, None if nothing; raises EndedError if it failed or died."""
        try:
            message = self._connection.receive(0)
        except (EOFError, OSError):
            raise self._death() from None
        except PerfError as error:
            raise self.garbled(error) from error
        if isinstance(message, Failed):
            raise self.ended(message.status, plain(message.reason), is_told=True)
        # What it forked may keep its socket open, so that its death shows no end of file.
        if message is None and not resident_bytes(self.pid) and not self._connection.has_news(0):
            raise self._death()
        return message

    def garbled(self, error: PerfError) -> EndedError:
        """End it for having sent what is no message."""
        return self.ended(Status.ERROR, f"its worker sent a {error.what}")

    def ended(self, status: Status, reason: str, **details: Any) -> EndedError:
        """See it out, and return how it ended."""
        self.hang_up()
        with contextlib.suppress(ServerLostError):
            self._reap()
        return EndedError(status, reason, self.last_output(), **details)

    def abort(self) -> None:
        """Let it write the stack it hangs in to its output, and die."""
        self._signal(signal.SIGABRT)

    def kill(self) -> None:
        """End it and what it started, without waiting."""
        self._signal(signal.SIGKILL)

    def limit(self, memory_bytes: int) -> None:
        """Kill it if it holds more host memory than this, or floods the disk with output."""
        held = resident_bytes(self.pid)
        if self._doom:
            return
        if held > memory_bytes:
            self._doom = f"held {held >> 20} MiB of host memory, limit {memory_bytes >> 20} MiB"
        elif os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT_BYTES:
            self._doom = f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
        if self._doom:
            self.kill()

    def hang_up(self) -> None:
        """Tell it to leave, without waiting."""
        self._connection.close()

    def close(self) -> None:
        """See it out, killing it after a grace, and forget it."""
        self.hang_up()
        with contextlib.suppress(ServerLostError):
            self._reap()
        self._output.close()

    def _death(self) -> EndedError:
        try:
            code, is_forced = self._reap()
        except ServerLostError as lost:
            return self.ended(Status.CRASHED, self._doom or str(lost), is_server_lost=True)
        is_cut_off = is_forced or code == UNTOLD
        words = "closed its socket" if is_cut_off else exit_words(code)
        reason = self._doom or f"{words} during {self.phase}"
        return self.ended(Status.CRASHED, reason, code=None if is_cut_off else code)

    def _reap(self) -> tuple[int | None, bool]:
        """See it out; return its exit code and whether it had to be killed."""
        if self._ending is None and self.is_orphan:
            self.kill()
            raise ServerLostError(self._slot.words("is gone"))
        try:
            self._ending = self._ending or self._slot.reap(self.pid, GRACE_S)
        except ServerLostError:
            self.kill()
            raise
        return self._ending

    def _signal(self, number: signal.Signals) -> None:
        if self._ending is not None:
            return
        # While its server lives and has not reaped it, its id cannot be another process's.
        for kill in (os.killpg, os.kill) if number is signal.SIGKILL else (os.kill,):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, number)


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

    def words(self, what: str) -> str:
        """Say what became of the server."""
        return f"the server of slot {self.index} {what} ({exit_words(self._server.poll())})"

    def hello(self) -> int:
        """Return the server's process id once it answers; raises DeviceError if it ends first."""
        try:
            self._await_up()
            self._ask(Call("hello"), int)
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

    def reap(self, pid: int, grace_s: float) -> tuple[int | None, bool]:
        """End a worker's process group after ``grace_s``; raises ServerLostError.

        Returns its exit code (minus the signal), None if it does not even leave when killed, and
        whether it had to be killed.
        """
        code, is_forced = self._ask(Reap(pid, grace_s), tuple[int | None, bool])
        return code, is_forced

    def close(self) -> None:
        """End the server, which ends its workers."""
        self._control.close()
        try:
            self._server.wait(LEAVE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._log.close()

    def _launch(self) -> None:
        self._control, theirs = pair()
        if self.generation:
            self._log.close()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        own = self._site.accelerator
        preload = (own.folder, *own.preload) if own else ()
        command = [sys.executable, "-P", "-m", "perfsuite.workers.server", str(theirs.fileno())]
        self._server = subprocess.Popen(
            [*command, self._site.device, *preload],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=self._site.environment(),
            start_new_session=True,
        )
        theirs.close()
        self._is_up = False
        self.generation += 1

    def _await_up(self) -> None:
        if not self._is_up:
            self._answer(int, self._site.settings.start_limit_s)
            self._is_up = True

    def _fork(self) -> WorkerProcess:
        self._await_up()
        ours, theirs = pair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the worker
        with theirs:
            try:
                pid = self._ask(Fork(), int, theirs.fileno(), output.fileno())
            except ServerLostError:
                ours.close()
                output.close()
                raise
        return WorkerProcess(self, pid, ours, output)

    def _ask(self, request: Message, kind: Any, *handles: int) -> Any:
        try:
            self._control.send(request, REPLY_LIMIT_S)
            if handles:
                self._control.send_handles(*handles)
        except OSError:
            raise self._lost("is gone") from None
        return self._answer(kind, REPLY_LIMIT_S)

    def _answer(self, kind: Any, limit_s: float) -> Any:
        try:
            reply = self._control.receive(limit_s)
            if isinstance(reply, Done):
                return read(reply.value, kind)
        except (EOFError, OSError):
            raise self._lost("is gone") from None
        except PerfError as error:
            raise self._lost(f"sent a {error.what}") from error
        told = f"answered {reply!r}" if reply else f"gave no answer within {limit_s:g} s"
        raise self._lost(told)

    def _lost(self, what: str) -> ServerLostError:
        """End what is left of the server; it cannot be trusted any more."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(1.0)
        self._kill()
        return ServerLostError(self.words(what), tail(self._log))

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


def inventory() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible; empty where there is none.

    A short-lived child asks, so that this process touches none.
    """
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
    except subprocess.TimeoutExpired:
        what = f"listing the GPUs took longer than {LIMIT_S:g} s"
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        what = f"listing the GPUs failed: {last!r}"
    except msgspec.MsgspecError as error:
        what = f"the list of GPUs is damaged: {child.stdout[:80]!r} ({error})"
    raise DeviceError(
        what,
        where=" ".join(command),
        remedy="run `nvidia-smi`: if it does not answer either, the driver is at fault",
    )
