"""Where cases stand under the ceilings of their SKU: by operations, or by bytes alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from perfsuite import roofline
from perfsuite.model import Word
from perfsuite.report import roofplot, view
from perfsuite.report.subject import Subject

MOVED = {Word.SLOWER, Word.FASTER, Word.OVER_BUDGET}


@dataclass(frozen=True)
class Place:
    """Where one variant stands: rates in bytes/s or FLOP/s, ``intensity`` in FLOP/byte.

    ``link`` names its wire, ``dtype`` the rate of its operations; without operations there is
    neither a dtype nor an intensity. ``before`` is its rate in the baseline, if it has moved.
    """

    subject: Subject
    link: str
    dtype: str
    intensity: float
    rate: float
    before: float | None
    share: float | None
    peaks: roofline.Peaks

    @property
    def point(self) -> roofplot.Point:
        """The place as it is drawn."""
        mark, title = self.subject.mark, f"{self.subject.variant.id}: {self.said}"
        is_loud = mark.needs_reader or self.before is not None
        return roofplot.Point(self.intensity, self.rate, self.before, mark.tone, title, is_loud)

    @property
    def ceiling(self) -> roofline.Rate | None:
        """The ceiling that is nearest above it; None where it is not known."""
        if self.peaks.is_generic:
            return None
        link, operations = self.peaks.links.get(self.link), self.peaks.operations.get(self.dtype)
        if not self.dtype:
            return link
        is_by_link = link and operations and link.value * self.intensity < operations.value
        return link if is_by_link or operations is None else operations

    @property
    def said(self) -> str:
        """The rate, and the share of the ceiling where that is known."""
        rate = self.shown(self.rate)
        return f"{rate}, {view.share(self.share)} of the ceiling" if self.share else rate

    @property
    def text(self) -> str:
        """The place in words."""
        rate, ceiling = self.ceiling, ""
        if rate:
            is_link = rate is self.peaks.links.get(self.link)
            amount = view.flow(rate.value, "B/s" if is_link else "FLOP/s")
            kind = "measured" if rate.measured else "from a datasheet"
            ceiling = f" Limited by {self.link if is_link else self.dtype}: {amount}, {kind}."
        return f"{self.said}.{ceiling} {self.balance}".strip()

    @property
    def balance(self) -> str:
        """Operations per byte, where there are both."""
        has_both = self.dtype and math.isfinite(self.intensity)
        return f"{view.figures(self.intensity, 3)}{view.SPACE}FLOP/B" if has_both else ""

    def shown(self, rate: float | None) -> str:
        """Return a rate in its unit."""
        return view.flow(rate, "FLOP/s" if self.dtype else "B/s")

    @cached_property
    def drawing(self) -> Markup:
        """The place alone under its ceilings."""
        if self.dtype:
            return _plane([self], self.peaks, is_small=True)
        return _lane(self.link, [self], self.peaks)


@dataclass(frozen=True, slots=True)
class Lane:
    """What moves bytes only, over one link: its name, ceiling and drawing."""

    title: str
    drawing: Markup


@dataclass(frozen=True, slots=True)
class Roof:
    """All cases of a run under the ceilings of its SKU, drawn and as lines of a table."""

    places: tuple[Place, ...]
    plane: Markup
    lanes: tuple[Lane, ...]
    ceilings: tuple[tuple[str, str, str, str], ...]


def place(subject: Subject, peaks: roofline.Peaks) -> Place | None:
    """Return where a variant stands, or None where no work is stated or nothing was timed."""
    work, now = subject.variant.work, subject.now()
    if work is None or not now or not (work.flops or work.bytes):
        return None
    if roofline.is_held_by_starts(work, peaks):  # neither axis says why it takes its time
        return None
    amount = work.flops or work.bytes
    verdict, base = subject.verdict, subject.baseline()
    has_moved = verdict is not None and verdict.word in MOVED and subject.change is not None
    return Place(
        subject=subject,
        link=roofline.link_of(work, peaks),
        dtype=(work.rate_dtype or "fp32") if work.flops else "",
        intensity=work.flops / work.bytes if work.bytes else math.inf,
        rate=1e6 * amount / now,
        before=1e6 * amount / base if has_moved and base else None,
        share=roofline.efficiency(work, peaks, now),
        peaks=peaks,
    )


def roof(subjects: Iterable[Subject], peaks: roofline.Peaks) -> Roof | None:
    """Return every case of a run that states its work; None where none does."""
    places = [found for subject in subjects if (found := place(subject, peaks))]
    if not places:
        return None
    links = {one.link for one in places if not one.dtype}
    lanes = (
        Lane(link, _lane(link, [p for p in places if p.link == link and not p.dtype], peaks))
        for link in sorted(links)
    )
    on_plane = [p for p in places if p.dtype and math.isfinite(p.intensity)]
    plane = _plane(on_plane, peaks) if on_plane else Markup()
    return Roof(tuple(places), plane, tuple(lanes), tuple(_ceilings(places, peaks)))


def _plane(places: Sequence[Place], peaks: roofline.Peaks, *, is_small: bool = False) -> Markup:
    known = () if peaks.is_generic else tuple(_lines(places, peaks))
    return roofplot.plane([one.point for one in places], known, is_small=is_small)


def _lines(places: Sequence[Place], peaks: roofline.Peaks) -> Iterable[roofplot.Ceiling]:
    for name in sorted({one.link for one in places}):
        if rate := peaks.links.get(name):
            text = f"{name} {view.flow(rate.value, 'B/s')}"
            yield roofplot.Ceiling(text, rate.value, rate.measured, is_link=True)
    same: dict[roofline.Rate, list[str]] = {}
    for name in sorted({one.dtype for one in places}):
        if rate := peaks.operations.get(name):
            same.setdefault(rate, []).append(name)
    for rate, names in same.items():
        text = f"{', '.join(names)} {view.flow(rate.value, 'FLOP/s')}"
        yield roofplot.Ceiling(text, rate.value, rate.measured, is_link=False)


def _lane(link: str, places: Sequence[Place], peaks: roofline.Peaks) -> Markup:
    rate = None if peaks.is_generic else peaks.links.get(link)
    ceiling = (
        roofplot.Ceiling(view.flow(rate.value, "B/s"), rate.value, rate.measured) if rate else None
    )
    return roofplot.lane([one.point for one in places], ceiling)


def _ceilings(
    places: Sequence[Place], peaks: roofline.Peaks
) -> Iterable[tuple[str, str, str, str]]:
    if peaks.is_generic:
        return
    sides = (
        (peaks.links, {one.link for one in places}, "B/s"),
        (peaks.operations, {one.dtype for one in places}, "FLOP/s"),
    )
    for rates, names, unit in sides:
        for name in sorted(names & set(rates)):
            rate = rates[name]
            kind = "measured" if rate.measured else "datasheet"
            yield name, view.flow(rate.value, unit), kind, rate.source
