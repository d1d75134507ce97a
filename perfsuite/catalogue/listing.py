"""What leaves the catalogue child: a pack's cases, variants and claims as plain data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from perfsuite.boundary import MAGNITUDE, MOST_WHOLE, TEXT_CHARACTERS, is_measurable, shown
from perfsuite.catalogue.tiers import bindings, is_full_only
from perfsuite.errors import PackError
from perfsuite.model import (
    Accelerator,
    Axes,
    Case,
    CaseInfo,
    Claim,
    ClaimInstance,
    Kernel,
    Tier,
    Variant,
    Work,
    variant_id,
)
from perfsuite.packs import LoadedPack, PackSource

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
    cases = {case.name: _variants(source, case, tier) for case in loaded.cases.values()}
    return PackListing(
        origin=source.origin,
        variants=tuple(variant for variants in cases.values() for variant in variants),
        claims=tuple(one for claim in loaded.claims for one in _bindings(cases[claim.case], claim)),
        canaries=_canaries(source, loaded),
        ceilings=_ceilings(source, loaded),
        kernels=loaded.kernels,
        wants_kernels=loaded.wants_kernels,
        controller=loaded.controller,
        accelerator=loaded.accelerator,
    )


def _variants(source: PackSource, case: Case, tier: Tier) -> list[Variant]:
    where = f"pack {source.name!r} ({source.origin}), case {case.name!r}"
    info = _info(source.name, case)
    found: dict[str, Variant] = {}
    for axes, first in bindings(case, tier):
        name = variant_id(source.name, case.name, axes)
        if name in found or not (case.only is None or _called(case.only, axes, "only", where)):
            continue
        own = _own_tier(case, axes, first, where)
        if _ORDER.index(own) <= _ORDER.index(tier):
            found[name] = _variant(case, info, axes, tier=own, where=where)
    return list(found.values())


def _own_tier(case: Case, axes: Axes, first: Tier, where: str) -> Tier:
    """Return the tier of a binding, whose values are ``first`` of that tier."""
    if is_full_only(case, axes):
        return Tier.FULL
    waits = first is Tier.SMOKE and case.waits and _called(case.waits, axes, "waits", where)
    return Tier.NIGHTLY if waits else first


def _canaries(source: PackSource, loaded: LoadedPack) -> dict[str, tuple[Variant, ...]]:
    found: dict[str, tuple[Variant, ...]] = {}
    for case in loaded.cases.values():
        where = f"pack {source.name!r} ({source.origin}), case {case.name!r}"
        info = _info(source.name, case)
        for device, bound in case.canary.items():
            axes = {axis: bound[axis] for axis in case.axes}
            one = _variant(case, info, axes, tier=Tier.FULL, where=where)
            found[device] = (*found.get(device, ()), one)
    return found


def _ceilings(source: PackSource, loaded: LoadedPack) -> dict[str, tuple[Variant, ...]]:
    found: dict[str, tuple[Variant, ...]] = {}
    for case in (each for each in loaded.cases.values() if each.ceilings):
        where = f"pack {source.name!r} ({source.origin}), case {case.name!r}"
        every = _variants(source, case, Tier.FULL)
        for name, shows in case.ceilings.items():
            part = f"ceilings[{name!r}]"
            own = tuple(each for each in every if _called(shows, each.axes, part, where))
            found[name] = (*found.get(name, ()), *own)
    return found


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
    names = {field.name for field in fields(CaseInfo)}
    declared = {field.name: getattr(case, field.name) for field in fields(case)}
    told = {
        "pack": pack,
        "doc": inspect.cleandoc(case.build.__doc__ or ""),
        "file": _place(code.co_filename) if code else "",
        "line": code.co_firstlineno if code else 0,
        "axes": tuple(case.axes),
    }
    return CaseInfo(**{name: value for name, value in (declared | told).items() if name in names})


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
