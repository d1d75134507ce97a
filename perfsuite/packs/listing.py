"""What a pack declares, expanded to variants and claims as plain data."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perfsuite.boundary import (
    MAGNITUDE,
    MOST_WHOLE,
    TEXT_CHARACTERS,
    PackError,
    StoreError,
    is_measurable,
    shown,
)
from perfsuite.model import (
    Axes,
    Case,
    CaseInfo,
    Claim,
    ClaimInstance,
    Declared,
    Kernel,
    Pack,
    Tier,
    Variant,
    Work,
    variant_id,
)
from perfsuite.packs.load import LoadedPack
from perfsuite.store.codec import encode, read_json

T = TypeVar("T")
_ORDER = tuple(Tier)


class Listing(Struct, frozen=True):
    """A pack to be listed; ``paths`` is the asker's ``sys.path``, ``front`` stands before it.

    A pack whose import brings in a module of ``heavy`` is refused. ``kernels`` are those of all
    packs, None as long as they are not known.
    """

    source: Pack
    tier: Tier
    heavy: tuple[str, ...]
    paths: tuple[str, ...]
    front: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] | None = None


def is_full_only(case: Case, axes: Axes) -> bool:
    """Say whether a binding is left to the full tier."""
    return any(
        all(axes[axis] in values for axis, values in each.items()) for each in case.full_only
    )


def list_pack(asked: Listing, loaded: LoadedPack) -> Pack:
    """Expand a loaded pack's cases and claims; what its own formulas raise is a ``PackError``."""
    variants: dict[str, list[Variant]] = {}
    canaries: dict[str, list[Variant]] = defaultdict(list)
    ceilings: dict[str, list[Variant]] = defaultdict(list)
    for case in loaded.cases.values():
        each = _Expanded(loaded.pack, case)
        variants[case.name] = list(each.variants(asked.tier))
        for device, bound in case.canary.items():
            axes = {axis: bound[axis] for axis in case.axes}
            canaries[device].append(each.variant(axes, Tier.FULL))
        every = list(each.variants(Tier.FULL)) if case.ceilings else []
        for name, shows in case.ceilings.items():
            shown_by = (one for one in every if each.called(shows, one.axes, f"ceilings[{name!r}]"))
            ceilings[name].extend(shown_by)
    return replace(
        loaded.pack,
        version=asked.source.version,
        variants=tuple(itertools.chain.from_iterable(variants.values())),
        claims=tuple(
            one for claim in loaded.claims for one in _instances(variants[claim.case], claim)
        ),
        canaries={name: tuple(some) for name, some in canaries.items()},
        ceilings={name: tuple(some) for name, some in ceilings.items()},
    )


class _Expanded:
    """A case of a pack, and what its formulas say of its bindings."""

    def __init__(self, source: Pack, case: Case) -> None:
        self.source, self.case = source, case
        build: Any = inspect.unwrap(getattr(case.build, "func", case.build))
        code = getattr(build, "__code__", None)
        self._info = CaseInfo(
            **{name: getattr(case, name) for name in Declared.__struct_fields__},
            pack=source.name,
            doc=inspect.cleandoc(case.build.__doc__ or ""),
            file=_place(code.co_filename) if code else "",
            line=code.co_firstlineno if code else 0,
            axes=tuple(case.axes),
        )
        try:
            read_json(encode(self._info), where=case.name)
        except StoreError as error:  # a budget or threshold that no run file could hold
            at, remedy = f"case {case.name!r}", "correct the case"
            raise source.refuse(error.what, remedy=remedy, at=at) from error

    def variants(self, tier: Tier) -> Iterator[Variant]:
        """Yield the variants of a tier; each tier contains those before."""
        case, seen = self.case, set[str]()
        for each, some in zip(Tier, (case.smoke, {}, case.full), strict=True):
            values = {**case.axes, **some}
            for bound in itertools.product(*values.values()):
                axes = dict(zip(values, bound, strict=True))
                name = variant_id(self.source.name, case.name, axes)
                if name in seen or (case.only and not self.called(case.only, axes, "only")):
                    continue
                own = each
                if is_full_only(case, axes):
                    own = Tier.FULL
                elif each is Tier.SMOKE and case.waits and self.called(case.waits, axes, "waits"):
                    own = Tier.NIGHTLY
                if _ORDER.index(own) <= _ORDER.index(tier):
                    seen.add(name)
                    yield self.variant(axes, own)
            if each is tier:
                return

    def variant(self, axes: Axes, tier: Tier) -> Variant:
        """Return a binding as a variant."""
        case = self.case
        work: Any = self.called(case.work, axes, "work") if case.work else None
        is_work = isinstance(work, Work)
        if is_work:
            numbers = (work.read_bytes, work.write_bytes, work.flops, work.kernels)
            is_work = all(map(is_measurable, numbers))
        if work is not None and not is_work:
            told = f"returned {shown(work, most=TEXT_CHARACTERS)}"
            remedy = f"return a perfsuite.Work with numbers of at most {MAGNITUDE:g}"
            raise self._refused("work", axes, told, remedy)
        size: Any = self.called(case.memory_bytes, axes, "memory_bytes") if case.memory_bytes else 0
        if not isinstance(size, (int, float)) or not 0 <= size <= MOST_WHOLE:
            remedy = "return the bytes of memory one process of the variant needs"
            raise self._refused("memory_bytes", axes, f"returned {shown(size)}", remedy)
        name = variant_id(self.source.name, case.name, axes)
        return Variant(
            id=name, case=self._info, axes=axes, tier=tier, work=work, memory_bytes=int(size)
        )

    def called(self, formula: Callable[..., T], axes: Axes, part: str) -> T:
        """Call a formula of the case; what it raises is the pack's error."""
        try:
            return formula(**axes)
        except Exception as error:
            told = f"raised {type(error).__name__}: {error}"
            raise self._refused(part, axes, told, f"correct the case's {part}") from error

    def _refused(self, part: str, axes: Axes, told: str, remedy: str) -> PackError:
        bound = ", ".join(f"{axis}={value!r}" for axis, value in axes.items())
        at = f"case {self.case.name!r}"
        return self.source.refuse(f"{part}({bound}) {told}", remedy=remedy, at=at)


def _instances(variants: Sequence[Variant], claim: Claim) -> Iterator[ClaimInstance]:
    """Yield the claim once per binding of the other axes whose two variants both exist."""
    ids = {tuple(variant.axes.values()): variant.id for variant in variants}
    shared = {*ClaimInstance.__struct_fields__} & {*Claim.__struct_fields__} - {"faster", "than"}
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
            **{name: getattr(claim, name) for name in shared},
            id=variant_id(case.pack, f"{case.name}:{claim.name}", others),
            pack=case.pack,
            faster=variant.id,
            than=than,
            file=case.file,
            line=case.line,
        )


def _place(file: str) -> str:
    """Return a path that means the same on other machines, and does not tell whose this one is."""
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        return path.relative_to(Path.cwd()).as_posix()
    return Path(*path.parts[-2:]).as_posix()
