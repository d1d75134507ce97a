"""Selects variants by text, and says why one cannot run here."""

from __future__ import annotations

import hashlib
import importlib.util
import operator
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder

from perfsuite.boundary import UsageError
from perfsuite.model import (
    ClaimInstance,
    DeviceFacts,
    Need,
    Pack,
    Scalar,
    Shard,
    Variant,
    format_value,
)
from perfsuite.packs.load import ARCH, RESERVED, misfit

# What of a catalogue runs on a device, and in which order.


# Ranks of a CPU share its cores; this many on each still tell something.
RANKS_PER_CORE = 4

_TERM = re.compile(r"\s*([A-Za-z]\w*)\s*(!=|>=|<=|=|>|<)\s*([^\s=<>!,]+)\s*\Z")
_EXACT = re.compile(r"\s*[A-Za-z]\w*\.[A-Za-z]\w*\[[^\[\]]*\]\s*\Z")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a selection: an axis, or one of the reserved words, against a value."""

    name: str
    operator: str
    value: str

    def accepts(self, variant: Variant) -> bool:
        """Say whether the variant meets the condition; one without the axis never does."""
        found = _values(variant, self.name)
        if self.operator == "!=":
            return bool(found or self.name == "tag") and not self._equals_any(found)
        if self.operator == "=":
            return self._equals_any(found)
        numbers = [number for number in map(_number, found) if number is not None]
        return any(_ORDERS[self.operator](number, float(self.value)) for number in numbers)

    def _equals_any(self, found: Sequence[Scalar]) -> bool:
        wanted = _number(self.value)
        return any(
            format_value(value) == self.value or (wanted is not None and _number(value) == wanted)
            for value in found
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that a variant must all meet, or the one id it must have; empty takes all."""

    text: str = ""
    terms: tuple[Term, ...] = ()
    id: str = ""

    def accepts(self, variant: Variant) -> bool:
        """Say whether the variant meets all conditions; an axis it lacks is never met."""
        is_named = not self.id or variant.id == self.id
        return is_named and all(term.accepts(variant) for term in self.terms)


def parse_selection(text: str) -> Selection:
    """Read ``impl=triton,n>=1e6``, where a comma means and, or the exact id of one variant.

    Besides axes there are ``pack``, ``case`` and ``tag``. What cannot be read is a ``UsageError``.
    """
    if not text.strip():
        return Selection(text)
    if _EXACT.match(text):
        return Selection(text, id="".join(text.split()))
    return Selection(text, tuple(_term(part, text) for part in text.split(",")))


def _term(part: str, text: str) -> Term:
    match = _TERM.match(part)
    if match is None:
        raise UsageError(
            f"the selection has {part.strip()!r}, which is no condition",
            where=repr(text),
            remedy="write axis=value with one of = != >= <= > <, conditions separated by commas, "
            "or the exact id of a variant",
        )
    term = Term(*match.groups())
    if term.operator in _ORDERS and _number(term.value) is None:
        raise UsageError(
            f"{term.value!r} is no number to compare {term.name!r} with",
            where=repr(text),
            remedy="use = or != for words",
        )
    return term


def select(variants: Sequence[Variant], selection: Selection) -> tuple[Variant, ...]:
    """Return the variants that the selection takes; ``UsageError`` if it takes none."""
    known = {axis for variant in variants for axis in variant.axes}
    for term in selection.terms:
        if term.name not in known and term.name not in RESERVED:
            raise UsageError(
                f"no variant has the axis {term.name!r}",
                where=repr(selection.text),
                remedy=f"the axes are {', '.join(sorted(known))}; "
                f"the other words are {', '.join(RESERVED)}",
            )
    chosen = tuple(variant for variant in variants if selection.accepts(variant))
    if not chosen and selection.text.strip():
        raise UsageError(
            f"no variant of {len(variants)} is selected",
            where=repr(selection.text),
            remedy="perfsuite list shows the variants of a tier; a larger tier has more of them",
        )
    return chosen


def _values(variant: Variant, name: str) -> tuple[Scalar, ...]:
    if name in variant.axes:
        return (variant.axes[name],)
    words = {"pack": (variant.pack,), "case": (variant.case.name,), "tag": variant.case.tags}
    return words.get(name, ())


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def missing_need(variant: Variant, facts: DeviceFacts) -> str:
    """Return the first need that the device does not meet, in words; empty if it meets all."""
    ranks = misfit(variant, facts) or _missing_ranks(variant.ranks, facts)
    missing = missing_of(variant.needs, facts) or ranks
    if missing or not 0 < facts.memory_bytes < variant.memory_bytes:
        return missing
    needed, present = variant.memory_bytes / 1e9, facts.memory_bytes / 1e9
    return f"needs {needed:.1f} GB of memory, this device has {present:.1f} GB"


def _missing_ranks(ranks: int, facts: DeviceFacts) -> str:
    if facts.device == "cuda" and ranks > facts.gpus:
        return f"needs {ranks} GPUs, {_find_gpus('0', facts)[1]}"
    cores = int(facts.identity.get("cores", "0"))
    is_crowded = 0 < RANKS_PER_CORE * cores < ranks
    return f"needs {ranks} ranks, too many for {cores} cores" if is_crowded else ""


def missing_of(needs: Iterable[Need], facts: DeviceFacts) -> str:
    """Return the first of some needs that the device does not meet, in words."""
    return next((text for text in (_missing(need, facts) for need in needs) if text), "")


def _missing(need: Need, facts: DeviceFacts) -> str:
    is_met, present = _FINDERS[need.kind](need.value, facts)
    return "" if is_met else f"needs {need.kind} {need.value}, {present}"


def _find_device(value: str, facts: DeviceFacts) -> tuple[bool, str]:
    return value == facts.device, f"this run uses {facts.device}"


def _find_arch(value: str, facts: DeviceFacts) -> tuple[bool, str]:
    """Compare architectures by number: a GPU of sm_90 runs code for sm_90a as well."""
    wanted, present = ARCH.match(value), ARCH.match(facts.arch)
    if wanted is None or present is None:
        return False, f"this device is {facts.arch or 'no GPU'}"
    number, least = int(present[1]), int(wanted[1])
    is_met = number >= least if wanted[3] else number == least
    return is_met, f"this GPU is {facts.arch}"


def _find_gpus(value: str, facts: DeviceFacts) -> tuple[bool, str]:
    return facts.gpus >= int(value), f"this run has {facts.gpus}"


def _find_package(value: str, _: DeviceFacts) -> tuple[bool, str]:
    return is_installed(value), "which is not installed"


def _find_feature(value: str, facts: DeviceFacts) -> tuple[bool, str]:
    return value in facts.features, f"this device has {', '.join(facts.features) or 'none'}"


_FINDERS: Mapping[str, Callable[[str, DeviceFacts], tuple[bool, str]]] = {
    "device": _find_device,
    "arch": _find_arch,
    "gpus": _find_gpus,
    "package": _find_package,
    "feature": _find_feature,
}


@cache
def is_installed(name: str) -> bool:
    """Say whether a module can be imported, without importing it or its parents."""
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # a module made by hand, without a spec
        return True
    full = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        full = f"{full}.{part}"
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return spec is not None


def order(variants: Iterable[Variant], seed: int) -> tuple[Variant, ...]:
    """Return the cases shuffled, each case's variants together and shuffled.

    Variants of one case share compile caches; the rest is random so that drift hits no case more.
    The outcome depends on the seed and on which variants there are, not on their order.
    """
    known = sorted(variants, key=lambda variant: variant.id)
    groups: dict[tuple[str, str], list[Variant]] = {}
    for variant in known:
        groups.setdefault((variant.pack, variant.case.name), []).append(variant)
    shuffle = random.Random(seed).shuffle  # noqa: S311 - order, no secret
    cases = list(groups.values())
    shuffle(cases)
    for members in cases:
        shuffle(members)
    return tuple(variant for members in cases for variant in members)


def claims_of(packs: Iterable[Pack], variants: Iterable[Variant]) -> tuple[ClaimInstance, ...]:
    """Return the claims whose two variants are both among those that run."""
    ids = {variant.id for variant in variants}
    return tuple(
        claim
        for pack in packs
        for claim in pack.claims
        if claim.faster in ids and claim.than in ids
    )


# What stays together when variants are divided, and which shard it belongs to.


def bundles_of(
    variants: Sequence[Variant], claims: Iterable[ClaimInstance]
) -> list[tuple[Variant, ...]]:
    """Return the variants in groups that only make sense, or only pay, together.

    Both sides of a claim are, or it could not be judged, and the gangs of a case and as many
    ranks, since joining takes seconds.
    """
    heads = {variant.id: variant.id for variant in variants}

    def head(name: str) -> str:
        while heads[name] != name:
            name = heads[name]
        return name

    def join(one: str, other: str) -> None:
        first, last = sorted((head(one), head(other)))
        heads[last] = first

    for claim in claims:
        if claim.faster in heads and claim.than in heads:
            join(claim.faster, claim.than)
    gangs: dict[tuple[str, str, int], str] = {}
    for each in (variant for variant in variants if variant.is_gang):
        join(each.id, gangs.setdefault((each.pack, each.case.name, each.ranks), each.id))
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        found.setdefault(head(variant.id), []).append(variant)
    return [tuple(members) for members in found.values()]


def shard_of(
    variants: Sequence[Variant], claims: Iterable[ClaimInstance], *, index: int, count: int
) -> tuple[tuple[Variant, ...], Shard]:
    """Return the variants of a shard; all machines agree, since only ids decide.

    A new variant moves no other: what has no baseline is compared with the same machine's last.
    """
    chosen = {
        variant.id
        for members in bundles_of(variants, claims)
        if _number_bundles(min(member.id for member in members)) % count == index - 1
        for variant in members
    }
    whole = "\n".join(sorted(variant.id for variant in variants))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    shard = Shard(index=index, count=count, total=len(variants), whole=digest)
    return tuple(variant for variant in variants if variant.id in chosen), shard


def _number_bundles(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
