"""The lines of the table of changes: one per variant that ran."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from perfsuite.model import Change
from perfsuite.report import charts, marks, view
from perfsuite.report.metrics import judged
from perfsuite.report.rates import rate_of
from perfsuite.report.subject import Subject
from perfsuite.roofline import Peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line as text and charts; ``keys`` are its sort keys, separated by spaces."""

    subject: Subject
    metric: str
    now: str
    baseline: str
    change: str
    interval: str
    bar: Markup
    aside: str
    time_change: str
    clock_change: str
    rate: str
    share: str
    noise: str
    keys: str


def row(subject: Subject, peaks: Peaks) -> Row:
    """Return the line of one variant."""
    change, now, digits = subject.change, subject.now(), subject.digits()
    rate, share = rate_of(subject.variant.work, now, peaks)
    has_clock = any(block.cycles for process in subject.evidence for block in process.blocks)
    exact = judged(subject)
    return Row(
        subject=subject,
        metric=exact.name if exact else "",
        now=exact.now if exact else view.time(now, digits),
        baseline=exact.baseline if exact else view.time(subject.baseline(), digits, like=now),
        change=exact.change if exact else change_text(change),
        interval=view.interval(change.low, change.high) if change else "",
        bar=bar(change, subject.mark) if change else Markup(),
        aside=_aside(subject),
        time_change=log_change(change.time_change if change else None, change),
        clock_change=log_change(change.clock_change if change and has_clock else None),
        rate=rate,
        share=view.share(share) if share else "",
        noise=view.spread(subject.noise()),
        keys=_keys(subject, share),
    )


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
    excepted = subject.verdict.excepted if subject.verdict else None
    return ", ".join([*([excepted.short] if excepted else []), *map(_exact_text, exact)])


def _exact_text(change: Change) -> str:
    # A share of nothing says nothing.
    if not change.baseline:
        return f"{change.metric} from 0 to {view.amount(change.current, change.unit)}"
    return f"{change.metric} {view.percent(change.current / change.baseline - 1)}"


def _keys(subject: Subject, share: float | None) -> str:
    change = subject.change
    values = (
        subject.mark.rank,
        None,  # the variant, which is sorted by its text
        subject.now(),
        subject.baseline(),
        change.theta if change else None,
        change.time_change if change else None,
        change.clock_change if change else None,
        share,
        subject.noise(),
    )
    # A dash sorts behind every number in the page's script.
    return " ".join("-" if value is None else f"{value:.5g}" for value in values)
