"""What the engine asks of a device, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from perfsuite.model import DeviceFacts, Health, Regime, TracedKernel


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel that this process compiled, with its PTX without line information.

    ``image`` returns its machine code, in which ``symbol`` is its name; ``is_generated`` says that
    a library wrote it.
    """

    name: str
    symbol: str
    ptx: str
    image: Callable[[], bytes] = bytes
    is_generated: bool = False

    @property
    def hash(self) -> str:
        """A name for the PTX that no other text has."""
        return hashlib.blake2b(self.ptx.encode(), digest_size=12).hexdigest()


class Rng(Protocol):
    """Makes the inputs of one launch from a seed; what ``empty`` hands out are outputs.

    ``dtype`` is a torch dtype name; ``place`` is "device", "host" or "pinned".
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


class Context(Protocol):
    """What a case's builder is handed; ``rank`` of ``ranks`` is 0 of 1 where no gang is needed.

    ``seed`` and the inputs made from it are the same on all ranks: what shall differ by rank is
    derived from ``rank``, so that the reference can derive the others' data too.
    """

    device: str
    place: str
    arch: str
    seed: int
    rank: int
    ranks: int

    def load_cuda(
        self, path: str | Path, name: str, *, options: Sequence[str] = ()
    ) -> Callable[..., None]:
        """Compile a kernel of a .cu file; the result launches as ``k(grid, block, *args)``.

        ``grid`` and ``block`` are ints or tuples, ``shared_bytes=`` sets dynamic shared memory;
        tensors pass their pointer, ints become int64 unless wrapped in a ctypes or numpy scalar.
        """


class Group(Protocol):
    """Launches that are timed as one sample."""

    launches: int
    backend: str

    def __call__(self) -> None:
        """Issue all launches of the group."""


class Device(Protocol):
    """A thing that can launch, time and watch a workload; one per worker.

    A pack's device inherits it: what has a body here may be left out, and what later versions
    add to it will have one.
    ``settle_tolerance`` is the relative difference below which groups of samples count as steady,
    ``settle_s`` how long it is worth waiting for that. ``foreign_most`` is the load by others, in
    percent of what a workload uses, that a block may bear. ``busy_s`` and ``spun_s`` are how long
    samples and the pacing between them have taken so far.
    """

    name: str
    cache_bytes: int = 0
    has_cycles: bool = False
    settle_tolerance: float = 0.01
    settle_s: float = 3.0
    foreign_most: float = 5.0
    busy_s: float = 0.0
    spun_s: float = 0.0

    def facts(self) -> DeviceFacts:
        """Describe the device."""

    def context(self, seed: int) -> Context:
        """Return what a builder needs; ``seed`` is the worker's."""

    def rng(self, seed: int) -> Rng:
        """Return a maker of inputs."""

    def bytes_of(self, values: Sequence[Any]) -> int:
        """Return the size in bytes of the tensors among ``values``."""

    def poison(self, outputs: Sequence[Any]) -> None:
        """Overwrite outputs, and memory a launch may be handed, with values no result has."""

    def compare(self, actual: Any, expected: Any, tolerance: float | None) -> Comparison:
        """Compare an output (tensor or tuple of tensors) with its reference."""

    def synchronize(self) -> None:
        """Wait for all work; raises what the device reports, sticky errors included."""
        return

    def group(
        self,
        fn: Callable[..., Any],
        sets: Sequence[tuple[Any, ...]],
        launches: int,
        *,
        backend: str,
    ) -> Group:
        """Make a group of ``launches`` over the input sets in turn.

        ``backend`` is "graph" (the group says "loop" where capture fails), "loop", or "host": each
        launch is awaited before the next, as a caller without queue-ahead would.
        """

    def sample(
        self, group: Group, count: int, *, regime: Regime, spin_us: float, flush: bool
    ) -> list[Sample]:
        """Time the group ``count`` times in the regime's conditions; the empty window is taken off.

        A sample that the device cannot vouch for has NaN as its time.
        """

    def joins_streams(self, group: Group) -> bool:
        """Say whether all work of the group is done when its stream says so."""
        del group
        return True

    def again(self, group: Group, fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Launch as the timed group did; return what its last launch returned.

        What replays a captured group issues it whole; else one launch, on ``arguments``, will do.
        """
        del group
        return fn(*arguments)

    def digest(self, arguments: tuple[Any, ...], outputs: Sequence[Any]) -> object:
        """Return what tells the data of the arguments, but for outputs, from any other data.

        None where that is not known.
        """
        del arguments, outputs
        return None

    def refill(
        self, arguments: tuple[Any, ...], fresh: tuple[Any, ...], outputs: Sequence[Any]
    ) -> bool:
        """Copy the data of ``fresh`` to where ``arguments`` lie, but for their ``outputs``.

        False where the two are not of one shape, or where that cannot be done.
        """
        del arguments, fresh, outputs
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
        del group, time_s
        return None

    def peak_bytes(self, fn: Callable[..., Any], inputs: tuple[Any, ...]) -> int | None:
        """Return the peak of memory allocated during one launch without its inputs, if known."""
        del fn, inputs
        return None

    def traced(self, issue: Callable[[], object]) -> Sequence[TracedKernel]:
        """Return each kernel that ``issue`` launches; the first call may take seconds.

        A process that was traced is no good for measuring.
        """
        issue()
        return ()

    def shown(self, issue: Callable[[], object]) -> None:
        """Call ``issue`` where a profiler that this process runs under looks, and wait for it."""
        issue()
        self.synchronize()

    def loaded(self) -> Sequence[Loaded]:
        """Return the kernels that were compiled for what ran on this device, as far as known."""
        return ()

    def close(self) -> None:
        """Give back what the device holds."""
        return
