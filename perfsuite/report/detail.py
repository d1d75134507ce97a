"""The section of one variant: what the table of changes has no room for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from perfsuite.model import Run, Variant
from perfsuite.report import facts, view
from perfsuite.report.facts import Fact
from perfsuite.report.metrics import Compared
from perfsuite.report.rows import change_text, log_change
from perfsuite.report.subject import CYCLES, TIME, Subject

KEPT = ("--perf-pack", "--perf-device", "--perf-processes", "--perf-repo", "--perf-against-build")


def notes(subject: Subject) -> tuple[str, ...]:
    """Return what the processes have to say, each once."""
    return tuple(dict.fromkeys(note for one in subject.evidence for note in one.notes))


def paragraphs(variant: Variant) -> list[str]:
    """Return what the case says of itself, paragraph by paragraph."""
    return [part for part in re.split(r"\n\s*\n", variant.case.doc) if part.strip()]


def brief(subject: Subject) -> str:
    """Return the middle of each process now, and of those accepted, as one line of text."""
    metric = subject.entry.metrics.get(TIME) if subject.entry else None
    sides = {"now": subject.middles.get(TIME, ())}
    for unit, values in metric.values.items() if metric else ():
        sides[f"baseline, {view.unit(unit)}"] = values
    like, digits = subject.now(), subject.digits()
    told = (
        f"{side}: {', '.join(view.time(value, digits, like=like) for value in values)}"
        for side, values in sides.items()
        if values
    )
    return "; ".join(told)


def command(variant: Variant, run: Run) -> str:
    """Return the command that measures a variant again as in this run, whatever its tier."""
    of_arms = (f"--perf-against={run.against.name}",) if run.against else ()
    tier = ("--perf-tier", variant.tier.value)
    return view.command(variant.id, *tier, *_kept(run.command), *of_arms)


def _kept(given: str) -> Iterator[str]:
    """Yield the options of a run's command without which a variant is not there, or another."""
    try:
        words = iter(shlex.split(given))
    except ValueError:
        return  # typed by hand into a run file
    for word in words:
        name, equals, value = word.partition("=")
        if name in KEPT:
            yield f"{name}={value if equals else next(words, '')}"


def decided(subject: Subject) -> tuple[Fact, ...]:
    """Return the numbers behind the verdict."""
    change, verdict = subject.change, subject.verdict
    if change is None or verdict is None:
        return ()
    has_cycles = subject.now(CYCLES) is not None
    label = "Change of the code" if has_cycles else "Change"
    share = view.number(change.beta, 2) if has_cycles else ""
    found = (
        (label, f"{change_text(change)} ({view.interval(change.low, change.high)})"),
        ("Threshold, gate", f"{view.share(change.threshold)}, {view.share(change.gate)}"),
        ("Detectable", f"{view.share(change.detectable)} nine times in ten"),
        ("p value", view.p_value(change.p_value)),
        ("Share of time on the SM clock (β)", share),
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
