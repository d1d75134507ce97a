"""What a change is made of, in words: its headline, and the table of a launch's kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import jinja2
from markupsafe import Markup

from perfsuite.explain.parts import (
    Clock,
    CodeChange,
    Explanation,
    KernelChange,
    Kind,
    explain,
    role_of,
)
from perfsuite.model import TracedKernel
from perfsuite.report import view
from perfsuite.report.data import VariantView

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
MOST_CAUSES, MOST_FACTS, MOST_DIFFERENCES, MOST_ROWS = 2, 4, 4, 40
# Namespaces, and the types of a function's own arguments, which its template's mostly repeat.
_LITTLE = re.compile(
    r"\(anonymous namespace\)::|\b(?:at::native|std|cuda|thrust)::|(?<=[\w>])\([^()]*\)$"
)
# A trace is taken in other minutes than the samples.
MOST_SHARE = 1.1


def headline(explanation: Explanation) -> str:
    """Return why it changed in one sentence, what explains most first; nothing if unknown."""
    return "; ".join(_parts(explanation))


def _parts(explanation: Explanation) -> Iterator[str]:
    clock, causes = explanation.clock, explanation.causes
    is_clock, is_between = explanation.is_clock, explanation.is_between
    if clock and is_clock:
        yield clock_words(clock)
    yield from map(_cause, causes[:MOST_CAUSES])
    if len(causes) > MOST_CAUSES:
        yield f"{len(causes) - MOST_CAUSES} more kernels with a part in it"
    if is_between:
        yield _between(explanation)
    if clock and not is_clock:
        yield clock_words(clock)
    if not (causes or is_clock or is_between):
        # Neither a kernel nor the clock explains anything.
        if explanation.same_artefact:
            yield (
                "the code compiled here is the same to the letter: the machine or a library "
                "changed, not this kernel"
            )
        elif explanation.same_artefact is False:
            yield "the code compiled here is another than before"
        if explanation.is_fine:
            yield "no kernel changed by as much as a trace can tell"
    if explanation.environment and not is_clock:
        named = [f"{name} {old} {ARROW} {new}" for name, old, new in explanation.environment]
        yield f"what else differs: {', '.join(_cut(named, MOST_DIFFERENCES))}"


def clock_words(clock: Clock) -> str:
    """Return the story of the SM clock in one sentence."""
    held = [
        f"{REASONS.get(name, name.replace('_', ' '))} active in {count} of {clock.blocks} blocks"
        for name, count in sorted(clock.reasons.items(), key=lambda item: -item[1])
    ]
    if not clock.us:
        return f"the SM clock stayed, {', '.join(held)}"
    way = "lower" if clock.clock < 0 else "higher"
    moved = f"the SM clock was {view.share(abs(clock.clock))} {way}"
    changes = (("time", clock.time), ("SM cycles" if clock.by_cycles else "code", clock.code))
    told = ", ".join(f"{name} {view.percent(change, half_width=0.004)}" for name, change in changes)
    return f"{', '.join([moved, *held])}: {told}"


def _cause(cause: KernelChange) -> str:
    old, new, share = cause.before, cause.now, ""
    if cause.share and cause.share > 0:
        part = "more than the whole"
        if cause.share <= MOST_SHARE:
            part = f"{view.share(cause.share)} of the"
        share = f" ({part} change)"
    if new is None:
        return f"{_name(old)}, {_time(old)} of a launch, is gone{share}"
    if old is None:
        return f"one more kernel, {_name(new)}, takes {_time(new)} of each launch{share}"
    counted = "".join(f", {each}" for each in [*counted_words(cause)][:MOST_FACTS])
    if cause.kind is Kind.REPLACED:
        role = role_of(new)
        switch = "library switch, another kernel" if cause.code is None else "another kernel"
        switch += f" for the {role}" if role else ""
        times = f"{_time(new)} instead of {_time(old)}{share}{counted}"
        return f"{switch}: {_name(new)} instead of {_name(old)}, {times}"
    if new.count != old.count:
        counts = (
            f"{view.amount(new.count, '')} times a launch instead of {view.amount(old.count, '')}"
        )
        return f"{_name(new)} runs {counts}{share}"
    times = f"{view.time(new.duration_us, None)} instead of {view.time(old.duration_us, None)}"
    return f"{_name(new)} takes {times}{share}{_code(cause)}{counted}"


def _code(cause: KernelChange) -> str:
    differing, code = ", ".join(differences(cause, MOST_FACTS)), cause.code
    if code is None:
        return f": {differing}" if differing else ""
    if not code.is_same:
        return f", its code changed: {differing or 'in its PTX alone'}"
    if differing:
        return f", the same PTX otherwise assembled or launched: {differing}"
    return ", by the same code to the letter: the machine or a library changed, not this kernel"


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


def counted_words(each: KernelChange) -> Iterator[str]:
    """Yield what was counted otherwise: sectors read 4.2 M to 8.4 M."""
    for name, old, new in each.counters:
        yield f"{_counter(name)} {view.flow(old, '')} {ARROW} {view.flow(new, '')}"


def _counter(name: str) -> str:
    return name.replace("_", " ").replace("l2 ", "L2 ").replace("dram ", "DRAM ")


def facts_words(code: CodeChange, most: int = MOST_FACTS) -> str:
    """Return what of a kernel's code differs: registers 64 to 128."""
    said = [
        f"{name.replace('_', ' ')} {view.amount(old, '')} {ARROW} {view.amount(new, '')}"
        for name, old, new in code.facts
    ]
    return ", ".join(_cut(said, most))


def _cut(said: list[str], most: int) -> list[str]:
    more = len(said) - most
    return [*said[:most], f"{more} more"] if more > 0 else said


def differences(each: KernelChange, most: int) -> Iterator[str]:
    """Yield what differs in how a kernel is launched, and in its code."""
    old, new = _shape(each.before), _shape(each.now)
    told = {name for name, _, _ in each.code.facts} if each.code else set()
    for label in dict.fromkeys((*old, *new)):
        was, now = old.get(label, "none"), new.get(label, "none")
        if was != now and label not in told:
            yield f"{label} {was} {ARROW} {now}"
    if each.code and each.code.facts:
        yield facts_words(each.code, most)


def _shape(kernel: TracedKernel | None) -> dict[str, str]:
    """Return how a kernel is launched, as far as that is known."""
    if kernel is None:
        return {}
    known = {
        "grid": view.TIMES.join(map(str, kernel.grid)),
        "block": view.TIMES.join(map(str, kernel.block)),
        "registers": str(kernel.registers or ""),
        "shared memory": view.flow(kernel.shared_bytes, "B") if kernel.shared_bytes else "",
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


def _name(kernel: TracedKernel | None) -> str:
    return middle(kernel.name) if kernel else ""


def _time(kernel: TracedKernel | None) -> str:
    return view.time(kernel.total_us, None) if kernel else ""


def signed(time_us: float) -> str:
    """Return a difference of times with its sign."""
    sign = "+" if time_us > 0 else view.MINUS
    return f"{sign}{view.time(abs(time_us), None)}" if time_us else view.time(0.0, None)


def percent(share: float) -> str:
    """Return a part of the change: negative where it made up for others."""
    return view.percent(share, half_width=0.05).removeprefix("+")


def section(variant_view: VariantView) -> Markup:
    """Return the variant's section of the page: the headline, kernels before and now, PTX."""
    sides, trace = variant_view.sides, variant_view.trace()
    explanation = explain(variant_view.change, *sides) if sides else None
    kernels = list(explanation.kernels) if explanation else []
    if not kernels and trace:
        kernels = [KernelChange(Kind.SAME, None, each, 0.0) for each in trace.kernels]
    left_out, more = [], len(kernels) - MOST_ROWS
    if more > 0:
        left_out.append(f"{more} more kernels are not shown")
    if explanation:
        was_traced = variant_view.entry is not None and bool(variant_view.entry.kernels)
        if not was_traced and trace is None:
            left_out.append("neither it nor what it is compared with was traced")
        elif not was_traced:
            left_out.append("what it is compared with was not traced")
        elif trace is None:
            left_out.append("it was not traced")
    left_out += [trace.reason] if trace and trace.reason else []
    rows = [(each, details(each), "; ".join(counted(each))) for each in kernels[:MOST_ROWS]]
    text = _template().render(
        variant_view=variant_view,
        explanation=explanation,
        told=headline(explanation) if explanation else "",
        rows=rows,
        has_counters=any(counters for *_, counters in rows),
        left_out="; ".join(left_out),
    )
    return Markup(text)  # noqa: S704 - the template escapes


@cache
def _template() -> jinja2.Template:
    pages = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader("perfsuite.explain"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    pages.globals |= {"middle": middle, "signed": signed, "percent": percent, "timed": timed}
    pages.globals |= {"facts_words": facts_words}
    return pages.get_template("why.html.j2")


def details(each: KernelChange) -> str:
    """Return what differs in a kernel; of one that came or went, how it is launched."""
    if not (each.before and each.now):
        shape = _shape(each.now or each.before)
        return "; ".join(f"{label} {text}" for label, text in shape.items())
    was = [f"was {middle(each.before.name)}"] if each.kind is Kind.REPLACED else []
    return "; ".join([*was, *differences(each, 2 * MOST_FACTS)])


def counted(each: KernelChange) -> Iterator[str]:
    """Yield what was counted otherwise, then what else was counted."""
    yield from counted_words(each)
    kernel, told = each.now or each.before, {counter for counter, _, _ in each.counters}
    for counter, count in (kernel.counters if kernel else {}).items():
        if count and counter not in told:
            yield f"{_counter(counter)} {view.flow(count, '')}"


def timed(kernel: TracedKernel | None) -> str:
    """Return how often a kernel runs in a launch, and how long each time."""
    if kernel is None:
        return view.NOTHING
    times = f"{view.amount(kernel.count, '')}{view.SPACE}{view.TIMES}{view.SPACE}"
    return f"{times if kernel.count != 1 else ''}{view.time(kernel.duration_us, None)}"
