"""What a pack declares: cases, variants, claims and the work they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

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
    """The conditions a variant is measured in; results of two regimes are never compared."""

    PACED = "paced"
    SUSTAINED = "sustained"
    END_TO_END = "end_to_end"


@dataclass(frozen=True, slots=True)
class Work:
    """What one launch must do: bytes moved to and from memory, and floating-point operations.

    ``rate_dtype`` names the tensor-core or vector rate the operations run at ("bf16", "fp8",
    "fp32", ...). ``link`` is "hbm" or "pcie": the wire the bytes travel on.
    """

    read_bytes: float = 0
    write_bytes: float = 0
    flops: float = 0
    rate_dtype: str = ""
    link: str = "hbm"

    def __post_init__(self) -> None:
        for name in ("read_bytes", "write_bytes", "flops"):
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
class Workload:
    """One built variant: what to launch, on what, and how to know that it is right.

    ``make_inputs(rng)`` returns the arguments of one launch; tensors from ``rng.empty`` are
    outputs and are poisoned before each check. ``fn(*inputs)`` is one launch; what it returns, or
    else its outputs, is compared with ``reference(*inputs)``, which is independent and of higher
    precision. ``wrong(*inputs)`` is the negative control: it has the signature of ``fn``, makes
    the mistake a real bug would make, and the reference must refuse it.

    ``tolerance`` is the relative L2 error allowed (None: by the output's dtype; 0: equal to the
    bit). ``captures=False`` keeps ``fn`` out of CUDA graphs. ``rotates=False`` says that the inputs
    are too large or too stateful to copy, so that coldness comes from a flush.
    """

    fn: Callable[..., Any]
    make_inputs: Callable[[Any], tuple[Any, ...]]
    reference: Callable[..., Any]
    wrong: Callable[..., Any]
    tolerance: float | None = None
    captures: bool = True
    rotates: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A named workload with axes, as a pack declares it; lives only where the pack is loaded."""

    name: str
    build: Callable[..., Workload]
    axes: Mapping[str, tuple[Scalar, ...]]
    smoke: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    full: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    only: Callable[..., bool] | None = None
    needs: tuple[Need, ...] = ()
    work: Callable[..., Work] | None = None
    memory_bytes: Callable[..., int] | None = None
    source: str = ""
    version: int = 1
    regime: Regime = Regime.PACED
    cold: bool = True
    budgets: tuple[Budget, ...] = ()
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.match(self.name):
            raise ValueError(f"case name {self.name!r} must match {NAME.pattern}")
        for tier in (self.axes, self.smoke, self.full):
            for axis, values in tier.items():
                if axis not in self.axes:
                    raise ValueError(f"axis {axis!r} of a tier is not an axis of the case")
                if not NAME.match(axis) or not values:
                    raise ValueError(f"axis {axis!r} needs a plain name and at least one value")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A case with every axis bound: the unit that runs, is stored and compared."""

    id: str
    case: CaseInfo
    axes: Mapping[str, Scalar]
    tier: Tier
    work: Work | None = None
    memory_bytes: int = 0

    @property
    def pack(self) -> str:
        """The pack the variant belongs to."""
        return self.case.pack

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
