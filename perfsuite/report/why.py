"""Why a variant changed, in words: a headline, and the rows of what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfsuite.explain import Clock, CodeChange, Explanation, KernelChange, Kind, role_of
from perfsuite.model import TracedKernel
from perfsuite.report import view
from perfsuite.report.subject import Subject

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
MOST_ROWS, MOST_CAUSES, MOST_FACTS, MOST_DIFFERENCES = 40, 2, 4, 4


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


def headline(explanation: Explanation) -> str:
    """Return why it changed in one sentence, what explains most first; nothing if unknown."""
    parts = list(_parts(explanation))
    different = explanation.environment
    if parts and different and not explanation.is_clock:
        named = [f"{name} {old} {ARROW} {new}" for name, old, new in different]
        more = len(named) - MOST_DIFFERENCES
        rest = [f"{more} more"] if more > 0 else []
        parts.append(f"what else differs: {', '.join([*named[:MOST_DIFFERENCES], *rest])}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _parts(explanation: Explanation) -> Iterator[str]:
    clock, causes = explanation.clock, explanation.causes
    if clock and explanation.is_clock:
        yield clock_words(clock)
    for cause in causes[:MOST_CAUSES]:
        yield _cause(cause)
    if len(causes) > MOST_CAUSES:
        yield f"{len(causes) - MOST_CAUSES} more kernels with a part in it"
    if explanation.is_between and not explanation.is_clock:
        yield _between(explanation)
    if not causes and explanation.same_artefact and not explanation.is_clock:
        yield (
            "the code compiled here is the same to the letter: the machine or a library changed, "
            "not this kernel"
        )
    if clock and not explanation.is_clock:
        yield clock_words(clock)
    if not explanation.kernels and explanation.same_artefact is False:
        yield "the code compiled here is another"


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
    code = f"time {view.percent(clock.time)}, code {view.percent(clock.code)}"
    return f"{', '.join([moved, *held])}: {code}"


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
        times = f"{_time(new)} instead of {_time(old)}"
        return f"{switch}: {_name(new)} instead of {_name(old)}, {times}{_share(cause)}"
    if new.count != old.count:
        counts = f"{view.figures(new.count, 3)} times a launch instead of"
        return f"{_name(new)} runs {counts} {view.figures(old.count, 3)}{_share(cause)}"
    times = f"{view.time(new.duration_us, None)} instead of"
    what = f"{_name(new)} takes {times} {view.time(old.duration_us, None)}{_share(cause)}"
    return f"{what}{_code(cause)}"


def _between(explanation: Explanation) -> str:
    rest = _signed(explanation.rest_us or 0.0)
    share = (explanation.rest_us or 0.0) / (explanation.change_us or 1.0)
    how = "gaps between kernels and what launching takes"
    return f"{rest} are in no kernel ({view.share(share)} of the change): {how}"


def _code(cause: KernelChange) -> str:
    if cause.code is None:
        return ""
    if cause.code.is_same and not cause.code.facts:
        return ", by the same code to the letter: the machine or a library changed, not this kernel"
    if cause.code.is_same:
        return f", of the same PTX assembled otherwise: {facts_words(cause.code)}"
    return f", its code changed: {facts_words(cause.code) or 'only in its PTX'}"


def facts_words(code: CodeChange, most: int = MOST_FACTS) -> str:
    """Return what of a kernel's code differs: registers 64 to 128."""
    said = [
        f"{name.replace('_', ' ')} {view.amount(old, '')} {ARROW} {view.amount(new, '')}"
        for name, old, new in code.facts
    ]
    return ", ".join([*said[:most], *([f"{len(said) - most} more"] if len(said) > most else [])])


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
    cut = f"{total - MOST_ROWS} more kernels are not shown" if total > MOST_ROWS else ""
    before = "" if shown or not explanation else "what it is compared with was not traced"
    return "; ".join(part for part in (cut, before, trace.reason if trace else "") if part)


def rest(explanation: Explanation) -> str:
    """Return what the kernels do not explain, and its share."""
    if explanation.rest_us is None or not explanation.change_us:
        return ""
    return (
        f"{_signed(explanation.rest_us)} ({_percent(explanation.rest_us / explanation.change_us)})"
    )


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
        delta=_signed(each.delta_us) if each.kind is not Kind.SAME else "",
        share=_percent(each.share) if each.share is not None and each.kind is not Kind.SAME else "",
        details="; ".join(_details(each)),
    )


def _details(each: KernelChange) -> Iterator[str]:
    old, new = each.before, each.now
    if old and each.kind is Kind.REPLACED:
        yield f"was {middle(old.name)}"
    for label, key in (("grid", "grid"), ("block", "block"), ("registers", "registers")):
        was, now = (_shape(getattr(side, key)) if side else "" for side in (old, new))
        if was and now and was != now:
            yield f"{label} {was} {ARROW} {now}"
        elif (now or was) and each.kind is not Kind.CHANGED:
            yield f"{label} {now or was}"
    if old and new and old.shared_bytes != new.shared_bytes:
        shared = f"{view.size(old.shared_bytes)} {ARROW} {view.size(new.shared_bytes)}"
        yield f"shared memory {shared}"
    if each.code and each.code.facts:
        yield facts_words(each.code, 2 * MOST_FACTS)


def _shape(value: int | tuple[int, ...]) -> str:
    if isinstance(value, int):
        return str(value) if value else ""
    return view.TIMES.join(map(str, value))


def middle(name: str, most: int = NAME_CHARACTERS) -> str:
    """Return a long name without its middle: both ends tell kernels apart."""
    half = most // 2
    return name if len(name) <= most else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def _name(kernel: TracedKernel) -> str:
    return middle(kernel.name)


def _time(kernel: TracedKernel) -> str:
    return view.time(kernel.total_us, None)


def _count_and_time(kernel: TracedKernel | None) -> str:
    if kernel is None:
        return view.NOTHING
    times = f"{view.figures(kernel.count, 3)}{view.SPACE}{view.TIMES}{view.SPACE}"
    return f"{times if kernel.count != 1 else ''}{view.time(kernel.duration_us, None)}"


def _signed(time_us: float) -> str:
    sign = "+" if time_us > 0 else view.MINUS
    return f"{sign}{view.time(abs(time_us), None)}" if time_us else view.time(0.0, None)


def _share(cause: KernelChange) -> str:
    return f" ({view.share(cause.share)} of the change)" if cause.share and cause.share > 0 else ""


def _percent(share: float | None) -> str:
    return view.percent(share, half_width=0.05).removeprefix("+")
