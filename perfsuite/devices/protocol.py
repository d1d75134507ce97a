"""What a device does, what packs see of it, and how one is opened by its name."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Protocol, cast

import msgspec

from perfsuite import model
from perfsuite.boundary import MAGNITUDE, DeviceError, shown
from perfsuite.model import BUILT_IN_DEVICES, Accelerator, DeviceFacts, Gpu, Health, built_in

Fn = Callable[..., Any]
# What is called for its effect: it issues, reads or waits.
Act = Callable[[], object]
# What launches are handed: one, or as many as rotate.
Arguments = tuple[Any, ...]
Sets = Sequence[Arguments]
MOST_NAME = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed observation of a whole group: microseconds, and SM cycles (NaN with one clock)."""

    time_us: float
    cycles: float = float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an output compares with its reference: relative L2 error, its limit, and why it fails."""

    error: float
    limit: float
    reason: str = ""

    @property
    def is_right(self) -> bool:
        """Say whether the output is accepted."""
        return not self.reason

    @property
    def known_error(self) -> float | None:
        """The error, None where it is no number."""
        return self.error if math.isfinite(self.error) else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel that this process compiled, with its PTX without line information.

    ``image`` returns its machine code, in which ``symbol`` is its name; ``is_generated`` says that
    a library wrote it. ``file`` and ``options`` are what ``load_cuda`` was given.
    """

    name: str
    symbol: str
    ptx: str
    image: Callable[[], bytes] = bytes
    is_generated: bool = False
    file: str = ""
    options: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """A name for the PTX that no other text has."""
        return hashlib.blake2b(self.ptx.encode(), digest_size=12).hexdigest()


class Rng(Protocol):
    """Makes the inputs of one launch from a seed; what ``empty`` hands out are outputs.

    ``dtype`` is a torch dtype name; ``place`` is "device", "host" or "pinned". That of a core's
    device has its ``seed`` too, from which data without torch are made; what of them the launch
    shall write goes into ``outputs``.
    """

    outputs: list[Any]

    def randn(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """Standard normal values."""

    def rand(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """Uniform values in [0, 1)."""

    def randint(self, low: int, high: int, *shape: int, dtype: str = "int32") -> Any:
        """Uniform integers in [low, high)."""

    def empty(self, *shape: int, dtype: str = "float32", place: str = "device") -> Any:
        """An output, to be written by the launch."""


@dataclass(slots=True)
class Context:
    """What a case's builder is handed; ``rank`` of ``ranks`` is 0 of 1 where no gang is needed.

    ``seed`` and the inputs made from it are the same on all ranks: what shall differ by rank is
    derived from ``rank``, so that the reference can derive the others' data too.
    """

    seed: int
    device: str
    place: str
    arch: str
    rank: int = 0
    ranks: int = 1

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Compile a kernel of a .cu file; the result launches as ``k(grid, block, *args)``.

        ``grid`` and ``block`` are ints or tuples, ``shared_bytes=`` sets dynamic shared memory;
        tensors pass their pointer, ints become int64 unless wrapped in a ctypes or numpy scalar.
        ``DeviceError`` where no CUDA kernel can run.
        """
        what = f"device {self.device!r} cannot run kernel {name!r}"
        raise DeviceError(what, where=str(path), remedy="give it needs=[perfsuite.cuda()]")


@dataclass(slots=True)
class Group:
    """Launches that are timed as one sample, and that one call issues.

    They are a loop, a captured graph, or calls awaited one by one. ``returned`` ends with what the
    last launch of a graph returned.
    """

    issue: Act
    launches: int
    backend: str
    returned: Sequence[Any] = ()

    def __call__(self) -> None:
        """Issue all launches."""
        self.issue()


class Device(ABC):
    """A thing that can launch, time and watch a workload; one per worker.

    A pack's device inherits it: what has a body here may be left out, and what later versions
    add to it will have one.
    ``settle_tolerance`` is the relative difference below which groups of samples count as steady,
    ``settle_s`` how long it is worth waiting for that. ``foreign_most`` is the load by others, in
    percent of what a workload uses, that a block may bear; ``untimed`` says why a sample has no
    time. ``busy_s`` and ``spun_s`` are how long samples and their pacing have taken so far.
    ``preload`` names what a server imports for its workers besides the device's own module,
    ``late`` what it imports once a worker has, or ``module:function`` that it calls then,
    ``backend`` torch's way for its ranks to meet, if they do, ``rank_place`` torch's name for what
    each of them has one of to itself, if they have.
    """

    preload: ClassVar[tuple[str, ...]] = ()
    late: ClassVar[tuple[str, ...]] = ()
    backend: ClassVar[str] = ""
    rank_place: ClassVar[str] = ""
    name: str
    cache_bytes: int = 0
    has_cycles: bool = False
    settle_tolerance: float = 0.01
    settle_s: float = 3.0
    foreign_most: float = 5.0
    untimed: str = "they have no time"
    busy_s: float = 0.0
    spun_s: float = 0.0

    @classmethod
    def prepare_server(cls) -> contextlib.AbstractContextManager[object]:
        """Prepare what workers shall inherit, in their server, while it imports the rest."""
        return contextlib.nullcontext()

    @classmethod
    def wake(cls) -> None:
        """Begin what opening the device waits for; what fails here fails again then."""

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """Describe the device."""

    @abstractmethod
    def context(self, seed: int) -> Context:
        """Return what a builder needs; ``seed`` is the worker's."""

    @abstractmethod
    def rng(self, seed: int) -> Rng:
        """Return a maker of inputs."""

    @abstractmethod
    def bytes_of(self, values: Sequence[Any]) -> int:
        """Return the size in bytes of the tensors among ``values``, or of all data without one."""

    @abstractmethod
    def poison(self, outputs: Sequence[Any]) -> None:
        """Overwrite outputs, and memory a launch may be handed, with values no result has."""

    @abstractmethod
    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> Comparison:
        """Compare an output (tensor, tuple of tensors, or plain data) with its reference."""

    def ends(self, result: Any) -> Any:
        """Return what ``mistakes`` takes of an earlier result."""
        return ()

    def mistakes(
        self, actual: Any, expected: Any, earlier: Any, tolerance: float | None
    ) -> Iterable[tuple[str, Comparison]]:
        """Return mistakes that kernels make, made in a right result, and how each compares.

        ``earlier`` are the ends of the result of other inputs. A device that makes none leaves it
        to the case.
        """
        return ()

    def synchronize(self) -> None:
        """Wait for all work; raises what the device reports, sticky errors included."""

    @abstractmethod
    def group(self, fn: Fn, sets: Sets, launches: int, *, backend: str) -> Group:
        """Make a group of ``launches`` over the input sets in turn.

        ``backend`` is "graph" (the group says "loop" where capture fails), "loop", or "host": each
        launch is awaited before the next, as a caller without queue-ahead would.
        """

    @abstractmethod
    def sample(
        self, group: Group, count: int, *, regime: model.Regime, spin_us: float, flush: bool
    ) -> list[Sample]:
        """Time the group ``count`` times in the regime's conditions; the empty window is taken off.

        A sample that the device cannot vouch for has NaN as its time.
        """

    def joins_streams(self, group: Group) -> bool:
        """Say whether all work of the group is done when its stream says so."""
        return True

    def again(self, group: Group, fn: Fn, arguments: Arguments) -> Any:
        """Launch as the timed group did; return what its last launch returned.

        What replays a captured group issues it whole; else one launch, on ``arguments``, will do.
        """
        return fn(*arguments)

    def digest(self, arguments: Arguments, outputs: Sequence[Any]) -> object:
        """Return what tells the data of the arguments, but for outputs, from any other data.

        None where that is not known.
        """
        return None

    def refill(self, arguments: Arguments, fresh: Arguments, outputs: Sequence[Any]) -> bool:
        """Copy the data of ``fresh`` to where ``arguments`` lie, but for their ``outputs``.

        False where the two are not of one shape, or where that cannot be done.
        """
        return False

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks of a gang; alone, the value itself.

        Every decision about how often to launch goes through here: ranks that disagree hang.
        """
        return value

    def health(self) -> Health:
        """Return the device's state while the last samples were taken."""
        return Health()

    def energy_j(self, group: Group, time_s: float) -> float | None:
        """Return the energy of one launch of a group issued back to back for so long, if known."""
        return None

    def peak_bytes(self, fn: Fn, inputs: Arguments) -> int | None:
        """Return the peak of memory allocated during one launch without its inputs, if known."""
        return None

    def traced(self, issue: Act) -> Sequence[model.TracedKernel]:
        """Return each kernel that ``issue`` launches; the first call may take seconds.

        A process that was traced is no good for measuring.
        """
        issue()
        return ()

    def shown(self, issue: Act) -> None:
        """Call ``issue`` where a profiler that this process runs under looks, and wait for it."""
        issue()
        self.synchronize()

    def loaded(self) -> Sequence[Loaded]:
        """Return the kernels that were compiled for what ran on this device, as far as known."""
        return ()

    def close(self) -> None:
        """Give back what the device holds."""


def sampled(device: Device, group: Group, count: int, **conditions: Any) -> list[Sample]:
    """Return what ``device.sample`` does; ``DeviceError`` unless they are those asked for."""
    found: Any = device.sample(group, count, **conditions)
    wrong = "" if isinstance(found, list) else f"{shown(found)}: no list of samples"
    if not wrong and len(found) != count:
        wrong = f"{len(found)} samples and was asked for {count}"
    for each in found if not wrong else ():
        if any(MAGNITUDE < value < math.inf for value in (each.time_us, each.cycles)):
            wrong = f"{each}: no measurement is beyond {MAGNITUDE:g}"
    if wrong:
        raise DeviceError(
            f"device {device.name!r} returned {wrong}",
            where=f"{type(device).__module__}.{type(device).__qualname__}.sample",
            remedy="return a list of a Sample each; NaN is the time of one that does not count",
        )
    return list(found)


EMPTY_RUNS = 5
# No kernel is shorter; what takes less than this beyond two bare stamps left the GPU alone.
SHORTEST_US = 0.5


def least_us(device: Device) -> float:
    """Return what a call takes at least that puts work on the device, by two stamps around none."""
    nothing = device.group(lambda: None, [()], 1, backend="loop")
    empty = device.sample(nothing, EMPTY_RUNS, regime=model.Regime.PACED, spin_us=0.0, flush=False)
    times_us = (sample.time_us for sample in empty if math.isfinite(sample.time_us))
    return min(times_us, default=math.inf) + SHORTEST_US


# The host's own clock.

WAITING = Path("/proc/thread-self/schedstat")


def waited_ns() -> int:
    """Return how long this thread has waited for a core (proc_pid_schedstat(5)), 0 if not told."""
    try:
        return int(WAITING.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def own_ns(act: Act) -> int:
    """Return how long a call took, less what this thread waited for a core meanwhile.

    A wait between a stamp and the reading beside it is no part of the time: what the readings took
    is the most that it can have been.
    """
    opened, waited = time.perf_counter_ns(), waited_ns()
    start = time.perf_counter_ns()
    act()
    end = time.perf_counter_ns()
    waited, closed = waited_ns() - waited, time.perf_counter_ns()
    beside = (start - opened) + (closed - end)
    return end - start - max(0, waited - beside)


# Counts what one launch starts, without a profiler: kernels on a GPU, operators on a CPU.

KERNELS = model.Metric("kernels", better="lower")


def count_kernels(ctx: Any, launch: Callable[[], Any]) -> float:
    """Return the kernels, copies and fills one launch starts; torch's operators on a CPU.

    A device whose context has a ``count_kernels(launch)`` of its own is asked. A CUDA graph that
    the launch replays is one node of another kind, and counts for nothing: ask ``graph_kernels``
    about it.
    It is a number for ``Workload.exact`` of a case that declares the metric ``KERNELS``.
    """
    counts: Callable[[Callable[[], Any]], float] | None = getattr(ctx, "count_kernels", None)
    return counts(launch) if counts else float(count_operators(launch).total())


def count_operators(launch: Callable[[], Any]) -> Counter[str]:
    """Return how often one launch calls each torch function, by its name.

    Not a dispatch mode, whose first use imports all of torch's compiler: 1.3 s a process.
    """
    from torch.overrides import TorchFunctionMode

    seen: Counter[str] = Counter()

    class Count(TorchFunctionMode):  # type: ignore[misc] # torch has no types here
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[func.__name__] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        launch()
    return seen


def count_flops(launch: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call returns, and the operations of its products, as torch counts them.

    Only matrix products, convolutions and attention count.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        returned = launch()
    return returned, float(counter.get_total_flops())


def capture(launch: Callable[[], Any]) -> Any:
    """Return torch's CUDA graph of one launch, to be instantiated; the launch runs once before."""
    import torch

    launch()  # what is compiled or loaded lazily must exist before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        launch()
    return graph


def graph_kernels(graph: Any) -> float:
    """Return the kernels, copies and fills of a graph of ``capture``."""
    from cuda.bindings import driver

    handle = driver.CUgraph(graph.raw_cuda_graph())
    error, _, count = driver.cuGraphGetNodes(handle)
    error, nodes, _ = driver.cuGraphGetNodes(handle, count)
    if int(error) != 0:
        raise DeviceError(f"the CUDA driver does not tell a graph's nodes ({error.name})")
    kinds = [driver.cuGraphNodeGetType(node)[1] for node in nodes[:count]]
    return float(sum(kind.name.endswith(("_KERNEL", "_MEMCPY", "_MEMSET")) for kind in kinds))


# The ranks that run one launch together: how a process joins them, agrees and starts with them.

# The panel ends ranks that wait too long, and knows whom to blame; this is for a lost panel.
TIMEOUT = timedelta(hours=1)
LOOPBACK = "lo"


@dataclass(slots=True)
class Gang:
    """One rank's view of its gang; without others to ask it is alone, whatever its number."""

    rank: int = 0
    ranks: int = 1

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks, on the host: no GPU takes part."""
        return value

    def meet(self) -> None:
        """Return when every rank is here."""
        self.agree(0.0)

    def line_up(self) -> None:
        """Let the current CUDA stream go on when every rank's stream has come here."""


class JoinedGang(Gang):
    """A gang whose ranks, each with a device of this ``kind``, meet by torch.distributed."""

    def __init__(self, kind: type[Device], **where: Any) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ModuleNotFoundError as error:
            what = f"ranks meet by torch.distributed, and {error.name} is not installed"
            raise DeviceError(what, remedy="pip install 'perfsuite[torch]'") from error

        self._torch, self._dist = torch, dist
        self._place = torch.device(kind.rank_place, 0) if kind.rank_place else None
        if self._place:
            torch.get_device_module(self._place).set_device(0)
        dist.init_process_group(kind.backend, timeout=TIMEOUT, device_id=self._place, **where)
        # A group of its own: agreeing launches nothing on a GPU, and works while NCCL is stuck.
        self._control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._token = torch.zeros(1, device=self._place)
        super().__init__(dist.get_rank(), dist.get_world_size())

    def agree(self, value: float) -> float:
        """Return the largest value among the ranks."""
        shared = self._torch.tensor(value, dtype=self._torch.float64)
        self._dist.all_reduce(shared, op=self._dist.ReduceOp.MAX, group=self._control)
        return float(shared)

    def gather(self, text: str) -> list[str]:
        """Return what each rank gave, by rank."""
        # Bytes in tensors: dist.all_gather_object would pickle, and unpickle what peers send.
        own = text.encode()
        most = int(self.agree(len(own)))
        padded = self._torch.tensor(list(own.ljust(most + 1, b"\0")), dtype=self._torch.uint8)
        found = [self._torch.empty_like(padded) for _ in range(self.ranks)]
        self._dist.all_gather(found, padded, group=self._control)
        return [bytes(each.tolist()).rstrip(b"\0").decode() for each in found]

    def leave(self) -> None:
        """Part from the others, all at once."""
        self.meet()
        self._dist.destroy_process_group()

    def line_up(self) -> None:
        """Let the current CUDA stream wait for every rank's."""
        self._dist.all_reduce(self._token)


def join(device: str, *, rank: int, ranks: int, rendezvous: str) -> Gang:
    """Join the default group of torch.distributed at a file that all ranks of a machine share.

    Must come before CUDA is initialised: it puts the rank's own GPU first and its peers' behind.
    """
    see_own_first(device, rank, ranks)
    kind = device_class(device)
    if not kind.backend:
        return Gang(rank, ranks)
    if LOOPBACK in {name for _, name in socket.if_nameindex()}:
        # All ranks are on this machine: neither its name nor a network need work.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    from torch.distributed import FileStore

    store = FileStore(rendezvous, ranks)
    return JoinedGang(kind, store=store, rank=rank, world_size=ranks)


def join_elastic(device: str) -> JoinedGang:
    """Join the group that torchrun's environment describes, on one node or several."""
    own = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    see_own_first(device, *own)
    kind = device_class(device)
    if not kind.backend:
        remedy = "choose a device whose ranks meet by torch.distributed"
        raise DeviceError(f"ranks of device {device!r} cannot meet", remedy=remedy)
    return JoinedGang(kind)


def see_own_first(device: str, rank: int, ranks: int) -> None:
    """Reorder the units that a process sees: ``rank``'s, then the next ranks' in turn, no other.

    Nothing on a device whose ranks share one.
    """
    variable = built_in(device).visible
    if not built_in(device).ranks_take_units:
        return
    given = os.environ.get(variable)
    visible = given.split(",") if given else [str(index) for index in range(ranks)]
    if ranks > len(visible):
        raise DeviceError(
            f"rank {rank} of {ranks} has no GPU of its own: {len(visible)} are visible",
            where=f"{variable}={given}",
            remedy="choose a variant with fewer ranks",
        )
    own = visible[:ranks]
    os.environ[variable] = ",".join(own[rank:] + own[:rank])


# Finds and opens devices by name: those of the core, and those that packs bring.


def listed(device: str) -> tuple[Gpu, ...]:
    """Return the units of this machine that a device of the core may be."""
    lists = built_in(device).lists
    return tuple(resolve_name(lists)()) if lists else ()


def automatic() -> tuple[str, tuple[Gpu, ...]]:
    """Return the first device of the core that has units here, with them; else the host."""
    for name, each in BUILT_IN_DEVICES.items():
        if each.unit and (found := listed(name)):
            return name, found
    return next(name for name, each in BUILT_IN_DEVICES.items() if each.is_host), ()


def seeing(device: str, units: Sequence[Gpu]) -> dict[str, str]:
    """Return the environment in which a process sees these units of a device, and no other's."""
    hidden = {each.visible: "" for each in BUILT_IN_DEVICES.values() if each.visible}
    own = built_in(device).visible
    return {**hidden, own: ",".join(gpu.uuid for gpu in units)} if own else hidden


def device_class(name: str) -> type[Device]:
    """Return the class of a device of the core; of one that a pack brings, what all inherit."""
    found: Any = resolve_name(BUILT_IN_DEVICES[name].opens) if name in BUILT_IN_DEVICES else Device
    return cast("type[Device]", found)


def open_device(
    name: str, *, seed: int = 0, gang: Gang | None = None, accelerator: Accelerator | None = None
) -> Device:
    """Open a device by name, the process's first GPU, for a rank of ``gang`` or alone.

    With an ``accelerator``, open its first unit; what its code raises is a ``DeviceError``, and so
    are facts that cannot be true.
    """
    if accelerator is None:
        if name not in BUILT_IN_DEVICES:
            known = ", ".join(sorted(BUILT_IN_DEVICES))
            raise DeviceError(f"unknown device {name!r}", remedy=f"choose one of {known}")
        return cast("Callable[..., Device]", device_class(name))(seed=seed, gang=gang)
    if not accelerator.units:
        what = f"this machine has no {accelerator.name}, says the pack that brings it"
        raise DeviceError(what, where=accelerator.opens, remedy="choose another device")
    if accelerator.folder and accelerator.folder not in sys.path:
        sys.path.append(accelerator.folder)
    try:
        found = resolve_name(accelerator.opens)(unit=accelerator.units[0], seed=seed)
        is_device = isinstance(found, Device)
        fault = next(facts_faults(found), "") if is_device else "it is no perfsuite.Device"
    except (Exception, SystemExit) as error:
        raise DeviceError(
            f"opening the device {accelerator.name!r} raised {type(error).__name__}: {error}",
            where=f"{accelerator.opens}, unit {accelerator.units[:1]}",
            remedy="the pack that brings it must correct this, or its driver is missing here",
        ) from error
    if fault:
        raise DeviceError(
            f"device {accelerator.name!r}: {fault}",
            where=accelerator.opens,
            remedy="inherit perfsuite.Device; perfsuite.testing.check_device names all faults",
        )
    return cast("Device", found)


def facts_faults(device: Device) -> Iterator[str]:
    """Yield what is wrong with the device's description of itself, on which all else rests."""
    facts = device.facts()
    try:
        msgspec.convert(msgspec.to_builtins(facts), DeviceFacts)
    except (TypeError, msgspec.ValidationError) as error:
        yield f"facts() returned {shown(facts)}, no sound DeviceFacts: {error}"
        return
    # A folder of baselines has the name, a file of locks the unit.
    for key, text in {"name": facts.name, "unit": facts.unit}.items():
        is_path = key == "unit" and "/" in text
        if is_path or len(text) > MOST_NAME or not text.isprintable():
            yield f"facts().{key} is {text[:MOST_NAME]!r}: a short text of one line, no path"
    if facts != device.facts():
        yield "facts() says something else each time: two processes would have two SKUs"
    if facts.device != device.name:
        yield f"facts().device is {facts.device!r}, its name {device.name!r}"
    if not (facts.name.strip() and facts.unit.strip() and facts.identity):
        yield "facts() lacks name, unit or identity, which baselines and comparisons rest on"
    if ("cycles" in facts.clocks) != device.has_cycles or "time_us" not in facts.clocks:
        yield f"facts().clocks is {facts.clocks!r} and has_cycles {device.has_cycles}"
