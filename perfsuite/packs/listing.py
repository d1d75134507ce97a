"""Lists what packs declare, in a process of its own for each pack."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import inspect
import itertools
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import msgspec
from msgspec import structs

import perfsuite
from perfsuite.boundary import (
    MAGNITUDE,
    MESSAGE_BYTES,
    MOST_WHOLE,
    TEXT_CHARACTERS,
    PackError,
    UsageError,
    is_measurable,
    plain,
    python_path,
    shown,
)
from perfsuite.model import (
    Accelerator,
    Axes,
    Case,
    CaseInfo,
    Claim,
    ClaimInstance,
    Kernel,
    Pack,
    Scalar,
    Tier,
    Variant,
    Work,
    variant_id,
)
from perfsuite.packs.find import PackSource
from perfsuite.packs.load import LoadedPack, Place, load_pack
from perfsuite.store.files import refuse_few_files

# Says what each tier of a case holds.


def is_full_only(case: Case, axes: Axes) -> bool:
    """Say whether a binding is left to the full tier."""
    return any(
        all(axes[axis] in values for axis, values in each.items()) for each in case.full_only
    )


def bindings(case: Case, tier: Tier) -> Iterator[tuple[dict[str, Scalar], Tier]]:
    """Yield the bindings of the axes tier by tier, up to ``tier``: each contains those before."""
    replaced: Mapping[Tier, Mapping[str, tuple[Scalar, ...]]] = {
        Tier.SMOKE: case.smoke,
        Tier.NIGHTLY: {},
        Tier.FULL: case.full,
    }
    done: list[Mapping[str, tuple[Scalar, ...]]] = []
    for each, some in replaced.items():
        axes = {**case.axes, **some}
        for values in itertools.product(*axes.values()) if axes not in done else ():
            yield dict(zip(axes, values, strict=True)), each
        if each is tier:
            return
        done.append(axes)


# What leaves the catalogue child: a pack's cases, variants and claims as plain data.


T = TypeVar("T")
_ORDER = tuple(Tier)


@dataclass(frozen=True, slots=True)
class Request:
    """What the controller asks of the child; ``paths`` is its ``sys.path``, ``front`` before it.

    A pack whose import brings in a module of ``heavy`` is refused.
    """

    sources: tuple[PackSource, ...]
    tier: Tier
    time_limit_s: float
    heavy: tuple[str, ...]
    paths: tuple[str, ...]
    front: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """What the child itself reads of a pack's listing: enough to know who is to be asked again."""

    origin: str
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False


@dataclass(frozen=True, slots=True)
class PackListing:
    """All of one pack, by the origin that was asked for, or why there is nothing.

    ``kernels`` are the pack's own; ``given`` are those of all packs if it wants them.
    ``canaries`` are by device, ``ceilings`` by link, dtype or start, whatever the tier.
    """

    origin: str
    variants: tuple[Variant, ...] = ()
    canaries: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    ceilings: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    claims: tuple[ClaimInstance, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False
    given: tuple[Kernel, ...] = ()
    controller: str = ""
    accelerator: Accelerator | None = None
    error: str = ""


def list_pack(source: PackSource, loaded: LoadedPack, tier: Tier) -> PackListing:
    """Expand a loaded pack's cases and claims; what its own formulas raise is a ``PackError``."""
    variants: dict[str, list[Variant]] = {}
    canaries: dict[str, tuple[Variant, ...]] = {}
    ceilings: dict[str, tuple[Variant, ...]] = {}
    for case in loaded.cases.values():
        where = f"pack {source.name!r} ({source.origin}), case {case.name!r}"
        info = _info(source.name, case)
        every = _variants(case, info, Tier.FULL if case.ceilings else tier, where)
        own = [each for each in every if _ORDER.index(each.tier) <= _ORDER.index(tier)]
        variants[case.name] = own
        for device, bound in case.canary.items():
            axes = {axis: bound[axis] for axis in case.axes}
            one = _variant(case, info, axes, tier=Tier.FULL, where=where)
            canaries[device] = (*canaries.get(device, ()), one)
        for name, shows in case.ceilings.items():
            part = f"ceilings[{name!r}]"
            those = tuple(each for each in every if _called(shows, each.axes, part, where))
            ceilings[name] = (*ceilings.get(name, ()), *those)
    return PackListing(
        origin=source.origin,
        variants=tuple(each for own in variants.values() for each in own),
        claims=tuple(
            one for claim in loaded.claims for one in _bindings(variants[claim.case], claim)
        ),
        canaries=canaries,
        ceilings=ceilings,
        kernels=loaded.kernels,
        wants_kernels=loaded.wants_kernels,
        controller=loaded.controller,
        accelerator=loaded.accelerator,
    )


def _variants(case: Case, info: CaseInfo, tier: Tier, where: str) -> list[Variant]:
    found: dict[str, Variant] = {}
    for axes, first in bindings(case, tier):
        name = variant_id(info.pack, case.name, axes)
        if name in found or not (case.only is None or _called(case.only, axes, "only", where)):
            continue
        own = first
        if is_full_only(case, axes):
            own = Tier.FULL
        elif first is Tier.SMOKE and case.waits and _called(case.waits, axes, "waits", where):
            own = Tier.NIGHTLY
        if _ORDER.index(own) <= _ORDER.index(tier):
            found[name] = _variant(case, info, axes, tier=own, where=where)
    return list(found.values())


def _variant(case: Case, info: CaseInfo, axes: Axes, *, tier: Tier, where: str) -> Variant:
    return Variant(
        id=variant_id(info.pack, info.name, axes),
        case=info,
        axes=axes,
        tier=tier,
        work=_work(case, axes, where),
        memory_bytes=_memory_bytes(case, axes, where),
    )


def _called(function: Callable[..., T], axes: Axes, part: str, where: str) -> T:
    """Call a formula of the case; what it raises is the pack's error, not the catalogue's."""
    try:
        return function(**axes)
    except Exception as error:
        raise PackError(
            f"{part}({_bound_text(axes)}) raised {type(error).__name__}: {error}",
            where=where,
            remedy=f"correct the case's {part}",
        ) from error


def _bound_text(axes: Axes) -> str:
    return ", ".join(f"{axis}={value!r}" for axis, value in axes.items())


def _work(case: Case, axes: Axes, where: str) -> Work | None:
    if case.work is None:
        return None
    work = _called(case.work, axes, "work", where)
    if not isinstance(work, Work) or not all(map(is_measurable, _numbers(work))):
        raise PackError(
            f"work({_bound_text(axes)}) returned {shown(work, most=TEXT_CHARACTERS)}",
            where=where,
            remedy=f"return a perfsuite.Work with numbers of at most {MAGNITUDE:g}",
        )
    return work


def _numbers(work: Work) -> tuple[float, ...]:
    return work.read_bytes, work.write_bytes, work.flops, work.kernels


def _memory_bytes(case: Case, axes: Axes, where: str) -> int:
    if case.memory_bytes is None:
        return 0
    size: Any = _called(case.memory_bytes, axes, "memory_bytes", where)
    if not isinstance(size, (int, float)) or not 0 <= size <= MOST_WHOLE:
        raise PackError(
            f"memory_bytes({_bound_text(axes)}) returned {shown(size)}",
            where=where,
            remedy="return the bytes of memory one process of the variant needs",
        )
    return int(size)


def _info(pack: str, case: Case) -> CaseInfo:
    build: Any = inspect.unwrap(getattr(case.build, "func", case.build))
    code = getattr(build, "__code__", None)
    declared = structs.asdict(case)
    told = {
        "pack": pack,
        "doc": inspect.cleandoc(case.build.__doc__ or ""),
        "file": _place(code.co_filename) if code else "",
        "line": code.co_firstlineno if code else 0,
        "axes": tuple(case.axes),
    }
    known = {**declared, **told}
    return CaseInfo(**{name: known[name] for name in CaseInfo.__struct_fields__})


def _bindings(variants: Sequence[Variant], claim: Claim) -> Iterator[ClaimInstance]:
    """Yield the claim once per binding of the other axes whose two variants both exist."""
    ids = {tuple(variant.axes.values()): variant.id for variant in variants}
    for variant in variants:
        axes, case = variant.axes, variant.case
        than = ids.get(tuple({**axes, **claim.than}.values()))
        is_meant = all(axes[axis] == value for axis, value in claim.faster.items()) and all(
            axes[axis] in values for axis, values in claim.at.items()
        )
        if than is None or not is_meant:
            continue
        others = {axis: value for axis, value in axes.items() if axis not in claim.faster}
        yield ClaimInstance(
            id=variant_id(case.pack, f"{case.name}:{claim.name}", others),
            pack=case.pack,
            name=claim.name,
            faster=variant.id,
            than=than,
            by=claim.by,
            source=claim.source,
            needs=claim.needs,
            file=case.file,
            line=case.line,
            metric=claim.metric,
        )


def _place(file: str) -> str:
    """Return a path that means the same on other machines, and does not tell whose this one is."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return Path(*path.parts[-2:]).as_posix()


# The catalogue of packs, made in a child process so that no pack runs in the controller.


# The child itself ends a pack at the time limit; this is for a child that does not.
GRACE_S = 5.0
# What it takes to ask the child, and what the child has open for each pack that it lists.
FILES, FILES_PER_PACK = 10, 2


def load_catalogue(
    sources: Sequence[PackSource],
    *,
    tier: Tier,
    time_limit_s: float = 20.0,
    heavy: Sequence[str] = ("torch",),
    front: Sequence[str] = (),
) -> tuple[Pack, ...]:
    """List the variants and claims of each pack; one that cannot be listed has an ``error``.

    A pack that wants the kernels of all packs has them in its ``kernels``; no other pack has any.
    Packs may take ``time_limit_s`` together and must not import a module of ``heavy``. ``front``
    stands first on their ``sys.path``.
    """
    request = Request(
        sources=tuple(source for source in sources if not source.error),
        tier=tier,
        time_limit_s=time_limit_s,
        heavy=tuple(heavy),
        front=tuple(front),
        paths=tuple(sys.path),
    )
    listings, said = _ask(request) if request.sources else ({}, "")
    return tuple(
        _pack(source, listings.get(source.origin) or _unanswered(source, said))
        for source in sources
    )


def _pack(source: PackSource, listing: PackListing) -> Pack:
    return Pack(
        name=source.name,
        origin=source.origin,
        version=source.version,
        variants=listing.variants,
        claims=listing.claims,
        canaries=listing.canaries,
        ceilings=listing.ceilings,
        kernels=listing.given,
        controller=listing.controller,
        accelerator=listing.accelerator,
        error=plain(source.error or listing.error),
    )


def _unanswered(source: PackSource, said: str) -> PackListing:
    error = Place(source.name, source.origin).refuse(
        f"the catalogue child ended without a word on this pack{': ' + said if said else ''}",
        remedy="look for what ended it: no memory, a broken Python, a pack that kills its parent",
    )
    return PackListing(source.origin, error=str(error))


def _ask(request: Request) -> tuple[dict[str, PackListing], str]:
    """Start the child and read one line per pack until it ends; also return what it printed."""
    refuse_few_files(FILES + FILES_PER_PACK * len(request.sources))
    deadline = time.monotonic() + request.time_limit_s + GRACE_S
    received = bytearray()
    with tempfile.TemporaryFile() as errors, _child(request, errors) as answers:
        while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(answers, 1 << 20)
            if not data:
                break
            received += data
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    # A last line without its end is what a killed child left.
    lines = bytes(received).split(b"\n")[:-1]
    return {listing.origin: listing for listing in _listings(lines)}, said


def _encoded(request: Request) -> bytes:
    try:
        return msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        raise UsageError(
            "a path has a byte in it that is no UTF-8, and runs and reports are kept as UTF-8",
            where=ascii(error.object),
            remedy="rename the folder, or take it out of PYTHONPATH",
        ) from error


def _listings(lines: Sequence[bytes]) -> Iterator[PackListing]:
    decoder = msgspec.json.Decoder(PackListing)
    for line in lines:
        # What is none was not written by the child, which tells of each pack that it lost.
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield decoder.decode(line)


@contextmanager
def _child(request: Request, errors: IO[bytes]) -> Iterator[int]:
    """Run the child in a session of its own and yield the pipe it answers on."""
    answers, answer = os.pipe()
    home = str(Path(perfsuite.__file__).resolve().parents[1])
    with tempfile.TemporaryFile() as question:
        question.write(_encoded(request))
        question.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "perfsuite.packs.listing", str(answer)],
            stdin=question,
            stdout=errors,
            stderr=errors,
            pass_fds=(answer,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(home)},
        )
    os.close(answer)
    try:
        yield answers
    finally:
        os.close(answers)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# Makes a worker's death cheap and telling, and its leaving quick; waits for a child's end.


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


# The catalogue child: forks once per pack, so that a bad one ends alone and is named.
#
# Packs that want the kernels of all packs are forked a second time, when those are known.


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
