"""The section of one variant: what the table of changes has no room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfsuite.model import Variant
from perfsuite.report import facts, view
from perfsuite.report.facts import Fact
from perfsuite.report.rows import change_text, log_change
from perfsuite.report.subject import CYCLES, TIME, Subject


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric before and now, with its change where there is something to compare with."""

    name: str
    baseline: str
    now: str
    change: str


def notes(subject: Subject) -> tuple[str, ...]:
    """Return what the processes have to say, each once."""
    return tuple(dict.fromkeys(note for one in subject.evidence for note in one.notes))


def command(variant: Variant) -> str:
    """Return the command that measures a variant again, from whatever tier it is."""
    return view.command(variant.id, "--perf-tier", variant.tier.value)


def decided(subject: Subject) -> tuple[Fact, ...]:
    """Return the numbers behind the verdict."""
    change, verdict = subject.change, subject.verdict
    if change is None or verdict is None:
        return ()
    found = (
        ("Change of the code", f"{change_text(change)} ({view.interval(change.low, change.high)})"),
        ("Threshold, gate", f"{view.share(change.threshold)}, {view.share(change.gate)}"),
        ("Detectable", f"{view.share(change.detectable)} nine times in ten"),
        ("p value", view.p_value(change.p_value)),
        ("Share of time on the SM clock (β)", view.number(change.beta, 2)),
        ("Confirmed by", verdict.confirmation),
    )
    return facts.present(found)


def clocks(subject: Subject) -> Iterator[Compared]:
    """Yield time, SM cycles and the SM clock that follows from both."""
    change, digits, noise = subject.change, subject.digits(), subject.digits(CYCLES)
    time, before = subject.now(), subject.baseline()
    cycles, cycles_before = subject.now(CYCLES), subject.baseline(CYCLES)
    if time is None:
        return
    yield Compared(
        "Time per launch",
        view.time(before, digits, like=time),
        view.time(time, digits),
        log_change(change.time_change if change else None, change),
    )
    if cycles is None:
        return
    yield Compared(
        "SM cycles per launch",
        view.cycles(cycles_before, noise),
        view.cycles(cycles, noise),
        view.percent(cycles / cycles_before - 1 if cycles_before else None, half_width=noise),
    )
    yield Compared(
        "SM clock",
        view.clock(cycles_before / before if cycles_before and before else None),
        view.clock(cycles / time),
        log_change(change.clock_change if change else None),
    )


def exact(subject: Subject) -> tuple[Compared, ...]:
    """Return the metrics that are no clock, of this run and of the baseline."""
    now = {name: value for one in subject.evidence for name, value in one.exact.items()}
    noisy = {name: subject.now(name) for name in subject.middles if name not in {TIME, CYCLES}}
    now |= {name: value for name, value in noisy.items() if value is not None}
    stored = subject.entry.metrics if subject.entry else {}
    changes = {change.metric: change for change in subject.others}
    units = {metric.name: metric.unit for metric in subject.variant.case.metrics}
    lines = []
    for name in dict.fromkeys((*now, *changes)):
        change = changes.get(name)
        unit = units.get(name) or (change.unit if change else view.unit_of(name))
        before = change.baseline if change else stored[name].center if name in stored else None
        value = now.get(name, change.current if change else None)
        lines.append(
            Compared(
                name,
                view.NOTHING if before is None else view.amount(before, unit),
                view.NOTHING if value is None else view.amount(value, unit),
                _moved(before, value),
            )
        )
    return tuple(lines)


def _moved(before: float | None, value: float | None) -> str:
    if before is None or value is None:
        return view.NOTHING
    if before == value:
        return "="
    return view.percent(value / before - 1) if before else "from none"
