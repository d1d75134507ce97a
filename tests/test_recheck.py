"""Functions that are right while they are checked; once they are timed, not all of them are."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

import perfsuite
from perfsuite.boundary import WrongResultError
from perfsuite.devices.protocol import open_device
from perfsuite.engine import check
from perfsuite.engine.measure import Session
from perfsuite.model import Settings
from perfsuite.workers.process import inventory

torch = pytest.importorskip("torch")

N = 1 << 13
# A check makes three launches: what looks at their number is right until then.
CHECKED = 3
NEEDS_GPU = pytest.mark.skipif(not inventory(), reason="needs a GPU")


def right(x: Any) -> Any:
    return 3 * x + 1


class Launches:
    """A method for each way to be right, or to be fast or wrong once nobody looks."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        # Counted where the work is done: a graph that is replayed counts on.
        self.launches = torch.zeros((), dtype=torch.int64, device=ctx.place)
        self.calls: list[Any] = []
        self.kept: dict[int, Any] = {}

    def writes(self, x: Any, y: Any) -> None:
        y.copy_(right(x))

    def returns(self, x: Any, y: Any) -> Any:
        return right(x)

    def clamps_in_place(self, x: Any, y: Any) -> Any:
        return x.clamp_(min=0)

    def wrong_later(self, x: Any, y: Any) -> Any:
        return self._odd(x, lambda n: n > CHECKED, 7.0)

    def wrong_once_in_20(self, x: Any, y: Any) -> Any:
        return self._odd(x, lambda n: n % 20 == 19, 7.0)

    def left_out_later(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) <= CHECKED:
            self.writes(x, y)

    def kept_by_address(self, x: Any, y: Any) -> None:
        if x.data_ptr() not in self.kept:
            self.kept[x.data_ptr()] = right(x)
        y.copy_(self.kept[x.data_ptr()])

    def kept_from_the_last_call(self, x: Any, y: Any) -> Any:
        if len(self.calls) <= CHECKED:  # the last of them of the data that are timed
            self.calls.append(right(x))
        return self.calls[-1]

    def kept_on_the_host(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) > CHECKED and x.data_ptr() not in self.kept:
            host = right(x.cpu())
            self.kept[x.data_ptr()] = host.pin_memory() if self.ctx.device == "cuda" else host
        found = self.kept.get(x.data_ptr())
        y.copy_(right(x) if found is None else found, non_blocking=True)

    def changes_its_input_once(self, x: Any, y: Any) -> None:
        self.writes(x, y)
        self.calls.append(None)
        if len(self.calls) == 50:
            x.add_(0.5)

    def sorts_its_input(self, x: Any, y: Any) -> Any:
        x.copy_(x.sort().values)
        return right(x)

    def adds_in_place(self, x: Any, y: Any) -> Any:
        return x.mul_(3).add_(1)

    def joins_nothing_later(self, x: Any, y: Any) -> None:
        self.calls.append(None)
        if len(self.calls) < 300:
            self.writes(x, y)
        elif self.ctx.device == "cuda":
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(10_000_000)
                self.writes(x, y)
        else:
            late = threading.Timer(0.05, self.writes, (x, y))
            late.daemon = True
            late.start()

    def _odd(self, x: Any, odd: Callable[[Any], Any], value: float) -> Any:
        self.launches.add_(1)
        return torch.where(odd(self.launches), torch.full_like(x, value), right(x))


EACH = [name for name in vars(Launches) if not name.startswith("_")]
HONEST = {"writes", "returns", "clamps_in_place"}


@perfsuite.case(smoke={"how": EACH}, cold=False, source="made up")
def later(ctx: Any, *, how: str) -> perfsuite.Workload:
    """Compute 3 x + 1, or what is not negative of x."""

    def reference(x: Any, y: Any) -> Any:
        x = x.double()
        if how == "clamps_in_place":
            return x.clamp(min=0)
        return right(x.sort().values if how == "sorts_its_input" else x)

    return perfsuite.Workload(
        fn=getattr(Launches(ctx), how),
        make_inputs=lambda rng: (rng.randn(N), rng.empty(N)),
        reference=reference,
        wrong=lambda x, y: x,
        captures=how != "joins_nothing_later",
        in_place="in_place" in how,
    )


@pytest.mark.parametrize("device_name", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("how", EACH)
def test_what_is_wrong_only_while_it_is_timed_is_wrong(
    how: str, device_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others may take this machine: what is compared must not depend on that.
    monkeypatch.setattr(check, "RECHECK_S", 60.0)
    device = open_device(device_name)
    device.foreign_most = math.inf
    session = Session(device, later, {"how": how}, Settings(settle_s=0.0), 7)
    session.prepare()

    def timed() -> None:
        session.block()  # which finds what leaves a GPU no work to time
        session.recheck()

    if how in HONEST:
        timed()
        return
    with pytest.raises(WrongResultError, match=r"after \d+ launches") as told:
        timed()
    assert ("changed their input" in told.value.what) == ("its_input" in how)
