"""What may not fail a run, until when and why: known regressions and flaky cases."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from perfsuite import model
from perfsuite.boundary import StoreError, UsageError
from perfsuite.packs.select import is_selected, parse_selection
from perfsuite.run import config
from perfsuite.store.baselines import Root
from perfsuite.store.files import is_absent, read, refusing
from perfsuite.store.sku import sku_for

FILE = "exceptions.toml"
# What a waiver may excuse: new code, or a new driver.
WAIVED = frozenset({model.Word.SLOWER, model.Word.ENVIRONMENT})
# What stands before a dot is a pack: conditions on axes have their operator first.
_REMEDY = (
    'correct the entry: up_to is written "+8 %", issue is an https address; '
    "docs/baselines.md shows one of each kind"
)
_Said = Annotated[str, Meta(pattern=r"\S")]


class Quarantine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A flaky case: measured, checked and shown; its verdict fails nothing and enters nothing.

    ``where`` is the line of the file where the entry begins.
    """

    select: _Said
    reason: _Said
    expires: date
    sku: str = "*"
    where: str = ""

    def __post_init__(self) -> None:
        parse_selection(self.select)

    @property
    def excepted(self) -> model.Excepted:
        """What a verdict says of the rule."""
        return model.Excepted(kind="quarantine", until=self.expires.isoformat(), reason=self.reason)

    def accepts(self, variant: model.Variant) -> bool:
        """Say whether the rule selects a variant."""
        return is_selected(variant, parse_selection(self.select))

    def covers(self, variant: model.Variant, run: model.Run) -> bool:
        """Say whether the rule is about a variant, on the SKU where a run measures it."""
        slug = sku_for(variant, run.facts, own=run.sku).slug
        return fnmatchcase(slug, self.sku or "*") and self.accepts(variant)

    def acts(self, today: date) -> bool:
        """Say whether the rule holds: to the end of the day that it names."""
        return today <= self.expires


class Waiver(Quarantine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known regression: slower by no more than ``up_to`` fails no run while its issue is open."""

    issue: Annotated[str, Meta(pattern=r"^https?://\S+$")]
    up_to: Annotated[str, Meta(pattern=r"^\+?[0-9]+(\.[0-9]+)?\s*%\Z")]

    @property
    def excepted(self) -> model.Excepted:
        """What a verdict says of the rule."""
        up_to = float(self.up_to.rstrip("% ")) / 100
        return replace(super().excepted, kind="waiver", issue=self.issue, up_to=up_to)


class _File(Struct, forbid_unknown_fields=True):
    waiver: list[dict[str, Any]] = []
    quarantine: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class Exceptions(config.Exceptions):
    """The rules of a project on a day."""

    rules: tuple[Quarantine, ...] = ()
    today: date = date.min

    @classmethod
    def load(cls, roots: Sequence[Root], today: date) -> Exceptions:
        """Read the project's files; a bad one is a ``StoreError`` that names the line."""
        paths = [root / FILE for root in roots if isinstance(root, Path)]
        return cls(tuple(rule for path in paths for rule in _rules(path)), today)

    def quarantined(self, run: model.Run) -> dict[str, Quarantine]:
        """Return the variants and canaries of a run that are in quarantine."""
        found = ((each.id, self._rule(each.variant, run)) for each in run.every)
        return {name: r for name, r in found if r and not isinstance(r, Waiver)}

    def applied(
        self, verdicts: Sequence[model.Verdict], run: model.Run
    ) -> tuple[model.Verdict, ...]:
        """Return the verdicts, those that are excepted with the reason and failing nothing."""
        variants = {each.id: each.variant for each in run.variants}
        rules = [self._rule(variants[each.variant], run) for each in verdicts]
        return tuple(
            _excused(verdict, rule.excepted) if rule else verdict
            for verdict, rule in zip(verdicts, rules, strict=True)
        )

    def notes(self, run: model.Run) -> Iterator[str]:
        """Say which rules acted on a run, and which expired."""
        variants = {each.id: each.variant for each in run.every}.values()
        for rule in self.rules:
            count = sum(rule.covers(each, run) for each in variants)
            if count and rule.acts(self.today):
                yield f"{rule.select!r}, {count} here: {rule.excepted}"
            elif count:
                what = f"the {rule.excepted.kind} of {rule.select!r} acts no more"
                yield f"{what}: it expired on {rule.expires} ({rule.where})"

    def claims(
        self, claims: Sequence[model.ClaimVerdict], run: model.Run
    ) -> tuple[model.ClaimVerdict, ...]:
        """Return the claims on the run's excepted verdicts.

        Of a case in quarantine nothing is claimed; what a waived one breaks fails nothing.
        """
        away = self.quarantined(run)
        slower = [each for each in run.verdicts if each.word in WAIVED]
        waived = {each.variant: each.excepted for each in slower if each.excepted}
        sides = {each.id: (each.faster, each.than) for each in run.instances}
        found: list[model.ClaimVerdict] = []
        for claim in claims:
            both = sides[claim.claim]
            rule = next((away[side] for side in both if side in away), None)
            excuse = next((waived[side] for side in both if side in waived), None)
            if rule:
                why = model.because("excepted", text=f"{rule.select!r} is {rule.excepted}")
                word = model.ClaimWord.NOT_APPLICABLE
                found.append(replace(claim, word=word, reasons=(why,), fails=False))
            elif claim.fails and excuse:
                why = model.because("excepted", text=str(excuse))
                found.append(replace(claim, fails=False, reasons=(*claim.reasons, why)))
            else:
                found.append(claim)
        return tuple(found)

    def told(self, slug: str) -> Iterator[str]:
        """Say which rules there are for a SKU."""
        for rule in (each for each in self.rules if fnmatchcase(slug, each.sku or "*")):
            over = "" if rule.acts(self.today) else " (expired: it acts no more)"
            yield f"{rule.select}: {rule.excepted}{over}"

    def _rule(self, variant: model.Variant, run: model.Run) -> Quarantine | None:
        """Return the rule that acts on a variant today, a quarantine before a waiver.

        Against a revision that has a known regression as well, a slower one is one more.
        """
        own = [each for each in self.rules if each.acts(self.today) and each.covers(variant, run)]
        own = [each for each in own if not (run.against and isinstance(each, Waiver))]
        return min(own, key=lambda each: isinstance(each, Waiver), default=None)


def _excused(verdict: model.Verdict, excepted: model.Excepted) -> model.Verdict:
    """Return the verdict as a rule has it: of a waiver's only a slower one, and to its limit."""
    if excepted.up_to is not None:
        if verdict.word not in WAIVED:
            return verdict
        sure = [change.theta for change in verdict.changes if change.low > change.threshold]
        worst = max(sure or [change.theta for change in verdict.changes], default=0.0)
        if worst > excepted.up_to:
            limit, issue = excepted.up_to, excepted.issue
            why = model.because("worse_than_waived", theta=worst, up_to=limit, issue=issue)
            return replace(verdict, reasons=(why, *verdict.reasons))
    return replace(verdict, fails=False, excepted=excepted)


def _rules(path: Path) -> Iterator[Quarantine]:
    remedy = "make the file and its folder readable"
    with refusing("cannot read the exceptions", path, remedy=remedy):
        if is_absent(path):
            return
        data = read(path)
    place = str(path)
    try:
        text = data.decode()
        file = convert(tomllib.loads(text), _File)
        for kind, form in (("waiver", Waiver), ("quarantine", Quarantine)):
            header = re.compile(rf"\s*\[\[\s*{kind}\s*\]\]")
            heads = [n for n, line in enumerate(text.splitlines(), 1) if header.match(line)]
            places = chain((f"{path}, line {n}" for n in heads), repeat(str(path)))
            for entry, place in zip(getattr(file, kind), places, strict=False):
                yield convert({**entry, "where": place}, form)
    except ValidationError as error:
        raise StoreError(str(error), where=place, remedy=_REMEDY) from error
    except UsageError as error:  # what it selects
        raise StoreError(error.what, where=place, remedy=error.remedy) from error
    except (ValueError, RecursionError) as error:  # what is no TOML, no UTF-8, no number, too deep
        raise StoreError(f"not valid TOML: {error}", where=place, remedy=_REMEDY) from error
