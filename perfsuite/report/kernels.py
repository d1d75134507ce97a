"""The kernels of a launch as a table, before and now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfsuite.explain import Explanation, KernelChange, Kind
from perfsuite.model import TracedKernel
from perfsuite.report import view
from perfsuite.report.subject import Subject
from perfsuite.report.why import (
    MOST_FACTS,
    counted_words,
    counter_name,
    differences,
    middle,
    percent,
    shape_of,
    signed,
)

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel in the table; ``title`` is its whole name, ``details`` what of it differs."""

    name: str
    title: str
    kind: str
    before: str
    now: str
    delta: str
    share: str
    details: str
    counters: str = ""


def rows(subject: Subject) -> list[Row]:
    """Return the kernels of a launch, what explains most first; those alike come last."""
    explanation = subject.explanation
    if explanation and explanation.kernels:
        return [_row(each) for each in explanation.kernels[:MOST_ROWS]]
    kernels = subject.trace.kernels if subject.trace else ()
    return [_row(KernelChange(Kind.SAME, None, each, 0.0)) for each in kernels[:MOST_ROWS]]


def left_out(subject: Subject) -> str:
    """Say what the table does not show, and why there is none."""
    trace, explanation = subject.trace, subject.explanation
    shown = explanation.kernels if explanation else ()
    total = len(shown) or (len(trace.kernels) if trace else 0)
    is_known = bool(subject.entry and subject.entry.kernels)
    untraced = ""
    if explanation and not (trace and is_known):
        both = "neither it nor what it is compared with was traced"
        one = "it was not traced" if is_known else "what it is compared with was not traced"
        untraced = one if trace or is_known else both
    cut = f"{total - MOST_ROWS} more kernels are not shown" if total > MOST_ROWS else ""
    told = (cut, untraced, trace.reason if trace else "")
    return "; ".join(part for part in told if part)


def rest_label(explanation: Explanation) -> str:
    """Say where that lies which no kernel explains."""
    return "the SM clock" if explanation.is_clock else "in no kernel as it was traced"


def rest(explanation: Explanation) -> str:
    """Return what the kernels do not explain, and its share."""
    if explanation.rest_us is None or not explanation.change_us:
        return ""
    return f"{signed(explanation.rest_us)} ({percent(explanation.rest_us / explanation.change_us)})"


def _row(each: KernelChange) -> Row:
    old, new = each.before, each.now
    kernel = new or old
    name = kernel.name if kernel else ""
    if each.kind is Kind.REPLACED and old:
        name = f"{name} (was {old.name})"
    return Row(
        name=middle(kernel.name if kernel else ""),
        title=name,
        kind="" if each.kind is Kind.SAME else each.kind.value,
        before=_count_and_time(old),
        now=_count_and_time(new),
        delta=signed(each.delta_us) if each.kind is not Kind.SAME else "",
        share=percent(each.share) if each.share is not None and each.kind is not Kind.SAME else "",
        details="; ".join(_details(each)),
        counters="; ".join(_counters(each)),
    )


def has_counters(shown: list[Row]) -> bool:
    """Say whether anything was counted of these kernels."""
    return any(row.counters for row in shown)


def _counters(each: KernelChange) -> Iterator[str]:
    """Yield what was counted: what differs, then what else there was of it."""
    yield from counted_words(each)
    told = {name for name, _, _ in each.counters}
    kernel = each.now or each.before
    for name, count in (kernel.counters if kernel else {}).items():
        if count and name not in told:
            yield f"{counter_name(name)} {view.flow(count, '')}"


def _details(each: KernelChange) -> Iterator[str]:
    if each.before and each.kind is Kind.REPLACED:
        yield f"was {middle(each.before.name)}"
    if each.before and each.now:
        yield from differences(each, 2 * MOST_FACTS)
        return
    for label, text in shape_of(each.now or each.before).items():
        yield f"{label} {text}"


def _count_and_time(kernel: TracedKernel | None) -> str:
    if kernel is None:
        return view.NOTHING
    times = f"{view.often(kernel.count)}{view.SPACE}{view.TIMES}{view.SPACE}"
    return f"{times if kernel.count != 1 else ''}{view.time(kernel.duration_us, None)}"
