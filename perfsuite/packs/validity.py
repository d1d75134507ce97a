"""What must hold for the cases and claims of a pack before anything is expanded or run."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite.errors import PackError
from perfsuite.model import Case, Claim, Kernel, Need, Scalar
from perfsuite.model.case import VALUE, format_value

# Words of --perf-select that are not axes.
RESERVED = ("pack", "case", "tag")

ARCH = re.compile(r"sm_(\d+)([af]?)(\+?)\Z")
TARGET = re.compile(r"sm_\d{2,3}[af]?\Z")
_KINDS = ("device", "arch", "gpus", "package", "feature")


@dataclass(frozen=True, slots=True)
class Place:
    """Which pack an error is about."""

    name: str
    origin: str

    def refuse(self, what: str, *, remedy: str = "", at: str = "") -> PackError:
        """Return the error that names this pack; ``at`` is the case or claim inside it."""
        inside = f", {at}" if at else ""
        return PackError(what, where=f"pack {self.name!r} ({self.origin}){inside}", remedy=remedy)


def check_cases(place: Place, cases: Sequence[Case]) -> None:
    """Raise ``PackError`` for the first case that cannot be listed."""
    seen: set[str] = set()
    for case in cases:
        at = f"case {case.name!r}"
        if case.name in seen:
            raise place.refuse(
                f"two cases have the name {case.name!r}", remedy="rename one of them", at=at
            )
        seen.add(case.name)
        _check_words(place, case, at)
        _check_axes(place, case, at)
        _check_ranks(place, case, at)
        _check_needs(place, case.needs, at)
        for part in ("build", "only", "work", "memory_bytes"):
            _check_arguments(place, case, part)


def _check_words(place: Place, case: Case, at: str) -> None:
    if not (case.build.__doc__ or "").strip():
        raise place.refuse(
            "the case has no docstring",
            remedy="say in the builder's docstring what is measured",
            at=at,
        )
    if not case.source.strip():
        raise place.refuse(
            "the case has no source",
            remedy='name the book, paper or manual it comes from: @case(source="...")',
            at=at,
        )


def _check_axes(place: Place, case: Case, at: str) -> None:
    for axis in case.axes:
        if axis in RESERVED:
            raise place.refuse(
                f"axis {axis!r} has a reserved name",
                remedy=f"rename it; {', '.join(RESERVED)} mean other things in a selection",
                at=at,
            )
        _check_values(place, case, axis)


def _check_ranks(place: Place, case: Case, at: str) -> None:
    for value in known_values(case, case.ranks) if case.ranks else ():
        if type(value) is not int or value < 1:
            raise place.refuse(
                f"axis {case.ranks!r} holds ranks and has the value {value!r}",
                remedy="use whole numbers from 1 on",
                at=at,
            )


def _check_values(place: Place, case: Case, axis: str) -> None:
    """Refuse values that no id can carry, and those that would give two variants one id."""
    at = f"case {case.name!r}"
    first: dict[str, Scalar] = {}
    for value in known_values(case, axis):
        if not isinstance(value, (str, int, float)) or not VALUE.match(format_value(value)):
            raise place.refuse(
                f"axis {axis!r} has the value {value!r}, a {type(value).__name__}",
                remedy=f"use str, int, float or bool that match {VALUE.pattern}",
                at=at,
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise place.refuse(
                f"axis {axis!r} has the value {value!r}", remedy="use finite numbers", at=at
            )
        if type(first.setdefault(format_value(value), value)) is not type(value):
            raise place.refuse(
                f"axis {axis!r} has two values that read {format_value(value)!r}",
                remedy="give it the same type in all tiers",
                at=at,
            )
    for tier in (case.smoke, case.axes, case.full):
        if len(set(tier.get(axis, ()))) < len(tier.get(axis, ())):
            raise place.refuse(
                f"axis {axis!r} has a value twice: {tier[axis]!r}",
                remedy="two variants would have the same id; drop one",
                at=at,
            )


def known_values(case: Case, axis: str) -> tuple[Scalar, ...]:
    """Return the values an axis has in any tier."""
    tiers = (case.smoke, case.axes, case.full)
    return tuple(value for tier in tiers for value in tier.get(axis, ()))


def _check_needs(place: Place, needs: Sequence[Need], at: str) -> None:
    for need in needs:
        if need.kind not in _KINDS:
            raise place.refuse(
                f"unknown kind of need {need.kind!r}", remedy=f"use {', '.join(_KINDS)}", at=at
            )
        if need.kind == "arch" and not ARCH.match(need.value):
            raise place.refuse(
                f"need arch {need.value!r} is no architecture",
                remedy="write sm_90, sm_90a or sm_90+",
                at=at,
            )
        if need.kind == "gpus" and not need.value.isdigit():
            raise place.refuse(
                f"need gpus {need.value!r} is no number", remedy="write gpus(2)", at=at
            )


def _check_arguments(place: Place, case: Case, part: str) -> None:
    """Refuse a builder or formula that cannot be called with the axes."""
    function: Callable[..., Any] | None = getattr(case, part)
    if function is None:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none; calling them will tell
        return
    context = (None,) if part == "build" else ()
    try:
        signature.bind(*context, **dict.fromkeys(case.axes))
    except TypeError as error:
        first = "ctx, " if context else ""
        raise place.refuse(
            f"{part}{signature} cannot be called with the axes: {error}",
            remedy=f"declare {part}({first}{', '.join(case.axes)}); **_ takes axes it ignores",
            at=f"case {case.name!r}",
        ) from error


def check_claims(place: Place, cases: Mapping[str, Case], claims: Sequence[Claim]) -> None:
    """Raise ``PackError`` for the first claim that names what the pack does not have."""
    seen: set[tuple[str, str]] = set()
    for claim in claims:
        at = f"claim {claim.name!r}"
        if claim.case not in cases:
            raise place.refuse(
                f"unknown case {claim.case!r}", remedy=f"use one of {', '.join(cases)}", at=at
            )
        if (claim.case, claim.name) in seen:
            raise place.refuse(
                f"two claims of case {claim.case!r} have the name {claim.name!r}",
                remedy="rename one of them",
                at=at,
            )
        seen.add((claim.case, claim.name))
        _check_needs(place, claim.needs, at)
        _check_bound(place, cases[claim.case], claim)


def _check_bound(place: Place, case: Case, claim: Claim) -> None:
    at = f"claim {claim.name!r}"
    bound: list[tuple[str, tuple[Scalar, ...]]] = [
        *((axis, (value,)) for axis, value in claim.faster.items()),
        *((axis, (value,)) for axis, value in claim.than.items()),
        *claim.at.items(),
    ]
    for axis, values in bound:
        if axis not in case.axes:
            raise place.refuse(
                f"case {case.name!r} has no axis {axis!r}",
                remedy=f"use one of {', '.join(case.axes)}",
                at=at,
            )
        known = known_values(case, axis)
        for value in values:
            if value not in known:
                raise place.refuse(
                    f"axis {axis!r} of case {case.name!r} has no value {value!r}",
                    remedy=f"use one of {', '.join(map(repr, dict.fromkeys(known)))}",
                    at=at,
                )


def check_kernels(place: Place, kernels: Sequence[Kernel]) -> None:
    """Raise ``PackError`` for the first kernel that cannot be handed on to be compiled."""
    seen: set[str] = set()
    for kernel in kernels:
        for what, remedy in _faults(kernel, seen):
            raise place.refuse(what, remedy=remedy, at=f"kernel {kernel.name!r}")
        seen.add(kernel.name)


def _faults(kernel: Kernel, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a kernel and what to do about it."""
    if kernel.name in seen:
        yield f"two kernels have the name {kernel.name!r}", "rename one of them"
    if not kernel.function:
        yield "the kernel names no function", "give the function's name"
    if kernel.file and not (Path(kernel.file).is_absolute() and Path(kernel.file).is_file()):
        yield (
            f"{kernel.file!r} is no file with an absolute path",
            "write str(Path(__file__).with_name(...)), and ship the file with the pack",
        )
    if kernel.module and not all(word.isidentifier() for word in kernel.module.split(".")):
        yield f"{kernel.module!r} is no module's name", "write it as in an import statement"
    for target in [target for target in kernel.targets if not TARGET.match(target)]:
        yield f"target {target!r} is no architecture", "write sm_90a, sm_100f or sm_80"
    if len(set(kernel.targets)) < max(1, len(kernel.targets)):
        yield f"targets {kernel.targets!r} are none, or one twice", "name each target once"
    for target in sorted(set(kernel.expects) - set(kernel.targets)):
        yield f"expects names {target!r}, which is no target of it", "add it to targets"
    for key, value in kernel.constants.items():
        if not isinstance(value, (str, int, float)) or not math.isfinite(_number(value)):
            yield (
                f"constant {key!r} has the value {value!r}, a {type(value).__name__}",
                "use str, int, float or bool, which can be handed on as they are",
            )


def _number(value: float | str) -> float:
    return 0.0 if isinstance(value, str) else value
