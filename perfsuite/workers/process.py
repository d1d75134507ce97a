"""One worker process: the server that forks it, its limits, and how it ended."""

from __future__ import annotations

import contextlib
import os
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
from perfsuite.boundary import NAME_CHARACTERS, DeviceError, PerfError, plain, python_path
from perfsuite.model import Accelerator, Arm, Gpu, Kernel, Settings, Status, Tree, built_in
from perfsuite.store.files import Closable
from perfsuite.workers import messages
from perfsuite.workers.messages import UNTOLD, Channel, Done, Ending

# How a step is called where it fails, if not by its name.
PHASES = {"check": "prepare", "describe": "start", "list": "listing the pack"}
TAIL_CHARACTERS = 4000
# The stacks of all threads, a hundred frames each, with the names of all extension modules.
_READ_BYTES = 256 << 10
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
    """Return the end of a file that others write to, the innermost frames of a stack at least."""
    size = os.fstat(output.fileno()).st_size
    start = max(0, size - _READ_BYTES)
    text = os.pread(output.fileno(), size - start, start).decode(errors="replace")
    # Before it stand other threads' stacks, behind it the names of all extension modules.
    before, current, stack = text.rpartition("\nCurrent thread 0x")
    if current and len(text) > most:
        printed, fatal, cause = before.rpartition("Fatal Python error: ")
        text = f"{printed[-most // 4 :]}{fatal}{cause.partition(chr(10))[0]}{current}{stack}"[:most]
    return plain(text[-most:])


def exit_words(code: int | None) -> str:
    """Return an exit code in words; negative codes are signals."""
    if code is None:
        return "does not die"
    if code >= 0:
        return f"exit code {code}"
    known = {each.value: each.name for each in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def resident_bytes(pid: int) -> int:
    """Return the host memory a process holds; 0 when it is dead, waited for or not."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * _PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the workers of a side load: its packs' origins by name, all kernels, and its tree."""

    origins: Mapping[str, str]
    kernels: tuple[Kernel, ...] = ()
    tree: Tree | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One device to measure on, with what its workers need to know.

    ``gpus`` are those its workers see, none where the device is no GPU: one, or all of a gang's,
    by rank. ``kernels`` are all packs' kernels. ``origins`` gives each pack's origin by name.
    ``arms`` is the code of both sides where two are compared. ``accelerator`` is the device that a
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
        """Return what workers of a side load."""
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
    sizes = [_PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            sizes.append(int(path.read_text(encoding="ascii")))
    return min(sizes)


class WorkerProcess:
    """A forked worker as the panel sees it: what it says, what it holds, and how it ends.

    ``phase`` is where it is, ``answers`` what it gave for each step it was asked for.
    """

    def __init__(self, slot: Slot, pid: int, channel: Channel, output: IO[bytes]) -> None:
        self.pid = pid
        self.phase = ""
        self.answers: dict[str, Any] = {}
        self.channel = channel
        self._slot, self._server = slot, slot.server
        self._output = output
        self._doom = ""
        self._ending: Ending | None = None

    def fileno(self) -> int:
        """Return its socket's number, so that several can be waited for at once."""
        return self.channel.fileno()

    def last_output(self, most: int = TAIL_CHARACTERS) -> str:
        """Return the end of what it printed."""
        return tail(self._output, most)

    def tell(self, step: str, given: Any = None) -> None:
        """Ask for a step; a worker that is gone is noticed when its answer is awaited."""
        self.phase = PHASES.get(step, step)
        self.answers.pop(step, None)
        with contextlib.suppress(OSError):
            self.channel.send(messages.Call(step, messages.raw(given)), SEND_LIMIT_S)

    def listen(self) -> None:
        """Note the next thing it has said, if any; raises EndedError if it failed or died."""
        # What it forked may keep its socket open, so that its death shows no end of file.
        is_gone = not resident_bytes(self.pid)
        try:
            message = self.channel.receive(0)
            if isinstance(message, Done) and message.step in messages.STEPS:
                kind = messages.STEPS[message.step][1]
                self.answers[message.step] = messages.read(message.value, kind)
        except PerfError as error:
            raise self.ended(Status.ERROR, f"its worker sent a {error.what}") from error
        except (EOFError, OSError):
            message, is_gone = None, True
        if isinstance(message, messages.Progress):
            self.phase = plain(message.phase, most=NAME_CHARACTERS)
        if isinstance(message, messages.Failed):
            raise self.ended(message.status, plain(message.reason), is_told=True)
        if message is None and is_gone:
            raise self.ended(Status.CRASHED)

    def ended(self, status: Status, reason: str = "", *, is_told: bool = False) -> EndedError:
        """See it out, and return how it ended: as it said, else as it died, else for the reason."""
        self.channel.close()
        ending = self._reap(GRACE_S)
        is_cut_off = ending.is_forced or ending.code == UNTOLD
        code = None if is_cut_off else ending.code
        if not is_told and (code or not reason):
            how = "closed its socket" if is_cut_off else exit_words(code)
            status = Status.CRASHED
            reason = self._doom or ending.lost or f"{how} during {self.phase}"
        is_lost = bool(ending.lost)
        # What it told is not what its end looks like: no exit code then.
        code = None if is_told else code
        return EndedError(status, reason, self.last_output(), is_told, is_lost, code)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        # Until its server has reaped it, its id cannot be another process's.
        if resident_bytes(self.pid):
            os.kill(self.pid, number)

    def limit(self, memory_bytes: int) -> None:
        """Kill it if it holds more host memory than this, or floods the disk with output."""
        held = resident_bytes(self.pid)
        if held > memory_bytes:
            self._doom = f"held {held >> 20} MiB of host memory, limit {memory_bytes >> 20} MiB"
        elif os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT_BYTES:
            self._doom = f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
        if self._doom:
            self.signal(signal.SIGKILL)

    def close(self, grace_s: float = GRACE_S) -> None:
        """See it out, killing it and what it started after a grace, and forget it."""
        self.channel.close()
        self._reap(grace_s)
        self._output.close()

    def _reap(self, grace_s: float) -> Ending:
        if self._ending is None:
            self._ending = self._slot.reap(self._server, self.pid, grace_s)
        return self._ending


class Slot(Closable):
    """Keeps one server alive, the process ``server``."""

    def __init__(self, index: int, site: Site) -> None:
        self._index = index
        self._site = site
        self._launch()

    def fork(self) -> WorkerProcess:
        """Return a fresh worker, of a new server if the old one died; raises DeviceError."""
        try:
            return self._fork()
        except DeviceError:
            self._log.close()
            self._launch()
        return self._fork()

    def reap(self, server: object, pid: int, grace_s: float) -> Ending:
        """End a worker's process group after ``grace_s``; return how it ended."""
        lost = f"the server of slot {self._index} is gone"
        try:
            if server is self.server:
                ending: Ending = self._ask(messages.Reap(pid, grace_s), Ending)
                return ending
        except DeviceError as error:
            lost = error.what
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return Ending(None, is_forced=True, lost=lost)

    def close(self) -> None:
        """End the server, which ends its workers."""
        self._end(LEAVE_LIMIT_S)
        self._log.close()

    def _launch(self) -> None:
        self._control, theirs = messages.pair()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        own = self._site.accelerator
        preload = (own.folder, *own.preload) if own else ()
        command = [sys.executable, "-P", "-m", "perfsuite.workers.server", str(theirs.fileno())]
        self.server = subprocess.Popen(
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

    def await_up(self) -> int:
        """Return the server's process id once it answers; raises DeviceError if it ends first."""
        if not self._is_up:
            self._answer(int, self._site.settings.start_limit_s)
            self._is_up = True
        return self.server.pid

    def _fork(self) -> WorkerProcess:
        self.await_up()
        with contextlib.ExitStack() as stack:
            ours, theirs = messages.pair()
            output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the worker
            for each in (ours, output):
                stack.enter_context(each)
            with theirs:
                pid = self._ask(messages.Fork(), int, theirs.fileno(), output.fileno())
            stack.pop_all()
        return WorkerProcess(self, pid, ours, output)

    def _ask(self, request: messages.Message, kind: Any, *handles: int) -> Any:
        try:
            self._control.send(request, REPLY_LIMIT_S, *handles)
        except OSError:
            raise self._lost("is gone") from None
        return self._answer(kind, REPLY_LIMIT_S)

    def _answer(self, kind: Any, limit_s: float) -> Any:
        try:
            reply = self._control.receive(limit_s)
            if isinstance(reply, Done):
                return messages.read(reply.value, kind)
        except (EOFError, OSError):
            raise self._lost("is gone") from None
        except PerfError as error:
            raise self._lost(f"sent a {error.what}") from error
        raise self._lost(f"gave no answer within {limit_s:g} s")

    def _lost(self, what: str) -> DeviceError:
        """End what is left of the server; it cannot be trusted any more."""
        self._end(1.0)
        last = tail(self._log).strip().rpartition("\n")[2]
        what = f"the server of slot {self._index} {what} ({exit_words(self.server.returncode)})"
        return DeviceError(
            f"{what}: {last!r}" if last else what,
            where=f"python -m perfsuite.workers.server for device {self._site.device!r}",
            remedy="run the command `perfsuite doctor`; the device's libraries may not import",
        )

    def _end(self, limit_s: float) -> None:
        self._control.close()
        try:
            self.server.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()


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
    except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        last = said.strip().rpartition("\n")[2]
        raise DeviceError(
            f"the GPUs cannot be listed: {last or error}",
            where=" ".join(command),
            remedy="run `nvidia-smi`: if it does not answer either, the driver is at fault",
        ) from error
