"""The table of a pack's cases in its README: from the catalogue and what is accepted of it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from perfsuite.baselines import Baselines
from perfsuite.baselines.folder import read_sku, skus_in
from perfsuite.ceilings import with_measured
from perfsuite.cli.commands import Packs, app, named
from perfsuite.cli.project import find_project, say
from perfsuite.errors import UsageError
from perfsuite.files import refusing, replace_file
from perfsuite.model import BaselineEntry, Pack, Tier, Variant
from perfsuite.report import view
from perfsuite.report.rates import rate_of
from perfsuite.roofline import GENERIC, Peaks, peaks_of
from perfsuite.terminal.words import plain

BEGIN, END = "<!-- perfsuite cases -->", "<!-- perfsuite cases end -->"
TIME = "time_us"
_COLUMNS = ("case", "what it does", "implementations", "measured", "claims")
_BETWEEN = re.compile(f"{re.escape(BEGIN)}(\r?\n)(.*?){re.escape(END)}", re.DOTALL)
_SLUG = re.compile(r"slowest to fastest, `([A-Za-z0-9._+-]+)`")
_SENTENCE = re.compile(r"(.+?[.])(?:\s|\Z)", re.DOTALL)


@app.command()
def cases(
    name: Annotated[str, typer.Argument(metavar="PACK", help="The pack's name")],
    *,
    sku: Annotated[
        str, typer.Option(help="Whose figures; the README's SKU, else the one that has most")
    ] = "",
    write: Annotated[bool, typer.Option("--write", help="Put it into the pack's README")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the README with it")] = False,
    pack: Packs = None,
) -> None:
    """Make the table of a pack's cases for its README; exit code 1 if --check finds it stale."""
    if write and check:
        remedy = "give --write, then --check"
        raise UsageError("--write makes the table, --check refuses another", remedy=remedy)
    project = find_project()
    packs = project.packs(pack, Tier.FULL)
    found = named(packs, name)
    root = project.baseline_folders(None)[0]
    if not write and not check:
        say(table_of(found, root, sku, packs=packs).rstrip())
        return
    readme = readme_of(found)
    table = table_of(found, root, sku or stored_sku(readme, root), packs=packs)
    if write:
        say(f"{'wrote' if put(readme, table) else 'nothing to change in'} {readme}")
        return
    stale = differing_rows(readme, table)
    for row in stale:
        say(f"differs: {row}")
    say(f"{readme} is {f'stale: perfsuite cases {name} --write' if stale else 'up to date'}")
    raise typer.Exit(1 if stale else 0)


def table_of(pack: Pack, root: Path, sku: str = "", *, packs: Sequence[Pack] = ()) -> str:
    """Return the pack's cases as a Markdown table, with figures of a SKU under ``root``.

    The figures are of the SKU that has most of the pack's variants if none is named; there are
    none if there is no SKU. One row a case: of the variants that differ in their implementation
    only, those that take longest, the slowest of them and the fastest. ``packs`` have the ceilings.
    """
    figures = _figures(pack, root, sku, packs)
    told = (f"slowest to fastest, `{figures.slug}`",) if figures.entries else ()
    rows = [(*_COLUMNS, *told)]
    rows.append(tuple("---" for _ in rows[0]))
    for name, variants in _by_case(pack.variants).items():
        figure = (figures.of(variants),) if told else ()
        rows.append((*_facts(name, variants, pack), *figure))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def put(readme: Path, table: str) -> bool:
    """Put the table between the marks of a README, whose line ends stay; say if that changed it."""
    found = _place(readme)
    table = table.replace("\n", found[1])
    if found[2] == table:
        return False
    text = found.string[: found.start(2)] + table + found.string[found.end(2) :]
    with refusing("cannot write the table", readme, remedy="make the file writable"):
        replace_file(readme, text.encode())
    return True


def differing_rows(readme: Path, table: str) -> list[str]:
    """Return the rows that the README lacks, has beyond the table, or has elsewhere."""
    now, stored = table.splitlines(), _place(readme)[2].splitlines()
    found = [row for row in (*now, *stored) if (row in now) != (row in stored)]
    if found:
        return found
    return [row for row, there in zip_longest(now, stored, fillvalue="") if row != there]


def stored_sku(readme: Path, root: Path) -> str:
    """Return the SKU whose figures the README's table has; empty if there is none under root."""
    found = _SLUG.search(_place(readme)[2])
    return found[1] if found and (root / found[1] / "sku.json").is_file() else ""


def readme_of(pack: Pack) -> Path:
    """Return the README in a pack's folder; ``UsageError`` if it is installed, without one."""
    module, at, folder = pack.origin.removeprefix("module:").partition("@")
    spec = importlib.util.find_spec(module) if at and not folder else None
    home = Path(spec.origin).parents[1] if spec and spec.origin else Path(folder)
    path = home / "README.md"
    if not at or not path.is_file():
        remedy = "run this in a checkout of the pack"
        raise UsageError(f"the pack {pack.name!r} has no README.md here", remedy=remedy)
    return path


def _place(readme: Path) -> re.Match[str]:
    try:
        found = _BETWEEN.search(readme.read_bytes().decode())
    except UnicodeDecodeError as error:
        problem = f"the README is not UTF-8: {error.reason} at byte {error.start}"
        raise UsageError(problem, where=str(readme), remedy="save it as UTF-8") from error
    if found is None:
        remedy = f"write {BEGIN} and {END} on lines of their own, where the table is to stand"
        raise UsageError("the README has no place for the table", where=str(readme), remedy=remedy)
    return found


def _by_case(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        found.setdefault(variant.case.name, []).append(variant)
    return found


def _facts(name: str, variants: Sequence[Variant], pack: Pack) -> tuple[str, ...]:
    doc = " ".join(variants[0].case.doc.split()).replace("``", "`")
    sentence = _SENTENCE.match(doc)
    kinds = dict.fromkeys(str(v.axes["impl"]) for v in variants if "impl" in v.axes)
    ids = {variant.id for variant in variants}
    claims = {claim.name: claim for claim in pack.claims if claim.faster in ids}
    return (
        f"`{name}`",
        (sentence[1] if sentence else doc).removesuffix(".").replace("|", "\\|"),
        ", ".join(f"`{kind}`" for kind in kinds),
        variants[0].case.regime.value.replace("_", " "),
        ", ".join(
            f"`{name}` {claim.by:g} {view.TIMES}{claim.metric and f' less {claim.metric}'}"
            for name, claim in claims.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is accepted for a pack's variants on a SKU."""

    slug: str
    entries: Mapping[str, BaselineEntry]
    peaks: Peaks = GENERIC

    def of(self, variants: Sequence[Variant]) -> str:
        """Return the slowest and the fastest of those that do the same work, where most can."""
        timed = [each for each in variants if self._time(each) is not None]
        if not timed:
            return ""
        # Most variants first: where a few run, they cannot be told apart from the rest.
        chosen = max(_of_same_work(timed), key=lambda each: (len(each), self._longest(each)))
        ordered = sorted(chosen, key=lambda each: -(self._time(each) or 0.0))
        ends = [ordered[0], *ordered[-1:]] if len(ordered) > 1 else ordered
        common = dict(axis for axis in ends[0].axes.items() if axis in ends[-1].axes.items())
        where = _axes(common.items())
        told = " to ".join(self._one(each, common) for each in ends)
        return f"{where + ': ' if where else ''}{told}"

    def _time(self, variant: Variant) -> float | None:
        entry = self.entries.get(variant.id)
        is_same = entry and entry.case_version == variant.case.version
        metric = entry.metrics.get(TIME) if entry and is_same else None
        return metric.center if metric else None

    def _longest(self, variants: Sequence[Variant]) -> float:
        return max(self._time(variant) or 0.0 for variant in variants)

    def _one(self, variant: Variant, common: Mapping[str, object]) -> str:
        time_us = self._time(variant)
        rate, share = rate_of(variant.work, time_us, self.peaks)
        told = [rate] if rate != view.NOTHING else []
        told += [view.share(share)] if share is not None else []
        kind = f"`{variant.axes['impl']}` " if "impl" in variant.axes else ""
        own = _axes(axis for axis in variant.axes.items() if axis[0] not in common)
        beside = f" ({', '.join(told)})" if told else ""
        return plain(f"{own + ' ' if own else ''}{kind}{view.time(time_us, None)}{beside}")


def _axes(axes: Iterable[tuple[str, object]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in axes if name != "impl")


def _of_same_work(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Return variants together that count the same work, or differ in the implementation alone."""
    groups: list[list[Variant]] = []
    for variant in variants:
        mine = [each for each in groups if any(_is_alike(variant, other) for other in each)]
        groups = [each for each in groups if each not in mine]
        groups.append([*(other for each in mine for other in each), variant])
    return groups


def _is_alike(one: Variant, other: Variant) -> bool:
    if one.work is not None and one.work == other.work:
        return True
    mine, theirs = ({k: v for k, v in each.axes.items() if k != "impl"} for each in (one, other))
    return mine == theirs


def _figures(pack: Pack, root: Path, sku: str, packs: Sequence[Pack]) -> _Figures:
    known = {slug: root / slug for slug in skus_in(root)}
    if sku and sku not in known:
        remedy = f"choose one of {', '.join(known)}" if known else "accept a run first"
        raise UsageError(
            f"there is no baseline for the SKU {sku!r}", where=str(root), remedy=remedy
        )
    folders = [known[sku]] if sku else known.values()
    chosen = [_stored(pack, root, each, packs) for each in folders]
    return max(chosen, key=lambda each: len(each.entries), default=_Figures("", {}))


def _stored(pack: Pack, root: Path, folder: Path, packs: Sequence[Pack]) -> _Figures:
    own = {variant.id for variant in pack.variants}
    entries = Baselines.load([root], read_sku(folder)).entries
    peaks = with_measured(peaks_of(folder.name), entries.values(), packs)
    return _Figures(folder.name, {k: each for k, each in entries.items() if k in own}, peaks)
