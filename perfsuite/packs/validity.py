"""What must hold for the cases and claims of a pack before anything is expanded or run."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfsuite.boundary import (
    MAGNITUDE,
    NAME_CHARACTERS,
    SHOWN_CHARACTERS,
    TEXT_CHARACTERS,
    is_measurable,
    plain,
    shown,
)
from perfsuite.errors import PackError
from perfsuite.model import Case, Claim, Kernel, Need, Regime, Scalar
from perfsuite.model.case import NAME, VALUE, format_value
from perfsuite.model.metric import NOISY, OWN_METRICS

# Words of --perf-select that are not axes.
RESERVED = ("pack", "case", "tag")

ARCH = re.compile(r"sm_(\d+)([af]?)(\+?)\Z")
TARGET = re.compile(r"sm_\d{2,3}[af]?\Z")
MOST_UNIT = 40
NO_DOCSTRINGS = 2
_KINDS = ("device", "arch", "gpus", "package", "feature")
_CALLED = ("build", "only", "waits", "work", "memory_bytes")


# What is wrong, and what to do about it.
Fault = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Which pack an error is about."""

    name: str
    origin: str

    def refuse(self, what: str, *, remedy: str = "", at: str = "") -> PackError:
        """Return the error that names this pack; ``at`` is the case or claim inside it."""
        inside = f", {at}" if at else ""
        return PackError(what, where=f"pack {self.name!r} ({self.origin}){inside}", remedy=remedy)

    def check(self, at: str, faults: Iterable[Fault]) -> None:
        """Raise the first of the faults, if there is one."""
        for what, remedy in faults:
            raise self.refuse(what, remedy=remedy, at=at)


def check_cases(place: Place, cases: Sequence[Case]) -> None:
    """Raise ``PackError`` for the first case that cannot be listed."""
    seen: set[str] = set()
    for case in cases:
        place.check(f"case {shown(case.name)}", _of_case(case, seen))
        seen.add(case.name)


def check_claims(place: Place, cases: Mapping[str, Case], claims: Sequence[Claim]) -> None:
    """Raise ``PackError`` for the first claim that names what the pack does not have."""
    seen: set[tuple[str, str]] = set()
    for claim in claims:
        place.check(f"claim {shown(claim.name)}", _of_claim(claim, cases, seen))
        seen.add((claim.case, claim.name))


def check_kernels(place: Place, kernels: Sequence[Kernel]) -> None:
    """Raise ``PackError`` for the first kernel that cannot be handed on to be compiled."""
    seen: set[str] = set()
    for kernel in kernels:
        place.check(f"kernel {shown(kernel.name)}", _of_kernel(kernel, seen))
        seen.add(kernel.name)


def _of_case(case: Case, seen: Collection[str]) -> Iterator[Fault]:
    names = (case.name, *case.axes, *case.tags, *(metric.name for metric in case.metrics))
    yield from _of_texts(names, most=NAME_CHARACTERS)
    if case.name in seen:
        yield f"two cases have the name {case.name!r}", "rename one of them"
    told = [budget.reason for budget in case.budgets]
    yield from _of_texts((case.build.__doc__, case.source, *told))
    for metric in case.metrics:
        yield from _of_texts((metric.unit,), most=MOST_UNIT)
    # With PYTHONOPTIMIZE=2 Python itself drops them all.
    if not (case.build.__doc__ or "").strip() and sys.flags.optimize < NO_DOCSTRINGS:
        yield "the case has no docstring", "say in the builder's docstring what is measured"
    if not case.source.strip():
        remedy = 'name the book, paper or manual it comes from: @case(source="...")'
        yield "the case has no source", remedy
    for axis in case.axes:
        if axis in RESERVED:
            remedy = f"rename it; {', '.join(RESERVED)} mean other things in a selection"
            yield f"axis {axis!r} has a reserved name", remedy
        yield from _of_values(case, axis)
    for budget in case.budgets:
        yield from _of_metric(case, budget.metric, "a budget")
        yield from _of_number(budget.most, f"the budget of {shown(budget.metric)}")
    for metric in case.metrics:
        yield from _of_number(metric.threshold, f"the threshold of {shown(metric.name)}")
    yield from _of_named(case)
    yield from _of_needs(case.needs)
    parts = {part: getattr(case, part) for part in _CALLED}
    parts |= {f"ceilings[{name!r}]": shows for name, shows in case.ceilings.items()}
    for part, function in parts.items():
        yield from _of_arguments(case, part, function)


def _of_metric(case: Case, metric: str, what: str) -> Iterator[Fault]:
    """Yield a metric that neither the case has nor perfsuite takes of it: nothing would hold it."""
    own = () if case.regime == Regime.EXACT else OWN_METRICS
    known = (*own, *(metric.name for metric in case.metrics))
    if metric not in known:
        remedy = f"declare it in metrics=..., or name one of {', '.join(known) or 'those it has'}"
        yield f"{what} is about the metric {shown(metric)}, which its case lacks", remedy


def _of_number(value: Any, what: str) -> Iterator[Fault]:
    """Yield a number that a run file could not hold."""
    if not isinstance(value, (int, float)) or not is_measurable(value):
        remedy = f"use 0 or a number between {1 / MAGNITUDE:g} and {MAGNITUDE:g}"
        yield f"{what} is {shown(value)}", remedy


def _of_named(case: Case) -> Iterator[Fault]:
    """Yield values that mean something and cannot."""
    for axis, value in ((a, v) for each in case.full_only for a in each for v in each[a]):
        if not any(
            value == known and type(value) is type(known) for known in known_values(case, axis)
        ):
            what = f"full_only names {value!r} of axis {axis!r}, which no tier has"
            yield what, "name values of the tiers"
    for value in known_values(case, case.ranks):
        if type(value) is not int or value < 1:
            what = f"axis {case.ranks!r} holds ranks and has the value {value!r}"
            yield what, "use whole numbers from 1 on"


def _of_texts(texts: Iterable[Any], most: int = TEXT_CHARACTERS) -> Iterator[Fault]:
    """Yield texts that would garble or flood a terminal or a page."""
    for text in ("" if each is None else each for each in texts):
        if not isinstance(text, str):
            yield f"{shown(text)} is a {type(text).__name__}", "write a text"
        elif len(text) > most:
            what = f"the text {text[:SHOWN_CHARACTERS]!r}... has {len(text)} characters"
            yield f"{what}, more than {most}", "shorten it"
        elif plain(text, most=most) != text:
            yield f"the text {text[:SHOWN_CHARACTERS]!r} has control characters", "leave them out"


def _of_values(case: Case, axis: str) -> Iterator[Fault]:
    """Yield values that no id can carry, and those that would give two variants one id."""
    first: dict[str, Scalar] = {}
    for value in known_values(case, axis):
        told = f"axis {axis!r} has the value {shown(value)}"
        if isinstance(value, (int, float)) and not is_measurable(value):
            yield told, f"use 0 or numbers between {1 / MAGNITUDE:g} and {MAGNITUDE:g}"
        if not isinstance(value, (str, int, float)) or not VALUE.match(format_value(value)):
            remedy = f"use str, int, float or bool that match {VALUE.pattern}"
            yield f"{told}, a {type(value).__name__}", remedy
        if len(format_value(value)) > NAME_CHARACTERS:
            yield f"{told}: more than {NAME_CHARACTERS} characters", "shorten it: ids have it"
        text = format_value(value)
        if type(first.setdefault(text, value)) is not type(value):
            what = f"axis {axis!r} has two values that read {text!r}"
            yield what, "give it the same type in all tiers"
    for tier in (case.smoke, case.axes, case.full):
        if len(set(tier.get(axis, ()))) < len(tier.get(axis, ())):
            what = f"axis {axis!r} has a value twice: {tier[axis]!r}"
            yield what, "two variants would have the same id; drop one"


def known_values(case: Case, axis: str) -> tuple[Scalar, ...]:
    """Return the values an axis has in any tier."""
    tiers = (case.smoke, case.axes, case.full)
    return tuple(value for tier in tiers for value in tier.get(axis, ()))


def _of_needs(needs: Sequence[Need]) -> Iterator[Fault]:
    for need in needs:
        if need.kind not in _KINDS:
            yield f"unknown kind of need {need.kind!r}", f"use {', '.join(_KINDS)}"
        if need.kind == "arch" and not ARCH.match(need.value):
            yield f"need arch {need.value!r} is no architecture", "write sm_90, sm_90a or sm_90+"
        if need.kind == "gpus" and not need.value.isdigit():
            yield f"need gpus {need.value!r} is no number", "write gpus(2)"


def _of_arguments(case: Case, part: str, function: Callable[..., Any] | None) -> Iterator[Fault]:
    """Yield a builder or formula that cannot be called with the axes."""
    if function is None:
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none; calling them will tell
        return
    context = ("ctx",) if part == "build" else ()
    try:
        signature.bind(*context, **dict.fromkeys(case.axes))
    except TypeError as error:
        yield (
            f"{part}{signature} cannot be called with the axes: {error}",
            f"declare {part}({', '.join((*context, *case.axes))}); **_ takes axes it ignores",
        )


def _of_claim(
    claim: Claim, cases: Mapping[str, Case], seen: Collection[tuple[str, str]]
) -> Iterator[Fault]:
    if not NAME.match(claim.name):
        yield f"claim name {shown(claim.name)} must match {NAME.pattern}", "rename it"
    yield from _of_texts((claim.name,), most=NAME_CHARACTERS)
    yield from _of_texts((claim.source,))
    if claim.case not in cases:
        yield f"unknown case {claim.case!r}", f"use one of {', '.join(cases)}"
    if (claim.case, claim.name) in seen:
        what = f"two claims of case {claim.case!r} have the name {claim.name!r}"
        yield what, "rename one of them"
    yield from _of_number(claim.by, "by")
    yield from _of_needs(claim.needs)
    case = cases[claim.case]
    if claim.metric in NOISY:
        remedy = "leave metric=... out for the time" if claim.metric == NOISY[0] else "name another"
        yield f"a claim is about an exact metric, and {claim.metric} has noise", remedy
    if claim.metric:
        yield from _of_metric(case, claim.metric, "the claim")
    bound = [(axis, (side[axis],)) for side in (claim.faster, claim.than) for axis in side]
    for axis, values in (*bound, *claim.at.items()):
        known = known_values(case, axis)
        if axis not in case.axes:
            yield f"case {case.name!r} has no axis {axis!r}", f"use one of {', '.join(case.axes)}"
        for value in [value for value in values if value not in known]:
            what = f"axis {axis!r} of case {case.name!r} has no value {value!r}"
            yield what, f"use one of {', '.join(map(repr, dict.fromkeys(known)))}"


def _of_kernel(kernel: Kernel, seen: Collection[str]) -> Iterator[Fault]:
    yield from _of_texts((kernel.name,), most=NAME_CHARACTERS)
    if kernel.name in seen:
        yield f"two kernels have the name {kernel.name!r}", "rename one of them"
    if not kernel.function:
        yield "the kernel names no function", "give the function's name"
    if kernel.file and not (Path(kernel.file).is_absolute() and Path(kernel.file).is_file()):
        remedy = "write str(Path(__file__).with_name(...)), and ship the file with the pack"
        yield f"{kernel.file!r} is no file with an absolute path", remedy
    if kernel.module and not all(word.isidentifier() for word in kernel.module.split(".")):
        yield f"{kernel.module!r} is no module's name", "write it as in an import statement"
    for target in [target for target in kernel.targets if not TARGET.match(target)]:
        yield f"target {target!r} is no architecture", "write sm_90a, sm_100f or sm_80"
    if len(set(kernel.targets)) < max(1, len(kernel.targets)):
        yield f"targets {kernel.targets!r} are none, or one twice", "name each target once"
    for target in sorted(set(kernel.expects) - set(kernel.targets)):
        yield f"expects names {target!r}, which is no target of it", "add it to targets"
    for key, value in kernel.constants.items():
        if isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
            continue
        what = f"constant {key!r} has the value {value!r}, a {type(value).__name__}"
        yield what, "use str, int, float or bool, which can be handed on as they are"
