"""A pack of plain Python: bytes, records, numpy arrays and lists, right and wrong ones."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import perfsuite
from perfsuite import Case, Workload, package

SIZE = 1 << 10
# What a launch does, what it should have returned, and what it is handed.
Way = tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], tuple[Any, ...]]]


def _text(rng: Any) -> bytes:
    return bytes(round(50 * (1 + each)) for each in _values(rng))


def _values(rng: Any) -> list[float]:
    return [math.sin(rng.seed + n) for n in range(SIZE)]


def _records(rng: Any) -> list[dict[str, Any]]:
    found = enumerate(_values(rng)[:64])
    return [{"id": n, "name": f"n{round(9 * at)}", "at": at} for n, at in found]


def _by_name(records: list[dict[str, Any]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in records:
        sums[each["name"]] = sums.get(each["name"], 0.0) + each["at"]
    return sums


def _sum_each(records: list[dict[str, Any]]) -> dict[str, float]:
    names = {each["name"] for each in records}
    return {n: sum(each["at"] for each in records if each["name"] == n) for n in sorted(names)}


def _in_turn(values: list[float]) -> list[float]:
    left = list(values)
    return [left.pop(left.index(min(left))) for _ in range(64)]


CALLS: list[object] = []
KEPT: dict[int, Any] = {}


def _kept(values: list[float]) -> Any:
    """Sort once for each list, as soon as nobody looks any more."""
    CALLS.append(None)
    if len(CALLS) <= 3 or id(values) not in KEPT:
        KEPT[id(values)] = sorted(values)[:64]
    return KEPT[id(values)]


def _doubled(values: Any, out: Any) -> None:
    import numpy as np

    np.multiply(values, 2.0, out=out)


def _arrays(rng: Any) -> tuple[Any, ...]:
    import numpy as np

    rng.outputs.append(np.empty(SIZE, np.float32))
    return np.random.default_rng(rng.seed).normal(size=SIZE).astype("f4"), rng.outputs[-1]


WAYS: dict[str, Way] = {
    "bytes": (zlib.compress, lambda text: zlib.compress(bytearray(text)), lambda r: (_text(r),)),
    "records": (_by_name, _sum_each, lambda rng: (_records(rng),)),
    "arrays": (_doubled, lambda values, _: [2 * each for each in values.tolist()], _arrays),
    "kept": (_kept, _in_turn, lambda rng: (_values(rng),)),
    "torch": (len, len, lambda rng: (rng.randn(8),)),
}


@perfsuite.case(
    smoke={"way": list(WAYS)},
    needs=[package("numpy").when(way="arrays")],
    cold=False,
    source="made up for tests",
)
def plain(ctx: Any, *, way: str) -> Workload:
    """Do something with data that are no tensors."""
    fn, reference, make_inputs = WAYS[way]
    return Workload(
        fn=fn,
        make_inputs=make_inputs,
        reference=reference,
        wrong=lambda *_: {"n1": 0.5} if way == "records" else [0.5] * 64,
    )


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's cases."""
    return [plain]
