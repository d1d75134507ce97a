"""Finds what is wrong with a folder of baselines: files, stale and missing entries, exceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.boundary import StoreError, UsageError
from perfsuite.model import Pack, Tier, Variant
from perfsuite.nightly.exceptions import Exceptions
from perfsuite.report.view import count
from perfsuite.run.project import BaselinesOption, Packs, find_project, say, with_baselines
from perfsuite.store.baselines import (
    StoredEntry,
    folders_in,
    pack_path,
    packs_in,
    read_pack,
    read_runs,
    read_sku,
    run_path,
    runs_in,
    runs_of,
)


def problems_in(
    root: Path,
    packs: Sequence[Pack],
    *,
    today: date,
    older_than: int = 180,
    tier: Tier | None = None,
) -> Iterator[StoreError]:
    """Yield what is wrong with baselines, the SKUs by name and the exceptions last.

    ``packs`` have the variants of every tier, ``older_than`` is in days. With a ``tier`` its
    variants must have entries where others of the same case and needs have one.
    """
    known = {pack.name: pack for pack in packs}
    for folder in (root / name for name in folders_in(root)):
        try:
            yield from _of_folder(folder, known, today=today, older_than=older_than, tier=tier)
        except StoreError as error:
            yield error
    try:
        exceptions = Exceptions.load([root], today)
    except StoreError as error:
        yield error
        return
    variants = [each for pack in packs for each in _variants(pack).values()]
    broken = ", ".join(pack.name for pack in packs if pack.error)
    rest = f" of the packs that can be listed (not {broken})" if broken else ""
    for rule in exceptions.rules:
        what, where = f"the {rule.excepted.kind} of {rule.select!r}", rule.where
        if not rule.acts(today):
            remedy = "repair the case and remove it, or prolong it"
            yield StoreError(f"{what} expired on {rule.expires}", where=where, remedy=remedy)
        elif not any(map(rule.accepts, variants)):
            remedy = "correct or remove it"
            yield StoreError(f"{what} matches nothing{rest}", where=where, remedy=remedy)


def _of_folder(
    folder: Path, packs: Mapping[str, Pack], *, today: date, older_than: int, tier: Tier | None
) -> Iterator[StoreError]:
    """Yield what is wrong with one SKU: its packs' files, entries and runs."""
    stored: dict[str, StoredEntry] = {}
    is_whole = True
    try:
        read_sku(folder)
    except StoreError as error:
        yield error
    for name in packs_in(folder):
        try:
            own = read_pack(folder, name)
        except StoreError as error:
            is_whole = False
            yield error
            continue
        stored |= own
        path = str(pack_path(folder, name))
        found = (*_of_pack(name, packs.get(name), own, tier), *_aged(own, today, older_than))
        yield from (StoreError(what, where=path, remedy=remedy) for what, remedy in found)
    of_run = Counter(run for each in stored.values() for run in runs_of([each]))
    for run, many in sorted(of_run.items()):
        try:
            if not read_runs(folder, [run]):
                what = f"entries come from run {run!r}, of which no file is kept: {many}"
                where = str(run_path(folder, run))
                yield StoreError(what, where=where, remedy="restore it from git")
        except StoreError as error:
            yield error
    # What a damaged file refers to is not known.
    for left in runs_in(folder) if is_whole else ():
        if left.stem not in of_run:
            what = f"no entry comes from run {left.stem!r}"
            yield StoreError(what, where=str(left), remedy="remove the file")


def _of_pack(
    name: str, pack: Pack | None, own: Mapping[str, StoredEntry], tier: Tier | None
) -> Iterator[tuple[str, str]]:
    """Yield which entries of a pack are stale or missing, and what to do about it."""
    if pack is None or pack.error:
        why = f"cannot be listed ({pack.error})" if pack else "is not installed, or not in --packs"
        what = f"pack {name!r} {why}: its {len(own)} entries cannot be checked"
        yield what, "repair or install the pack, or remove the file"
        return
    known = _variants(pack)
    for variant, stored in own.items():
        if variant not in known:
            remedy = "remove the entry, or accept the variant that took its place"
            yield f"{variant} is stale: no such variant is left", remedy
        elif (was := stored.case_version) != (version := known[variant].case.version):
            what = f"{variant} is of version {was} of its case, now {version}"
            yield what, "propose or accept a run of the new version"
    tiers = list(Tier)[: list(Tier).index(tier) + 1] if tier else []
    kinds = {_kind(known[variant]) for variant in own if variant in known}
    lacking = [each for name, each in known.items() if name not in own and each.tier in tiers]
    lacking = [each for each in lacking if _kind(each) in kinds]
    for (_, at), same in groupby(lacking, lambda each: (each.case.name, each.tier)):
        first, *more = (each.id for each in same)
        what = f"{first}{f' (and {len(more)} more)' * bool(more)} of tier {at} has no entry"
        yield f"{what}, others of its case have one", "measure and propose or accept it"


def _aged(
    own: Mapping[str, StoredEntry], today: date, older_than: int
) -> Iterator[tuple[str, str]]:
    """Yield which entries nobody has looked at for long."""
    for variant, stored in own.items():
        when = stored.accepted.when
        try:
            days = (today - datetime.fromisoformat(when).date()).days
        except ValueError:
            yield f"{variant} was accepted at {when!r}, no moment", "accept a run again"
            continue
        if days > older_than:
            what = f"{variant} was accepted {days} days ago, limit {older_than}"
            yield what, "accept or propose it anew"


def _variants(pack: Pack) -> dict[str, Variant]:
    canaries = (variant for each in pack.canaries.values() for variant in each)
    return {variant.id: variant for variant in (*canaries, *pack.variants)}


def _kind(variant: Variant) -> tuple[object, ...]:
    """Return what tells where a variant can run: siblings that share it run alike."""
    return variant.case.name, variant.ranks, variant.target, str(variant.needs)


def lint(
    tier: Annotated[
        Tier | None, typer.Option(help="Also look for missing entries, up to this tier")
    ] = None,
    older_than: Annotated[
        int, typer.Option(min=1, metavar="DAYS", help="Say which entries are")
    ] = 180,
    only: Packs = None,
    baselines: BaselinesOption = None,
) -> None:
    """Say what is wrong with baselines and exceptions. Exit code 1 if anything is."""
    if baselines and not baselines.is_dir():
        raise UsageError(
            "there is no such folder of baselines", where=str(baselines), remedy="name one that is"
        )
    project = with_baselines(find_project(only, tier=Tier.FULL), baselines)
    roots, packs, today = project.baselines, project.chosen().packs, datetime.now(UTC).date()
    problems = [
        each
        for root in roots
        for each in problems_in(root, packs, today=today, older_than=older_than, tier=tier)
    ]
    for each in problems:
        say(" ".join(f"{each.where}: {each.what}; {each.remedy}".split()))
    say(f"{count(len(problems), 'problem')} in {', '.join(map(str, roots))}")
    raise typer.Exit(1 if problems else 0)
