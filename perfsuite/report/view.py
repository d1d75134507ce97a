"""How a run is worded: marks, numbers with units, sentences of reasons, where time went."""

from __future__ import annotations

import math
import re
import shlex
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec.structs import replace

from perfsuite.boundary import plain
from perfsuite.model import Change, Reason, Run, Word

# A unit never leaves its number at the end of a line, and stands a thin space away from it.
SPACE = "\u202f"
MINUS = "\u2212"
NOTHING = "\u2013"
MICRO = "\N{MICRO SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
ARROW = "\N{RIGHTWARDS ARROW}"
# The same in the characters that every terminal and JUnit reader has.
PLAIN = str.maketrans({SPACE: " ", MINUS: "-", NOTHING: "-", TIMES: "x", MICRO: "u", ARROW: "->"})
TIME_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, MICRO + "s"), (1e-3, "ns"))
COUNTED = {"bytes": (1.0, "B"), "TFLOP/s": (1e12, "FLOP/s")}
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
MOST_DIGITS = 6
UNKNOWN_NOISE_DIGITS = 3
TWO_DIGITS_UP_TO = 3.55
# A smaller change is read to a hundredth of a percent, a larger one to a tenth.
FINE_UP_TO = 0.02
MINUTE_S = 60
COMMIT = 12

Value = float | None


class Mark(NamedTuple):
    """A word with its glyph and tone, so that colour never says something alone.

    ``rank`` orders the words by how much they need a reader.
    """

    word: str
    glyph: str
    tone: str
    meaning: str
    rank: int

    @property
    def needs_reader(self) -> bool:
        """Say whether somebody should look at this without being asked."""
        return self.tone in {"fail", "budget", "slower"}

    @property
    def is_urgent(self) -> bool:
        """Say whether it needs a reader, or is not decided."""
        return self.needs_reader or self.tone == "unclear"

    @property
    def is_quiet(self) -> bool:
        """Say whether nobody has to look at this at all."""
        return self.tone in {"new", "same"}


STAYED = {word.value for word in Word if word.stayed}
# What needs a reader first.
TONES = ("fail", "budget", "slower", "unclear", "other", "faster", "new", "same", "skip")
# Every word, in this order within its tone; those of claims that are no verdict's are among them.
_MARKS = (
    ("wrong", "✕", "fail", "the output differs from the reference"),
    ("crashed", "✕", "fail", "its process died"),
    ("timed-out", "✕", "fail", "its process had to be killed"),
    ("error", "✕", "fail", "the case's own code failed"),
    ("broken", "✕", "fail", "the ratio asked for was not reached"),
    ("disturbed", "~", "unclear", "the device was disturbed too often to judge"),
    *((word.value, *word.look) for word in Word),
    ("held", "✓", "new", "the ratio asked for was reached"),
    ("measured", "•", "same", "the run ended before it was judged"),
    ("checked", "✓", "same", "correct; speed was not measured"),
    ("not applicable", NOTHING, "skip", "this device cannot show it"),
    ("not run", "○", "skip", "the run ended before it"),
    ("left out", "○", "skip", "the run's time limit had no room for it"),
    ("skipped", "○", "skip", "cannot run here"),
)
_RANKED = sorted(_MARKS, key=lambda mark: TONES.index(mark[2]))
MARKS: Mapping[str, Mark] = {mark[0]: Mark(*mark, rank) for rank, mark in enumerate(_RANKED)}


def mark(word: str) -> Mark:
    """Return the mark of a verdict's, status' or claim's word; an unknown word keeps its text."""
    return MARKS.get(word) or Mark(word, "•", "other", "", len(MARKS))


def tallies(marks: Iterable[Mark]) -> list[tuple[Mark, int]]:
    """Return how often each mark occurs, what needs a reader first."""
    return sorted(Counter(marks).items(), key=lambda tally: tally[0].rank)


def tallied(found: Iterable[tuple[Mark, int]]) -> str:
    """Return tallies in words: 2 slower, 7 same."""
    return ", ".join(f"{number(count, 0)} {one.word}" for one, count in found)


def places(value: float, noise: float | None) -> int:
    """Return the decimal places of ``value`` that a relative noise supports; may be negative."""
    if not value or not math.isfinite(value):
        return 0
    first = math.floor(math.log10(abs(value)))
    if not noise:
        return UNKNOWN_NOISE_DIGITS - 1 - first
    return max(-first, min(_supported(abs(value) * noise), MOST_DIGITS - 1 - first))


def number(value: float, decimals: int, unit: str = "") -> str:
    """Return a number with thousands apart and a real minus sign."""
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}".replace(",", SPACE)
    return f"{text.replace('-', MINUS)}{SPACE}{unit}".rstrip(SPACE)


def figures(value: float, digits: int) -> str:
    """Return a number to so many digits, whole ones not cut: 0.25, 4.4, 102."""
    first = int(f"{value:.{digits - 1}e}".partition("e")[2])  # once rounded: 0.9998 is 1.00
    return number(value, max(0, digits - 1 - first))


def time(time_us: float | None, noise: float | None, *, like: float | None = None) -> str:
    """Return a time with its unit, to the noise; ``like`` is a time whose unit is to be used."""
    if time_us is None:
        return NOTHING
    factor, symbol = _unit(like if like is not None else time_us, TIME_UNITS)
    return number(time_us / factor, places(time_us / factor, noise), symbol)


def amount(value: float | None, unit: str, noise: float | None = None) -> str:
    """Return a value of any metric in its unit; without a noise whole numbers are not cut."""
    if value is None or unit == "us":
        return time(value, noise)
    factor, symbol = _scale(value, unit)
    exact = number(value / factor, places(value / factor, noise), symbol)
    return exact if noise else _rough(value, factor, symbol)


def beside(
    before: Value, now: Value, unit: str, theta: Value = None, half_width: Value = None
) -> tuple[str, str, str]:
    """Return two values and the change between them, to digits by which they add up.

    ``theta`` is the change that was judged, if one was, ``half_width`` that of its interval.
    """
    if not before or now is None or (theta is None and before == now):
        told = NOTHING if before is None or now is None else "=" if before == now else "from none"
        return amount(before, unit), amount(now, unit), told
    theta = now / before - 1 if theta is None else theta
    factor, symbol = _scale(now, unit)
    finest, told = _decimals(theta, half_width), percent(theta, half_width=half_width)
    first = math.floor(math.log10(min(abs(before), abs(now) or abs(before)) / factor))
    is_whole = unit != "us" and factor == 1 and before % 1 == now % 1 == 0
    least = 0 if is_whole else max(0, (finest if unit == "us" else 0) + 2 - first)
    # More of them where these would say another change; as few where all do.
    for decimals in (least, least + 1, least + 2, least):
        was, became = round(before / factor, decimals), round(now / factor, decimals)
        if was and _signed(became / was - 1, finest) == _signed(theta, finest):
            break
    return number(was, decimals, symbol), number(became, decimals, symbol), told


def percent(change: float | None, *, half_width: float | None = None) -> str:
    """Return a relative change in percent with its sign, to the width of its interval."""
    told = "" if change is None else _signed(change, _decimals(change, half_width))
    return f"{told}{SPACE}%" if told else NOTHING


def interval(low: float, high: float) -> str:
    """Return an interval of a relative change in percent, both ends to the same digit."""
    decimals = _decimals((low + high) / 2, abs(high - low) / 2)
    return f"{_signed(low, decimals)} to {_signed(high, decimals)}{SPACE}%"


def judged(found: Change) -> tuple[str, str, str]:
    """Return what a metric was, what it is, and the change that was judged."""
    return beside(found.baseline, found.current, found.unit, found.theta, half(found))


def half(found: Change | None) -> float | None:
    """Return half the width of a change's interval."""
    return abs(found.high - found.low) / 2 if found else None


def log_change(value: float | None, precise: Change | None = None) -> str:
    """Return a log change as a relative one in percent, to the digits of ``precise``."""
    return percent(math.expm1(value) if value is not None else None, half_width=half(precise))


def share(fraction: float | None) -> str:
    """Return a share without a sign: two digits are all that a ceiling or a noise supports."""
    return NOTHING if fraction is None else f"{figures(fraction * 100, 2)}{SPACE}%"


def flow(value: float | None, unit: str) -> str:
    """Return a rate or an amount of any size to three digits, its unit's prefix chosen by it."""
    factor, prefix = _unit(value or 0.0, PREFIXES)
    return NOTHING if value is None else _rough(value, factor, prefix + unit)


def ratio(value: float | None) -> str:
    """Return how many times faster."""
    return NOTHING if value is None else f"{figures(value, 3)}{TIMES}"


def duration(seconds: float) -> str:
    """Return a wall time as a person says it."""
    if round(seconds) < MINUTE_S:
        return f"{figures(seconds, 2)}{SPACE}s"
    minutes, rest = divmod(round(seconds), MINUTE_S)
    hours, minutes = divmod(minutes, MINUTE_S)
    if hours:
        return f"{hours}{SPACE}h {minutes}{SPACE}min"
    return f"{minutes}{SPACE}min {rest}{SPACE}s"


def moment(text: str) -> str:
    """Return an ISO 8601 time in UTC to the minute, or what was given where UTC has none."""
    try:
        when = datetime.fromisoformat(text)
        when = (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return when.strftime("%Y-%m-%d %H:%M UTC")


def day(run_id: str) -> str:
    """Return the day that a run's id begins with; nothing where it has none."""
    found = re.match(r"(\d{4})(\d\d)(\d\d)-", run_id)
    return "-".join(found.groups()) if found else ""


def count(amount_of: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: 1 variant, 2 variants."""
    return f"{number(amount_of, 0)} {noun if amount_of == 1 else plural or noun + 's'}"


def href(text: str) -> str:
    """Return a web address that is nothing but one, else an empty string: no other scheme."""
    return text if re.fullmatch(r"https?://[^\s<>\"']+", text) else ""


def web(remote: str, *commits: str) -> str:
    """Return where a forge shows a commit, or what lies between two; nothing where none can."""
    shas = [name.partition("-")[0] for name in commits]
    known = re.fullmatch(r"https://([\w.-]+)(:\d+)?(/[\w.~-]+)+", remote, re.ASCII)
    if known is None or not all(re.fullmatch(r"[0-9a-f]{7,64}", sha) for sha in shas):
        return ""
    place = "/-/" if "gitlab" in known[1] else "/"
    return f"{remote}{place}{'compare' if shas[1:] else 'commit'}/{'...'.join(shas)}"


def slug(text: str) -> str:
    """Return an id as an anchor of plain letters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:120]


def commit(name: str) -> str:
    """Return a commit cut to what tells it from others, still saying that the tree was changed."""
    sha, dash, changed = name.partition("-")
    return f"{sha[:COMMIT]}{dash}{changed}"


def command(variant: str, *options: str) -> str:
    """Return the command that measures one variant again, ready for a shell."""
    return shlex.join(["pytest", "--perf", "--perf-select", variant, *options])


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    return next((unit for unit in units if abs(value) >= unit[0]), units[-1])


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return what a value of a metric is divided by, and the unit that it has then."""
    if unit == "us":
        return _unit(value, TIME_UNITS)
    if unit in COUNTED:
        size, symbol = COUNTED[unit]
        factor, prefix = _unit(size * value, PREFIXES)
        return factor / size, prefix + symbol
    # A reciprocal names nothing that is counted.
    return 1.0, "per second" if unit == "1/s" else unit


def _rough(value: float, factor: float, symbol: str) -> str:
    is_whole = factor == 1 and float(value).is_integer()
    return number(value / factor, 0 if is_whole else max(0, places(value / factor, None)), symbol)


def _signed(change: float, decimals: int) -> str:
    text = number(abs(change) * 100, decimals)
    sign = "" if not float(text.replace(SPACE, "")) else "+" if change > 0 else MINUS
    return sign + text


def _decimals(change: float, half_width: float | None) -> int:
    most = 2 if abs(change) < FINE_UP_TO else 1
    return max(0, min(most, _supported(half_width * 100))) if half_width else most


def _supported(deviation: float) -> int:
    # The Particle Data Group's rule: a deviation has two digits up to 0.354, else one.
    first = math.floor(math.log10(deviation))
    return -first + (1 if deviation / 10.0**first < TWO_DIGITS_UP_TO else 0)


# The sentence of each reason, for page, terminal, Markdown, JUnit and verdict.json.
# By kind, with the reason's facts. A format that Python does not know is one of FORMATS.
SENTENCES: Mapping[str, str] = {
    # Why a variant has its word.
    "another_host": "host time {theta:signed} on another host, judged by the device's own time",
    "clock_lost": "the SM clock moved too far to judge the code",
    "clocks": "time {time:log}, SM clock {clock:log}",
    "code_is_same": "time {time:log}, SM clock {clock:log}: the code is the same",
    "counted": "{count:metrics} without noise as before",
    "detectable": "a change of {share:limit} or more would be found",
    "exact": "{metric} {before} → {now}",
    "exact_worse": "{metric} {before} → {now} ({theta:limit} worse)",
    "interval": "{of} {theta:signed}{worse} ({level:level} interval {ends}{beyond})",
    "lost": "no longer reported: {metrics:list}",
    "lower_clock": "same code, lower clock",
    "more_power": "same code, more power",
    "two_groups": "its processes fall into two groups: {before} and {now}",
    "no_entry": "{source:source} has no entry of it",
    "no_samples": "no process has samples",
    "no_time": "{source:source} has no time of it",
    "not_judged": "not judged: {error}",
    "other_cards": "no stored number is of this device; numbers of others decide nothing",
    "other_kind": "{text}",
    "over_budget": "{metric} is {now}, its budget is {before} ({why})",
    "processes": "{now} processes against {before} on the same device",
    "processes_elsewhere": "{now} processes against {before} on another device",
    "regime": "it was timed as {before} and is now timed as {now}",
    "sampling": (
        "times are not compared: sampled by {before} before, and by {now} now; "
        "accept this run to compare later ones"
    ),
    "stored_time": "a CPU's time is not judged against a stored one",
    "time": "time {time:log}",
    "unusable": "unusable samples: {error}",
    "version": "the case's version was {before} and is {now}: it does other work now",
    "within": "the same within {share:limit}",
    # What the run did about it.
    "environment": "the code of {code} gives the same here; these changed: {differing:list}",
    "environment_unknown": "the code is as fast as that of {code}; what changed is not recorded",
    "no_turns": "not measured beside {code}: {why}",
    "not_timed": "same code, not timed against it",
    "paired": "a sample, {count} of {total} that moved, was measured beside the old code: the same",
    "same_code": "same code as the baseline, {code}, which no number of this device has",
    "same_code_host": "the code is as fast as that of {code}; the host's load may be the rest",
    "same_code_noisy": "same code as the baseline, {code}; too noisy to judge the environment",
    "too_many": "not measured beside {code}: a run takes {most} commits, and newer ones came first",
    "measured": "{revision} was measured for {count} of {total} variants: {why}; do: {remedy}",
    "other_side": "{revision}: {why}",
    "unmeasured": "{revision} was not measured: {why}; do: {remedy}",
    "same_in_turns": "measured beside it on this device, {revision} is the same",
    "unconfirmed": "not confirmed: {why}",
    # Why there is no side A.
    "shallow": "the old code is not here: this clone is shallow and lacks {code}; do: {remedy}",
    "squashed": (
        "the old code is not here: this repository lacks {code} (squashed, rebased, or "
        "of another machine); do: {remedy}"
    ),
    "no_git": "the old code is not here: the code of {pack} is in no git repository; do: {remedy}",
    "no_wheel": "the old code is not here: {code}; do: {remedy}",
    "no_build": "the old code, {code}, cannot be built: {why}; do: {remedy}",
    "old_front_door": "the old code, {code}, needs another perfsuite: {why}; do: {remedy}",
    "worse_than_waived": "worse than what is waived, {theta:signed} of {up_to:signed} ({issue})",
    # Claims; their own ratios stand beside.
    "by_pairs": "measured by {pairs} pairs of fresh processes, taking turns",
    "ended": "{variant} ended as {status}: {why}",
    "excepted": "{text}",
    "no_metric": "{variant} has no {metric}",
    "no_abba": "{why}",
    "not_in_run": "{variant} was not part of the run",
    "ratio": "{level:level} interval {low:x} to {high:x}",
    "held_before": "it held before: {ratio:x}",
    "no_better_before": "it did not hold before either: {ratio:x}",
    "lacks_a_side": "nothing to compare it with: no baseline has both sides",
    "shown": "the table's times, of other processes, give {ratio:x}",
    "unmet": "{text}",
    "values": "{metric} {than:.6g} -> {now:.6g}",
}
# Kinds whose facts are a value before, or allowed, and now.
AMOUNTS = {"exact", "exact_worse", "interval", "over_budget", "two_groups"}
FORMATS: Mapping[str, Callable[[Any], str]] = {
    "level": lambda share: f"{100 * share:.4g} %",
    "limit": share,
    "list": ", ".join,
    "metrics": lambda number: count(number, "metric"),
    "source": lambda source: source or "the baseline",
    "x": ratio,
}


class _Words(string.Formatter):
    half_width: Value = None

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in {"log", "signed"}:
            change = math.expm1(value) if format_spec == "log" else value
            return percent(change, half_width=self.half_width).translate(PLAIN)
        known = FORMATS.get(format_spec)
        return (known(value) if known else format(value, format_spec)).translate(PLAIN)


def sentence(reason: Reason) -> str:
    """Return what a reason says; its changes are told to the width of the interval."""
    facts: dict[str, Any] = {"unit": "", "theta": None, "low": 0.0, "high": 0.0, **reason.facts}
    words = _Words()
    words.half_width = abs(facts["high"] - facts["low"]) / 2
    if reason.kind in AMOUNTS:
        was = facts["most" if reason.kind == "over_budget" else "before"]
        values = was, facts["now"], facts["unit"], facts["theta"]
        facts["before"], facts["now"], _ = beside(*values, words.half_width)
    if reason.kind == "interval":
        # Of a metric of which more is better the sign says what is worse.
        facts["worse"] = " worse" if facts["better"] == "higher" else ""
        facts["ends"] = interval(facts["low"], facts["high"])
        # The change is not the ratio of these: stray processes count less in it.
        facts["of"] = facts["of"] or "{metric}, medians {before} and {now}:".format(**facts)
        limit = "inside the fail limit of" if facts["word"] in STAYED else "threshold"
        limit = f", {limit} {share(facts['limit'])}"
        facts["beyond"] = limit if facts["word"] != Word.UNCLEAR else ""
    # A run of another version may have kinds that this one does not know.
    told = SENTENCES.get(reason.kind, reason.kind)
    return words.vformat(told, (), facts).replace("  ", " ").strip()


def told(reasons: Iterable[Reason]) -> str:
    """Return what reasons say; a case may have any number of metrics, and of reasons."""
    return plain("; ".join(dict.fromkeys(map(sentence, reasons))))


def worded(run: Run) -> Run:
    """Return the run with the sentences of its verdicts, which packs and people read."""
    verdicts = [replace(each, reason=told(each.reasons) or each.reason) for each in run.verdicts]
    claims = [replace(each, reason=told(each.reasons) or each.reason) for each in run.claims]
    return replace(run.having(verdicts=verdicts), claims=tuple(claims))


LEAST_S = 0.001


def phases_of(run: Run) -> list[tuple[str, float, float]]:
    """Return where a finished run's time went, the most first: phase, wall seconds, their share.

    Seconds are of all processes, the share is of the time that the devices were held. ``busy`` is
    when launches of samples ran; those of a revision beside it are another run's.
    """
    results = (*run.results, *run.aside)
    # A later round of pairs holds the processes of the earlier.
    last = {(each.variant, each.stage, each.side, each.claim): each for each in results}
    processes = [process for result in last.values() for process in result.evidence]
    devices = max(1, len({process.unit for process in processes}))
    held_s = devices * (run.wall_s + run.phases_s.get("open", 0.0))
    told = [*(process.phases_s for process in processes), run.phases_s]
    names = {name for each in told for name in each}
    spent = {name: sum(each.get(name, 0.0) for each in told) for name in names}
    known_s = sum(spent.values())
    if known_s:  # starts lie beside other work: what they hide of the rest is not known
        spent["other"] = max(0.0, held_s - known_s + spent.get("start", 0.0))
        spent["busy"] = sum(process.busy_s for process in processes)
    most = sorted(((spent_s, name) for name, spent_s in spent.items()), reverse=True)
    return [(name, each_s, each_s / (held_s or 1.0)) for each_s, name in most if each_s >= LEAST_S]
