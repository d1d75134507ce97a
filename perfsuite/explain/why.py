"""What a change of time is made of: kernels before and now, their code, the clock; in words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from statistics import median

from jinja2 import Template
from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from perfsuite.model import Change, Code, TracedKernel, because
from perfsuite.report import view
from perfsuite.report.data import Explained, Fact, SideView, VariantView, differences
from perfsuite.report.files import templates

# A kernel whose time moved by less than both is taken as it was: 30 launches say no more.
LEAST_SHARE, LEAST_US = 0.01, 0.05
# What explains less of a change than this is no cause of it.
LEAST_OF_CHANGE = 0.2
# What is counted is nearly exact: others use L2 and DRAM too, and blocks meet in another order.
LEAST_COUNTED_SHARE, LEAST_COUNTED = 0.02, 1000
# The SM clock moves by a little all the time; this much is worth a sentence. Of work that depends
# on it by less than this share, as many cycles as before are a coincidence.
LEAST_CLOCK, LEAST_BETA = 0.005, 0.25
# Groups of processes have so many members, and lie so many times further apart than either is wide:
# of six normal values one set in 220 does, of more fewer (simulated).
LEAST_GROUP, APART = 3, 3.0
# A trace is taken in other minutes than the samples.
MOST_SHARE = 1.1
# What of a kernel's code tells most; other facts come after these.
_TELLING = ("registers", "spill_bytes", "tensor_core_ops", "tma_ops", "global_load_width")
# Loads, stores and copies in the differing lines of a PTX, with their modifiers.
_ACCESS = re.compile(r"^([+-])\s+(?:@!?%\w+\s+)?((?:ld|st|cp)\.(?!param)[\w.:]+)", re.MULTILINE)
# What a library's kernel is for, by its name: the first that fits.
_ROLES = {
    "attention": r"attention|flash|fmha|sdpa",
    "convolution": r"conv|wgrad|dgrad|winograd",
    "matrix product": r"gemm|gemv|nvjet|cutlass|cublas|xmma|mm$|mma|matmul",
    "softmax": r"softmax",
    "normalisation": r"norm",
    "collective": r"nccl",
    "copy": r"copy|memcpy|memset|fill",
    "reduction": r"reduce",
    "elementwise": r"elementwise|pointwise|triton_poi",
}
# NVML's reasons in words; what is not here is told by its name.
REASONS = {"sw_power_cap": "power cap", "sw_thermal": "thermal limit"}
NAME_CHARACTERS = 60
MOST_CAUSES, MOST_FACTS, MOST_DIFFERENCES, MOST_ROWS = 2, 4, 4, 40
# Namespaces but that of PyTorch's operators, and the types of a function's own arguments, which its
# template's mostly repeat.
_LITTLE = re.compile(r"\(anonymous namespace\)::|\b(?!aten::)[A-Za-z_]\w*::|(?<=[\w>])\([^()]*\)$")


class Kind(StrEnum):
    """What became of a kernel."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    REPLACED = "replaced"


class CodeChange(Struct, frozen=True):
    """The code of one of our own kernels before and now, and the facts of it that differ."""

    before: Code
    now: Code
    facts: tuple[tuple[str, float, float], ...]

    @property
    def is_same(self) -> bool:
        """Say whether the PTX is the same to the letter."""
        return self.before.ptx == self.now.ptx


class KernelChange(Struct, frozen=True):
    """A kernel before and now; ``share`` is how much it explains of the change, None of none."""

    kind: Kind
    before: TracedKernel | None
    now: TracedKernel | None
    delta_us: float = 0.0
    share: float | None = None
    code: CodeChange | None = None

    @property
    def counters(self) -> list[tuple[str, float, float]]:
        """What was counted otherwise before than now, where both were counted."""
        old, new = (side.counters if side else {} for side in (self.before, self.now))
        pairs = ((name, old[name], new[name]) for name in new if name in old)
        least, part = LEAST_COUNTED, LEAST_COUNTED_SHARE
        return [o for o in pairs if abs(o[2] - o[1]) > max(least, part * max(o[1:]))]


class Clock(Struct, frozen=True, kw_only=True):
    """The SM clock's part: relative changes, and in how many blocks it was held back by what.

    ``code`` is what is left of the change of time: the judge's, or that of the SM cycles, which
    says more of work that may depend on the clock by more than its kind does.
    """

    clock: float
    time: float
    code: float
    by_cycles: bool
    us: float
    blocks: int
    reasons: Mapping[str, int]

    @property
    def way(self) -> str:
        """Which way it moved."""
        return "lower" if self.clock < 0 else "higher"


class Explanation(Struct, frozen=True, kw_only=True):
    """What a change is made of, what explains most first.

    ``rest_us`` is what the kernels do not explain: gaps between them, and what launching takes.
    ``same_artefact`` is None where the artefact of before or now is not known.
    """

    change_us: float | None
    kernels: tuple[KernelChange, ...]
    codes: tuple[CodeChange, ...]
    rest_us: float | None
    clock: Clock | None
    environment: tuple[tuple[str, str, str], ...]
    same_artefact: bool | None

    @property
    def is_clock(self) -> bool:
        """Say whether the SM clock alone explains most of the change."""
        return bool(self.clock and self.change_us and self.clock.us / self.change_us > 1 / 2)

    @property
    def causes(self) -> list[KernelChange]:
        """The kernels that explain a part of the change worth telling, the greatest first.

        Where the clock does, and where none explains any of it, those that came, went or switched.
        """
        moved = [each for each in self.kernels if each.kind is not Kind.SAME]
        found = [each for each in moved if (each.share or 0.0) >= LEAST_OF_CHANGE]
        other = [each for each in moved if each.kind is not Kind.CHANGED]
        return other if self.is_clock or not found else found

    @property
    def is_fine(self) -> bool:
        """Say whether the change is smaller than what a trace can tell."""
        total_us = math.fsum(each.before.total_us for each in self.kernels if each.before)
        least_us = max(LEAST_US, LEAST_SHARE * total_us)
        return bool(self.kernels) and abs(self.change_us or 0.0) < least_us

    @property
    def is_between(self) -> bool:
        """Say whether most lies between the kernels, or some got slower by more than the whole."""
        slower = math.fsum(max(0.0, each.share or 0.0) for each in self.kernels)
        is_rest = not self.is_fine and (self.rest_us or 0.0) / (self.change_us or 1.0) > 1 / 2
        return not self.is_clock and (is_rest or slower > MOST_SHARE)

    @property
    def recompiled(self) -> list[KernelChange]:
        """The kernels whose PTX is another than before."""
        return [each for each in self.kernels if each.code and not each.code.is_same]


def explain(change: Change | None, before: SideView, now: SideView) -> Explanation:
    """Return what the change of a variant's time is made of."""
    change_us = change.current - change.baseline if change else None
    codes = tuple(_codes(before.codes, now.codes))
    kernels: list[KernelChange] = []
    for kind, old, new in _matched(before, now) if before.kernels and now.kernels else ():
        delta_us = (new.total_us if new else 0.0) - (old.total_us if old else 0.0)
        share = delta_us / change_us if change_us else None
        names = {kernel.function for kernel in (old, new) if kernel}
        code = next((one for one in codes if one.now.function in names), None)
        kernels.append(KernelChange(kind, old, new, delta_us, share, code))
    kernels.sort(key=lambda each: -abs(each.delta_us))
    explained_us = math.fsum(each.delta_us for each in kernels)
    if change_us and explained_us / change_us < 0:  # no part of what went the other way is a cause
        kernels = [replace(each, share=None) for each in kernels]
    is_known = before.artefact and now.artefact
    changed, _ = differences(before.environment, now.environment)
    return Explanation(
        change_us=change_us,
        kernels=tuple(kernels),
        codes=codes,
        rest_us=change_us - explained_us if kernels and change_us is not None else None,
        clock=_clock(change, before, now) if change else None,
        environment=tuple(fact for fact in sorted(changed) if fact[2]),
        same_artefact=before.artefact == now.artefact if is_known else None,
    )


def _matched(
    before: SideView, now: SideView
) -> Iterator[tuple[Kind, TracedKernel | None, TracedKernel | None]]:
    """Pair kernels by name and shape, then by name alone, then by role; the rest came or went."""
    left, right = list(before.kernels), list(now.kernels)
    for key in (lambda kernel: (kernel.name, _shape(kernel)), lambda kernel: kernel.name):
        for old, new in _paired(left, right, key):
            moved = abs(new.total_us - old.total_us) > max(LEAST_US, LEAST_SHARE * old.total_us)
            is_same = not moved and new.count == old.count and _shape(new) == _shape(old)
            yield Kind.SAME if is_same else Kind.CHANGED, old, new
    lone = len(left) == len(right) == 1
    for old, new in _paired(left, right, lambda kernel: lone or role_of(kernel)):
        yield Kind.REPLACED, old, new
    yield from ((Kind.REMOVED, old, None) for old in left)
    yield from ((Kind.ADDED, None, new) for new in right)


def _paired(
    left: list[TracedKernel], right: list[TracedKernel], key: Callable[[TracedKernel], object]
) -> list[tuple[TracedKernel, TracedKernel]]:
    """Take pairs of the same key out of both lists, the longest first."""
    pairs = []
    for old in sorted(left, key=lambda kernel: -kernel.total_us):
        found = [new for new in right if key(old) and key(new) == key(old)]
        if found:
            new = min(found, key=lambda kernel: abs(kernel.total_us - old.total_us))
            left.remove(old)
            right.remove(new)
            pairs.append((old, new))
    return pairs


def role_of(kernel: TracedKernel) -> str:
    """Return what a kernel is for, as far as its name says so."""
    name = kernel.name.lower()
    return next((role for role, words in _ROLES.items() if re.search(words, name)), "")


def _codes(before: Sequence[Code], now: Sequence[Code]) -> Iterator[CodeChange]:
    old = {code.name: code for code in before}
    for code in now:
        if code.name in old:
            was, facts = old[code.name].facts, code.facts
            names = sorted({**was, **facts}, key=lambda name: name not in _TELLING)
            moved = ((name, was.get(name, 0.0), facts.get(name, 0.0)) for name in names)
            # Where one side could not be read nothing is known to differ.
            differing = tuple(each for each in moved if was and facts and each[1] != each[2])
            yield CodeChange(old[code.name], code, differing)


def _clock(change: Change, before: SideView, now: SideView) -> Clock | None:
    """Return the clock's part where it moved, or where it is held back as it was not before."""
    held, was = (Counter(r for h in side.health for r in h.reasons) for side in (now, before))
    clock, time = math.expm1(change.clock_change), math.expm1(change.time_change)
    moved = abs(clock) >= LEAST_CLOCK
    if not moved and not (before.health and held.keys() - was.keys()):
        return None
    cycles = math.expm1(change.time_change + change.clock_change)
    by_cycles = change.beta >= LEAST_BETA and abs(cycles) < abs(change.theta) / 2
    own = cycles if by_cycles else change.theta
    return Clock(
        clock=clock,
        time=time,
        code=own,
        by_cycles=by_cycles,
        us=change.baseline * (time - own) if moved else 0.0,
        blocks=len(now.health),
        reasons=held,
    )


# The same in words.


def explained(explanation: Explanation, doubt: str = "") -> Explained:
    """Return why it changed in a sentence, and as facts; nothing if unknown."""
    rest_us, whole_us = explanation.rest_us, explanation.change_us
    share = 1 - rest_us / whole_us if whole_us and rest_us is not None else None
    text = "; ".join(filter(None, [headline(explanation), doubt]))
    return Explained(text, tuple(_facts(explanation)), share, doubt)


def doubt(change: Change | None, times: Sequence[float]) -> str:
    """Return that processes plainly fall into two groups; nothing where they do not."""
    found = sorted(times) if change else []
    for cut in range(LEAST_GROUP, len(found) - LEAST_GROUP + 1):
        low, high = found[:cut], found[cut:]
        apart = max(APART * (low[-1] - low[0]), APART * (high[-1] - high[0]))
        if change and high[0] - low[-1] > max(apart, change.threshold * low[-1]):
            was, became = median(low), median(high)
            return view.sentence(because("two_groups", before=was, now=became, unit="us"))
    return ""


def headline(explanation: Explanation) -> str:
    """Return why it changed in one sentence, what explains most first; nothing if unknown."""
    return "; ".join(_parts(explanation))


def _facts(explanation: Explanation) -> Iterator[Fact]:
    """Yield what differs, what explains most first; a fact without a past has none before."""
    clock = explanation.clock
    if clock and explanation.is_clock:
        yield "SM clock", "", f"{view.share(abs(clock.clock))} {clock.way}"
    for each in explanation.causes or explanation.recompiled[: explanation.is_between]:
        if each.kind is Kind.CHANGED:
            yield from _launch_facts(each)
            yield from _code_facts(each.code)
        else:
            old, new = _name(each.before, each.now), _name(each.now, each.before)
            what = "kernel" if old and new else "one more kernel" if new else "one kernel less,"
            yield what, old if new else "", new or old
    yield from () if explanation.is_clock else explanation.environment


def _parts(explanation: Explanation) -> Iterator[str]:
    clock, causes = explanation.clock, explanation.causes
    is_clock, is_between = explanation.is_clock, explanation.is_between
    if clock and is_clock:
        yield _clock_words(clock)
    yield from dict.fromkeys(map(_cause, causes[:MOST_CAUSES]))
    if len(causes) > MOST_CAUSES:
        yield f"{len(causes) - MOST_CAUSES} more kernels with a part in it"
    if is_between:
        yield _between(explanation)
    if clock and not is_clock:
        yield _clock_words(clock)
    if not (causes or is_clock or is_between):
        # Neither a kernel nor the clock explains anything.
        if explanation.same_artefact:
            yield "the compiled code is the same to the letter"
        elif explanation.same_artefact is False:
            yield "the compiled code differs from the baseline's"
        if explanation.is_fine:
            yield "in its trace no kernel became slower or faster"
    if explanation.environment and not is_clock:
        named = [_fact_words(fact) for fact in explanation.environment]
        yield f"what else differs: {_cut(named, MOST_DIFFERENCES)}"


def _clock_words(clock: Clock) -> str:
    """Return the story of the SM clock in one sentence."""
    held = [
        f"{REASONS.get(name, name.replace('_', ' '))} active in {count} of {clock.blocks} blocks"
        for name, count in sorted(clock.reasons.items(), key=lambda item: -item[1])
    ]
    if not clock.us:
        return f"the SM clock stayed, {', '.join(held)}"
    moved = f"the SM clock was {view.share(abs(clock.clock))} {clock.way}"
    time, code = (view.percent(each, half_width=0.004) for each in (clock.time, clock.code))
    kind = "SM cycles" if clock.by_cycles else "code"
    return f"{', '.join([moved, *held])}: time {time}, {kind} {code}"


def _cause(cause: KernelChange) -> str:
    old, new, share = cause.before, cause.now, ""
    if cause.share and 0 < cause.share <= MOST_SHARE:
        part = view.share(cause.share) if cause.share < 1 else "all"
        share = f" (explains {part} of the change)"
    if new is None:
        return f"{_name(old)}, {_time(old)} of a launch, is gone{share}"
    if old is None:
        return f"one more kernel, {_name(new)}, takes {_time(new)} of each launch{share}"
    counted = "".join(f", {each}" for each in _counted(cause)[:MOST_FACTS])
    if cause.kind is Kind.REPLACED:
        role = role_of(new)
        switch = f"another kernel for the {role}" if role else "another kernel"
        times = f"{_time(new)} instead of {_time(old)}{share}{counted}"
        return f"{switch}: {_name(new, old)} instead of {_name(old, new)}, {times}"
    if new.count != old.count:
        now, was = (view.amount(each.count, "") for each in (new, old))
        return f"{_name(new)} runs {now} times a launch instead of {was}{share}"
    times = f"{_timed(new)} instead of {_timed(old)}"
    return f"{_name(new)} takes {times}{share}{_code(cause)}{counted}"


def _code(cause: KernelChange) -> str:
    differing, code = ", ".join(_differences(cause, MOST_FACTS)), cause.code
    if code is None:
        return f": {differing}" if differing else ""
    if not code.is_same:
        return f", its code changed: {differing or 'in its PTX alone'}"
    if differing:
        return f", the same PTX otherwise assembled or launched: {differing}"
    return ", by the same code to the letter"


def _between(explanation: Explanation) -> str:
    rest_us, change_us = explanation.rest_us or 0.0, explanation.change_us or 1.0
    rest, share, causes = signed(rest_us), view.share(rest_us / change_us), explanation.causes
    recompiled = [each for each in explanation.recompiled[:1] if each not in causes]
    told = "".join(f"{_cause(each)}; " for each in recompiled)
    own_us = math.fsum(each.delta_us for each in causes)
    if not 1 / 2 < rest_us / change_us <= MOST_SHARE - max(0.0, own_us / change_us):
        others = change_us - rest_us - own_us, f"of {'other ' * bool(causes)}kernels"
        parts = (own_us, "of that"), others, (rest_us, "of gaps, overlap or tracing")
        # In the change's unit what is far smaller cannot be read.
        least_us = max(LEAST_US, LEAST_SHARE * abs(change_us))
        sums = (f"{signed(us, change_us)} {of}" for us, of in parts if abs(us) >= least_us)
        return f"{', '.join(sums)}: together {signed(change_us)}"
    if explanation.recompiled:
        return f"{told}the trace does not explain the other {rest} ({share})"
    return f"{rest} ({share} of the change) are outside kernels: gaps between them, and launching"


def _counted(each: KernelChange) -> list[str]:
    """Return what was counted otherwise: sectors read 4.2 M to 8.4 M."""
    return [
        f"{_counter(name)} {view.flow(old, '')} {view.ARROW} {view.flow(new, '')}"
        for name, old, new in each.counters
    ]


def _counter(name: str) -> str:
    return name.replace("_", " ").replace("l2 ", "L2 ").replace("dram ", "DRAM ")


def facts_words(code: CodeChange, most: int = MOST_FACTS) -> str:
    """Return what of a kernel's code differs: registers 64 to 128."""
    return _cut([_fact_words(fact) for fact in _code_facts(code)], most)


def _code_facts(code: CodeChange | None) -> Iterator[Fact]:
    """Yield how a kernel accesses memory by its PTX, and what else of its code differs.

    How often an access stands in the code says nothing of how often it runs.
    """
    found = set(_ACCESS.findall(code.now.diff if code else ""))
    gone, new = ({way for mark, way in found if mark == side} for side in "-+")
    only = [", ".join(sorted(some)[:3]) for some in (gone - new, new - gone)]
    if all(only):
        yield "memory accesses", only[0], only[1]
    for name, old, now in code.facts if code else ():
        if not name.startswith(("global_", "shared_")):
            yield name.replace("_", " "), view.amount(old, ""), view.amount(now, "")


def _fact_words(fact: Fact) -> str:
    name, old, new = fact
    return f"{name} {old} {view.ARROW} {new}"


def _cut(said: list[str], most: int) -> str:
    more = [f"{len(said) - most} more"] if len(said) > most else []
    return ", ".join(said[:most] + more)


def _differences(each: KernelChange, most: int) -> list[str]:
    """Return what differs in how a kernel is launched, and in its code."""
    found = [_fact_words(fact) for fact in _launch_facts(each)]
    return found + ([facts_words(each.code, most)] if each.code and each.code.facts else [])


def _launch_facts(each: KernelChange) -> list[Fact]:
    old, new = _shape(each.before), _shape(each.now)
    told = {name for name, _, _ in each.code.facts} if each.code else set()
    return [
        (label, old.get(label, "none"), new.get(label, "none"))
        for label in dict.fromkeys((*old, *new))
        if old.get(label) != new.get(label) and label not in told
    ]


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


def middle(name: str, other: str = "", most: int = NAME_CHARACTERS) -> str:
    """Return a kernel's name without what says little; of a long one ``most`` characters.

    These are both ends, and what stands where it begins to differ from the ``other``. Where nothing
    but what says little tells them apart, it stays.
    """
    short, also = (_LITTLE.sub("", each.removeprefix("void ")) for each in (name, other))
    name, other = (name, other) if short == also else (short, also)
    if len(name) <= most:
        return name
    # Two characters stand for what is left out, or are it where it is one alone.
    part, pairs = (most - 2) // 3, enumerate(zip(name, other, strict=False))
    differs = next((at for at, (one, two) in pairs if one != two), len(name) // 2)
    at = max(part, min(differs - part // 4, len(name) - 2 * part))
    gaps = name[part:at], name[at + part : -part]
    one, two = ("\N{HORIZONTAL ELLIPSIS}" if gap[1:] else gap for gap in gaps)
    return f"{name[:part]}{one}{name[at : at + part]}{two}{name[-part:]}"


def _name(kernel: TracedKernel | None, other: TracedKernel | None = None) -> str:
    return middle(kernel.name, other.name if other else "") if kernel else ""


def _time(kernel: TracedKernel | None) -> str:
    return view.time(kernel.total_us, None) if kernel else ""


def signed(time_us: float, like: float | None = None) -> str:
    """Return a difference of times with its sign, in the unit that one ``like`` it has."""
    sign = "+" if time_us > 0 else view.MINUS if time_us else ""
    return f"{sign}{view.time(abs(time_us), None, like=like)}"


# What the page shows of a variant.


def section(variant_view: VariantView) -> Markup:
    """Return the variant's section of the page: the headline, kernels before and now, PTX."""
    sides, trace = variant_view.sides, variant_view.trace()
    explanation = explain(variant_view.timing, *sides) if sides else None
    kernels = list(explanation.kernels) if explanation else []
    if not kernels and trace:
        kernels = [KernelChange(Kind.SAME, None, each) for each in trace.kernels]
    more = len(kernels) - MOST_ROWS
    left_out = [f"{more} more kernels are not shown"] if more > 0 else []
    if explanation:
        sides_of = {"what it is compared with": variant_view.entry and variant_view.entry.kernels}
        lost = [what for what, known in {**sides_of, "this run of it": trace}.items() if not known]
        left_out += [f"not traced: {' and '.join(lost)}"] if lost else []
    left_out += [trace.reason] if trace and trace.reason else []
    rows = [(each, _details(each), _counters(each)) for each in kernels[:MOST_ROWS]]
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
def _template() -> Template:
    pages = templates(package="perfsuite.explain")
    told = (middle, signed, _timed, facts_words)
    pages.globals |= {each.__name__.strip("_"): each for each in told}
    return pages.get_template("why.html.j2")


def _details(each: KernelChange) -> str:
    """Return what differs in a kernel; of one that came or went, how it is launched."""
    if not (each.before and each.now):
        shape = _shape(each.now or each.before)
        return "; ".join(f"{label} {text}" for label, text in shape.items())
    was = [f"was {_name(each.before, each.now)}"] if each.kind is Kind.REPLACED else []
    return "; ".join([*was, *_differences(each, 2 * MOST_FACTS)])


def _counters(each: KernelChange) -> str:
    """Return what was counted otherwise, then what else was counted."""
    kernel, told = each.now or each.before, {counter for counter, _, _ in each.counters}
    others = [
        f"{_counter(counter)} {view.flow(count, '')}"
        for counter, count in (kernel.counters if kernel else {}).items()
        if count and counter not in told
    ]
    return "; ".join(_counted(each) + others)


def _timed(kernel: TracedKernel | None) -> str:
    """Return how often a kernel runs in a launch, and how long each time."""
    if kernel is None:
        return view.NOTHING
    times = f"{view.amount(kernel.count, '')}{view.SPACE}{view.TIMES}{view.SPACE}"
    return f"{times if kernel.count != 1 else ''}{view.time(kernel.duration_us, None)}"
