"""Selects variants by text, and says why one cannot run here."""

from __future__ import annotations

import hashlib
import operator
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple, TypeVar

from perfsuite.boundary import UsageError
from perfsuite.model import ClaimInstance, DeviceFacts, Need, Pack, Shard, Variant, built_in
from perfsuite.packs import GRAMMAR
from perfsuite.packs.find import spec_of
from perfsuite.packs.load import ARCH, RESERVED
from perfsuite.stats import grouped

# A variant, or its id where no more is known.
Named = TypeVar("Named", bound=Variant | str)

# Ranks of a CPU share its cores; this many on each still tell something.
RANKS_PER_CORE = 4

_TERM = re.compile(r"\s*([A-Za-z]\w*)\s*(!=|>=|<=|=|>|<)\s*([^\s=<>!,]+)\s*\Z")
JOINING = ("and", "or", "not")
_INSIDE = re.compile(r"\[[^\[\]]*(?:\]|\Z)")
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Term(NamedTuple):
    """One condition of a selection: an axis, or one of the reserved words."""

    name: str
    operator: str
    value: str

    def accepts(self, name: str, tags: Sequence[str]) -> bool:
        """Say whether the variant of this id meets it; one without the axis never does."""
        pack, case, axes = _parts(name)
        words = {"pack": (pack,), "case": (case,), "tag": tags}
        found = (axes[self.name],) if self.name in axes else words.get(self.name, ())
        number = _number(self.value)
        numbers = [each for each in map(_number, found) if each is not None]
        if self.operator in _ORDERS and number is not None:
            return any(_ORDERS[self.operator](each, number) for each in numbers)
        is_equal = self.value in found or number in numbers
        if self.operator == "=":
            return is_equal
        return bool(found or self.name == "tag") and not is_equal


class Word(NamedTuple):
    """A pack, case, id or value of an axis, or a pattern of a whole id; ``is_wanted`` or not."""

    text: str
    is_wanted: bool = True

    def accepts(self, name: str, _tags: Sequence[str]) -> bool:
        """Say whether it names the variant of this id. Brackets are no choice of letters."""
        # The values of some axes are ids of their own: a kernel of another pack's.
        named = (name, name.partition("[")[0]) if {*"*?"} & {*self.text} else _called(name)
        pattern = self.text.replace("[", "[[]")
        return any(fnmatchcase(each, pattern) for each in named) is self.is_wanted


# Alternatives, each of which a variant must meet whole.
Selection = list[list[Term | Word]]


def is_selected(variant: Variant | str, selection: Selection) -> bool:
    """Say whether a variant is selected; of an id alone no tag is known."""
    name, tags = (variant, ()) if isinstance(variant, str) else (variant.id, variant.case.tags)
    return any(all(each.accepts(name, tags) for each in some) for some in selection)


def _parts(name: str) -> tuple[str, str, dict[str, str]]:
    """Return pack, case and axes of an id."""
    head, _, inside = name.partition("[")
    pack, _, case = head.partition(".")
    bound = (each.partition("=") for each in inside.removesuffix("]").split(",") if each)
    return pack, case, {axis: value for axis, _, value in bound}


def _called(name: str) -> tuple[str, ...]:
    """Return the words that name the variant of an id."""
    pack, case, axes = _parts(name)
    return name, pack, case, f"{pack}.{case}", *axes.values()


def parse_selection(text: str) -> Selection:
    """Read a selection: conditions, or words, as ``perfsuite.packs.GRAMMAR`` says.

    In ``impl=triton,n>=1e6`` a comma means and; besides axes there are ``pack``, ``case`` and
    ``tag``. Words and ids are alternatives where they are not joined by ``and``. What cannot be
    read is a ``UsageError``.
    """
    if re.search("[=<>]", _INSIDE.sub("", text)):
        return [[*_terms(text)]]
    found: Selection = []
    joins, is_wanted = False, True
    for each in _INSIDE.sub(lambda found: "".join(found[0].split()), text).split():
        if each in JOINING:
            joins, is_wanted = each == "and" or (joins and each == "not"), each != "not"
            continue
        if not (joins and found):
            found.append([])
        found[-1].append(Word(each, is_wanted))
        joins, is_wanted = False, True
    if joins or not is_wanted:
        what = f"the selection ends in {text.rsplit(maxsplit=1)[-1]!r}"
        raise UsageError(what, where=repr(text), remedy="write a word behind it")
    return found


def _terms(text: str) -> Iterator[Term]:
    for part in text.split(","):
        match = _TERM.match(part)
        if match is None:
            raise UsageError(
                f"the selection has {part.strip()!r}, which is no condition",
                where=repr(text),
                remedy="write axis=value with one of = != >= <= > <, conditions separated by "
                "commas, or exact ids of variants",
            )
        term = Term(*match.groups())
        if term.operator in _ORDERS and _number(term.value) is None:
            what = f"{term.value!r} is no number to compare {term.name!r} with"
            raise UsageError(what, where=repr(text), remedy="use = or != for words")
        yield term


def select(variants: Collection[Named], text: str, *, of: str = "") -> tuple[Named, ...]:
    """Return which of some variants, or of their ids, a selection takes.

    ``UsageError`` if it takes none of those that there are, or has a word or an axis that none has;
    ``of`` says whose they are. Of ids alone no tag is known.
    """
    selection = parse_selection(text)
    if not selection:
        raise UsageError("the selection is empty", where=of, remedy=f"write {GRAMMAR}")
    names = [each if isinstance(each, str) else each.id for each in variants]
    known = {axis for name in names for axis in _parts(name)[2]}
    words = [each for each in RESERVED if each != "tag" or names != [*variants]]
    where = f"{text!r} of {of}" if of else repr(text)
    terms = [each for some in selection for each in some]
    for term in terms:
        if variants and isinstance(term, Term) and term.name not in {*known, *words}:
            told = f"name one of {', '.join((*words, *sorted(known)))}"
            raise UsageError(f"no variant has the axis {term.name!r}", where=where, remedy=told)
    wanted = (each for each in terms if isinstance(each, Word) and each.is_wanted)
    lost = [each.text for each in wanted if not any(each.accepts(name, ()) for name in names)]
    chosen = tuple(each for each in variants if is_selected(each, selection))
    if variants and (lost or not chosen):
        called = {each for name in names for each in _called(name)} if lost else ()
        near = ", ".join(get_close_matches(lost[0], called)) if lost else ""
        what = f"no variant of {len(names)} is {f'called {lost[0]!r}' if lost else 'selected'}"
        like = f"did you mean {near}?" if near else "a larger tier may have it."
        for term in (each for each in terms if isinstance(each, Term) and each.operator == "="):
            if not any(term.accepts(name, ()) for name in names) and term.name in known:
                has = sorted({_parts(name)[2].get(term.name, "") for name in names} - {""})
                like = f"{term.name} has {', '.join(has)}; {like}"
        raise UsageError(what, where=where, remedy=f"{like} Write {GRAMMAR}")
    return chosen


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def missing_need(variant: Variant, facts: DeviceFacts) -> str:
    """Return the first need that the device does not meet, in words; empty if it meets all."""
    if missing := missing_of(variant.needs, facts):
        return missing
    told, ranks, cores = "", variant.ranks, int(facts.identity.get("cores", "0"))
    is_of_a_pack = not built_in(facts.device).opens
    is_named = any(need.kind == "device" for need in variant.needs)
    if is_of_a_pack and variant.is_gang:
        told = f"is run by ranks, which device {facts.device} has none of"
    elif is_of_a_pack and not is_named and "torch" not in facts.features:
        told = f"needs torch tensors, which device {facts.device} does not make"
    elif built_in(facts.device).ranks_take_units and ranks > facts.gpus:
        told = f"needs {ranks} GPUs, this run has {facts.gpus}"
    elif 0 < RANKS_PER_CORE * cores < ranks:
        told = f"needs {ranks} ranks, too many for {cores} cores"
    elif 0 < facts.memory_bytes < variant.memory_bytes:
        needed, present = variant.memory_bytes / 1e9, facts.memory_bytes / 1e9
        told = f"needs {needed:.1f} GB of memory, this device has {present:.1f} GB"
    return told


def missing_of(needs: Iterable[Need], facts: DeviceFacts) -> str:
    """Return the first of some needs that the device does not meet, in words."""
    for need in needs:
        is_met = need.value in facts.features
        present = f"this device has {', '.join(facts.features) or 'none'}"
        match need.kind:
            case "device":
                is_met, present = need.value == facts.device, f"this run uses {facts.device}"
            case "arch":
                needed, known = ARCH.match(need.value), ARCH.match(facts.arch)
                is_met, present = False, f"this device is {facts.arch or 'no GPU'}"
                if needed and known:
                    # By number: a GPU of sm_90 runs code for sm_90a as well.
                    number, least = int(known[1]), int(needed[1])
                    is_met = number >= least if needed[3] else number == least
                    present = f"this GPU is {facts.arch}"
            case "gpus":
                is_met, present = facts.gpus >= int(need.value), f"this run has {facts.gpus}"
            case "package":
                is_met, present = is_installed(need.value), "which is not installed"
        if not is_met:
            return f"needs {need.kind} {need.value}, {present}"
    return ""


@cache
def is_installed(name: str) -> bool:
    """Say whether a module can be imported, without importing it or its parents."""
    try:
        return spec_of(name.split(".")) is not None
    except ValueError:  # a module made by hand, without a spec
        return True


def order(variants: Iterable[Variant], seed: int) -> tuple[Variant, ...]:
    """Return the cases shuffled, each case's variants together and shuffled.

    Variants of one case share compile caches; the rest is random so that drift hits no case more.
    The outcome depends on the seed and on which variants there are, not on their order.
    """
    ordered = sorted(variants, key=lambda variant: variant.id)
    cases = [*grouped(ordered, lambda variant: (variant.pack, variant.case.name)).values()]
    shuffle = random.Random(seed).shuffle  # noqa: S311 - order, no secret
    shuffle(cases)
    for members in cases:
        shuffle(members)
    return tuple(variant for members in cases for variant in members)


def claims_of(packs: Iterable[Pack], variants: Iterable[Variant]) -> tuple[ClaimInstance, ...]:
    """Return the claims whose two variants are both among those that run.

    One that compares with a pack of which nothing runs is not judged, and says so.
    """
    here = {name for variant in variants for name in (variant.id, variant.pack)}
    claims = (claim for pack in packs for claim in pack.claims if claim.faster in here)
    return tuple(c for c in claims if c.than in here or c.than.partition(".")[0] not in here)


def bundles_of(
    variants: Sequence[Variant], claims: Iterable[ClaimInstance]
) -> list[tuple[Variant, ...]]:
    """Return the variants in groups that only make sense, or only pay, together.

    Both sides of a claim are, or it could not be judged, and the gangs of a case and as many
    ranks, since joining takes seconds.
    """
    groups = {variant.id: [variant.id] for variant in variants}
    links = [(each.faster, each.than) for each in claims if {each.faster, each.than} <= set(groups)]
    gangs = [variant for variant in variants if variant.is_gang]
    for members in grouped(gangs, lambda each: (each.pack, each.case.name, each.ranks)).values():
        links += [(members[0].id, each.id) for each in members]
    for one, other in links:
        if groups[one] is not groups[other]:
            joined = groups[one] + groups[other]
            groups.update(dict.fromkeys(joined, joined))
    found = grouped(variants, lambda variant: id(groups[variant.id]))
    return [tuple(members) for members in found.values()]


def shard_of(
    variants: Sequence[Variant], claims: Iterable[ClaimInstance], *, index: int, count: int
) -> tuple[tuple[Variant, ...], Shard]:
    """Return the variants of a shard; all machines agree, since only ids decide.

    A new variant moves no other: what has no baseline is compared with the same machine's last.
    """
    chosen = set()
    for members in bundles_of(variants, claims):
        ids = {variant.id for variant in members}
        number = int.from_bytes(hashlib.sha256(min(ids).encode()).digest()[:8])
        if number % count == index - 1:
            chosen |= ids
    whole = "\n".join(sorted(variant.id for variant in variants))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    shard = Shard(index=index, count=count, total=len(variants), whole=digest)
    return tuple(variant for variant in variants if variant.id in chosen), shard
