"""The metrics of a variant before and now: its clocks' rates, and those that are no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfsuite import roofline
from perfsuite.report import view
from perfsuite.report.subject import CYCLES, TIME, Subject

# Lower is what a reader expects.
BETTER = {"higher": "higher is better", "equal": "must not change"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric before and now, with its change where there is something to compare with."""

    name: str
    baseline: str
    now: str
    change: str
    note: str = ""


def judged(subject: Subject) -> Compared | None:
    """Return the metric that an untimed variant's verdict is about; None where time has one."""
    if subject.now() is not None:
        return None
    case, found = subject.variant.case, {line.name: line for line in others(subject)}
    telling = [subject.telling.metric] if subject.telling else []
    told = (*telling, *(one.metric for one in case.budgets), *(one.name for one in case.metrics))
    return next((found[name] for name in (*told, *found) if name in found), None)


def rates(subject: Subject, peaks: roofline.Peaks) -> Iterator[Compared]:
    """Yield the rates of a launch's work, by the formula of the case."""
    work = subject.variant.work
    now, before = subject.now(), subject.baseline()
    if work is None or not now:
        return
    found = (roofline.rates(work, time, peaks) if time else () for time in (now, before))
    values, old = ({rate.name: rate for rate in side} for side in found)
    for name in ("gb_per_s", "tflop_per_s", "kernels_per_ms"):
        if name in values:
            rate, was = values[name], old.get(name)
            yield Compared(
                name,
                view.rate(was.value, was.unit) if was else view.NOTHING,
                view.rate(rate.value, rate.unit),
                _moved(was.value if was else None, rate.value),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric that is no clock; ``better`` is empty where the case does not declare it."""

    name: str
    unit: str
    better: str
    value: float | None
    baseline: float | None


def measured(subject: Subject) -> tuple[Measured, ...]:
    """Return the metrics that are no clock, of this run and of the baseline."""
    now = {name: value for one in subject.evidence for name, value in one.exact.items()}
    noisy = {name: subject.now(name) for name in subject.middles if name not in {TIME, CYCLES}}
    now |= {name: value for name, value in noisy.items() if value is not None}
    stored = subject.entry.metrics if subject.entry else {}
    changes = {change.metric: change for change in subject.others}
    declared = {metric.name: metric for metric in subject.variant.case.metrics}
    lines = []
    for name in dict.fromkeys((*now, *changes)):
        change, own = changes.get(name), declared.get(name)
        before = change.baseline if change else stored[name].center if name in stored else None
        lines.append(
            Measured(
                name=name,
                unit=(own.unit if own else "") or (change.unit if change else view.unit_of(name)),
                better=own.better if own else "",
                # What was judged, where something was: of an exact metric the worst process counts.
                value=change.current if change else now.get(name),
                baseline=before,
            )
        )
    return tuple(lines)


def others(subject: Subject) -> tuple[Compared, ...]:
    """Return the metrics that are no clock, as they are shown."""
    return tuple(
        Compared(
            one.name,
            view.NOTHING if one.baseline is None else view.amount(one.baseline, one.unit),
            view.NOTHING if one.value is None else view.amount(one.value, one.unit),
            _moved(one.baseline, one.value),
            BETTER.get(one.better, ""),
        )
        for one in measured(subject)
    )


def _moved(before: float | None, value: float | None) -> str:
    if before is None or value is None:
        return view.NOTHING
    if before == value:
        return "="
    return view.percent(value / before - 1) if before else "from none"
