"""The nouns: what packs declare, what is measured, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from perfsuite.boundary import PackError, is_measurable, shown


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A noun: a value that never changes, and that takes no key which it does not know."""


# A device that a pack brings, as plain data.


class BuiltIn(Record, frozen=True):
    """What is known of a device of the core before it is opened, and by those who never open it.

    Four are ``module:callable``: ``opens`` is its class. ``lists`` returns the units of this
    machine that it may be. ``watches`` takes one's uuid and reads its state, as ``nvml.Nvml`` does.
    ``guest`` opens the device in a process that is not ours, where that takes more than its class.
    ``unit`` is what people call one, for a device that cannot be without: ``auto`` takes it where
    there is one. ``visible`` is the environment variable by which a process is given its own; where
    ``ranks_take_units`` each rank of a gang has one to itself.
    What ``is_host`` are the cores that everything else runs on; ``has_counters`` says that ncu
    counts there. ``process_s`` is about how long a process of a variant takes, ``slug`` its
    product's where the name says nothing, ``software`` what it needs by distribution, and for what.
    """

    opens: str
    lists: str = ""
    watches: str = ""
    guest: str = ""
    unit: str = ""
    visible: str = ""
    ranks_take_units: bool = False
    is_host: bool = False
    has_counters: bool = False
    process_s: float = 0.0
    slug: str = ""
    software: Mapping[str, str] = {}


# Devices of the core by name: "auto" takes the first that has units here, the host where none has.
BUILT_IN_DEVICES = {
    "cuda": BuiltIn(
        "perfsuite.devices.cuda:CudaDevice",
        lists="perfsuite.workers.process:inventory",
        watches="perfsuite.devices.nvml:Nvml",
        guest="perfsuite.devices.tensors:open_guest",
        unit="NVIDIA GPU",
        visible="CUDA_VISIBLE_DEVICES",
        ranks_take_units=True,
        has_counters=True,
        process_s=0.5,  # on a warm H200
        software={
            "cuda-core": "timing on NVIDIA GPUs, and variants in CUDA C++",
            "nvidia-ml-py": "finding GPUs and reading their state",
        },
    ),
    "cpu": BuiltIn("perfsuite.devices.cpu:CpuDevice", is_host=True, process_s=0.5),
    "fake": BuiltIn(
        "perfsuite.testing.fake:FakeDevice",
        lists="perfsuite.testing.fake:fake_gpus",
        visible="CUDA_VISIBLE_DEVICES",
        has_counters=True,
        slug="fake",
    ),
}


def built_in(device: str) -> BuiltIn:
    """Return what is known of a device of the core, and of one that a pack brings nothing."""
    return BUILT_IN_DEVICES.get(device, BuiltIn(""))


def is_host_timed(device: str, regime: str) -> bool:
    """Say whether the host's clock times a variant: all on a CPU, launches awaited elsewhere."""
    return built_in(device).is_host or regime == Regime.END_TO_END


ACCELERATOR_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
OPENS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


class Accelerator(Record, frozen=True, kw_only=True):
    """A device that a pack brings; ``name`` is what ``--perf-device`` takes.

    ``opens`` is ``module:callable``; a worker calls it with ``unit=`` and ``seed=`` and gets a
    ``Device``. ``units`` are those of this machine, each in words that open it again. ``auto`` may
    take it unless ``is_automatic`` is False, as for a simulator. ``preload`` names modules that
    are slow to import, and that a process may have imported before it forks.
    """

    name: str
    opens: str
    units: tuple[str, ...] = ()
    is_automatic: bool = True
    preload: tuple[str, ...] = ()
    folder: str = ""

    def __post_init__(self) -> None:
        if not ACCELERATOR_NAME.match(self.name) or self.name in {*BUILT_IN_DEVICES, "auto"}:
            raise ValueError(
                f"device name {self.name!r} must match {ACCELERATOR_NAME.pattern} and be none of "
                f"auto, {', '.join(BUILT_IN_DEVICES)}"
            )
        if not OPENS.match(self.opens):
            raise ValueError(f"device {self.name!r}: opens={self.opens!r} is no module:callable")


SHORT_COMMIT = 7
# Ends the name of a commit whose tree was changed.
DIRTY = "-dirty"


class Side(StrEnum):
    """A is the revision that is compared with, B the working tree: what every run measures."""

    A = "A"
    B = "B"


class Revision(Record, frozen=True, omit_defaults=True):
    """A commit, and the name it was asked for by; a wheel has a name alone.

    With a ``place`` it is measured in another environment: ``environment`` are its versions.
    Without a commit and a name that is the tree itself.
    """

    commit: str
    name: str
    place: str = ""
    environment: dict[str, str] = {}

    def __str__(self) -> str:
        short = self.commit[:SHORT_COMMIT]
        named = f" ({self.name})" if self.name else ""
        code = f"revision {short}{named}" if short else self.name
        return f"{code or 'the same code'} in {self.place}" if self.place else code


class Wheel(Record, frozen=True):
    """An installed distribution; ``record`` is a hash of the files that its RECORD lists."""

    name: str
    version: str
    record: str


class Source(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Where a pack's code comes from: a commit of its own repository, or an installed wheel.

    ``tree`` is a digest of those of the commit's files that the pack may use: what tells its code
    from another. What ``is_changed`` is in no commit of the user's: ``commit`` is one of ours then,
    under refs/perfsuite, or nothing if none could be kept.
    """

    commit: str = ""
    tree: str = ""
    is_changed: bool = False
    wheel: Wheel | None = None

    @classmethod
    def at(cls, commit: str) -> Source:
        """Return what the commit that a run names says, if that is all that is known."""
        is_changed = commit.endswith(DIRTY)
        return cls(commit="" if is_changed else commit, is_changed=is_changed)

    def __str__(self) -> str:
        if self.wheel:
            return f"{self.wheel.name} {self.wheel.version}"
        return f"commit {self.commit[:SHORT_COMMIT]}" if self.commit else "a changed tree"


class Tree(Record, frozen=True):
    """Where a side's code lies: ``root`` is a checkout of ``repository``, or is it itself.

    ``front`` are the folders that code is imported from by name, first of all.
    """

    root: str
    repository: str
    front: tuple[str, ...] = ()


# What a case reports besides the two clocks, and the kernels a pack hands to be compiled.


METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
TARGETS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")
MetricName = Annotated[str, Meta(pattern=f"^{METRIC_NAME.pattern}")]
DIRECTIONS = ("lower", "higher", "equal")
Direction = Annotated[str, Meta(pattern=rf"^({'|'.join(DIRECTIONS)})\Z")]


class Metric(Record, frozen=True):
    """A metric of a case; ``better`` is lower, higher or equal (any change is for the worse).

    ``threshold`` is the relative change that is not worth a word; of a metric with noise it counts
    where it is more than what the noise lets tell.
    """

    name: str
    unit: str = ""
    better: str = "lower"
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if not METRIC_NAME.match(self.name):
            raise ValueError(f"metric name {self.name!r} must match {METRIC_NAME.pattern}")
        if self.better not in DIRECTIONS:
            raise ValueError(f"better is {' or '.join(DIRECTIONS)}, not {self.better!r}")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"metric {self.name!r}: threshold must be in [0, 1)")


class CoreMetric(Metric, frozen=True):
    """A metric of perfsuite itself, judged by the limits that ``noise`` names in ``judge.rule``.

    Without noise it is judged exactly. A clock is shown as the time of a variant, other metrics
    beside it. One named like a field of ``Health`` is read from there.
    """

    noise: str = ""
    is_clock: bool = False


METRICS = (
    CoreMetric("time_us", "us", noise="paced", is_clock=True),
    CoreMetric("cycles", "cycles", noise="paced", is_clock=True),
    # What the device itself took for launches that the host issued and awaited.
    CoreMetric("device_us", "us", noise="host"),
    # Of launches that follow each other without a gap.
    CoreMetric("energy_j", "J", noise="one clock"),
    # The allocator rounds and keeps blocks of its own.
    CoreMetric("peak_bytes", "bytes", threshold=0.01),
)
TIME, CYCLES, DEVICE_TIME, ENERGY, PEAK_BYTES, *_ = METRICS
NOISY = tuple(metric.name for metric in METRICS if metric.noise)
CLOCKS = tuple(metric.name for metric in METRICS if metric.is_clock)
OWN_METRICS = tuple(metric.name for metric in METRICS)


def metrics_by_name(declared: Iterable[Metric]) -> dict[str, Metric]:
    """Return the metrics of perfsuite itself, and those that a case declares."""
    return {metric.name: metric for metric in (*METRICS, *declared)}


class Kernel(Record, frozen=True, kw_only=True):
    """One kernel of a pack as plain data, so that it can be compiled where no GPU is.

    ``language`` is cuda, triton or gluon. A CUDA C++ kernel is ``function`` of ``file`` with NVRTC
    ``options``; a Triton or Gluon one is ``function`` of ``module`` with its ``signature``
    (argument to type), ``constants``, and ``aligned`` arguments (divisible by 16). ``expects``
    names, by target, an opcode class that the machine code must hold, such as HGMMA;
    ``triton`` is the oldest version that compiles it, such as 3.7.
    """

    name: str
    language: str
    function: str
    file: str = ""
    module: str = ""
    options: tuple[str, ...] = ()
    signature: Mapping[str, str] = {}
    constants: Mapping[str, str | int | float | bool | None] = {}
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    targets: tuple[str, ...] = TARGETS
    expects: Mapping[str, str] = {}
    triton: str = ""
    folder: str = ""

    def __post_init__(self) -> None:
        if not re.match(r"[A-Za-z][A-Za-z0-9_.]*\Z", self.name):
            raise ValueError(f"kernel name {self.name!r} must be a plain name")
        if self.language not in {"cuda", "triton", "gluon"}:
            raise ValueError(
                f"kernel {self.name!r}: language is cuda, triton or gluon, not {self.language!r}"
            )
        if bool(self.file) == bool(self.module) or bool(self.file) != (self.language == "cuda"):
            raise ValueError(f"kernel {self.name!r}: cuda needs a file, the others a module")


# What a case's builder returns: something to launch, to inspect or to play.


class Workload(Record, frozen=True, kw_only=True):
    """One built variant: what to launch, on what, and how to know that it is right.

    ``make_inputs(rng)`` returns the arguments of one launch; tensors from ``rng.empty`` are
    outputs and are poisoned before each check. ``fn(*inputs)`` is one launch; what it returns, or
    else its outputs, is compared with ``reference(*inputs)``, which is independent and of higher
    precision. ``wrong(*inputs)``, one or several, makes a mistake that a real bug would make, and
    the reference must refuse it, as it must those that perfsuite makes of any result.

    ``tolerance`` is the relative L2 error allowed (None: by the output's dtype; 0: equal to the
    bit). ``captures=False`` keeps ``fn`` out of CUDA graphs. ``rotates=False`` says that the inputs
    are too large or too stateful to copy, so that coldness comes from a flush. Arguments that are
    no outputs must stay as they are, or each launch would have others; ``in_place=True`` says that
    launches write to them, and that the result is the same however often. ``exact(*inputs)``, or
    ``exact()``, returns metrics without noise (launches, bytes), read once per process after the
    check; the case declares them. ``flops`` are the operations of one launch at the rate of
    ``rate_dtype``; None with a rate has torch count the reference's. With either the case declares
    no work, and its bytes are those of inputs and outputs.
    """

    fn: Callable[..., Any]
    make_inputs: Callable[[Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    wrong: Callable[..., Any] | tuple[Callable[..., Any], ...] = ()
    tolerance: float | None = None
    captures: bool = True
    rotates: bool = True
    in_place: bool = False
    flops: float | None = None
    rate_dtype: str = ""
    exact: Callable[..., Mapping[str, float]] | None = None


class Inspection(Record, frozen=True, kw_only=True):
    """One built variant with nothing to time: its metrics are read once and judged exactly.

    ``reference()`` returns what some of the metrics must be, found independently; ``wrong()`` is
    the negative control, metrics that the reference must refuse. Both may be left out together
    where every number is its own evidence, such as a compiler's report.
    """

    read: Callable[[], Mapping[str, float]]
    reference: Callable[[], Mapping[str, float]] | None = None
    wrong: Callable[[], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        if (self.reference is None) != (self.wrong is None):
            raise ValueError("an Inspection has a reference and a wrong, or neither")


class Scenario(Record, frozen=True, kw_only=True):
    """One built variant that serves: ``play(seed)`` returns its output and its service metrics.

    The engine plays it with seeds of its own and times each play; metrics (declared by the case)
    are judged as times are. ``reference(seed)`` is the output of the same seed found independently,
    ``wrong(seed)`` the negative control; ``tolerance`` is that of a ``Workload``.
    """

    play: Callable[[int], tuple[Any, Mapping[str, float]]]
    reference: Callable[[int], Any]
    wrong: Callable[[int], Any]
    tolerance: float | None = None


Buildable = Workload | Inspection | Scenario


# What a pack declares: cases, variants, claims and the work they stand for.


Scalar = str | int | float | bool
Axes = Mapping[str, Scalar]

# Names become parts of ids, file names and pytest's -k words, so they stay plain.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
VALUE = re.compile(r"[A-Za-z0-9_.+\-]+\Z")


class Tier(StrEnum):
    """How much of a case runs; each tier contains the ones before it."""

    SMOKE = "smoke"
    NIGHTLY = "nightly"
    FULL = "full"


class Regime(StrEnum):
    """The conditions a variant is measured in; results of two regimes are never compared.

    ``exact`` times nothing: the builder returns an ``Inspection``.
    """

    PACED = "paced"
    SUSTAINED = "sustained"
    END_TO_END = "end_to_end"
    EXACT = "exact"


class Work(Record, frozen=True):
    """What one launch must do: bytes moved to and from memory, and floating-point operations.

    ``rate_dtype`` names the tensor-core or vector rate the operations run at ("bf16", "fp8",
    "fp32", ...). ``link`` is what the bytes travel on: "hbm", "pcie" or "nvlink"; or what on the
    chip hands them over, "l2" or "shared". A link of no known rate has no ceiling. ``kernels`` are
    run one behind the other where that is what takes the time; ``start`` says from where: "launch",
    a stream, or "graph_node", a graph.
    """

    read_bytes: float = 0
    write_bytes: float = 0
    flops: float = 0
    rate_dtype: str = ""
    link: str = "hbm"
    kernels: float = 0
    start: str = "launch"

    def __post_init__(self) -> None:
        for name in ("read_bytes", "write_bytes", "flops", "kernels"):
            value = getattr(self, name)
            if not (value >= 0 and is_measurable(value)):
                raise ValueError(f"Work.{name} must be a number >= 0, not {shown(value)}")

    @property
    def bytes(self) -> float:
        """Bytes moved per launch, both directions."""
        return self.read_bytes + self.write_bytes


class Need(Record, frozen=True):
    """One requirement of a case: ``kind`` is device, arch, gpus, package or feature.

    ``when`` limits it to variants whose axes have one of the listed values.
    """

    kind: str
    value: str
    axes: Mapping[str, tuple[Scalar, ...]] = {}

    def when(self, **axes: Scalar | Sequence[Scalar]) -> Need:
        """Return the same need for variants with these axis values only."""
        return replace(self, axes={name: _values(value) for name, value in axes.items()})

    def applies(self, axes: Axes) -> bool:
        """Say whether a variant with these axes has this need."""
        return all(axes.get(name) in values for name, values in self.axes.items())


class Budget(Record, frozen=True):
    """An absolute limit on a metric, set by the case's author and independent of any baseline."""

    metric: str
    most: float
    reason: str


class Declared(Record, frozen=True, kw_only=True):
    """What a case is wherever it is: in its pack, and as plain data."""

    name: str
    source: str = ""
    version: int = 1
    regime: Regime = Regime.PACED
    cold: bool = True
    needs: tuple[Need, ...] = ()
    budgets: tuple[Budget, ...] = ()
    tags: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    ranks: str = ""
    target: str = ""
    tunes: bool = False


class Case(Declared, frozen=True, kw_only=True):
    """A named workload with axes, as a pack declares it; lives only where the pack is loaded.

    ``points`` are its bindings, each with the first tier that it belongs to, and ``axes`` the
    values that they have. ``metrics`` declares what its workloads report besides the two clocks.
    ``ranks`` names the axis that holds how many ranks run one launch together, ``target`` the axis
    that holds a compilation target: such variants are stored by target, whatever machine they run
    on. ``canary`` binds all axes, by device, to the variant that watches the machine itself: it is
    measured at the start and the end of every run, whatever else is. ``tunes`` says that first
    launches are timed to choose a kernel (autotuning): they need the device to themselves.
    ``ceilings`` says, by link ("l2", "hbm", one way "hbm_read"), dtype of operations or what
    starts kernels ("launch", "graph_node"), which bindings show how fast it can be: their accepted
    times and ``work`` are what a SKU reaches.
    """

    build: Callable[..., Buildable]
    doc: str
    axes: Mapping[str, tuple[Scalar, ...]]
    points: tuple[tuple[Tier, Axes], ...]
    work: Callable[..., Work] | None = None
    memory_bytes: Callable[..., int] | None = None
    canary: Mapping[str, Axes] = {}
    ceilings: Mapping[str, Callable[..., bool]] = {}

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ValueError(f"case name {self.name!r} must match {NAME.pattern}")
        for axis in self.axes:
            if not NAME.match(axis):
                raise ValueError(f"axis {axis!r} of case {self.name!r} needs a plain name")
        for role in ("ranks", "target"):
            if (axis := getattr(self, role)) and axis not in self.axes:
                raise ValueError(f"{role}={axis!r} is not an axis of the case")
        for device, bound in self.canary.items():
            if set(bound) != set(self.axes):
                raise ValueError(f"the canary of {device!r} must bind each axis of the case once")


class CaseInfo(Declared, frozen=True, kw_only=True):
    """The plain data of a case that leaves the catalogue child."""

    pack: str
    doc: str
    file: str
    line: int
    axes: tuple[str, ...]


class Variant(Record, frozen=True, kw_only=True):
    """A case with every axis bound: the unit that runs, is stored and compared."""

    id: str
    case: CaseInfo
    axes: Mapping[str, Scalar]
    tier: Tier
    work: Work | None = None
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        for role in ("ranks", "target"):
            if (axis := getattr(self.case, role)) and axis not in self.axes:
                raise ValueError(f"variant {self.id!r} has no axis {axis!r}, its {role}")
        if self.case.ranks and type(self.axes[self.case.ranks]) is not int:
            raise ValueError(f"variant {self.id!r} has no whole number of ranks")

    @property
    def pack(self) -> str:
        """The pack the variant belongs to."""
        return self.case.pack

    @property
    def ranks(self) -> int:
        """How many ranks run one launch together; 1 where no gang is needed."""
        return int(self.axes[self.case.ranks]) if self.case.ranks else 1

    @property
    def is_gang(self) -> bool:
        """Say whether its launches are run by ranks, be it only one."""
        return bool(self.case.ranks)

    @property
    def target(self) -> str:
        """The compilation target it is about, or nothing."""
        return str(self.axes[self.case.target]) if self.case.target else ""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The needs that apply to these axes."""
        return tuple(need for need in self.case.needs if need.applies(self.axes))


def _values(value: Scalar | Sequence[Scalar]) -> tuple[Scalar, ...]:
    return (value,) if isinstance(value, (str, int, float)) else tuple(value)


def format_value(value: Scalar) -> str:
    """Return an axis value as it stands in an id."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def variant_id(pack: str, case: str, axes: Axes) -> str:
    """Return ``pack.case[axis=value,...]`` with the axes in declared order."""
    return f"{pack}.{case}[{','.join(f'{k}={format_value(v)}' for k, v in axes.items())}]"


# What a pack hands over as a whole: its variants, and the claims that relate them.


class Ratio(Record, frozen=True, kw_only=True):
    """What a claim says wherever it is: in its pack, and bound to two variants."""

    name: str
    by: float
    source: str
    needs: tuple[Need, ...] = ()
    metric: str = ""


class Claim(Ratio, frozen=True, kw_only=True):
    """A relation between variants with a ratio from a source.

    "Variants of ``case`` with axes ``faster`` take at most 1/``by`` of the time of those with axes
    ``than``", the other axes equal; ``at`` narrows it to some values of the other axes. With
    ``metric`` it is about that exact metric, as "peak_bytes", instead of the time. ``than`` may be
    the id of another case's variant, of any pack, as in "acme.copy[n={n},impl=torch]".
    """

    case: str
    faster: Mapping[str, Scalar]
    than: Mapping[str, Scalar] | str
    at: Mapping[str, tuple[Scalar, ...]] = {}

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"claim {self.name!r} names no source")
        if not isinstance(self.than, str) and set(self.faster) != set(self.than):
            raise ValueError(f"claim {self.name!r}: faster and than must bind the same axes")
        if not (self.by > 0 and is_measurable(self.by)):
            raise ValueError(f"claim {self.name!r}: by must be a number > 0, not {shown(self.by)}")


class Beats(Record, frozen=True):
    """What an implementation is expected to beat: ``impl`` by a ratio that a source names.

    ``impl`` is one of the operator's own, or the id of another case's variant, as in ``Claim``.
    A ``Claim`` comes of it, named ``name`` (the operator's where there is none) and who beats;
    ``at``, ``needs`` and ``metric`` are the claim's.
    """

    impl: str
    by: float
    source: str
    at: Mapping[str, Scalar | tuple[Scalar, ...]] = {}
    needs: tuple[Need, ...] = ()
    metric: str = ""
    name: str = ""


class ClaimInstance(Ratio, frozen=True, kw_only=True):
    """A claim bound to two variants."""

    id: str
    pack: str
    faster: str
    than: str
    file: str = ""
    line: int = 0


class Pack(Record, frozen=True, kw_only=True):
    """What is known of one pack: its variants, claims and kernels once it is listed, or an error.

    ``origin`` loads it again in a worker: ``module:NAME@FOLDER`` (FOLDER is put on sys.path; empty
    when the pack is installed) or ``file:PATH``. ``canaries`` are by device, ``ceilings`` by link,
    dtype or start. ``note`` says what of it was left out. ``controller`` is the module of its hooks
    for pytest's process. One that makes its cases of the kernels of all packs ``wants_kernels``.
    """

    name: str
    origin: str
    version: str = ""
    variants: tuple[Variant, ...] = ()
    claims: tuple[ClaimInstance, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False
    canaries: Mapping[str, tuple[Variant, ...]] = {}
    ceilings: Mapping[str, tuple[Variant, ...]] = {}
    controller: str = ""
    accelerator: Accelerator | None = None
    note: str = ""
    error: str = ""

    @property
    def place(self) -> str:
        """The file or folder that its code lies in; nothing where it is installed."""
        kind, _, value = self.origin.partition(":")
        return value if kind == "file" else value.partition("@")[2]

    @property
    def folder(self) -> str:
        """What its modules need on ``sys.path``; nothing where it is installed."""
        return str(Path(self.place).parent) if self.origin.startswith("file:") else self.place

    def refuse(self, what: str, *, remedy: str = "", at: str = "") -> PackError:
        """Return the error that names this pack; ``at`` is the case or claim inside it."""
        inside = f", {at}" if at else ""
        return PackError(what, where=f"pack {self.name!r} ({self.origin}){inside}", remedy=remedy)

    def check(self, at: str, faults: Iterable[tuple[str, str]]) -> None:
        """Raise the first fault, if there is one: what is wrong, and what to do about it."""
        for what, remedy in faults:
            raise self.refuse(what, remedy=remedy, at=at)


# What measuring yields: samples by process, and the facts of the device they come from.


# More input sets than this are never made, whatever a file says.
MOST_SETS = 256
Count = Annotated[int, Meta(ge=1)]
Sets = Annotated[int, Meta(ge=1, le=MOST_SETS)]


class Status(StrEnum):
    """How the run of a variant ended; what it means for speed is the verdict's business."""

    OK = "ok"
    WRONG = "wrong"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    DISTURBED = "disturbed"
    SKIPPED = "skipped"
    ERROR = "error"


class Stage(StrEnum):
    """Which measuring of a variant a result belongs to; stages share no process."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    CANARY_START = "canary-start"
    CANARY_END = "canary-end"

    @property
    def is_canary(self) -> bool:
        """Say whether the machine is measured, not what the run was asked for."""
        return self in {Stage.CANARY_START, Stage.CANARY_END}


class Policy(Record, frozen=True, kw_only=True):
    """The limits of the decision, as shares of 1; None takes those of the metric's kind.

    Slower and environment fail beyond the gate only. ``fail_on`` are words of verdicts and claims.
    """

    threshold: float | None = None
    gate: float | None = None
    fail_on: tuple[str, ...] = ("over-budget", "slower", "broken")


class Settings(Record, frozen=True, kw_only=True):
    """How a run measures and is judged; times in seconds unless the name says otherwise.

    ``processes`` screen a variant, ``confirm_processes`` confirm it; pairs come by half as many.
    A process takes a block of ``samples`` in each of its ``rounds``. Of a screen of what a
    device times itself, paced, ``screen_rounds`` are enough: what is left then is what processes
    and cards differ by. Blocks that the host times are short, and ``host_rounds`` as many.
    ``failing`` are the statuses that fail a run.
    """

    processes: Count = 2
    confirm_processes: Count = 6
    rounds: Count = 3
    screen_rounds: Count = 2
    host_rounds: Count = 18
    samples: Count = 16
    sample_us: float = 500.0
    settle_s: float = 3.0
    start_limit_s: float = 60.0
    prepare_limit_s: float = 120.0
    block_limit_s: float = 60.0
    check_only: bool = False
    seed: int = 0
    failing: tuple[str, ...] = ("crashed", "error", "timed-out", "wrong")
    policy: Policy = Policy()

    @property
    def asked(self) -> dict[str, str]:
        """What may be asked for by option or setting, as it is written; "" is not set."""
        limits = {"perf_threshold": self.policy.threshold, "perf_gate": self.policy.gate}
        words = ",".join((*self.policy.fail_on, *self.failing))
        told = {"--perf-fail-on": words, "--perf-processes": str(self.processes)}
        return told | {n: f"{100 * limit:g}" if limit else "" for n, limit in limits.items()}

    def rounds_of(self, stage: Stage, *, is_paced: bool, by_host: bool = False) -> int:
        """Return how many blocks a process takes, paced by a device's own clock or not.

        Of 932 comparisons between two H200s three blocks left 168 unclear, two 168, one 170; the
        changes that would be found, of 1.8 % in the middle, differed by 0.02 % between three and
        two. Blocks by a host's clock scatter more.
        """
        if self.check_only:
            return 0
        is_short = is_paced and stage is Stage.SCREEN
        rounds = self.host_rounds if by_host else self.rounds
        return min(rounds, self.screen_rounds) if is_short else rounds


class Health(Record, frozen=True, kw_only=True):
    """The state of a GPU around one block; None or empty where the device does not say."""

    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    reasons: tuple[str, ...] = ()
    foreign_percent: float | None = None


class Block(Record, frozen=True, kw_only=True):
    """The samples one worker took in one turn, per launch, in time order.

    ``time_us`` are microseconds, ``cycles`` SM cycles (empty on a device with one clock).
    ``voided`` counts samples thrown away because the device was disturbed. ``metrics`` holds the
    samples of other metrics by name: a scenario's own, or the device's time of awaited launches.
    """

    time_us: tuple[float, ...]
    cycles: tuple[float, ...] = ()
    voided: int = 0
    start_s: float = 0.0
    health: Health | None = None
    metrics: Mapping[MetricName, tuple[float, ...]] = {}


class Sampling(Record, frozen=True):
    """How launches make a sample: how many of them, over how many rotated input sets."""

    launches: Count
    sets: Sets

    def __str__(self) -> str:
        return f"{self.launches} launches over {self.sets} input sets"


class Evidence(Record, frozen=True, kw_only=True):
    """What one process has to say about a variant: the unit of evidence.

    ``launches`` is launches per sample, ``backend`` how they were issued (graph, loop, host),
    ``pace`` the spin as a multiple of the sample, ``sets`` the number of rotated input sets,
    ``error`` the relative error against the reference, ``work`` what was found to be that of a
    launch where its case declares none. ``exact`` holds metrics without noise,
    ``phases_s`` where the worker's wall time went, ``busy_s`` how long its samples' launches ran.
    """

    slot: int
    seed: int
    unit: str = ""
    launches: Count = 1
    backend: str = ""
    pace: float = 0.0
    sets: Sets = 1
    settled: bool = True
    error: float | None = None
    work: Work | None = None
    blocks: tuple[Block, ...] = ()
    exact: Mapping[MetricName, float] = {}
    phases_s: Mapping[str, float] = {}
    busy_s: float = 0.0
    artefact: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sampling(self) -> Sampling | None:
        """How it was sampled; None for what is counted or played, or was only checked."""
        is_launched = self.backend in {"graph", "loop", "host"}
        return Sampling(self.launches, self.sets) if is_launched else None

    def samples(self, metric: str) -> list[list[float]]:
        """Return the samples of ``time_us``, ``cycles`` or another metric, block by block."""
        if metric in CLOCKS:
            return [list(getattr(block, metric)) for block in self.blocks]
        return [list(block.metrics.get(metric, ())) for block in self.blocks]


class Result(Record, frozen=True, kw_only=True):
    """How one variant's measuring ended in one stage, with the evidence of each process.

    ``side`` is A for another revision's; ``claim`` is the id of one that it was measured for.
    """

    variant: str
    status: Status
    stage: Stage = Stage.SCREEN
    reason: str = ""
    output: str = ""
    evidence: tuple[Evidence, ...] = ()
    case_version: int = 1
    wall_s: float = 0.0
    side: Side = Side.B
    claim: str = ""

    @property
    def is_aside(self) -> bool:
        """Say whether it is no measuring of the run's own code as any run does it."""
        return self.side is Side.A or bool(self.claim)


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU as the inventory lists it, before anything is run on it."""

    index: int
    uuid: str
    name: str


class Sku(Record, frozen=True, kw_only=True):
    """The exact product that baselines are keyed by: a slug, and the facts that must match."""

    slug: str
    name: str
    facts: Mapping[str, str] = {}


class DeviceFacts(Record, frozen=True, kw_only=True):
    """What a device says of itself, as flat text.

    ``identity`` makes the SKU, ``state`` blocks a comparison when it differs, ``environment`` is
    shown as a diff. ``unit`` tells one card from another without naming it.
    """

    device: str
    name: str
    unit: str
    identity: Mapping[str, str]
    state: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    arch: str = ""
    gpus: int = 0
    memory_bytes: int = 0
    clocks: tuple[str, ...] = ("time_us",)
    features: tuple[str, ...] = ()

    @property
    def is_host(self) -> bool:
        """Say whether what is measured are the cores that everything else runs on."""
        return built_in(self.device).is_host


# What a run is a part of, what it was put together from, and what it had no room for.


class LeftOut(Record, frozen=True, kw_only=True):
    """A variant that a run was asked for and had no time for; ``cost_s`` is what it would take."""

    variant: str
    reason: str
    cost_s: float = 0.0


class Shard(Record, frozen=True, kw_only=True):
    """The share of a run that one machine measures: ``index`` of ``count``, from 1.

    ``total`` variants are divided, ``whole`` is a digest of their ids and the tier they are of.
    """

    index: int
    count: int
    total: int = 0
    whole: str = ""
    tier: str = ""

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Part(Record, frozen=True, kw_only=True):
    """A shard's run in a merged one: where it was measured, and how long that took."""

    run: str
    shard: Shard
    facts: DeviceFacts
    units: Mapping[str, str] = {}
    wall_s: float = 0.0
    is_whole: bool = True


# What a pack adds to the report of a run.


class Section(Record, frozen=True, kw_only=True):
    """A paragraph and a table under a title; all of it is shown as text, never as markup.

    ``columns`` are the heads of the table, ``rows`` have a cell for each of them.
    """

    title: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        cells = [self.title, self.text, *self.columns, *(cell for row in self.rows for cell in row)]
        if not all(isinstance(cell, str) for cell in cells):
            raise ValueError(f"section {self.title!r} holds what is no text")
        if not self.title.strip():
            raise ValueError("a section needs a title")
        if odd := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(
                f"section {self.title!r} has {len(self.columns)} columns and a row of {len(odd[0])}"
            )


# What a launch is made of: the kernels it runs, and the code of those that are our own.


def function_of(name: str) -> str:
    """Return a kernel's name without its type, the arguments of its template and its own."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return plain.partition("(")[0].partition("<")[0]


class TracedKernel(Record, frozen=True, kw_only=True):
    """A kernel that a launch runs ``count`` times, ``duration_us`` each (median), shaped alike.

    On the CPU it is one of torch's operators, without what those that it calls take.
    ``counters`` is what Nsight Compute counts of one run of it, where that was asked for:
    ``requests_read`` and ``requests_written`` of warps to global memory, the ``sectors_read`` and
    ``sectors_written`` (32 bytes each) that they touch, those of L2 and of DRAM whoever asks
    (``l2_sectors_read``, ``dram_sectors_written``...), and ``bank_conflicts`` of shared memory.
    """

    name: str
    count: float
    duration_us: float
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int = 0
    shared_bytes: int = 0
    counters: Mapping[str, float] = {}

    @property
    def function(self) -> str:
        """Its name without its type, the arguments of its template and its own."""
        return function_of(self.name)

    @property
    def total_us(self) -> float:
        """What it takes of one launch."""
        return self.count * self.duration_us


class Code(Record, frozen=True, kw_only=True):
    """The code of a kernel that is compiled here, by NVRTC or Triton.

    ``ptx`` is a hash of the PTX without line information, ``facts`` what the machine code takes
    and does (registers, spill_bytes, counts by class of opcode). ``diff`` is that of the PTX from
    what the run was compared with, where both texts were at hand.
    """

    name: str
    ptx: str
    facts: Mapping[str, float] = {}
    diff: str = ""

    @property
    def function(self) -> str:
        """Its name as a kernel of it has it."""
        return function_of(self.name)


class Trace(Record, frozen=True, kw_only=True):
    """The kernels of one launch of a variant; without any, ``reason`` says why."""

    variant: str
    side: Side = Side.B
    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()
    reason: str = ""


# What judging yields: baselines, changes and verdicts, each with its reason.


class Word(StrEnum):
    """The verdict on a variant that ended ok; unclear is never forced into one of the others."""

    # Glyph, tone (of report.view.TONES) and meaning; what needs a reader most stands first.
    OVER_BUDGET = "over-budget", ("!", "budget", "above the limit set by the case's author")
    SLOWER = "slower", ("▲", "slower", "slower by more than the threshold")
    ENVIRONMENT = "environment", ("≈", "budget", "the same code, and not what it measured before")
    UNCLEAR = "unclear", ("?", "unclear", "the evidence does not decide")
    INCOMPARABLE = "incomparable", ("≠", "other", "the baseline is of another kind")
    FASTER = "faster", ("▼", "faster", "faster by more than the threshold")
    NEW = "new", ("◇", "new", "nothing to compare with yet")
    SAME_CODE = "same-code", ("=", "same", "the same code; its environment is not judged")
    SAME = "same", ("=", "same", "no change that matters")

    look: tuple[str, str, str]

    def __new__(cls, word: str, look: tuple[str, str, str] = ("", "", "")) -> Self:
        """Return a word with how it looks."""
        self = str.__new__(cls, word)
        self._value_, self.look = word, look
        return self

    @property
    def moved(self) -> bool:
        """Say whether a change was found."""
        return self in {Word.SLOWER, Word.FASTER}

    @property
    def stayed(self) -> bool:
        """Say whether no change that matters was found."""
        return self in {Word.SAME, Word.SAME_CODE}

    @property
    def asks_why(self) -> bool:
        """Say whether its cause is looked for, in kernels and code."""
        return self.moved or self is Word.OVER_BUDGET


class Confirmation(StrEnum):
    """How a change was confirmed: by fresh processes, or in turns with the other side's code."""

    NONE = ""
    FRESH = "fresh processes"
    IN_TURNS = "A against B"


class Reason(Record, frozen=True):
    """Why a verdict is what it is: a kind and its facts, of which the report makes a sentence."""

    kind: str
    facts: Mapping[str, Scalar | tuple[str, ...]] = {}


def because(kind: str, **facts: Scalar | tuple[str, ...]) -> Reason:
    """Return the reason of a kind with its facts."""
    return Reason(kind, facts)


class ClaimWord(StrEnum):
    """What became of a claim."""

    HELD = "held"
    BROKEN = "broken"
    UNCLEAR = "unclear"
    NOT_APPLICABLE = "not applicable"


class BaselineMetric(Record, frozen=True, kw_only=True):
    """The accepted estimate of one metric of one variant on one SKU.

    ``center`` is in ``unit``; ``within`` and ``between`` are relative standard deviations inside a
    process and from process to process. ``values`` holds each process's estimate by card, in the
    same order for all metrics of an entry, so that time and cycles of one process stay together.
    """

    center: float
    unit: str
    better: Direction = "lower"
    within: Annotated[float, Meta(ge=0)] = 0.0
    between: Annotated[float, Meta(ge=0)] = 0.0
    values: Mapping[str, tuple[float, ...]] = {}

    def __post_init__(self) -> None:
        # What no measurement yields would be read as a huge change.
        if not all(self.values.values()):
            raise ValueError("a unit has no process")
        if self.values and min(self.center, *map(min, self.values.values())) <= 0:
            raise ValueError("a center or a value of a process is not above 0")


class BaselineEntry(Record, frozen=True, kw_only=True):
    """One variant's accepted metrics; ``run`` is the run of the reference, whose commit is side A.

    ``runs`` has the run that measured a card where that is another.
    ``sampling`` is how its samples were made, if that is known: a later run samples alike.
    ``work`` is what was found to be that of a launch, where the case declares none.
    ``kernels`` are those of a launch, ``codes`` the code of our own among them, if it was traced.
    """

    variant: str
    case_version: int
    run: str
    metrics: Mapping[str, BaselineMetric]
    runs: Mapping[str, str] = {}
    regime: str = "paced"
    state: Mapping[str, str] = {}
    artefact: str = ""
    sampling: Sampling | None = None
    work: Work | None = None
    kernels: tuple[TracedKernel, ...] = ()
    codes: tuple[Code, ...] = ()

    def __post_init__(self) -> None:
        for name in self.metrics:
            Metric(name)  # refuses a bad name, and says which
        rows = [metric.values for metric in self.metrics.values() if metric.values]
        counts = [{unit: len(row) for unit, row in values.items()} for values in rows]
        if any(each != counts[0] for each in counts):
            raise ValueError("its metrics are of different processes")
        if not self.runs.keys() <= self.cards:
            raise ValueError("it names the run of a card of which it has no process")

    @property
    def cards(self) -> frozenset[str]:
        """The cards whose processes it has."""
        return frozenset(card for metric in self.metrics.values() for card in metric.values)

    def run_of(self, cards: Iterable[str]) -> str:
        """Return the run that measured the first of these that it knows, else the reference's."""
        return self.runs.get(next((each for each in cards if each in self.cards), ""), self.run)


# Files of before hold p values and cards of verdicts, too.
class Change(Record, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """How far a metric moved; ``theta``, ``low`` and ``high`` are relative, positive is worse.

    ``theta`` is the change of the code with the clock's own movement taken out;
    ``time_change`` and ``clock_change`` are the raw log changes of time and SM clock.
    ``detectable`` is the smallest change that would have been found nine times in ten.
    """

    metric: str
    unit: str
    baseline: float
    current: float
    theta: float
    low: float
    high: float
    threshold: float
    gate: float
    detectable: float
    time_change: float = 0.0
    clock_change: float = 0.0
    beta: float = 0.0
    degrees: float = 0.0


class Excepted(Record, frozen=True, kw_only=True):
    """Why a verdict fails no run: ``kind`` is waiver or quarantine, ``until`` an ISO date.

    A waiver has its ``issue``, and ``up_to`` which relative change it holds.
    """

    kind: str
    until: str
    reason: str
    issue: str = ""
    up_to: float | None = None

    @property
    def short(self) -> str:
        """What fits beside a number."""
        word = {"waiver": "waived", "quarantine": "quarantined"}.get(self.kind, self.kind)
        return f"{word} until {self.until}"

    def __str__(self) -> str:
        limit = "" if self.up_to is None else f" up to {100 * self.up_to:+.1f} %"
        issue = f" ({self.issue})" if self.issue else ""
        return f"{self.short}{limit}: {self.reason}{issue}"


class Judged(Record, frozen=True, kw_only=True):
    """What any verdict has: its reasons, their sentence, and whether the run fails for it.

    The sentence, ``reason``, is made by the report for packs and people: no code reads it.
    """

    reason: str = ""
    reasons: tuple[Reason, ...] = ()
    fails: bool = False


class Verdict(Judged, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The word on one variant with its reasons.

    ``source`` is what it was compared with ("baseline nvidia-h200", "first run 2026..."), or the
    other side of the same run if ``in_turns``. ``excepted`` is the waiver or quarantine by
    which it fails nothing.
    """

    variant: str
    word: Word
    changes: tuple[Change, ...] = ()
    source: str = ""
    in_turns: bool = False
    confirmation: Confirmation = Confirmation.NONE
    excepted: Excepted | None = None

    @property
    def is_compared(self) -> bool:
        """Say whether a number of the variant was held against one of its source."""
        return bool(self.changes) or any(each.kind == "counted" for each in self.reasons)


class ClaimVerdict(Judged, frozen=True, kw_only=True):
    """What became of a claim: the time ratio found, with its interval, and the ratio asked for."""

    claim: str
    word: ClaimWord
    required: float
    source: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


class Expected(Record, frozen=True, kw_only=True):
    """What a variant is held against: an accepted entry, or else that of the first run.

    ``source`` says in words where the entry comes from; ``commit`` is that of its run, ``source_a``
    the code that was measured, which can be side A again. ``environment`` is where the card at hand
    was measured, if the entry knows it, else the reference. ``elsewhere`` are the entry's cards
    that were measured in another environment, ``board_mates`` those of the boards at hand.
    ``why_not`` says why it may not be compared. ``slug`` is the SKU whose baselines it may be
    compared with, "" if there are none. What is ``in_turns`` was measured in the same run: A
    against B.
    """

    entry: BaselineEntry | None = None
    source: str = ""
    commit: str = ""
    environment: Mapping[str, str] = {}
    source_a: Source | None = None
    elsewhere: frozenset[str] = frozenset()
    board_mates: frozenset[str] = frozenset()
    why_not: Reason | None = None
    slug: str = ""
    in_turns: bool = False


class VariantRun(Record, frozen=True, kw_only=True):
    """All that a run knows of one variant.

    ``results`` are in the order they were measured, those of the revision that it is compared with
    and those for claims among them. ``left_out`` says why the run's time had no room for it.
    """

    variant: Variant
    expected: Expected = Expected()
    results: tuple[Result, ...] = ()
    verdict: Verdict | None = None
    traces: tuple[Trace, ...] = ()
    left_out: LeftOut | None = None

    @property
    def id(self) -> str:
        """The variant's id."""
        return self.variant.id

    @property
    def entry(self) -> BaselineEntry | None:
        """The entry that it is compared with."""
        return self.expected.entry

    @property
    def is_built_anew(self) -> bool:
        """Say whether what it was compiled to is known to be another than its entry's."""
        artefacts = {process.artefact for process in self.last.evidence} if self.last else set()
        return bool(self.entry and self.entry.artefact and artefacts - {self.entry.artefact, ""})

    def result(self, stage: Stage, side: Side = Side.B) -> Result | None:
        """Return how a stage ended: of what was measured again, the last time."""
        found = [r for r in self.results if r.stage is stage and r.side is side and not r.claim]
        return found[-1] if found else None

    def ended(self, side: Side = Side.B) -> Result | None:
        """Return how a side ended: its confirmation, if there was one, else its screen.

        Of sides that took turns a confirmation goes on where the screen ended: all count.
        """
        screen, confirm = self.result(Stage.SCREEN, side), self.result(Stage.CONFIRM, side)
        if screen and confirm and self.is_paired and confirm.status is Status.OK:
            return replace(confirm, evidence=(*screen.evidence, *confirm.evidence))
        return confirm or screen

    @property
    def last(self) -> Result | None:
        """How it ended."""
        return self.ended()

    @property
    def is_paired(self) -> bool:
        """Say whether side A of the same run was measured with it."""
        return any(each.side is Side.A and not each.claim for each in self.results)

    def trace(self, side: Side = Side.B) -> Trace | None:
        """Return the last trace of a side."""
        return next((each for each in self.traces[::-1] if each.side is side), None)


class Run(Record, frozen=True, kw_only=True):
    """One ``pytest --perf`` session: all that a report, a comparison or an acceptance reads.

    ``canaries`` watch the machine: they are measured but no part of what was asked for, unless
    ``variants`` has them too. ``phases_s`` is the controller's own wall time, ``forecasts`` how
    many seconds were said to be left, so many seconds after the start. ``code`` is a digest
    of the code that ran, which a resumed run must share; ``sources`` say by pack where it came
    from. ``boards`` are the part numbers of its units' boards, "" where none is known. ``remote``
    is the web address of the repository that ``commit`` is of, if there is one.
    ``shard`` is the share of a whole that it measured, ``parts`` are the shards that it was
    put together from.
    """

    id: str
    started: str
    command: str
    sku: Sku
    facts: DeviceFacts
    settings: Settings
    variants: tuple[VariantRun, ...] = ()
    instances: tuple[ClaimInstance, ...] = ()
    claims: tuple[ClaimVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    finished: str = ""
    wall_s: float = 0.0
    commit: str = ""
    remote: str = ""
    code: str = ""
    sources: Mapping[str, Source] = {}
    boards: Mapping[str, str] = {}
    units: Mapping[str, str] = {}
    against: Revision | None = None
    canaries: tuple[VariantRun, ...] = ()
    phases_s: Mapping[str, float] = {}
    forecasts: tuple[tuple[float, float], ...] = ()
    shard: Shard | None = None
    parts: tuple[Part, ...] = ()

    @property
    def every(self) -> tuple[VariantRun, ...]:
        """The variants and canaries."""
        return (*self.variants, *self.canaries)

    @property
    def results(self) -> tuple[Result, ...]:
        """The results of the code under test, variant by variant, canaries last."""
        return tuple(r for one in self.every for r in one.results if not r.is_aside)

    @property
    def aside(self) -> tuple[Result, ...]:
        """The results of the revision that it is compared with, and those for claims.

        No other run is ever compared with them.
        """
        return tuple(r for one in self.every for r in one.results if r.is_aside)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts, in the order of the variants."""
        return tuple(one.verdict for one in self.variants if one.verdict)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The traces, variant by variant."""
        return tuple(trace for one in self.variants for trace in one.traces)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What had no room in the run's time limit."""
        return tuple(one.left_out for one in self.variants if one.left_out)

    def having(
        self,
        *,
        results: Iterable[Result] | None = None,
        verdicts: Iterable[Verdict] | None = None,
        traces: Iterable[Trace] | None = None,
        left_out: Iterable[LeftOut] | None = None,
    ) -> Run:
        """Return the run with these in place of all that its variants have of the kind.

        What is of no variant of the run is a ValueError.
        """
        given = {"results": results, "verdict": verdicts, "traces": traces, "left_out": left_out}
        kinds = {name: values for name, values in given.items() if values is not None}
        found: dict[str, dict[str, list[Any]]] = {
            one.id: {kind: [] for kind in kinds} for one in self.every
        }
        for kind, values in kinds.items():
            for value in values:
                if value.variant not in found:
                    raise ValueError(f"the run has no variant {value.variant!r}")
                found[value.variant][kind].append(value)

        def changed(one: VariantRun, *, is_canary: bool) -> VariantRun:
            changes: dict[str, Any] = {}
            for kind, own in found[one.id].items():
                if kind == "results":
                    measured = tuple(r for r in own if r.stage.is_canary is is_canary)
                    work = next((e.work for r in measured for e in r.evidence if e.work), None)
                    variant = replace(one.variant, work=one.variant.work or work)
                    changes |= {kind: measured, "variant": variant}
                elif not is_canary:
                    changes[kind] = tuple(own) if kind == "traces" else own[-1] if own else None
            return replace(one, **changes)

        return replace(
            self,
            variants=tuple(changed(one, is_canary=False) for one in self.variants),
            canaries=tuple(changed(one, is_canary=True) for one in self.canaries),
        )

    @property
    def is_dirty(self) -> bool:
        """Say whether its code is in no commit."""
        return self.commit.endswith(DIRTY)

    @property
    def asked(self) -> tuple[Result, ...]:
        """The results of what the run was asked for, variant by variant."""
        return tuple(result for result in self.results if not result.stage.is_canary)

    @property
    def gaps(self) -> tuple[str, ...]:
        """That it was interrupted, or the shards that a merged run lacks or has in part only."""
        if not self.parts:
            return () if self.finished else ("the run was interrupted",)
        whole = self.parts[0].shard
        there = {part.shard.index: part for part in self.parts}
        cut = [str(part.shard) for part in self.parts if not part.is_whole]
        lacking = whole.total - len(self.variants)
        # A shard may have nothing to measure, and leave no run.
        missing = [n for n in range(1, whole.count + 1) if lacking and n not in there]
        return (
            *(f"shard {n}/{whole.count} is missing" for n in missing),
            *(f"shard {name} was interrupted" for name in cut),
            *([f"{lacking} of {whole.total} variants are not in this run"] if lacking else []),
        )


def cards_of(run: Run) -> tuple[str, ...]:
    """Return the units of a run, as far as it knows before it measures: the first one's first."""
    return tuple(dict.fromkeys((run.facts.unit, *run.boards)))


# Times as people write them: 90s, 30m, 1h30m.


UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)"
_TIME = re.compile(rf"(?:{_PART}h)?(?:{_PART}m)?(?:{_PART}s)?\Z", re.ASCII)


def seconds_of(text: str) -> float:
    """Return the seconds of ``1h30m``; raises ValueError where there are none."""
    match = _TIME.match(text)
    parts = match.groups("0") if match else ()
    found = sum(float(part) * unit for part, unit in zip(parts, UNITS.values(), strict=False))
    if not found:
        raise ValueError(f"{text!r} is no time")
    return found


def words_of(seconds: float) -> str:
    """Return seconds as they are written: ``1h30m``; what is below a second is left off."""
    left, found = round(seconds), ""
    for unit, each_s in UNITS.items():
        count, left = divmod(left, int(each_s))
        found += f"{count}{unit}" if count else ""
    return found or "0s"
