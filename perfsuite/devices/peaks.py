"""What a device can do at most, and the share of it that a variant reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from perfsuite.model import BaselineEntry, Pack, Variant, Work

# What limits a launch: operations, bytes of the device's memory, both, or nothing that is known.
COMPUTE, MEMORY, MIXED, UNKNOWN = "compute", "memory", "mixed", "unknown"
TRANSFER = "transfer"  # bytes over PCIe: neither of the GPU's clocks
HOST_COPY = "host copy"  # a transfer that waits for the host's own copying
COLLECTIVE = "collective"  # launches of several ranks, held up by the links between them
OFF_CHIP = ("pcie", "nvlink")

# One limit this many times the other decides the class; between, both matter.
DOMINATES = 2.0
# Below this share of its bound a launch is held up by something the roofline does not know.
EXPLAINED = 0.4
# Below this share of its link's rate a transfer is not held up by the link.
WIRED = 0.5
# A smaller share of bytes in the other direction does not slow a stream down.
ONE_WAY = 0.01


@dataclass(frozen=True, slots=True)
class Rate:
    """An upper rate per second, in bytes, operations or kernels; measured, or of a datasheet."""

    value: float
    source: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Peaks:
    """A product's upper rates: ``links`` in bytes/s, ``operations`` in FLOP/s by dtype.

    ``starts`` are kernels/s, each behind the one before, by what starts them.
    """

    links: Mapping[str, Rate]
    operations: Mapping[str, Rate]
    starts: Mapping[str, Rate] = field(default_factory=dict)
    is_generic: bool = False


PEAKS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, Peaks])
# Data-centre GPUs have about these ratios of rates: enough to class a work, never an efficiency.
GENERIC = replace(PEAKS["nvidia-h100-80gb-hbm3"], is_generic=True)


def peaks_of(slug: str) -> Peaks:
    """Return the peaks of a SKU, whatever board and GPU count; generic ones if it is not listed.

    A MIG slice has a part of the product's rates, so it gets the generic ones.
    """
    return PEAKS.get(re.sub(r"(-\d{4}-\d{3})?(-x\d+)?\Z", "", slug), GENERIC)


def link_of(work: Work, peaks: Peaks) -> str:
    """Return the name of the link; a stream that goes one way may have a rate of its own."""
    if min(work.read_bytes, work.write_bytes) > ONE_WAY * work.bytes:
        return work.link
    own = f"{work.link}_{'read' if work.read_bytes >= work.write_bytes else 'write'}"
    return own if own in peaks.links else work.link


def limits_us(work: Work, peaks: Peaks) -> tuple[float, float, float]:
    """Return the least time of a launch's operations, bytes and starts; 0 of what is not known."""
    operations = peaks.operations.get(work.rate_dtype or "fp32")
    link, start = peaks.links.get(link_of(work, peaks)), peaks.starts.get(work.start)
    return (
        1e6 * work.flops / operations.value if operations else 0.0,
        1e6 * work.bytes / link.value if link else 0.0,
        1e6 * work.kernels / start.value if start else 0.0,
    )


def is_held_by_starts(work: Work, peaks: Peaks) -> bool:
    """Say whether starting its kernels takes longer than what they move and compute."""
    *others, starts = limits_us(work, peaks)
    return starts > max(others)


def efficiency(work: Work, peaks: Peaks, time_us: float) -> float | None:
    """Return the least time / time, the share of the ceiling; None where that is not known."""
    least = max(limits_us(work, peaks))
    return least / time_us if least and not peaks.is_generic else None


def work_class(work: Work | None, peaks: Peaks, time_us: float | None = None) -> str:
    """Say what limits a launch: compute, memory, mixed, transfer, host copy or unknown.

    With its time given, work far below its bound is unknown: something else holds it up.
    """
    if work is None:
        return UNKNOWN
    compute, memory, _ = limits_us(work, peaks)
    if work.link in OFF_CHIP and work.bytes:
        return HOST_COPY if time_us and memory < WIRED * time_us else TRANSFER
    bound = max(compute, memory)
    if not bound or (time_us and not peaks.is_generic and bound < EXPLAINED * time_us):
        return UNKNOWN
    if compute >= DOMINATES * memory:
        return COMPUTE
    return MEMORY if memory >= DOMINATES * compute else MIXED


def class_of(variant: Variant, slug: str, time_us: float) -> str:
    """Return the class whose noise a variant of this time has on a SKU."""
    return COLLECTIVE if variant.is_gang else work_class(variant.work, peaks_of(slug), time_us)


def rates(work: Work, time_us: float, peaks: Peaks) -> dict[str, tuple[float, str]]:
    """Return operations, bytes and kernels per time with their units, what limits a launch first.

    What it has none of is left out.
    """
    found = {
        "tflop_per_s": (work.flops / time_us / 1e6, "TFLOP/s"),
        "gb_per_s": (work.bytes / time_us / 1e3, "GB/s"),
        "kernels_per_ms": (1e3 * work.kernels / time_us, "kernels/ms"),
    }
    limits = dict(zip(found, limits_us(work, peaks), strict=True))
    order = sorted(found, key=limits.__getitem__, reverse=True)
    return {name: found[name] for name in order if found[name][0]}


# What a ceiling is of, as ``Peaks`` calls it.
BYTES, FLOP, STARTS = "links", "operations", "starts"


def per_launch(work: Work, ceiling: str) -> tuple[float, str]:
    """Return what a launch has of a ceiling and its kind: bytes on a link, kernels, else FLOP."""
    ways = {"": work.bytes, "_read": work.read_bytes, "_write": work.write_bytes}
    moved = ways.get(ceiling.removeprefix(work.link))
    if moved is not None:
        return moved, BYTES
    return (work.kernels, STARTS) if ceiling == work.start else (work.flops, FLOP)


def with_measured(peaks: Peaks, entries: Iterable[BaselineEntry], packs: Iterable[Pack]) -> Peaks:
    """Return a product's peaks with what its baselines' ceiling cases reach, where they do.

    One that is not listed keeps the generic ones, since a share of some ceilings would leave out
    others; only of its own device a pack is taken to declare all.
    """
    known = {(each.variant, each.case_version): each.metrics.get("time_us") for each in entries}
    declared = [
        (name, variant)
        for pack in packs
        for name, variants in pack.ceilings.items()
        for variant in variants
        if not peaks.is_generic or _is_own(variant, pack)
    ]
    reached: dict[str, dict[str, Rate]] = {BYTES: {}, FLOP: {}, STARTS: {}}
    for name, variant in declared:
        clock = known.get((variant.id, variant.case.version))
        amount, kind = per_launch(variant.work or Work(), name)
        # A rate of 0 would be divided by.
        if clock and clock.center > 0 and amount > 0:
            source = f"{variant.id}, accepted baseline"
            rate = Rate(1e6 * amount / clock.center, source, measured=True)
            best = reached[kind].get(name, rate)
            if (rate.value, rate.source) >= (best.value, best.source):
                reached[kind][name] = rate
    if peaks.is_generic and any(reached.values()):
        peaks = Peaks({}, {})
    return replace(peaks, **{kind: getattr(peaks, kind) | own for kind, own in reached.items()})


def _is_own(variant: Variant, pack: Pack) -> bool:
    """Say whether a variant runs on nothing but the device that its pack brings."""
    device = pack.accelerator.name if pack.accelerator else ""
    return any((need.kind, need.value) == ("device", device) for need in variant.needs)
