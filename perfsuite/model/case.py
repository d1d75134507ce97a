"""What a pack declares: cases, variants, claims and the work they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from perfsuite.model.metric import Metric
from perfsuite.model.workload import Buildable

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


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch must do: bytes moved to and from memory, and floating-point operations.

    ``rate_dtype`` names the tensor-core or vector rate the operations run at ("bf16", "fp8",
    "fp32", ...). ``link`` is what the bytes travel on: "hbm", "pcie" or "nvlink"; or what on the
    chip hands them over: "l2" or "shared". ``kernels`` are run one behind the other where that is
    what takes the time; ``start`` says from where: "launch", a stream, or "graph_node", a graph.
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
            if not getattr(self, name) >= 0:
                raise ValueError(f"Work.{name} must be >= 0, not {getattr(self, name)!r}")

    @property
    def bytes(self) -> float:
        """Bytes moved per launch, both directions."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement of a case: ``kind`` is device, arch, gpus, package or feature.

    ``when`` limits it to variants whose axes have one of the listed values.
    """

    kind: str
    value: str
    axes: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    def when(self, **axes: Scalar | Sequence[Scalar]) -> Need:
        """Return the same need for variants with these axis values only."""
        return replace(self, axes={name: _values(value) for name, value in axes.items()})

    def applies(self, axes: Axes) -> bool:
        """Say whether a variant with these axes has this need."""
        return all(axes.get(name) in values for name, values in self.axes.items())


@dataclass(frozen=True, slots=True)
class Budget:
    """An absolute limit on a metric, set by the case's author and independent of any baseline."""

    metric: str
    most: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A named workload with axes, as a pack declares it; lives only where the pack is loaded.

    ``only`` says which bindings exist, ``waits`` which of the smoke tier's are left to nightly.
    What has for each axis of one of ``full_only`` one of its values is left to the full tier.
    ``metrics`` declares what its workloads report besides the two clocks. ``ranks`` names the
    axis that holds how many ranks run one launch together, ``target`` the axis that holds a
    compilation target: such variants are stored by target, whatever machine they run on.
    ``canary`` binds all axes, by device, to the variant that watches the machine itself: it is
    measured at the start and the end of every run, whatever else is. ``tunes`` says that first
    launches are timed to choose a kernel (autotuning): they need the device to themselves.
    ``ceilings`` says, by link ("l2", "hbm", one way "hbm_read"), dtype of operations or what
    starts kernels ("launch", "graph_node"), which bindings show how fast it can be: their accepted
    times and ``work`` are what a SKU reaches.
    """

    name: str
    build: Callable[..., Buildable]
    axes: Mapping[str, tuple[Scalar, ...]]
    smoke: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    full: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    only: Callable[..., bool] | None = None
    waits: Callable[..., bool] | None = None
    full_only: tuple[Mapping[str, tuple[Scalar, ...]], ...] = ()
    needs: tuple[Need, ...] = ()
    work: Callable[..., Work] | None = None
    memory_bytes: Callable[..., int] | None = None
    source: str = ""
    version: int = 1
    regime: Regime = Regime.PACED
    cold: bool = True
    budgets: tuple[Budget, ...] = ()
    tags: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    ranks: str = ""
    target: str = ""
    canary: Mapping[str, Axes] = field(default_factory=dict)
    tunes: bool = False
    ceilings: Mapping[str, Callable[..., bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ValueError(f"case name {self.name!r} must match {NAME.pattern}")
        for tier in (self.axes, self.smoke, self.full, *self.full_only):
            for axis, values in tier.items():
                if axis not in self.axes:
                    raise ValueError(f"axis {axis!r} of a tier is not an axis of the case")
                if not NAME.match(axis) or not values:
                    raise ValueError(f"axis {axis!r} needs a plain name and at least one value")
        _check_roles(self)
        for device, bound in self.canary.items():
            if set(bound) != set(self.axes):
                raise ValueError(f"the canary of {device!r} must bind each axis of the case once")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInfo:
    """The plain data of a case that leaves the catalogue child."""

    pack: str
    name: str
    doc: str
    file: str
    line: int
    source: str
    version: int
    regime: Regime
    cold: bool
    needs: tuple[Need, ...]
    budgets: tuple[Budget, ...]
    tags: tuple[str, ...]
    axes: tuple[str, ...]
    metrics: tuple[Metric, ...] = ()
    ranks: str = ""
    target: str = ""
    tunes: bool = False

    def __post_init__(self) -> None:
        _check_roles(self)


def _check_roles(case: Case | CaseInfo) -> None:
    for role in ("ranks", "target"):
        if (axis := getattr(case, role)) and axis not in case.axes:
            raise ValueError(f"{role}={axis!r} is not an axis of the case")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
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
    for name, value in axes.items():
        if not VALUE.match(format_value(value)):
            raise ValueError(f"axis {name!r} has value {value!r}, which must match {VALUE.pattern}")
    return f"{pack}.{case}[{','.join(f'{k}={format_value(v)}' for k, v in axes.items())}]"
