"""What a served trace is worth: times to tokens, and requests within their limits.

Time to first token (TTFT) is from a request's arrival to its first token. Time per output token
(TPOT) is (last - first) / (tokens - 1) of a request; one of a single token has none. Inter-token
latency (ITL) is each gap between two tokens of a request. Goodput counts requests within both
limits per second. Names and definitions are those of ``vllm bench serve``. Rates and the makespan
count from the trace's time 0 to the last token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from perfsuite_inference.scheduler import Served

US_PER_S = 1_000_000
US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may take at most, the limit itself included."""

    ttft_us: int
    tpot_us: int

    def hold(self, served: Served) -> bool:
        """Say whether a request kept both; one of a single token keeps the second."""
        first, last = served.tokens_us[0], served.tokens_us[-1]
        gaps = len(served.tokens_us) - 1
        in_time = first - served.request.arrival_us <= self.ttft_us
        return in_time and last - first <= self.tpot_us * gaps


# Llama-2-70B interactive in MLPerf Inference v5.0.
INTERACTIVE = Limits(ttft_us=450_000, tpot_us=40_000)


def summarise(served: Sequence[Served], limits: Limits = INTERACTIVE) -> dict[str, float]:
    """Return the metrics of a trace; 0 where there is nothing to take one of."""
    makespan_us = max((item.tokens_us[-1] for item in served), default=0)
    ttft = [Fraction(item.tokens_us[0] - item.request.arrival_us) for item in served]
    tpot = [
        Fraction(item.tokens_us[-1] - item.tokens_us[0], len(item.tokens_us) - 1)
        for item in served
        if len(item.tokens_us) > 1
    ]
    gaps = [Fraction(b - a) for item in served for a, b in pairwise(item.tokens_us)]
    tokens = sum(len(item.tokens_us) for item in served)
    good = sum(limits.hold(item) for item in served)
    return {
        "ttft_ms_p50": _ms(quantile(ttft, 50)),
        "ttft_ms_p99": _ms(quantile(ttft, 99)),
        "tpot_ms_p50": _ms(quantile(tpot, 50)),
        "tpot_ms_p99": _ms(quantile(tpot, 99)),
        "itl_ms_p99": _ms(quantile(gaps, 99)),
        "goodput_rps": _per_second(good, makespan_us),
        "tokens_per_s": _per_second(tokens, makespan_us),
        "makespan_ms": _ms(Fraction(makespan_us)),
        "tokens": float(tokens),
    }


def quantile(values: Iterable[Fraction], percent: int) -> Fraction:
    """Return the nearest rank: the least value that ``percent`` of all do not exceed; 0 of none.

    It is one of the values, never between two, so that it is exact.
    """
    if not 1 <= percent <= 100:  # noqa: PLR2004 - percent
        raise ValueError(f"percent must be from 1 to 100, not {percent!r}")
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else Fraction(0)


def _ms(time_us: Fraction) -> float:
    return float(time_us / US_PER_MS)


def _per_second(count: int, time_us: int) -> float:
    return float(Fraction(count * US_PER_S, time_us)) if time_us else 0.0
