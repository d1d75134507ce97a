"""What holds on this device: the claims of a run by pack and name, broken ones first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from perfsuite.model import ClaimInstance, ClaimVerdict
from perfsuite.report import charts, marks
from perfsuite.report.book import Book

# The dashed lines of a drawing: half and twice the ratio asked for.
FACTOR = math.log(2)


@dataclass(frozen=True)
class Line:
    """One claim on two variants, as text and as a drawing of the ratio found over that asked."""

    verdict: ClaimVerdict
    axes: str
    than: str
    anchor: str
    bar: Markup

    @property
    def mark(self) -> marks.Mark:
        """The mark of the claim's word."""
        return marks.mark(self.verdict.word.value)


@dataclass(frozen=True)
class Tip:
    """All lines of one claim by name; they have one source."""

    name: str
    source: str
    lines: tuple[Line, ...]

    @property
    def rank(self) -> tuple[int, str]:
        """How much it needs a reader."""
        return min(line.mark.rank for line in self.lines), self.name


@dataclass(frozen=True)
class Chapter:
    """All claims of a pack."""

    pack: str
    tips: tuple[Tip, ...]

    @cached_property
    def tallies(self) -> list[tuple[marks.Mark, int]]:
        """How many claims each word holds for, what needs a reader first."""
        words = Counter(line.mark.word for tip in self.tips for line in tip.lines)
        found = ((marks.mark(word), count) for word, count in words.items())
        return sorted(found, key=lambda tally: tally[0].rank)

    @property
    def rank(self) -> tuple[int, str]:
        """How much it needs a reader."""
        return self.tips[0].rank[0], self.pack


def chapters(book: Book) -> list[Chapter]:
    """Return the claims of a run by pack, those that need a reader first at every level."""
    instances = {one.id: one for one in book.run.instances}
    anchors = {one.variant.id: one.anchor for one in book.subjects if not one.is_skipped}
    packs: dict[str, dict[tuple[str, str], list[Line]]] = {}
    for verdict in book.claims:
        instance = instances.get(verdict.claim)
        name, bound = _names(verdict, instance)
        pack = instance.pack if instance else name.partition(".")[0]
        anchor = anchors.get(instance.faster, "") if instance else ""
        line = Line(verdict, bound, _than(instance), anchor, _bar(verdict))
        packs.setdefault(pack, {}).setdefault((name, verdict.source), []).append(line)
    found = (Chapter(pack, _tips(tips.items())) for pack, tips in packs.items())
    return sorted(found, key=lambda chapter: chapter.rank)


def _tips(groups: Iterable[tuple[tuple[str, str], list[Line]]]) -> tuple[Tip, ...]:
    tips = (Tip(name, source, tuple(lines)) for (name, source), lines in groups)
    return tuple(sorted(tips, key=lambda tip: tip.rank))


def _names(verdict: ClaimVerdict, instance: ClaimInstance | None) -> tuple[str, str]:
    """Return a claim's name in words and the axes that it is bound by."""
    stem, _, axes = verdict.claim.partition("[")
    name = instance.name if instance else stem.rpartition(":")[2]
    return name.replace("_", " "), axes.removesuffix("]").replace(",", " ")


def _than(instance: ClaimInstance | None) -> str:
    """Return what the two variants differ by."""
    if instance is None:
        return ""
    sides = [one.partition("[")[2].removesuffix("]").split(",") for one in _both(instance)]
    own, other = (
        [axis for axis in side if axis not in set(sides[1 - at])] for at, side in enumerate(sides)
    )
    if not own or not other:
        return ""
    if instance.metric:  # less of it is better: the ratio is of the other one's
        return f"{instance.metric} of {' '.join(other)} over {' '.join(own)}"
    return f"{' '.join(own)} over {' '.join(other)}"


def _both(instance: ClaimInstance) -> tuple[str, str]:
    return instance.faster, instance.than


def _bar(verdict: ClaimVerdict) -> Markup:
    """Draw how many times the ratio asked for was found: right of the middle it holds."""
    found = (verdict.ratio, verdict.low, verdict.high)
    if not verdict.required or any(not value or value <= 0 for value in found):
        return Markup()
    middle, low, high = (math.log(value / verdict.required) for value in found if value)
    tone = marks.mark(verdict.word.value).tone
    return charts.change_bar(middle, ends=(low, high), limits=(0.0, FACTOR), tone=tone)
