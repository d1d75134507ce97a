"""Puts the table of a pack's cases into its README, with what is accepted of them.

``python tools/readme_tables.py PACK... [--write]``; without --write it says what is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from msgspec.structs import replace

from perfsuite.devices.peaks import GENERIC, Peaks, efficiency, peaks_of, rates, with_measured
from perfsuite.model import BaselineEntry, Pack, Tier, Variant
from perfsuite.packs.find import discover
from perfsuite.report import view
from perfsuite.report.terminal import plain
from perfsuite.store.baselines import Baselines, read_sku, skus_in
from perfsuite.workers.process import load_catalogue

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- perfsuite cases -->", "<!-- perfsuite cases end -->"
TIME = "time_us"
_COLUMNS = ("case", "what it does", "implementations", "measured", "claims")
_BETWEEN = re.compile(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", re.DOTALL)
_SLUG = re.compile(r"slowest to fastest, `([A-Za-z0-9._+-]+)`")
_SENTENCE = re.compile(r"(.+?[.])(?:\s|\Z)", re.DOTALL)


def main(words: Sequence[str]) -> int:
    """Write or compare the tables of packs; return 1 if one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", metavar="PACK")
    parser.add_argument("--write", action="store_true", help="put it into the README")
    told = parser.parse_args(words)
    packs = load_catalogue(discover(ROOT), tier=Tier.FULL)
    stale = False
    for pack in (each for each in packs if each.name in told.packs):
        readme, root = ROOT / "plugins" / pack.name / "README.md", ROOT / "baselines"
        table = table_of(pack, root, stored_sku(readme, root), packs=packs)
        if told.write:
            put(readme, table)
            continue
        rows = differing_rows(readme, table)
        stale |= bool(rows)
        print("\n".join([f"{readme}: {len(rows)} rows differ", *rows]))
    return int(stale)


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


def put(readme: Path, table: str) -> None:
    """Put the table between the marks of a README."""
    found = _place(readme)
    text = found.string[: found.start(1)] + table + found.string[found.end(1) :]
    readme.write_text(text, encoding="utf-8")


def differing_rows(readme: Path, table: str) -> list[str]:
    """Return the rows that the README lacks, has beyond the table, or has elsewhere."""
    now, stored = table.splitlines(), _place(readme)[1].splitlines()
    found = [row for row in (*now, *stored) if (row in now) != (row in stored)]
    if found:
        return found
    return [row for row, there in zip_longest(now, stored, fillvalue="") if row != there]


def stored_sku(readme: Path, root: Path) -> str:
    """Return the SKU whose figures the README's table has; empty if there is none under root."""
    found = _SLUG.search(_place(readme)[1])
    return found[1] if found and (root / found[1] / "sku.json").is_file() else ""


def _place(readme: Path) -> re.Match[str]:
    found = _BETWEEN.search(readme.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{readme} has no place for the table: write {BEGIN}\n{END}")
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
        timed = [
            replace(each, work=each.work or self.entries[each.id].work)
            for each in variants
            if self._time(each) is not None
        ]
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
        work, told, share = variant.work, list[str](), None
        if work and time_us and (found := [*rates(work, time_us, self.peaks).values()]):
            told.append(view.amount(*found[0]))
            share = efficiency(work, self.peaks, time_us)
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
    folders = [root / slug for slug in skus_in(root) if sku in {"", slug}]
    chosen = [_stored(pack, root, each, packs) for each in folders]
    return max(chosen, key=lambda each: len(each.entries), default=_Figures("", {}))


def _stored(pack: Pack, root: Path, folder: Path, packs: Sequence[Pack]) -> _Figures:
    own = {variant.id for variant in pack.variants}
    entries = Baselines.load([root], read_sku(folder)).entries
    peaks = with_measured(peaks_of(folder.name), entries.values(), packs)
    return _Figures(folder.name, {k: each for k, each in entries.items() if k in own}, peaks)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
