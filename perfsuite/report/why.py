"""Why a variant changed: its kernels and code before and now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from perfsuite.explain.parts import (
    Clock,
    CodeChange,
    Explanation,
    KernelChange,
    Kind,
    role_of,
)
from perfsuite.model import TracedKernel
from perfsuite.report import view
from perfsuite.report.data import VariantView

# Why a variant changed, in words: the headline, and what it is put together from.


# NVML's reasons in words; what is not here is told by its name.
REASONS = {
    "applications_clocks": "application clocks",
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal": "thermal limit",
    "hw_thermal": "hardware thermal limit",
    "hw_power_brake": "power brake",
}
ARROW = "\N{RIGHTWARDS ARROW}"
NAME_CHARACTERS = 60
MOST_CAUSES, MOST_FACTS, MOST_DIFFERENCES = 2, 4, 4
# Namespaces, and the types of a function's own arguments, which its template's mostly repeat.
_LITTLE = re.compile(
    r"\(anonymous namespace\)::|\b(?:at::native|std|cuda|thrust)::|(?<=[\w>])\([^()]*\)$"
)
# A trace is taken in other minutes than the samples.
MOST_SHARE = 1.1


def headline(explanation: Explanation) -> str:
    """Return why it changed in one sentence, what explains most first; nothing if unknown."""
    parts = list(_parts(explanation))
    different = explanation.environment
    if different and not explanation.is_clock:
        named = [f"{name} {old} {ARROW} {new}" for name, old, new in different]
        more = len(named) - MOST_DIFFERENCES
        rest = [f"{more} more"] if more > 0 else []
        parts.append(f"what else differs: {', '.join([*named[:MOST_DIFFERENCES], *rest])}")
    return "; ".join(parts)


def _parts(explanation: Explanation) -> Iterator[str]:
    clock, causes = explanation.clock, explanation.causes
    if clock and explanation.is_clock:
        yield clock_words(clock)
    for cause in causes[:MOST_CAUSES]:
        yield _cause(cause)
    if len(causes) > MOST_CAUSES:
        yield f"{len(causes) - MOST_CAUSES} more kernels with a part in it"
    if explanation.is_between:
        yield _between(explanation)
    if clock and not explanation.is_clock:
        yield clock_words(clock)
    if not causes and not explanation.is_clock and not explanation.is_between:
        yield from _unknown(explanation)


def _unknown(explanation: Explanation) -> Iterator[str]:
    """Yield what is known where neither a kernel nor the clock explains anything."""
    if explanation.same_artefact:
        yield (
            "the code compiled here is the same to the letter: the machine or a library changed, "
            "not this kernel"
        )
    elif explanation.same_artefact is False:
        yield "the code compiled here is another than before"
    if explanation.is_fine:
        yield "no kernel changed by as much as a trace can tell"


def clock_words(clock: Clock) -> str:
    """Return the story of the SM clock in one sentence."""
    held = [
        f"{REASONS.get(name, name.replace('_', ' '))} active in {count} of {clock.blocks} blocks"
        for name, count in sorted(clock.reasons.items(), key=lambda item: -item[1])
    ]
    way = "lower" if clock.clock < 0 else "higher"
    moved = f"the SM clock was {view.share(abs(clock.clock))} {way}"
    if not clock.us:
        return f"the SM clock stayed, {', '.join(held)}"
    changes = (("time", clock.time), ("SM cycles" if clock.by_cycles else "code", clock.code))
    told = ", ".join(f"{name} {view.percent(change, half_width=0.004)}" for name, change in changes)
    return f"{', '.join([moved, *held])}: {told}"


def _cause(cause: KernelChange) -> str:
    old, new = cause.before, cause.now
    if new is None and old is not None:
        return f"{_name(old)}, {_time(old)} of a launch, is gone{_share(cause)}"
    if old is None and new is not None:
        return f"one more kernel, {_name(new)}, takes {_time(new)} of each launch{_share(cause)}"
    if old is None or new is None:
        return ""
    if cause.kind is Kind.REPLACED:
        role = role_of(new)
        what = f"another kernel for the {role}" if role else "another kernel"
        switch = f"library switch, {what}" if cause.code is None else what
        times = f"{_time(new)} instead of {_time(old)}{_share(cause)}{_counted(cause)}"
        return f"{switch}: {_name(new)} instead of {_name(old)}, {times}"
    if new.count != old.count:
        counts = f"{view.often(new.count)} times a launch instead of"
        return f"{_name(new)} runs {counts} {view.often(old.count)}{_share(cause)}"
    times = f"{view.time(new.duration_us, None)} instead of"
    what = f"{_name(new)} takes {times} {view.time(old.duration_us, None)}{_share(cause)}"
    return f"{what}{_code(cause)}{_counted(cause)}"


def _counted(cause: KernelChange) -> str:
    told = ", ".join(list(counted_words(cause))[:MOST_FACTS])
    return f", {told}" if told else ""


def counted_words(each: KernelChange) -> Iterator[str]:
    """Yield what was counted otherwise: sectors read 4.2 M to 8.4 M."""
    for name, old, new in each.counters:
        yield f"{counter_name(name)} {view.flow(old, '')} {ARROW} {view.flow(new, '')}"


def counter_name(name: str) -> str:
    """Return a counter's name as people write it."""
    words = name.replace("_", " ")
    return words.replace("l2 ", "L2 ").replace("dram ", "DRAM ")


def _between(explanation: Explanation) -> str:
    rest_us, change_us = explanation.rest_us or 0.0, explanation.change_us or 1.0
    rest, share = signed(rest_us), view.share(rest_us / change_us)
    if recompiled := [each for each in explanation.kernels if each.code and not each.code.is_same]:
        return (
            f"{_cause(recompiled[0])}; {rest} ({share}) show only where launches follow each "
            "other: they are traced one by one"
        )
    if rest_us / change_us > MOST_SHARE:
        kernels = signed(change_us - rest_us)
        return f"traced, its kernels moved by {kernels}, which does not explain {signed(change_us)}"
    how = "gaps between kernels and what launching takes"
    return f"{rest} are in no kernel ({share} of the change): {how}"


def _code(cause: KernelChange) -> str:
    differing, code = ", ".join(differences(cause, MOST_FACTS)), cause.code
    if code is None:
        return f": {differing}" if differing else ""
    if not code.is_same:
        return f", its code changed: {differing or 'in its PTX alone'}"
    if differing:
        return f", the same PTX otherwise assembled or launched: {differing}"
    return ", by the same code to the letter: the machine or a library changed, not this kernel"


def facts_words(code: CodeChange, most: int = MOST_FACTS) -> str:
    """Return what of a kernel's code differs: registers 64 to 128."""
    said = [
        f"{name.replace('_', ' ')} {view.amount(old, '')} {ARROW} {view.amount(new, '')}"
        for name, old, new in code.facts
    ]
    return ", ".join([*said[:most], *([f"{len(said) - most} more"] if len(said) > most else [])])


def differences(each: KernelChange, most: int) -> Iterator[str]:
    """Yield what differs in how a kernel is launched, and in its code."""
    old, new = shape_of(each.before), shape_of(each.now)
    told = {name for name, _, _ in each.code.facts} if each.code else set()
    for label in dict.fromkeys((*old, *new)):
        was, now = old.get(label, "none"), new.get(label, "none")
        if was != now and label not in told:
            yield f"{label} {was} {ARROW} {now}"
    if each.code and each.code.facts:
        yield facts_words(each.code, most)


def shape_of(kernel: TracedKernel | None) -> dict[str, str]:
    """Return how a kernel is launched, as far as that is known."""
    if kernel is None:
        return {}
    known = {
        "grid": view.TIMES.join(map(str, kernel.grid)),
        "block": view.TIMES.join(map(str, kernel.block)),
        "registers": str(kernel.registers or ""),
        "shared memory": view.size(kernel.shared_bytes) if kernel.shared_bytes else "",
    }
    return {label: text for label, text in known.items() if text}


def middle(name: str) -> str:
    """Return a kernel's name without what says little, and a long one without its middle.

    Both ends tell kernels apart: templates are named at the front and bound at the end.
    """
    name = _LITTLE.sub("", name.removeprefix("void "))
    if len(name) <= NAME_CHARACTERS:
        return name
    half = NAME_CHARACTERS // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def _name(kernel: TracedKernel) -> str:
    return middle(kernel.name)


def _time(kernel: TracedKernel) -> str:
    return view.time(kernel.total_us, None)


def signed(time_us: float) -> str:
    """Return a difference of times with its sign."""
    sign = "+" if time_us > 0 else view.MINUS
    return f"{sign}{view.time(abs(time_us), None)}" if time_us else view.time(0.0, None)


def _share(cause: KernelChange) -> str:
    if not cause.share or cause.share < 0:
        return ""
    whole = cause.share > MOST_SHARE
    return f" ({'more than the whole' if whole else view.share(cause.share) + ' of the'} change)"


def percent(share: float | None) -> str:
    """Return a part of the change: negative where it made up for others."""
    return view.percent(share, half_width=0.05).removeprefix("+")


# Why a variant ended as it did, in the few words that fit beside its numbers.


# Below this what others take of a device is workers' own ends and starts, as in judge.draft.
NOTABLE_LOAD_PERCENT = 10
# Reasons that say why the evidence does not decide.
_DOUBTS = {"clock_lost", "load", "load_before", "lost", "unusable", "weak"}


def cause(subject: VariantView) -> str:
    """Return what the change and its interval do not say; of doubts what they come from."""
    excepted = subject.verdict.excepted if subject.verdict else None
    return f"{excepted.short}; {_cause_cause(subject)}" if excepted else _cause_cause(subject)


def _cause_cause(subject: VariantView) -> str:
    if subject.mark.tone == "unclear":
        return "; ".join(_doubts(subject)) or subject.reason
    reasons = subject.verdict.reasons if subject.verdict else ()
    told = [
        view.sentence(each) for each in reasons if not (subject.telling and each.kind == "interval")
    ]
    # What stands last is cut off first.
    at = len(told) if subject.mark.tone == "budget" else 0
    told.insert(at, explained(subject))
    return "; ".join(filter(None, told)) or subject.reason


def explained(subject: VariantView) -> str:
    """Return what a change is made of in one sentence; nothing where that is not known."""
    return headline(subject.explanation) if subject.explanation else ""


def load_percent(subject: VariantView) -> float:
    """Return the most that others took of the device while the variant was measured."""
    blocks = [block for process in subject.evidence for block in process.blocks if block.health]
    return max((block.health.foreign_percent or 0.0 for block in blocks if block.health), default=0)


def _doubts(subject: VariantView) -> Iterator[str]:
    load = load_percent(subject)
    if load >= NOTABLE_LOAD_PERCENT:
        yield f"load by others up to {view.number(load, 0)}{view.SPACE}%"
    change = subject.telling
    if change is None:
        yield subject.reason
        return
    reasons = subject.verdict.reasons if subject.verdict else ()
    yield from (view.sentence(each) for each in reasons if each.kind in _DOUBTS)
    yield f"from {view.share(change.detectable)} on a change would be found"


# The kernels of a launch as a table, before and now.


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


def rows(subject: VariantView) -> list[Row]:
    """Return the kernels of a launch, what explains most first; those alike come last."""
    explanation = subject.explanation
    if explanation and explanation.kernels:
        return [_row(each) for each in explanation.kernels[:MOST_ROWS]]
    kernels = subject.trace.kernels if subject.trace else ()
    return [_row(KernelChange(Kind.SAME, None, each, 0.0)) for each in kernels[:MOST_ROWS]]


def left_out(subject: VariantView) -> str:
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
