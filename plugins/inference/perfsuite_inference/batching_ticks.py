"""The same server once more, one tick after another: what ``batching_model`` must find.

Written from the rules alone and on purpose not as the scheduler is: time goes on by single ticks,
every decision looks at all requests, nothing is queued or counted ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from perfsuite_inference.scheduler import Costs, Limits, Request


@dataclass(slots=True)
class _Record:
    """A request in ticks: its arrival, its tokens' stamps; and what is left of its prompt."""

    arrival: int
    unread: int
    owed: int
    place: str = "outside"
    stamps: list[int] = field(default_factory=list)


_Work = list[tuple[_Record, int]]  # (who, tokens of its prompt; 0 for a decoded token)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the server is told: its slots, the numbers of ``Static`` and ``Chunked``, its costs."""

    slots: int
    timeout_us: int
    budget: int
    costs: Costs
    tick_us: int


def tick_through(
    trace: Sequence[Request], impl: str, rules: Rules, limits: Limits
) -> dict[str, float]:
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
            _arrive(records, tick)
            work, rows = choose(records, rules, tick)
            left = _ticks(work, rows, rules) if work else 0
        tick += 1
        left -= bool(work)
    return _metrics(records, rules.tick_us, limits)


def _arrive(records: list[_Record], tick: int) -> None:
    for record in records:
        if record.arrival <= tick and record.place == "outside":
            record.place = "queue"


def _ticks(work: _Work, rows: int, rules: Rules) -> int:
    costs, tick_us = rules.costs, rules.tick_us
    read = sum(tokens for _, tokens in work)
    fixed = [costs.prefill_us] * (read > 0) + [costs.decode_us] * (rows > 0)
    exact = Fraction(max(fixed) + costs.token_us * read + costs.row_us * rows, tick_us)
    if exact.denominator != 1:
        raise ValueError(f"a step of {exact} ticks of {tick_us} us; let all costs be whole ticks")
    return int(exact)


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


def _metrics(records: list[_Record], tick_us: int, limits: Limits) -> dict[str, float]:
    waits = [Fraction(record.stamps[0] - record.arrival) for record in records]
    paces = [Fraction(sum(gaps), len(gaps)) for gaps in map(_gaps, records) if gaps]
    gaps = [Fraction(gap) for record in records for gap in _gaps(record)]
    end = max(record.stamps[-1] for record in records)
    good = 0
    for record in records:
        mean = Fraction(sum(_gaps(record)), max(1, len(_gaps(record))))
        is_soon = (record.stamps[0] - record.arrival) * tick_us <= limits.ttft_us
        good += is_soon and mean * tick_us <= limits.tpot_us
    tokens = sum(record.owed for record in records)
    unit_ms, end_s = Fraction(tick_us, 1000), Fraction(end * tick_us, 1_000_000)
    return {
        "ttft_ms_p50": float(_rank(waits, 50) * unit_ms),
        "ttft_ms_p99": float(_rank(waits, 99) * unit_ms),
        "tpot_ms_p50": float(_rank(paces, 50) * unit_ms),
        "tpot_ms_p99": float(_rank(paces, 99) * unit_ms),
        "itl_ms_p99": float(_rank(gaps, 99) * unit_ms),
        "goodput_rps": float(good / end_s),
        "makespan_ms": float(end * unit_ms),
        "tokens": float(tokens),
    }


def _gaps(record: _Record) -> list[int]:
    return [later - earlier for earlier, later in pairwise(record.stamps)]


def _rank(values: list[Fraction], percent: int) -> Fraction:
    """Return the least value that ``percent`` of all do not exceed, by counting; 0 of none."""
    seen = 0
    for value, times in sorted(Counter(values).items()):
        seen += times
        if 100 * seen >= percent * len(values):
            return value
    return Fraction(0)
