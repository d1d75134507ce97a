"""A worker process: its server, its limits, how it ended; ranks of a gang as one process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Self

import msgspec
from msgspec.structs import replace

import perfsuite
from perfsuite import boundary, model
from perfsuite.boundary import CaseError, DeviceError, PerfError, UsageError, plain
from perfsuite.devices.protocol import seeing
from perfsuite.packs.load import Listing
from perfsuite.store.files import Closable, refusing
from perfsuite.workers import messages
from perfsuite.workers.messages import UNTOLD, Channel, Done, Ending
from perfsuite.workers.server import types_of

# How a step is called where it fails, if not by its name.
PHASES = {
    "check": "prepare",
    "match": "prepare",
    "describe": "start",
    "list": "listing the pack",
    "up": "start",
}
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
# How often those who wait for an answer look whether it may still come.
TICK_S = 0.1
# A rank that fails because a peer died may be heard first: the death shows this much later.
DEATH_S = 0.2
# A server in another environment. The instrument is this one's, with all that it imports; what the
# environment lacks, such as packs, comes from here as well. Of what is installed here for
# development, too, the environment's own comes first: so hooks are sorted.
ELSEWHERE = """
import site, sys
here, own, hooks = {!r}, [*sys.path], [*sys.meta_path]
sys.path[:0] = here
from perfsuite.workers import server
sys.path[:] = own
for path in here:
    site.addsitedir(path)
sys.meta_path.sort(key=lambda hook: hook not in hooks)
site.PREFIXES.append({!r})  # where CUDA's libraries are looked for
server.main()
"""
# How long a child may take to list the GPUs.
LIMIT_S = 60.0


@dataclass(eq=False)
class EndedError(Exception):
    """A process ended early: its variant's status and reason, and the end of what it printed.

    ``is_told`` says that the reason is the worker's own, not what its death looked like.
    """

    process: Process
    status: model.Status
    reason: str
    output: str = ""
    is_told: bool = False
    is_server_lost: bool = False


def tail(output: IO[bytes], most: int = TAIL_CHARACTERS) -> str:
    """Return the end of a file that others write to, the innermost frames of a stack at least."""
    start = max(0, os.fstat(output.fileno()).st_size - _READ_BYTES)
    text = os.pread(output.fileno(), _READ_BYTES, start).decode(errors="replace")
    # Behind the stack of a crash stand the names of all extension modules, which tell nothing.
    text = boundary.FRAME.sub("", text).partition("\nExtension modules: ")[0]
    # Before it stand other threads' stacks.
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
    # Linux 6.2 to 6.15 count resident pages by CPU: a young process may show none, but has a size.
    size, resident = map(int, fields[:2])
    return max(min(size, 1), resident) * _PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What the workers of a side load: its packs' origins by name, all kernels, and its tree.

    ``python`` is the interpreter of another environment.
    """

    origins: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[model.Kernel, ...] = ()
    tree: model.Tree | None = None
    python: str = ""

    @classmethod
    def of(
        cls, packs: Sequence[model.Pack], tree: model.Tree | None = None, python: str = ""
    ) -> Self:
        """Return the code of those packs that could be listed."""
        origins = {pack.name: pack.origin for pack in packs if not pack.error}
        kernels = tuple(kernel for pack in packs for kernel in pack.kernels)
        return cls(origins=origins, kernels=kernels, tree=tree, python=python)


Sides = Mapping[model.Side, Code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One device to measure on, with what its workers need to know.

    ``gpus`` are the units its workers see, none where the device has none: one, or all of a gang's,
    by rank. ``own`` is the code that runs have, ``sides`` that of both where two are compared.
    ``accelerator`` is the device that a pack brings, with the one unit that is meant.
    Without a ``device`` nothing is measured: packs are listed.
    """

    device: str
    gpus: tuple[model.Gpu, ...] = ()
    slots: int = 3
    settings: model.Settings = field(default_factory=model.Settings)
    own: Code = field(default_factory=Code)
    sides: Sides = field(default_factory=dict)
    accelerator: model.Accelerator | None = None

    def code(self, side: model.Side) -> Code:
        """Return what workers of a side load."""
        return self.sides.get(side, self.own)

    @property
    def worker_bytes(self) -> int:
        """The host memory one worker may hold: its share of the machine."""
        return int(MEMORY_SHARE * host_bytes() / self.slots)

    def environment(self) -> dict[str, str]:
        """Return the environment of a server: its units or none, and its own hash seed."""
        values = child_environment()
        if self.device:
            values |= seeing(self.device, self.gpus)
            # Processes are the unit of evidence: they must not share what a fresh start would vary.
            values.pop("PYTHONHASHSEED", None)
        # What is measured is not traced, also where coverage is asked to follow subprocesses.
        return {name: value for name, value in values.items() if name not in TRACERS}


def child_environment() -> dict[str, str]:
    """Return this process's environment, in which a child finds this very perfsuite."""
    home = str(Path(perfsuite.__file__).parents[1])
    first = [] if home in sysconfig.get_paths().values() else [home]
    return {**os.environ, "PYTHONPATH": boundary.python_path(*first)}


def host_bytes() -> int:
    """Return the memory this machine, or the container around this process, has."""
    sizes = [_PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            sizes.append(int(path.read_text(encoding="ascii")))
    return min(sizes)


class Process(Closable):
    """A server or a worker: what it says, what it holds, and how it ends.

    ``phase`` is where it is, which ``on_phase`` is called with; ``answers`` is what it gave for
    each step it was asked for. ``end`` ends it after a grace, and says how it ended.
    """

    def __init__(
        self, channel: Channel, output: IO[bytes], pid: int, end: Callable[[float], Ending]
    ) -> None:
        self.channel, self.output, self.pid = channel, output, pid
        self.side, self.phase = model.Side.B, "start"
        self.on_phase: Callable[[str], object] = str
        self.answers: dict[str, Any] = {}
        self.told_at = time.monotonic()
        self._end = end
        self._ending: Ending | None = None
        self._doom = ""

    def tell(self, step: str, given: Any = None, *handles: int) -> None:
        """Ask for a step; a process that is gone is noticed when its answer is awaited."""
        self.phase, self.told_at = PHASES.get(step, step), time.monotonic()
        self.answers.pop(step, None)
        with contextlib.suppress(OSError):
            self.channel.send(messages.Call(step, messages.raw(given)), SEND_LIMIT_S, *handles)

    def do(self, step: str, limit_s: float, given: Any = None, *handles: int) -> Any:
        """Return what it gives for a step; raises EndedError for whatever else happens."""
        self.tell(step, given, *handles)
        return hear([self], step, limit_s)[0]

    def listen(self) -> EndedError | None:
        """Note the next thing it has said, if any; return how it ended, if it failed or died."""
        # What it forked may keep its socket open, so that its death shows no end of file.
        is_gone = not resident_bytes(self.pid)
        try:
            message = self.channel.receive(0)
            if isinstance(message, Done):
                _, kind = types_of(message.step)
                self.answers[message.step] = messages.read(message.value, kind)
        except PerfError as error:
            return self.ended(model.Status.ERROR, f"its worker sent a {error.what}")
        except (EOFError, OSError):
            message, is_gone = None, True
        if isinstance(message, messages.Progress):
            self.phase = plain(message.phase, most=boundary.NAME_CHARACTERS)
            self.on_phase(self.phase)
        if isinstance(message, messages.Failed):
            return self.ended(message.status, plain(message.reason), is_told=True)
        return self.ended(model.Status.CRASHED) if message is None and is_gone else None

    def ended(self, status: model.Status, reason: str = "", *, is_told: bool = False) -> EndedError:
        """See it out, and return how it ended: as it said, else as it died, else for the reason."""
        ending = self.see_out(GRACE_S)
        is_cut_off = ending.is_forced or ending.code == UNTOLD
        code = None if is_cut_off else ending.code
        if not is_told and (code or not reason):
            how = "closed its socket" if is_cut_off else exit_words(code)
            status = model.Status.CRASHED
            reason = self._doom or ending.lost or f"{how} during {self.phase}"
        return EndedError(self, status, reason, tail(self.output), is_told, bool(ending.lost))

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        # Until it was waited for, its id cannot be another process's.
        if resident_bytes(self.pid):
            os.kill(self.pid, number)

    def limit(self, memory_bytes: int) -> None:
        """Kill it if it holds more host memory than this, or floods the disk with output."""
        held = resident_bytes(self.pid)
        if held > memory_bytes:
            self._doom = f"held {held >> 20} MiB of host memory, limit {memory_bytes >> 20} MiB"
        elif os.fstat(self.output.fileno()).st_size > OUTPUT_LIMIT_BYTES:
            self._doom = f"printed more than {OUTPUT_LIMIT_BYTES >> 20} MiB"
        if self._doom:
            self.signal(signal.SIGKILL)

    def see_out(self, grace_s: float) -> Ending:
        """Tell it to leave, and kill it and what it started after a grace."""
        self.channel.close()
        if self._ending is None:
            self._ending = self._end(grace_s)
        return self._ending

    def close(self, grace_s: float = GRACE_S) -> None:
        """See it out, and forget it."""
        self.see_out(grace_s)
        self.output.close()


def hear(
    ranks: Sequence[Process], step: str, limit_s: float, watch: Callable[[], object] = bool
) -> list[Any]:
    """Return what each process answers, within a time from when it was told.

    Several are the ranks of one measurement: the first that fails is the end of all. ``watch`` is
    called meanwhile, and may raise. Raises EndedError for whatever else happens.
    """
    while True:
        for each in ranks:
            if ended := each.listen():
                raise _blamed(ranks, ended)
        late = [each for each in ranks if step not in each.answers]
        if not late:
            return [each.answers[step] for each in ranks]
        if time.monotonic() > ranks[0].told_at + limit_s:
            raise _overdue(ranks, late, PHASES.get(step, step), limit_s)
        watch()
        wait([each.channel.fileno() for each in late], TICK_S)


def _blamed(ranks: Sequence[Process], first: EndedError) -> EndedError:
    """Return how all ended: as a rank that died without a word, else as the one heard first."""
    if len(ranks) == 1:
        return first
    time.sleep(DEATH_S)
    others = [each.listen() for each in ranks if each is not first.process]
    found = min([first, *filter(None, others)], key=lambda each: each.is_told)
    found.reason = f"rank {ranks.index(found.process)}: {found.reason}"
    return _with_outputs(ranks, found)


def _overdue(
    ranks: Sequence[Process], late: Sequence[Process], phase: str, limit_s: float
) -> EndedError:
    """Say who gave no answer, and where it is; all of them print the stack they hang in."""
    places = [f"rank {ranks.index(each)} in {each.phase}" for each in late]
    if len(ranks) == 1:
        places = [f"in {each.phase}" for each in late if each.phase != phase]
    where = f" ({', '.join(places)})" if places else ""
    reason = f"{phase} took longer than its limit of {limit_s:g} s{where}"
    for each in late:
        each.signal(signal.SIGABRT)
    ends = [each.ended(model.Status.TIMED_OUT, reason, is_told=True) for each in late]
    return _with_outputs(ranks, ends[0])


def _with_outputs(ranks: Sequence[Process], ended: EndedError) -> EndedError:
    if len(ranks) > 1:
        texts = [tail(each.output, TAIL_CHARACTERS // len(ranks)) for each in ranks]
        told = (f"rank {rank}:\n{text}" for rank, text in enumerate(texts) if text)
        ended.output = "\n".join(told)
    return ended


STARTING = refusing(
    "no process can be started",
    "this machine, or the limits of this process",
    remedy="end other processes, or raise the limits: ulimit -n (files), ulimit -u (processes)",
    kind=DeviceError,
)


class Slot(Closable):
    """Keeps one server alive, the process ``server``, and forks workers of it.

    With ``python`` it is of another environment: what that has comes from there, all but perfsuite.
    """

    def __init__(self, index: int, setup: Setup, python: str = "") -> None:
        self._index, self._setup, self.python = index, setup, python
        self.server = self._launched()

    def fork(self) -> Process:
        """Return a fresh worker, of a new server if the old one died; raises DeviceError."""
        try:
            return self._fork()
        except DeviceError:
            self.server.close(0.0)
            self.server = self._launched()
        return self._fork()

    def close(self, grace_s: float = LEAVE_LIMIT_S) -> None:
        """End the server, which ends its workers."""
        self.server.close(grace_s)

    @property
    def remedy(self) -> str:
        """What to do where its device cannot be opened."""
        repair = "repair this environment of side A, or name another: --perf-against-env"
        return repair if self.python else "run `perfsuite doctor`, which says what is missing"

    @STARTING
    def _launched(self) -> Process:
        own = self._setup.accelerator
        preload = (own.folder, *own.preload) if own else ()
        ours, theirs = messages.pair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the server
        command = [sys.executable, "-P", "-m", "perfsuite.workers.server"]
        environment = self._setup.environment()
        if self.python:
            environment["PYTHONPATH"] = ""  # its folders are in ``here``, behind the other's own
            library = sysconfig.get_path("stdlib")
            system = {library, f"{library}/lib-dynload", ""}
            here = [path for path in sys.path if path not in system and not path.endswith(".zip")]
            command = [self.python, "-P", "-c", ELSEWHERE.format(here, sys.prefix)]
        server = subprocess.Popen(
            [*command, str(theirs.fileno()), self._setup.device, *preload],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
        )
        theirs.close()

        def end(grace_s: float) -> Ending:
            try:
                return Ending(server.wait(grace_s), is_forced=False)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                return Ending(server.wait(), is_forced=True)

        return Process(ours, output, server.pid, end)

    @STARTING
    def _fork(self) -> Process:
        with contextlib.ExitStack() as stack:
            ours, theirs = messages.pair()
            output = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the worker
            for each in (ours, output):
                stack.enter_context(each)
            with theirs:
                pid = self._ask("fork", None, theirs.fileno(), output.fileno())
            stack.pop_all()
        return Process(ours, output, pid, partial(self._reap, self.server, pid))

    def _reap(self, server: Process, pid: int, grace_s: float) -> Ending:
        """End a worker's process group after ``grace_s``; return how it ended."""
        lost = f"the server of slot {self._index} is gone"
        try:
            if server is self.server:
                ending: Ending = self._ask("reap", (pid, grace_s))
                return ending
        except DeviceError as error:
            lost = error.what
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return Ending(None, is_forced=True, lost=lost)

    def _ask(self, step: str, given: Any, *handles: int) -> Any:
        """Return what the server answers once it is up; raises DeviceError if it does not."""
        try:
            hear([self.server], "up", self._setup.settings.start_limit_s)
            return self.server.do(step, REPLY_LIMIT_S, given, *handles)
        except EndedError as ended:
            last = ended.output.strip().rpartition("\n")[2]
            what = f"the server of slot {self._index} is gone ({ended.reason})"
            device = f", device {self._setup.device!r}" if self._setup.device else ""
            raise DeviceError(
                f"{what}: {last!r}" if last else what,
                where=f"{self.python or sys.executable}{device}",
                remedy=self.remedy,
            ) from ended


# What the ranks of a gang measured, as one evidence of one unit.

NUMBER = re.compile(r"\d[\d.]*")


def merged(ranks: Sequence[model.Evidence], metrics: Sequence[model.Metric]) -> model.Evidence:
    """Return the gang's evidence, sample by sample that of the rank which was slowest.

    Other metrics are those of the rank that is worst in them; health is rank 0's. Raises
    CaseError when the ranks did not launch equally often.
    """
    first = ranks[0]
    if len(ranks) == 1:
        return first
    steps = {(len(each.blocks), each.launches, each.backend, each.sets) for each in ranks}
    if len(steps) > 1:
        raise CaseError(
            f"the ranks launched differently: blocks, launches, backend, sets are {sorted(steps)}",
            remedy="let the case do the same on all ranks",
        )
    worst = {m.name: min if m.better == "higher" else max for m in (*model.METRICS, *metrics)}
    exact = _by_name(each.exact for each in ranks)
    phases_s = _by_name(each.phases_s for each in ranks)
    blocks = []
    for parts in zip(*(each.blocks for each in ranks), strict=True):
        # The samples of a block are taken together, so that those at one place belong together.
        has_cycles = all(len(part.cycles) == len(part.time_us) for part in parts)
        samples = [zip(part.time_us, part.cycles or part.time_us, strict=False) for part in parts]
        slowest = [max(each) for each in zip(*samples, strict=False)]
        metrics_of = _by_name(part.metrics for part in parts)
        blocks.append(
            replace(
                parts[0],
                time_us=tuple(time_us for time_us, _ in slowest),
                cycles=tuple(cycles for _, cycles in slowest) if has_cycles else (),
                voided=max(part.voided for part in parts),
                metrics={
                    name: tuple(map(worst.get(name, max), zip(*columns, strict=False)))
                    for name, columns in metrics_of.items()
                },
            )
        )
    return replace(
        first,
        settled=all(each.settled for each in ranks),
        error=max((each.error for each in ranks if each.error is not None), default=None),
        blocks=tuple(blocks),
        exact={name: worst.get(name, max)(values) for name, values in exact.items()},
        phases_s={name: max(values) for name, values in phases_s.items()},
        notes=tuple(_notes_of([each.notes for each in ranks])),
    )


def _notes_of(found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the notes of ranks: those that differ in figures alone once, others with their rank."""
    kinds = [{NUMBER.sub("#", note): note for note in notes} for notes in found]
    for kind in dict.fromkeys(kind for each in kinds for kind in each):
        ranks = [rank for rank, each in enumerate(kinds) if kind in each]
        note = kinds[ranks[0]][kind]
        yield note if len(ranks) == len(found) else f"rank {', '.join(map(str, ranks))}: {note}"


def _by_name(found: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = defaultdict(list)
    for each in found:
        for name, value in each.items():
            values[name].append(value)
    return values


def gang_unit(units: Iterable[str]) -> str:
    """Return the unit of several GPUs together, whatever their order; one alone is itself."""
    distinct = sorted(set(units))
    if len(distinct) == 1:
        return distinct[0]
    return hashlib.sha256(f"perfsuite:{','.join(distinct)}".encode()).hexdigest()[:12]


# The catalogue of packs: each is listed in a process of its own, so that a bad one ends alone.


def load_catalogue(
    sources: Sequence[model.Pack],
    *,
    tier: model.Tier,
    time_limit_s: float = 20.0,
    heavy: Sequence[str] = ("torch",),
    tree: model.Tree | None = None,
) -> tuple[model.Pack, ...]:
    """List the variants and claims of each pack; one that cannot be listed has an ``error``.

    A pack that wants the kernels of all packs is listed again with them in its ``kernels``; no
    other pack has any. Each time all may take ``time_limit_s`` together. Packs must not import a
    module of ``heavy``. They are imported from a ``tree`` if one is given.
    """
    given = (tier, tuple(heavy), tuple(sys.path), tree)
    asked = {source.name: Listing(source, *given) for source in sources if not source.error}
    found: dict[str, model.Pack] = {}
    kernels: tuple[model.Kernel, ...] = ()
    why = ""
    try:
        if asked:
            with Slot(0, Setup(device="")) as slot:
                found |= _listed(slot, asked, time_limit_s)
                kernels = tuple(kernel for each in found.values() for kernel in each.kernels)
                wanting = [name for name, each in found.items() if each.wants_kernels]
                again = {each: replace(asked[each], kernels=kernels) for each in wanting}
                found |= _listed(slot, again, time_limit_s)
    except UnicodeEncodeError as error:
        raise UsageError(
            "a path has a byte in it that is no UTF-8, and runs and reports are kept as UTF-8",
            where=ascii(error.object),
            remedy="rename the folder, or take it out of PYTHONPATH",
        ) from error
    except DeviceError as error:  # without any process a stored run can still be read
        why = str(error)
    packs = []
    for source in sources:
        pack = source if source.error else found.get(source.name) or replace(source, error=why)
        shared = kernels if pack.wants_kernels else ()
        packs.append(replace(pack, error=plain(pack.error), kernels=shared))
    return tuple(packs)


def _listed(slot: Slot, asked: Mapping[str, Listing], limit_s: float) -> dict[str, model.Pack]:
    """Have a fresh process list each pack, all at once; one that ends early has an error."""
    running: dict[str, Process] = {}
    found: dict[str, model.Pack] = {}
    try:
        for name, listing in asked.items():
            running[name] = slot.fork()
            running[name].tell("list", listing)
        for name, process in running.items():
            source = asked[name].source
            try:
                (told,) = hear([process], "list", limit_s)
            except EndedError as ended:
                output = f"; its output:\n{ended.output}" if ended.output else ""
                remedy = "a pack's module declares cases and does nothing else when imported"
                told = str(source.refuse(f"{ended.reason}{output}", remedy=remedy))
            found[name] = told if isinstance(told, model.Pack) else replace(source, error=told)
    finally:
        for process in running.values():
            process.close(0.0)
    return found


def inventory() -> tuple[model.Gpu, ...]:
    """Return the NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible; empty where there is none.

    A short-lived child asks, so that this process touches none.
    """
    command = [sys.executable, "-P", "-m", "perfsuite.devices.nvml"]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        told = subprocess.check_output(command, timeout=LIMIT_S, env=child_environment(), **pipes)
        return msgspec.json.decode(told, type=tuple[model.Gpu, ...])
    except (subprocess.SubprocessError, msgspec.MsgspecError) as error:
        said = (getattr(error, "stderr", b"") or b"").decode(errors="replace")
        last = said.strip().rpartition("\n")[2]
        raise DeviceError(
            f"the GPUs cannot be listed: {last or error}",
            where=" ".join(command),
            remedy="run `nvidia-smi`: if it does not answer either, the driver is at fault",
        ) from error
