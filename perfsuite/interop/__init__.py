"""pytest-benchmark: our runs in its JSON, and a device's clock as its timer.

The JSON is for its ``compare`` and services around it. Its "data" are processes, not samples:
samples of one process say nothing about the next, so a standard deviation over them would call
changes that are none. ``rounds`` counts processes, ``data`` holds the middle of each, in seconds.
What has no time, or did not end ok, is not in it. With the clock its own files have GPU times.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perfsuite.boundary import DeviceError, UsageError
from perfsuite.devices.protocol import Device, least_us, open_device, own_ns, sampled
from perfsuite.hooks import hookimpl
from perfsuite.model import TIME, Regime, Run, Status, built_in
from perfsuite.store.files import encode

if TYPE_CHECKING:
    from perfsuite.report.data import RunView, VariantView

P = ParamSpec("P")
T = TypeVar("T")

# Whose files this one is like; the name is what tells readers that another tool wrote it.
VERSION = "5.3.1"
US = 1e-6
QUARTILES = (0.25, 0.5, 0.75)
FENCE = 1.5  # Tukey's, of the distance between the quartiles
# Until a call was issued faster: a first one, which may compile for seconds, waits no longer.
MOST_ISSUE_US = 20_000.0
# What the clock was last asked for within a round of pytest-benchmark.
BETWEEN, STARTED, TIMED = "between", "started", "timed"


@hookimpl
def perf_files() -> Mapping[str, Callable[[RunView], str]]:
    """Return what makes ``benchmark.json``."""
    return {"benchmark.json": benchmark_json}


@hookimpl
def perf_testing() -> Mapping[str, object]:
    """Return the clock."""
    return {"DeviceClock": DeviceClock}


def benchmark_json(run_view: RunView) -> str:
    """Return the times of a run as ``pytest-benchmark compare`` reads them."""
    run, facts = run_view.run, run_view.run.facts
    commit = run.commit.removesuffix("-dirty")
    known = {**facts.environment, **facts.state, **facts.identity}
    found = {
        "machine_info": {**known, "sku": run.sku.slug, "device": facts.name},
        "commit_info": {"id": commit or "unversioned", "dirty": commit != run.commit},
        "benchmarks": [_benchmark(one, run) for one in run_view.variants if _is_timed(one)],
        "datetime": run.started,
        "version": VERSION,
    }
    return encode(found).decode() + "\n"


def stats(data: Sequence[float]) -> Mapping[str, Any]:
    """Return what pytest-benchmark says of durations, with its quartiles and fences."""
    import numpy as np

    each = np.asarray(data)
    # "Method 3" of odd counts and "method 2" of even ones there.
    q1, middle, q3 = map(float, np.quantile(each, QUARTILES, method="hazen"))
    mean = float(each.mean())
    stddev = float(each.std(ddof=1)) if len(data) > 1 else 0.0
    reach = FENCE * (q3 - q1)
    inside = each[(each >= q1 - reach) & (each <= q3 + reach)]
    apart, outside = int((abs(each - mean) > stddev).sum()), len(data) - len(inside)
    return {
        "min": min(data),
        "max": max(data),
        "mean": mean,
        "stddev": stddev,
        "rounds": len(data),
        "median": middle,
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": outside,
        "stddev_outliers": apart,
        "outliers": f"{apart};{outside}",
        "ld15iqr": float(inside.min()),
        "hd15iqr": float(inside.max()),
        "ops": 1 / mean,
        "total": sum(data),
        "data": list(data),
    }


def _is_timed(variant_view: VariantView) -> bool:
    ended_ok = variant_view.last is not None and variant_view.last.status is Status.OK
    return ended_ok and min(variant_view.middles.get(TIME.name, ()), default=0.0) > 0


def _benchmark(variant_view: VariantView, run: Run) -> dict[str, Any]:
    variant, verdict = variant_view.variant, variant_view.verdict
    return {
        "group": f"{variant.pack}.{variant.case.name}",
        "name": variant.id,
        "fullname": variant.id,
        "params": dict(variant.axes),
        "param": variant.id.partition("[")[2].removesuffix("]"),
        "extra_info": {
            "sku": run.sku.slug,
            "verdict": verdict.word.value if verdict else "",
            "reason": variant_view.reason,
        },
        "options": {},
        "stats": {
            **stats([time_us * US for time_us in variant_view.middles[TIME.name]]),
            "iterations": max((one.launches for one in variant_view.evidence), default=1),
        },
    }


class DeviceClock:
    """The seconds that a device spent on ``timed`` calls: ``@pytest.mark.benchmark(timer=clock)``.

    ``device`` is "cuda" (the process's first GPU, by stamps in its stream), "cpu" (the host's
    clock, less what the thread waited for a core) or a ``Device``. What is named is opened at the
    first timed call, with a ``DeviceError`` where it cannot be.
    """

    def __init__(self, device: Device | str) -> None:
        self._device = device
        self._name = device if isinstance(device, str) else device.name
        self._stream: AbstractContextManager[object] = nullcontext()
        self._least_us: float | None = None
        self._spent_s = 0.0
        self._round = BETWEEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __call__(self) -> float:
        """Return the seconds so far; a ``UsageError`` ending a round without a timed call."""
        last, self._round = self._round, BETWEEN
        if last == STARTED:
            raise UsageError(
                f"{self!r} was read twice without a timed call between",
                remedy="benchmark.pedantic(clock.timed(fn), args=..., rounds=...); benchmark(fn) "
                "looks for a tick, and this clock moves in timed calls only",
            )
        if last == BETWEEN:
            self._round = STARTED
        return self._spent_s

    def timed(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Return ``fn`` so that each call is awaited and moves the clock by the device's time.

        Of a GPU that is what passed in the current stream. A call that put no work there, or that
        the device could not time, is a ``DeviceError``.
        """
        from perfsuite.engine.calibrate import ISSUE_MARGIN

        # The shortest: a function that waits for the GPU itself waits for the spin as well.
        issue_us = [MOST_ISSUE_US]

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            returned: list[T] = []

            def issue() -> None:
                started = time.perf_counter()
                returned.append(fn(*args, **kwargs))
                issue_us.append(min(issue_us.pop(), 1e6 * (time.perf_counter() - started)))

            last, self._round = self._round, BETWEEN
            self._spent_s += self._time_us(issue, ISSUE_MARGIN * issue_us[0]) / 1e6
            self._round = BETWEEN if last == BETWEEN else TIMED
            return returned[0]

        return call

    def extra_info(self) -> dict[str, str]:
        """Return ``sku``, ``unit`` and ``clock``: "host", or the device's name."""
        from perfsuite.store.sku import sku_of

        own = built_in(self._name)
        # The class of the host knows them: opened, it would limit torch's threads.
        facts = (_needed(self._name, own.opens) if own.is_host else self._opened()).facts()
        clock = "host" if own.is_host else self._name
        return {"sku": sku_of(facts).slug, "unit": facts.unit, "clock": clock}

    def _time_us(self, issue: Callable[[], None], spin_us: float) -> float:
        # As the CPU's Device does, which also limits torch's threads and may call again.
        if built_in(self._name).is_host:
            return own_ns(issue) / 1e3
        device = self._opened()
        with self._stream:
            device.synchronize()
            if self._least_us is None:
                self._least_us = least_us(device)
            group = device.group(issue, [()], 1, backend="loop")
            (sample,) = sampled(device, group, 1, regime=Regime.PACED, spin_us=spin_us, flush=False)
        if not sample.time_us > self._least_us:  # nor is NaN
            raise DeviceError(
                f"{self!r} saw {sample.time_us:.3g} us of a timed call, which is no work",
                remedy="let it put work on the device's current stream; use cpu for host code",
            )
        return sample.time_us

    def _opened(self) -> Device:
        if isinstance(self._device, str):
            opened: Device
            if guest := built_in(self._name).guest:
                opened, self._stream = _needed(self._name, guest)()
            else:
                opened = open_device(self._name)
            self._device = opened
        return self._device


def _needed(name: str, place: str) -> Any:
    """Return what is at a place in the core, which needs a device's libraries."""
    try:
        return resolve_name(place)
    except ImportError as error:
        raise DeviceError(
            f"device {name!r} needs {error.name}", remedy="pip install 'perfsuite[torch]'"
        ) from error
