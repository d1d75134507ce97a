"""Reads what may not fail a run: known regressions and flaky cases, until when and why."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec.structs import replace

from perfsuite.boundary import StoreError, UsageError
from perfsuite.model import (
    ClaimVerdict,
    ClaimWord,
    Excepted,
    Record,
    Run,
    Variant,
    Verdict,
    Word,
)
from perfsuite.packs.select import Selection, parse_selection
from perfsuite.store.baselines import Root
from perfsuite.store.codec import convert
from perfsuite.store.files import is_absent, read, refusing
from perfsuite.store.sku import sku_for

FILE = "exceptions.toml"
_HEADER = re.compile(r"\s*\[\[\s*(waiver|quarantine)\s*\]\]")
# What stands before a dot is a pack: conditions on axes have their operator first.
_GLOB = re.compile(r"[\w*?-]+\.")
_LIMIT = re.compile(r"\+?(\d+(?:\.\d+)?)\s*%\Z")
_URL = re.compile(r"https?://\S+\Z")
_REMEDY = "correct the entry; docs/baselines.md shows one of each kind"


class Quarantine(Record, frozen=True, kw_only=True):
    """A flaky case: measured, checked and shown; its verdict fails nothing and enters nothing."""

    select: str
    reason: str
    expires: date
    sku: str = ""


class Waiver(Record, frozen=True, kw_only=True):
    """A known regression: slower by no more than ``up_to`` fails no run while its issue is open."""

    select: str
    reason: str
    expires: date
    issue: str
    up_to: str
    sku: str = ""

    @property
    def limit(self) -> float | None:
        """The largest relative change that is waived; None where ``up_to`` cannot be read."""
        match = _LIMIT.match(self.up_to)
        return float(match[1]) / 100 if match else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the file, and the line where it begins."""

    entry: Quarantine | Waiver
    where: str
    selection: Selection | None

    @property
    def excepted(self) -> Excepted:
        """What a verdict says of the rule."""
        entry = self.entry
        until = entry.expires.isoformat()
        if isinstance(entry, Quarantine):
            return Excepted(kind="quarantine", until=until, reason=entry.reason)
        return Excepted(
            kind="waiver", until=until, reason=entry.reason, issue=entry.issue, up_to=entry.limit
        )

    def covers(self, variant: Variant, slug: str = "") -> bool:
        """Say whether the rule is about a variant on a SKU; "" is any."""
        if self.entry.sku and slug and not fnmatchcase(slug, self.entry.sku):
            return False
        if self.selection is None:
            return bool(_pattern(self.entry.select).match(variant.id))
        return self.selection.accepts(variant)

    def acts(self, today: date) -> bool:
        """Say whether the rule holds: to the end of the day that it names."""
        return today <= self.entry.expires


@dataclass(frozen=True, slots=True)
class Exceptions:
    """The rules of a project on a day."""

    rules: tuple[Rule, ...] = ()
    today: date = date.min

    @classmethod
    def load(cls, roots: Sequence[Root], today: date) -> Exceptions:
        """Read the project's files; a bad one is a ``StoreError`` that names the line."""
        paths = [root / FILE for root in roots if isinstance(root, Path)]
        return cls(tuple(rule for path in paths for rule in _rules(path)), today)

    def quarantine(self, variant: Variant, slug: str) -> Rule | None:
        """Return the rule by which a variant is in quarantine today."""
        return self._first(Quarantine, variant, slug)

    def quarantined(self, run: Run) -> dict[str, Rule]:
        """Return the variants and canaries of a run that are in quarantine."""
        found = ((each.id, self.quarantine(each, _slug(each, run))) for each in _all(run))
        return {name: rule for name, rule in found if rule}

    def applied(self, verdicts: Sequence[Verdict], run: Run) -> tuple[Verdict, ...]:
        """Return the verdicts, those that are excepted with the reason and failing nothing."""
        variants = {each.id: each for each in run.variants}
        return tuple(self._applied(each, variants[each.variant], run) for each in verdicts)

    def notes(self, run: Run) -> Iterator[str]:
        """Say which rules acted on a run, and which expired."""
        for rule in self.rules:
            count = sum(rule.covers(each, _slug(each, run)) for each in _all(run))
            if count and rule.acts(self.today):
                yield f"{rule.entry.select!r}, {count} here: {rule.excepted}"
            elif count:
                what = f"the {rule.excepted.kind} of {rule.entry.select!r} acts no more"
                yield f"{what}: it expired on {rule.entry.expires} ({rule.where})"

    def claims(self, claims: Sequence[ClaimVerdict], run: Run) -> tuple[ClaimVerdict, ...]:
        """Return the claims on the run's excepted verdicts.

        Of a case in quarantine nothing is claimed; what a waived one breaks fails nothing.
        """
        away = self.quarantined(run)
        waived = {
            v.variant: v.excepted for v in run.verdicts if v.excepted and v.word is Word.SLOWER
        }
        sides = {each.id: (each.faster, each.than) for each in run.instances}
        found = (
            self._claim(each, [away[s] for s in sides[each.claim] if s in away]) for each in claims
        )
        return tuple(
            self._waived(each, next((waived[s] for s in sides[each.claim] if s in waived), None))
            for each in found
        )

    @staticmethod
    def _claim(claim: ClaimVerdict, away: Sequence[Rule]) -> ClaimVerdict:
        if not away:
            return claim
        reason = f"{away[0].entry.select!r} is {away[0].excepted}"
        return replace(claim, word=ClaimWord.NOT_APPLICABLE, reason=reason, fails=False)

    @staticmethod
    def _waived(claim: ClaimVerdict, excepted: Excepted | None) -> ClaimVerdict:
        if not claim.fails or excepted is None:
            return claim
        return replace(claim, fails=False, reason=f"{claim.reason}; {excepted}")

    def _applied(self, verdict: Verdict, variant: Variant, run: Run) -> Verdict:
        slug = _slug(variant, run)
        if rule := self.quarantine(variant, slug):
            return replace(verdict, fails=False, excepted=rule.excepted)
        # Against a revision that has the known regression as well, this is one more.
        rule = None if run.against else self._first(Waiver, variant, slug)
        if rule is None or verdict.word is not Word.SLOWER:
            return verdict
        excepted = rule.excepted
        sure = [change.theta for change in verdict.changes if change.low > change.threshold]
        worst = max(sure, default=max((each.theta for each in verdict.changes), default=0.0))
        if excepted.up_to is not None and worst > excepted.up_to:
            why = f"worse than what is waived, {worst:+.2%} of {excepted.up_to:+.2%}"
            return replace(verdict, reason=f"{why} ({excepted.issue}); {verdict.reason}")
        return replace(verdict, fails=False, excepted=excepted)

    def _first(self, kind: type[Quarantine | Waiver], variant: Variant, slug: str) -> Rule | None:
        rules = (each for each in self.rules if isinstance(each.entry, kind))
        return next((r for r in rules if r.acts(self.today) and r.covers(variant, slug)), None)


def _all(run: Run) -> list[Variant]:
    return list({each.id: each for each in (*run.variants, *run.canaries)}.values())


def _slug(variant: Variant, run: Run) -> str:
    return sku_for(variant, run.facts, own=run.sku).slug


def _pattern(text: str) -> re.Pattern[str]:
    """Return a glob as an expression; brackets are part of ids, not a choice of letters."""
    wild = {"*": ".*", "?": "."}
    return re.compile("".join(wild.get(each, re.escape(each)) for each in text.strip()) + r"\Z")


def _rules(path: Path) -> Iterator[Rule]:
    with refusing(
        "cannot read the exceptions", path, remedy="make the file and its folder readable"
    ):
        if is_absent(path):
            return
        data = read(path)
    try:
        text = data.decode()
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # what is no TOML, no UTF-8, no number, too deep
        raise StoreError(f"not valid TOML: {error}", where=str(path), remedy=_REMEDY) from error
    if unknown := sorted(tables.keys() - {"waiver", "quarantine"}):
        what = f"unknown key {unknown[0]!r}: only [[waiver]] and [[quarantine]] are known"
        raise StoreError(what, where=str(path), remedy=_REMEDY)
    for name, kind in (("waiver", Waiver), ("quarantine", Quarantine)):
        yield from _of_kind(path, tables.get(name, []), kind=kind, places=_places(text, name))


def _places(text: str, name: str) -> list[int]:
    lines = enumerate(text.splitlines(), 1)
    return [number for number, line in lines if (m := _HEADER.match(line)) and m[1] == name]


def _of_kind(
    path: Path, tables: object, *, kind: type[Quarantine | Waiver], places: Sequence[int]
) -> Iterator[Rule]:
    if not isinstance(tables, list):
        raise StoreError(
            f"{kind.__name__.lower()} is no list: write [[{kind.__name__.lower()}]]",
            where=str(path),
            remedy=_REMEDY,
        )
    for index, table in enumerate(tables):
        where = f"{path}, line {places[index]}" if index < len(places) else str(path)
        entry = convert(table, kind, where=where)
        if fault := next(_faults(entry), ""):
            raise StoreError(fault, where=where, remedy=_REMEDY)
        try:
            selection = None if _GLOB.match(entry.select) else parse_selection(entry.select)
        except UsageError as error:
            raise StoreError(error.what, where=where, remedy=error.remedy) from error
        yield Rule(entry, where, selection)


def _faults(entry: Quarantine | Waiver) -> Iterator[str]:
    for name in ("select", "reason"):
        if not getattr(entry, name).strip():
            yield f"key {name!r} is empty"
    if isinstance(entry, Waiver):
        if not _URL.match(entry.issue):
            yield f"key 'issue' is {entry.issue!r}, no address of an issue"
        if entry.limit is None:
            yield f"key 'up_to' is {entry.up_to!r}; write it as \"+8 %\""
