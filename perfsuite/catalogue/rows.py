"""What the controller and the catalogue child say to each other, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from perfsuite.model import CaseInfo, ClaimInstance, Kernel, Scalar, Tier, Variant, Work
from perfsuite.packs import PackSource


@dataclass(frozen=True, slots=True)
class Request:
    """What the controller asks of the child; ``paths`` is the controller's ``sys.path``.

    A pack whose import brings in a module of ``heavy`` is refused.
    """

    sources: tuple[PackSource, ...]
    tier: Tier
    time_limit_s: float
    heavy: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """What the child itself reads of a pack's listing: enough to know who is to be asked again."""

    origin: str
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One variant without its case: the values of its axes in declared order."""

    id: str
    values: tuple[Scalar, ...]
    tier: Tier
    work: Work | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CaseListing:
    """One case with its variants, the case's own data once; canaries are by device."""

    info: CaseInfo
    rows: tuple[Row, ...]
    canaries: Mapping[str, Row] = field(default_factory=dict)

    def variant(self, row: Row) -> Variant:
        """Return a row with its case."""
        return Variant(
            id=row.id,
            case=self.info,
            axes=dict(zip(self.info.axes, row.values, strict=True)),
            tier=row.tier,
            work=row.work,
            memory_bytes=row.memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class PackListing:
    """All of one pack, by the origin that was asked for, or why there is nothing.

    ``kernels`` are the pack's own; ``given`` are those of all packs if it wants them.
    """

    origin: str
    cases: tuple[CaseListing, ...] = ()
    claims: tuple[ClaimInstance, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    wants_kernels: bool = False
    given: tuple[Kernel, ...] = ()
    error: str = ""

    def variants(self) -> tuple[Variant, ...]:
        """Return the variants of all cases, in declared order."""
        return tuple(case.variant(row) for case in self.cases for row in case.rows)

    def canaries(self) -> dict[str, tuple[Variant, ...]]:
        """Return the variants that watch the machine, by device."""
        found: dict[str, tuple[Variant, ...]] = {}
        for case in self.cases:
            for device, row in case.canaries.items():
                found[device] = (*found.get(device, ()), case.variant(row))
        return found
