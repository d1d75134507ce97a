"""The case that new-pack writes, for the fake device: each pass over the rows takes its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import perfsuite
from perfsuite import Workload, cuda

NUMBERS = 8


class Row(list[float]):
    """Numbers that tell the device of each pass over them."""

    def __init__(self, values: Iterable[float], spend: Callable[[str, float], None]) -> None:
        super().__init__(values)
        self.spend = spend

    def _passed(self, name: str, values: Iterable[float], time_us: float = 100.0) -> Row:
        self.spend(name, time_us)
        return Row(values, self.spend)

    def shift(self) -> Row:
        return self._passed("sub", [value - max(self) for value in self])

    def exp(self) -> Row:
        return self._passed("exp", map(math.exp, self))

    def logcumsumexp(self, dim: int) -> Row:
        return self._passed("logcumsumexp", self, 2000.0)

    def normalise(self) -> Row:
        return self._passed("div", [value / sum(self) for value in self])

    def copy(self, *_: object) -> Self:
        return self

    sub = narrow = copy


@perfsuite.case(
    smoke={"rows": [1024], "cols": [1000], "impl": ["eager", "torch", "triton"]},
    needs=(cuda().when(impl="triton"),),
    source="made up for the docs",
)
def softmax(ctx: Any, rows: int, cols: int, impl: str) -> Workload:
    """Take the softmax of a row."""

    def fn(values: list[float]) -> Row:
        launch = _launch_eager if impl == "eager" else _launch_torch
        return launch(Row(values, ctx.run_kernel))

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(NUMBERS),),
        reference=_reference,
        wrong=lambda values: [math.exp(value) for value in values],
    )


def _launch_eager(x: Row) -> Row:
    shifted = x.shift()
    powers = shifted.exp()
    return powers.normalise()


def _launch_torch(x: Row) -> Row:
    return x.shift().exp().normalise()


def _reference(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / math.fsum(powers) for power in powers]


CASES = (softmax,)
