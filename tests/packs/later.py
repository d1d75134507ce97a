"""Functions that are right while they are checked; once they are timed, not all of them are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import perfsuite

N = 1 << 13  # small, so that twenty launches are compared on a busy machine too
# A check makes three launches: what looks at their number is right until then.
CHECKED = 3
HONEST = ("writes", "returns", "clamps_in_place")
CHEATING = (
    "wrong_later",
    "wrong_once_in_20",
    "nan_later",
    "left_out_later",
    "kept_by_address",
    "kept_from_the_last_call",
    "kept_on_the_host",
    "changes_its_input",
    "sorts_its_input",
    "adds_in_place",
    "joins_nothing_later",
)


@perfsuite.case(axes={"how": [*HONEST, *CHEATING]}, cold=False, source="made up")
def later(ctx: Any, *, how: str) -> perfsuite.Workload:
    """Compute 3 x + 1, or what is not negative of x."""

    def reference(x: Any, y: Any) -> Any:
        if how == "clamps_in_place":
            return x.double().clamp(min=0)
        x = x.double()
        return 3 * (x.sort().values if how == "sorts_its_input" else x) + 1

    return perfsuite.Workload(
        fn=_honest(how) or getattr(_Cheats(ctx), how),
        make_inputs=lambda rng: (rng.randn(N), rng.empty(N)),
        reference=reference,
        wrong=lambda x, y: x * 3,
        captures=how != "joins_nothing_later",
        in_place="in_place" in how,
    )


def _right(x: Any) -> Any:
    return 3 * x + 1


def _honest(how: str) -> Callable[..., Any] | None:
    return {
        "writes": _write,
        "returns": lambda x, y: _right(x),
        "clamps_in_place": lambda x, y: x.clamp_(min=0),
    }.get(how)


def _write(x: Any, y: Any) -> None:
    y.copy_(_right(x))


class _Cheats:
    """A method for each way to be fast, or wrong, once nobody looks."""

    def __init__(self, ctx: Any) -> None:
        import torch

        self.ctx = ctx
        # Counted where the work is done: a graph that is replayed counts on.
        self.launches = torch.zeros((), dtype=torch.int64, device=ctx.place)
        self.calls: list[Any] = []
        self.kept: dict[int, Any] = {}

    def wrong_later(self, x: Any, y: Any) -> Any:
        return self._odd(x, lambda n: n > CHECKED, 7.0)

    def wrong_once_in_20(self, x: Any, y: Any) -> Any:
        return self._odd(x, lambda n: n % 20 == 19, 7.0)

    def nan_later(self, x: Any, y: Any) -> Any:
        return self._odd(x, lambda n: n > 50, float("nan"))

    def left_out_later(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) <= CHECKED:
            _write(x, y)

    def kept_by_address(self, x: Any, y: Any) -> None:
        if x.data_ptr() not in self.kept:
            self.kept[x.data_ptr()] = _right(x)
        y.copy_(self.kept[x.data_ptr()])

    def kept_from_the_last_call(self, x: Any, y: Any) -> Any:
        if len(self.calls) <= CHECKED:  # the last of them of the data that are timed
            self.calls.append(_right(x))
        return self.calls[-1]

    def kept_on_the_host(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) > CHECKED and x.data_ptr() not in self.kept:
            host = _right(x.cpu())
            self.kept[x.data_ptr()] = host.pin_memory() if self.ctx.device == "cuda" else host
        found = self.kept.get(x.data_ptr())
        y.copy_(_right(x) if found is None else found, non_blocking=True)

    def changes_its_input(self, x: Any, y: Any) -> None:
        _write(x, y)
        x.add_(0.5)

    def sorts_its_input(self, x: Any, y: Any) -> Any:
        x.copy_(x.sort().values)
        return _right(x)

    def adds_in_place(self, x: Any, y: Any) -> Any:
        return x.mul_(3).add_(1)

    def joins_nothing_later(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) < 1000:
            _write(x, y)
        else:
            _elsewhere(self.ctx, lambda: _write(x, y))

    def _odd(self, x: Any, odd: Callable[[Any], Any], value: float) -> Any:
        import torch

        self.launches.add_(1)
        return torch.where(odd(self.launches), torch.full_like(x, value), _right(x))


def _elsewhere(ctx: Any, act: Callable[[], None]) -> None:
    """Do it on another stream, or in another thread, and wait for nothing."""
    import torch

    if ctx.device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(10_000_000)
            act()
        return

    def late() -> None:
        time.sleep(0.05)
        act()

    threading.Thread(target=late, daemon=True).start()


@perfsuite.hookimpl
def perf_cases() -> list[perfsuite.Case]:
    """Return the case."""
    return [later]
