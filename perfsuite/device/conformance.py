"""Whether a device that a pack brings keeps to the protocol: by its names, then by what it does."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from typing import Any, cast

from perfsuite.boundary import MAGNITUDE
from perfsuite.device.protocol import Device, Group, Sample
from perfsuite.errors import DeviceError, PerfError
from perfsuite.model import DeviceFacts, Health, Regime, Settings

# What Device has no body for.
REQUIRED = (
    "facts", "context", "rng", "bytes_of", "poison", "compare", "group", "sample",
)  # fmt: skip
SIZE, SEED = 64, 7
MOST_NAME = 100
CONTEXT = ("device", "place", "arch", "seed", "rank", "ranks")


def sampled(device: Device, group: Group, count: int, **conditions: Any) -> list[Sample]:
    """Return what ``device.sample`` does; ``DeviceError`` unless they are those asked for."""
    found: Any = device.sample(group, count, **conditions)
    if not isinstance(found, list) or len(found) != count:
        got = f"{len(found)} samples" if isinstance(found, list) else repr(found)
        raise _refused(device, f"{got} and was asked for {count}")
    for each in found:
        if _is_odd(each):
            raise _refused(device, f"{each}: no measurement is beyond {MAGNITUDE:g}")
    return found


def _refused(device: Device, what: str) -> DeviceError:
    return DeviceError(
        f"device {device.name!r} returned {what}",
        where=f"{type(device).__module__}.{type(device).__qualname__}.sample",
        remedy="return a list of a Sample each; NaN is the time of one that does not count",
    )


def _is_odd(sample: Sample) -> bool:
    return any(MAGNITUDE < value < math.inf for value in (sample.time_us, sample.cycles))


def shape_faults(device: object) -> Iterator[str]:
    """Yield what is missing of the protocol, without calling anything."""
    kind = type(device)
    for name in Device.__annotations__:
        if not hasattr(device, name):
            yield f"it has no attribute {name!r}"
    for name, function in inspect.getmembers(Device, inspect.isfunction):
        own = getattr(kind, name, None)
        if name.startswith("_"):
            continue
        if not callable(own) or (name in REQUIRED and own is function):
            yield f"it has no method {name}{inspect.signature(function)}"
        elif own is not function:
            yield from _signature_faults(name, own, function)


def _signature_faults(name: str, own: Any, function: Any) -> Iterator[str]:
    wanted = inspect.signature(function)
    given: dict[str, list[Any]] = {"args": [], "kwargs": []}
    for each in list(wanted.parameters.values()):
        given["kwargs" if each.kind is each.KEYWORD_ONLY else "args"].append(each.name)
    try:
        inspect.signature(own).bind(*given["args"], **dict.fromkeys(given["kwargs"]))
    except TypeError as error:
        yield f"its {name}{inspect.signature(own)} is called as {name}{wanted}: {error}"


def behaviour_faults(device: Device) -> Iterator[str]:
    """Yield what the device does otherwise than promised, the first fault of each part."""
    for part in (facts_faults, _data, _clock):
        about = part.__name__.removesuffix("_faults").lstrip("_")
        try:
            yield from part(device)
        except PerfError as error:
            yield f"{about}: {error.what}"
        except Exception as error:  # noqa: BLE001 - whatever it raises is the fault
            yield f"{about}: it raised {type(error).__name__}: {error}"


def facts_faults(device: Device) -> Iterator[str]:
    """Yield what is wrong with the device's description of itself, on which all else rests."""
    facts: Any = device.facts()
    if not isinstance(facts, DeviceFacts):
        yield f"facts() returned {facts!r}, no DeviceFacts"
        return
    if facts != device.facts():
        yield "facts() says something else each time: two processes would have two SKUs"
    if facts.device != device.name:
        yield f"facts().device is {facts.device!r}, its name {device.name!r}"
    if not (facts.name.strip() and facts.unit.strip() and facts.identity):
        yield "facts() lacks name, unit or identity, which baselines and comparisons rest on"
    yield from _name_faults(facts)
    for key in ("identity", "state", "environment"):
        if odd := [pair for pair in getattr(facts, key).items() if not _is_text(pair)]:
            yield f"facts().{key} has {odd[0]!r}: only text to text"
    if ("cycles" in facts.clocks) != device.has_cycles or "time_us" not in facts.clocks:
        yield f"facts().clocks is {facts.clocks!r} and has_cycles {device.has_cycles}"
    context: Any = device.context(SEED)
    for name in (each for each in CONTEXT if not hasattr(context, each)):
        yield f"context() has no attribute {name!r}"


def _name_faults(facts: DeviceFacts) -> Iterator[str]:
    """Yield names that cannot be those of a folder of baselines and of a file of locks."""
    for key, text in (("name", facts.name), ("unit", facts.unit)):
        if len(text) > MOST_NAME or not text.isprintable() or (key == "unit" and "/" in text):
            yield f"facts().{key} is {text[:MOST_NAME]!r}: a short text of one line, no path"


def _is_text(pair: tuple[object, object]) -> bool:
    return all(isinstance(each, str) for each in pair)


def _data(device: Device) -> Iterator[str]:
    first, again, other = (device.rng(seed).randn(SIZE) for seed in (SEED, SEED, SEED + 1))
    if not device.compare(first, again, 0.0).is_right:
        yield "rng: one seed makes two different inputs"
    if device.compare(first, other, None).is_right:
        yield "compare: it takes different values for equal"
    if device.bytes_of([first]) <= 0:
        yield "bytes_of: inputs have no bytes"
    rng = device.rng(SEED)
    output = rng.empty(SIZE)
    if not any(output is each for each in rng.outputs):
        yield "rng: what empty() hands out is not among its outputs"
    device.poison([output])
    if device.compare(output, output, None).is_right or device.compare(output, first, 1.0).is_right:
        yield "poison: what was overwritten is accepted as a result"


def _clock(device: Device) -> Iterator[str]:
    values = device.rng(SEED).randn(SIZE)
    calls: list[Any] = []
    for backend in ("graph", "loop", "host"):
        calls.clear()
        group = device.group(calls.append, [(values,), (values,)], 3, backend=backend)
        if group.launches != 3:  # noqa: PLR2004 - asked for above
            yield f"group: it was asked for 3 launches and says {group.launches}"
        for count in (2, Settings().samples):  # of a block, too: a device may hold a few only
            samples: Any = device.sample(group, count, regime=Regime.PACED, spin_us=0.0, flush=True)
            yield from _sample_faults(samples, count, has_cycles=device.has_cycles)
        if len(calls) < 3 and group.backend != "graph":  # noqa: PLR2004 - asked for above
            yield f"sample: {len(calls)} launches were issued of groups of 3"
    if not isinstance(cast("Any", device.health()), Health):
        yield "health() returned no Health"
    device.synchronize()


def _sample_faults(samples: Any, count: int, *, has_cycles: bool) -> Iterator[str]:
    if not isinstance(samples, list) or len(samples) != count:
        got = f"{len(samples)}" if isinstance(samples, list) else repr(samples)
        yield f"sample: it was asked for {count} samples and returned {got}"
        return
    for each in samples:
        if not isinstance(each, Sample) or each.time_us < 0 or _is_odd(each):
            yield f"sample: {each!r} is no Sample of a time in microseconds"
        elif math.isfinite(each.cycles) != has_cycles and math.isfinite(each.time_us):
            yield f"sample: cycles are {each.cycles} and has_cycles is {has_cycles}"
