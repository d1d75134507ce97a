"""The lines of the table of changes: one per variant that ran."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.model import Change
from perfsuite.report import charts, marks, view
from perfsuite.report.rates import Rate, rate_of
from perfsuite.report.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line as text and charts; ``keys`` are its sort keys, separated by spaces."""

    anchor: str
    pack: str
    case: str
    axes: tuple[str, ...]
    mark: marks.Mark
    fails: bool
    now: str
    baseline: str
    change: str
    interval: str
    bar: Markup
    aside: str
    time_change: str
    clock_change: str
    rate: Rate
    noise: str
    processes: str
    keys: str


def row(subject: Subject, slug: str) -> Row:
    """Return the line of one variant."""
    variant, change = subject.variant, subject.change
    now, digits = subject.now(), subject.digits()
    rate = rate_of(variant.work, now, slug)
    return Row(
        anchor=subject.anchor,
        pack=variant.pack,
        case=variant.case.name,
        axes=axes_of(variant.id),
        mark=subject.mark,
        fails=subject.mark.tone == "fail" or bool(subject.verdict and subject.verdict.fails),
        now=view.time(now, digits),
        baseline=view.time(subject.baseline(), digits, like=now),
        change=change_text(change),
        interval=view.interval(change.low, change.high) if change else "",
        bar=bar(change, subject.mark) if change else Markup(),
        aside=_aside(subject),
        time_change=log_change(change.time_change if change else None, change),
        clock_change=log_change(change.clock_change if change and _two_clocks(subject) else None),
        rate=rate,
        noise=view.spread(subject.noise()),
        processes=str(len(subject.evidence)) if subject.evidence else view.NOTHING,
        keys=_keys(subject, rate),
    )


def axes_of(variant: str) -> tuple[str, ...]:
    """Return the axes of an id as they stand there, without reading them."""
    _, _, axes = variant.partition("[")
    return tuple(axes.removesuffix("]").split(",")) if axes.removesuffix("]") else ()


def change_text(change: Change | None) -> str:
    """Return a change to the digits that its interval supports."""
    if change is None:
        return view.NOTHING
    return view.percent(change.theta, half_width=abs(change.high - change.low) / 2)


def log_change(change: float | None, precise: Change | None = None) -> str:
    """Return a log change as a relative one in percent, to the digits of ``precise``."""
    half = abs(precise.high - precise.low) / 2 if precise else None
    return view.percent(math.expm1(change) if change is not None else None, half_width=half)


def bar(change: Change, mark: marks.Mark) -> Markup:
    """Return the change drawn against threshold and gate."""
    return charts.change_bar(
        change.theta,
        ends=(change.low, change.high),
        limits=(change.threshold, change.gate),
        tone=mark.tone,
    )


def _aside(subject: Subject) -> str:
    # Where there is no change of time to show, or another metric decided, the row says why.
    if subject.change is None:
        return subject.reason
    exact = [change for change in subject.others if abs(change.theta) > change.threshold]
    return ", ".join(map(_exact_text, exact))


def _exact_text(change: Change) -> str:
    # A share of nothing says nothing.
    if not change.baseline:
        return f"{change.metric} from 0 to {change.current:.4g} {change.unit}"
    return f"{change.metric} {view.percent(change.current / change.baseline - 1)}"


def _two_clocks(subject: Subject) -> bool:
    return any(block.cycles for process in subject.evidence for block in process.blocks)


def _keys(subject: Subject, rate: Rate) -> str:
    change = subject.change
    values = (
        subject.mark.rank,
        subject.now(),
        subject.baseline(),
        change.theta if change else None,
        change.time_change if change else None,
        change.clock_change if change else None,
        rate.share_of_ceiling,
        subject.noise(),
        len(subject.evidence),
    )
    # A dash sorts behind every number in the page's script.
    return " ".join("-" if value is None else f"{value:.5g}" for value in values)
