"""What stays together when variants are divided, and which shard it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from perfsuite.model import ClaimInstance, Shard, Variant


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
        if _number(min(member.id for member in members)) % count == index - 1
        for variant in members
    }
    whole = "\n".join(sorted(variant.id for variant in variants))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:12]
    shard = Shard(index=index, count=count, total=len(variants), whole=digest)
    return tuple(variant for variant in variants if variant.id in chosen), shard


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
