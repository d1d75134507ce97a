"""What a pack hands over as a whole: its variants, and the claims that relate them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsuite.model.accelerator import Accelerator
from perfsuite.model.case import Need, Scalar, Variant
from perfsuite.model.metric import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A relation between variants with a ratio from a source.

    "Variants of ``case`` with axes ``faster`` take at most 1/``by`` of the time of those with axes
    ``than``", the other axes equal; ``at`` narrows it to some values of the other axes. With
    ``metric`` it is about that exact metric, as "peak_bytes", instead of the time.
    """

    name: str
    case: str
    faster: Mapping[str, Scalar]
    than: Mapping[str, Scalar]
    by: float
    source: str
    at: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    needs: tuple[Need, ...] = ()
    metric: str = ""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"claim {self.name!r} names no source")
        if set(self.faster) != set(self.than):
            raise ValueError(f"claim {self.name!r}: faster and than must bind the same axes")
        if not self.by > 0:
            raise ValueError(f"claim {self.name!r}: by must be > 0, not {self.by!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimInstance:
    """A claim bound to two variants."""

    id: str
    pack: str
    name: str
    faster: str
    than: str
    by: float
    source: str
    needs: tuple[Need, ...] = ()
    file: str = ""
    line: int = 0
    metric: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What the catalogue knows of one pack: its variants, claims and kernels, or why it has none.

    ``origin`` loads it again in a worker: ``module:NAME@FOLDER`` (FOLDER is put on sys.path; empty
    when the pack is installed) or ``file:PATH``. ``canaries`` are by device, ``ceilings`` by link,
    dtype or start. ``controller`` is the module of its hooks for pytest's process.
    """

    name: str
    origin: str
    version: str = ""
    variants: tuple[Variant, ...] = ()
    claims: tuple[ClaimInstance, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    canaries: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    ceilings: Mapping[str, tuple[Variant, ...]] = field(default_factory=dict)
    controller: str = ""
    accelerator: Accelerator | None = None
    error: str = ""
