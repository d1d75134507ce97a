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
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
MOST_DIGITS = 6
UNKNOWN_NOISE_DIGITS = 3
TWO_DIGITS_UP_TO = 3.55
MINUTE_S = 60
COMMIT = 12


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


def number(value: float, decimals: int) -> str:
    """Return a number with thousands apart and a real minus sign."""
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}".replace(",", SPACE)
    return text.replace("-", MINUS)


def figures(value: float, digits: int) -> str:
    """Return a number to so many digits, whole ones not cut: 0.25, 4.4, 102."""
    first = math.floor(math.log10(abs(value))) if value else 0
    return number(value, max(0, digits - 1 - first))


def time(time_us: float | None, noise: float | None, *, like: float | None = None) -> str:
    """Return a time with its unit, to the noise; ``like`` is a time whose unit is to be used."""
    if time_us is None:
        return NOTHING
    factor, symbol = _unit(like if like is not None else time_us, TIME_UNITS)
    return f"{number(time_us / factor, places(time_us / factor, noise))}{SPACE}{symbol}"


def amount(value: float | None, unit: str, noise: float | None = None) -> str:
    """Return a value of any metric in its unit; without a noise whole numbers are not cut."""
    if value is None:
        return NOTHING
    if unit == "us":
        return time(value, noise)
    if unit == "bytes":
        return flow(value, "B")
    if unit == "TFLOP/s":
        return flow(1e12 * value, "FLOP/s")
    # A reciprocal names nothing that is counted.
    unit = "per second" if unit == "1/s" else unit
    decimals = places(value, noise)
    if not noise:
        decimals = 0 if float(value).is_integer() else max(0, decimals)
    return f"{number(value, decimals)}{SPACE}{unit}".rstrip(SPACE)


def moved(before: float | None, value: float | None) -> str:
    """Return how far a value that has no interval moved."""
    if before is None or value is None:
        return NOTHING
    if before == value:
        return "="
    return percent(value / before - 1) if before else "from none"


def percent(change: float | None, *, half_width: float | None = None) -> str:
    """Return a relative change in percent with its sign, to the width of its interval."""
    if change is None:
        return NOTHING
    decimals = max(0, min(2, _supported(half_width * 100))) if half_width else 2
    text = number(abs(change) * 100, decimals)
    sign = "" if not float(text.replace(SPACE, "")) else "+" if change > 0 else MINUS
    return f"{sign}{text}{SPACE}%"


def interval(low: float, high: float) -> str:
    """Return an interval of a relative change in percent, both ends to the same digit."""
    half = abs(high - low) / 2
    ends = [percent(end, half_width=half).removesuffix(f"{SPACE}%") for end in (low, high)]
    return f"{ends[0]} to {ends[1]}{SPACE}%"


def change(found: Change | None) -> str:
    """Return a change to the digits that its interval supports."""
    if found is None:
        return NOTHING
    return percent(found.theta, half_width=abs(found.high - found.low) / 2)


def log_change(value: float | None, precise: Change | None = None) -> str:
    """Return a log change as a relative one in percent, to the digits of ``precise``."""
    half = abs(precise.high - precise.low) / 2 if precise else None
    return percent(math.expm1(value) if value is not None else None, half_width=half)


def share(fraction: float | None) -> str:
    """Return a share without a sign: two digits are all that a ceiling or a noise supports."""
    return NOTHING if fraction is None else f"{figures(fraction * 100, 2)}{SPACE}%"


def flow(value: float | None, unit: str) -> str:
    """Return a rate or an amount of any size to three digits, its unit's prefix chosen by it."""
    if value is None:
        return NOTHING
    factor, prefix = _unit(value, PREFIXES)
    is_whole = not prefix and float(value).is_integer()
    shown = number(value, 0) if is_whole else figures(value / factor, 3)
    return f"{shown}{SPACE}{prefix}{unit}".rstrip(SPACE)


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


def _supported(deviation: float) -> int:
    # The Particle Data Group's rule: a deviation has two digits up to 0.354, else one.
    first = math.floor(math.log10(deviation))
    return -first + (1 if deviation / 10.0**first < TWO_DIGITS_UP_TO else 0)


def signed(share: float) -> str:
    """Return a share of 1 as signed percent, with the digits its size supports."""
    value = round(100 * share, 2) + 0.0  # no minus zero
    return f"{value:+.{2 if abs(value) < 1 else 1}f} %"


def limit(share: float) -> str:
    """Return a share of 1 in percent, with three digits, or all that lie before the point."""
    return f"{100 * share:{'.3g' if share < 1 else '.0f'}} %"


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
    "exact": "{metric} {before:.6g} -> {now:.6g} {unit}",
    "exact_worse": "{metric} {before:.6g} -> {now:.6g} {unit} ({theta:signed} worse)",
    "lost": "no longer reported: {metrics:list}",
    "lower_clock": "same code, lower clock",
    "more_power": "same code, more power",
    "no_entry": "{source:source} has no entry of it",
    "no_samples": "no process has samples",
    "no_time": "{source:source} has no time of it",
    "not_judged": "not judged: {error}",
    "other_cards": "no stored number is of this device; numbers of others decide nothing",
    "other_kind": "{text}",
    "over_budget": "{metric} is {now:.6g}, its budget is {most:.6g} ({why})",
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
    "environment": "the code is as fast as that of {code}; these changed: {differing:list}",
    "environment_unknown": "the code is as fast as that of {code}; what changed is not recorded",
    "no_turns": "not measured beside {code}: {why}",
    "many": "not measured beside the old code: {most} others differ more",
    "not_timed": "same code, not timed against it",
    "paired": "of {total} that moved {count} were measured beside the old code, and it is the same",
    "same_code": "same code as the baseline, {code}, which no number of this device has",
    "too_many": "not measured beside {code}: {most} newer codes were",
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
    "worse_than_waived": "worse than what is waived, {theta:+.2%} of {up_to:+.2%} ({issue})",
    # Claims.
    "decided_by_abba": "decided by {groups} rounds, alternating inside {processes} processes",
    "ended": "{variant} ended {status}: {why}",
    "excepted": "{text}",
    "no_metric": "{variant} has no {metric}",
    "no_abba": "{why}",
    "not_in_run": "{variant} was not part of the run",
    "open_by_abba": "still open after {groups} rounds, alternating inside {processes} processes",
    "ratio": "{ratio:.3g}x ({level:.0%} interval {low:.3g} to {high:.3g}), {by:g}x claimed",
    "unmet": "{text}",
    "ratio_of_values": "{ratio:.3g}x: {metric} {than:.6g} -> {now:.6g}, {by:g}x claimed",
    "values": "{metric} {than:.6g} -> {now:.6g}, {by:g}x claimed",
}
INTERVAL = "{theta:signed}{worse} ({level:limit} interval {low:signed} to {high:signed}"
FORMATS: Mapping[str, Callable[[Any], str]] = {
    "limit": limit,
    "list": ", ".join,
    "log": lambda change: signed(math.expm1(change)),
    "metrics": lambda number: count(number, "metric"),
    "signed": signed,
    "source": lambda source: source or "the baseline",
}


class _Words(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        known = FORMATS.get(format_spec)
        return known(value) if known else format(value, format_spec).replace("%", " %")


def sentence(reason: Reason) -> str:
    """Return what a reason says."""
    words, facts = _Words(), dict[str, Any](reason.facts)
    if reason.kind != "interval":
        return words.vformat(SENTENCES[reason.kind], (), facts).replace("  ", " ").strip()
    # Of a metric of which more is better the sign says what is worse.
    facts["worse"] = " worse" if facts["better"] == "higher" else ""
    found = words.vformat(INTERVAL, (), facts)
    if facts["word"] != Word.UNCLEAR:
        has_stayed = any(word.stayed for word in Word if word == facts["word"])
        inside = "inside the fail limit of" if has_stayed else "threshold"
        found += f", {inside} {limit(facts['limit'])}"
    if facts["of"]:
        return f"{facts['of']} {found})"
    # The change is not the ratio of these: stray processes count less in it.
    medians = words.vformat("{before:.6g} and {now:.6g} {unit}", (), facts).strip()
    return f"{facts['metric']}, medians {medians}: {found})"


def told(reasons: Iterable[Reason]) -> str:
    """Return what reasons say; a case may have any number of metrics, and of reasons."""
    return plain("; ".join(map(sentence, reasons)))


def worded(run: Run) -> Run:
    """Return the run with the sentences of its verdicts, which packs and people read."""
    verdicts = [replace(each, reason=told(each.reasons) or each.reason) for each in run.verdicts]
    claims = [replace(each, reason=told(each.reasons) or each.reason) for each in run.claims]
    return replace(run.having(verdicts=verdicts), claims=tuple(claims))


# Where a run's own wall time goes, in its order. Workers start while others measure, where the
# device is no CPU.
PHASES = {
    "open": "servers and devices",
    "start": "workers, beside others",
    "join": "ranks find each other",
    "build": "cases build, kernels compile",
    "check": "results against references",
    "calibrate": "launches per sample",
    "settle": "until steady",
    "energy": "joules per launch",
    "spin": "pauses before samples",
    "measure": "samples",
    "recheck": "results after the last sample",
    "judge": "verdicts",
    "trace": "kernels of what moved or is new",
    "turns": "the baseline's code beside this one",
    "report": "history, packs' hooks, pages",
    "other": "waits for workers, what failed",
    "busy": "samples on the device, a part of the above",
}
LEAST_S = 0.001


def phases_of(run: Run) -> list[tuple[str, float, float, str]]:
    """Return where a finished run's time went: phase, wall seconds, their share, what it is.

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
    names = dict.fromkeys([*PHASES, *sorted({name for each in told for name in each})])
    spent = {name: sum(each.get(name, 0.0) for each in told) for name in names}
    known_s = sum(spent.values())
    if known_s:  # starts lie beside other work: what they hide of the rest is not known
        spent["other"] = max(0.0, held_s - known_s + spent["start"])
        spent["busy"] = sum(process.busy_s for process in processes)
    shares = ((name, spent_s, spent_s / (held_s or 1.0)) for name, spent_s in spent.items())
    return [(*each, PHASES.get(each[0], "")) for each in shares if each[1] >= LEAST_S]
