"""What leaves the catalogue child: a pack's cases, variants and claims as plain data."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfsuite.errors import PackError
from perfsuite.model import (
    Axes,
    Case,
    CaseInfo,
    Claim,
    ClaimInstance,
    Kernel,
    Scalar,
    Tier,
    Variant,
    Work,
    variant_id,
)
from perfsuite.packs import LoadedPack, PackSource

T = TypeVar("T")


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
class Row:
    """One variant without its case: the values of its axes in declared order."""

    id: str
    values: tuple[Scalar, ...]
    tier: Tier
    work: Work | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class CaseListing:
    """One case with its variants, the case's own data once."""

    info: CaseInfo
    rows: tuple[Row, ...]


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
        return tuple(
            Variant(
                id=row.id,
                case=case.info,
                axes=dict(zip(case.info.axes, row.values, strict=True)),
                tier=row.tier,
                work=row.work,
                memory_bytes=row.memory_bytes,
            )
            for case in self.cases
            for row in case.rows
        )


def list_pack(source: PackSource, loaded: LoadedPack, tier: Tier) -> PackListing:
    """Expand a loaded pack's cases and claims; what its own formulas raise is a ``PackError``."""
    cases = tuple(_list_case(source, case, tier) for case in loaded.cases.values())
    by_name = {case.info.name: case for case in cases}
    claims = tuple(
        instance
        for claim in loaded.claims
        for instance in _bindings(source.name, by_name[claim.case], claim)
    )
    return PackListing(source.origin, cases, claims, loaded.kernels, loaded.wants_kernels)


def _list_case(source: PackSource, case: Case, tier: Tier) -> CaseListing:
    where = f"pack {source.name!r} ({source.origin}), case {case.name!r}"
    rows: dict[str, Row] = {}
    for axes, first in _bound(case, tier):
        name = variant_id(source.name, case.name, axes)
        if name in rows or not (case.only is None or _called(case.only, axes, "only", where)):
            continue
        rows[name] = Row(
            name,
            tuple(axes.values()),
            first,
            _work(case, axes, where),
            _memory_bytes(case, axes, where),
        )
    return CaseListing(_info(source.name, case), tuple(rows.values()))


def _bound(case: Case, tier: Tier) -> Iterator[tuple[dict[str, Scalar], Tier]]:
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
    if not isinstance(work, Work) or not math.isfinite(work.bytes + work.flops):
        raise PackError(
            f"work({_bound_text(axes)}) returned {work!r}",
            where=where,
            remedy="return a perfsuite.Work with finite numbers",
        )
    return work


def _memory_bytes(case: Case, axes: Axes, where: str) -> int:
    if case.memory_bytes is None:
        return 0
    size: Any = _called(case.memory_bytes, axes, "memory_bytes", where)
    if not isinstance(size, (int, float)) or not 0 <= size < math.inf:
        raise PackError(
            f"memory_bytes({_bound_text(axes)}) returned {size!r}",
            where=where,
            remedy="return the bytes of memory one process of the variant needs",
        )
    return int(size)


def _info(pack: str, case: Case) -> CaseInfo:
    build: Any = inspect.unwrap(getattr(case.build, "func", case.build))
    code = getattr(build, "__code__", None)
    return CaseInfo(
        pack=pack,
        name=case.name,
        doc=inspect.cleandoc(case.build.__doc__ or ""),
        file=_place(code.co_filename) if code else "",
        line=code.co_firstlineno if code else 0,
        source=case.source,
        version=case.version,
        regime=case.regime,
        cold=case.cold,
        needs=case.needs,
        budgets=case.budgets,
        tags=case.tags,
        axes=tuple(case.axes),
        metrics=case.metrics,
        ranks=case.ranks,
        target=case.target,
    )


def _bindings(pack: str, case: CaseListing, claim: Claim) -> Iterator[ClaimInstance]:
    """Yield the claim once per binding of the other axes whose two variants both exist."""
    ids = {row.values: row.id for row in case.rows}
    for row in case.rows:
        axes = dict(zip(case.info.axes, row.values, strict=True))
        than = ids.get(tuple({**axes, **claim.than}.values()))
        is_meant = all(axes[axis] == value for axis, value in claim.faster.items()) and all(
            axes[axis] in values for axis, values in claim.at.items()
        )
        if than is None or not is_meant:
            continue
        others = {axis: value for axis, value in axes.items() if axis not in claim.faster}
        yield ClaimInstance(
            id=variant_id(pack, f"{case.info.name}:{claim.name}", others),
            pack=pack,
            name=claim.name,
            faster=row.id,
            than=than,
            by=claim.by,
            source=claim.source,
            needs=claim.needs,
            file=case.info.file,
            line=case.info.line,
        )


def _place(file: str) -> str:
    """Return a path that means the same on other machines, and does not tell whose this one is."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return Path(*path.parts[-2:]).as_posix()
