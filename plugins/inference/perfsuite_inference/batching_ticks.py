"""The same server once more, one tick after another: what ``batching_model`` must find.

Written from the rules alone and on purpose not as the scheduler is: time goes on by single ticks,
every decision looks at all requests, nothing is queued or counted ahead.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from perfsuite_inference.scheduler import Request, Rules


@dataclass(slots=True)
class _Record:
    """A request in ticks: its arrival, its tokens' stamps; and what is left of its prompt."""

    arrival: int
    unread: int
    owed: int
    place: str = "outside"
    stamps: list[int] = field(default_factory=list)


_Work = list[tuple[_Record, int]]  # (who, tokens of its prompt; 0 for a decoded token)


def tick_through(trace: Sequence[Request], impl: str, rules: Rules) -> dict[str, float]:
    """Play a trace whose times are whole ticks; return the metrics of ``batching_model``."""
    records = [
        _Record(item.arrival_us // rules.tick_us, item.prompt_tokens, item.output_tokens)
        for item in trace
    ]
    choose = {"static": _choose_static, "continuous": _choose_next, "chunked": _choose_mixed}[impl]
    tick, left, owed = 0, 0, sum(record.owed for record in records)
    work: _Work = []
    while owed:
        if work and not left:
            owed -= _finish(work, tick)
            work = []
        if not work:
            for record in (one for one in records if one.place == "outside"):
                record.place = "queue" if record.arrival <= tick else "outside"
            work, rows = choose(records, rules, tick)
            left = _ticks(work, rows, rules) if work else 0
        tick += 1
        left -= bool(work)
    return _metrics(records, rules)


def _ticks(work: _Work, rows: int, rules: Rules) -> int:
    read = sum(tokens for _, tokens in work)
    return (rules.fixed_us + rules.token_us * (read + rows)) // rules.tick_us


def _finish(work: _Work, tick: int) -> int:
    """Return how many tokens came out."""
    for record, tokens in work:
        record.unread -= tokens
        if not record.unread:
            record.stamps.append(tick)
    return sum(not record.unread for record, _ in work)


def _is_live(record: _Record) -> bool:
    return record.place == "slot" and len(record.stamps) < record.owed


def _enter(records: list[_Record], count: int) -> list[_Record]:
    """Let the first ``count`` of the queue in; records are in the order of arrival."""
    entered = [record for record in records if record.place == "queue"][:count]
    for record in entered:
        record.place = "slot"
    return entered


def _choose_static(records: list[_Record], rules: Rules, tick: int) -> tuple[_Work, int]:
    batch = [record for record in records if record.place == "slot"]
    if any(_is_live(record) for record in batch):
        return [(record, 0) for record in batch if _is_live(record)], len(batch)
    for record in batch:
        record.place = "gone"
    queue = [record for record in records if record.place == "queue"]
    if not queue:
        return [], 0
    is_late = any((tick - each.arrival) * rules.tick_us >= rules.timeout_us for each in queue)
    if len(queue) < rules.slots and not is_late:
        return [], 0
    return [(record, record.unread) for record in _enter(records, rules.slots)], 0


def _choose_next(records: list[_Record], rules: Rules, tick: int) -> tuple[_Work, int]:
    live = [record for record in records if _is_live(record)]
    entered = _enter(records, rules.slots - len(live))
    if entered:
        return [(record, record.unread) for record in entered], 0
    return [(record, 0) for record in live], len(live)


def _choose_mixed(records: list[_Record], rules: Rules, tick: int) -> tuple[_Work, int]:
    _enter(records, rules.slots - sum(_is_live(record) for record in records))
    inside = [record for record in records if _is_live(record)]
    work: _Work = [(record, 0) for record in inside if not record.unread]
    rows = len(work)
    spent = rows
    for record in inside:
        tokens = min(record.unread, rules.budget - spent)
        if record.unread and tokens:
            work.append((record, tokens))
            spent += tokens
    return work, rows


def _metrics(records: list[_Record], rules: Rules) -> dict[str, float]:
    waits = [Fraction(record.stamps[0] - record.arrival) for record in records]
    paces = [Fraction(sum(gaps), len(gaps)) for gaps in map(_gaps, records) if gaps]
    gaps = [Fraction(gap) for record in records for gap in _gaps(record)]
    end = max(record.stamps[-1] for record in records)
    good = 0
    for record, wait in zip(records, waits, strict=True):
        mean = Fraction(sum(_gaps(record)), max(1, len(_gaps(record))))
        good += wait * rules.tick_us <= rules.ttft_us and mean * rules.tick_us <= rules.tpot_us
    unit_ms = Fraction(rules.tick_us, 1000)
    return {
        "ttft_ms_p50": float(_rank(waits, 50) * unit_ms),
        "ttft_ms_p99": float(_rank(waits, 99) * unit_ms),
        "tpot_ms_p50": float(_rank(paces, 50) * unit_ms),
        "tpot_ms_p99": float(_rank(paces, 99) * unit_ms),
        "itl_ms_p99": float(_rank(gaps, 99) * unit_ms),
        "goodput_rps": float(1000 * good / (end * unit_ms)),
        "makespan_ms": float(end * unit_ms),
        "tokens": float(sum(record.owed for record in records)),
    }


def _gaps(record: _Record) -> list[int]:
    return [later - earlier for earlier, later in pairwise(record.stamps)]


def _rank(values: list[Fraction], percent: int) -> Fraction:
    """Return the least value that ``percent`` of all do not exceed, by counting."""
    seen = 0
    for value, times in sorted(Counter(values).items()):
        seen += times
        if 100 * seen >= percent * len(values):
            return value
    raise ValueError("there are no values")
