"""What a device can do at most, and the share of it that a variant reaches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from perfsuite.model import BaselineEntry, Pack, Variant, Work

# Knows the upper rates of GPU products, and what they say about a launch's work.


COMPUTE, MEMORY, MIXED, UNKNOWN = "compute", "memory", "mixed", "unknown"
TRANSFER = "transfer"  # bytes over PCIe: neither of the GPU's clocks
OFF_CHIP = ("pcie", "nvlink")
COLLECTIVE = "collective"  # launches of several ranks, held up by the links between them
HOST_COPY = "host copy"  # a transfer that waits for the host's own copying

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
    """An upper rate per second, in bytes or operations; measured, or else from a datasheet."""

    value: float
    measured: bool
    source: str


@dataclass(frozen=True, slots=True)
class Peaks:
    """A product's upper rates: ``links`` in bytes/s, ``operations`` in FLOP/s by dtype.

    ``starts`` are kernels/s, each behind the one before, by what starts them.
    """

    links: Mapping[str, Rate]
    operations: Mapping[str, Rate]
    is_generic: bool = False
    starts: Mapping[str, Rate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """A derived number for people, with its unit; never stored as a baseline."""

    name: str
    value: float
    unit: str


def _datasheet(value: float, source: str) -> Rate:
    return Rate(value, measured=False, source=f"{source} datasheet, dense")


def _measured(value: float, source: str) -> Rate:
    return Rate(value, measured=True, source=source)


_STAS = "stas00/ml-engineering 744d01e, accelerator benchmarks"

_H100 = Peaks(
    links={
        "hbm": _datasheet(3.35e12, "H100 SXM"),
        "pcie": _datasheet(63e9, "PCIe 5.0 x16"),
        "nvlink": _datasheet(450e9, "H100 SXM"),
    },
    operations={
        "bf16": _measured(794.5e12, _STAS),
        "fp16": _measured(794.5e12, f"{_STAS}; bf16 taken"),
        "fp8": _measured(1402.6e12, _STAS),
        "int8": _datasheet(1979e12, "H100 SXM"),
        "tf32": _datasheet(494.5e12, "H100 SXM"),
        "fp32": _datasheet(67e12, "H100 SXM"),
        "fp64": _datasheet(67e12, "H100 SXM"),
    },
)

# By slug. Rates of matmuls are of random inputs: zeros run 10-13 % faster.
PEAKS: Mapping[str, Peaks] = {
    "nvidia-h200": Peaks(
        links={
            "hbm": _measured(4.36e12, "torch add of 2^28 floats, 2 reads + 1 write, H200"),
            "hbm_read": _measured(4.53e12, "memory pack's dot of 2^28 floats in CUDA C++, H200"),
            "hbm_write": _measured(4.66e12, "memory pack's init of 2^28 floats in Triton, H200"),
            "pcie": _measured(55.4e9, _STAS),
            # One direction of one GPU's links; a switch that sums in the network beats it.
            "nvlink": _measured(396.4e9, _STAS),
        },
        operations={
            "bf16": _measured(798e12, "compute pack's Triton GEMM of 8192 cubed, paced, H200"),
            "fp16": _measured(798e12, "bf16 taken"),
            "fp8": _measured(1543e12, "torch._scaled_mm by rows, 8192 cubed, paced, H200"),
            "int8": _datasheet(1979e12, "H200 SXM"),
            "tf32": _datasheet(494.5e12, "H200 SXM"),
            "fp32": _datasheet(67e12, "H200 SXM"),
            "fp64": _datasheet(67e12, "H200 SXM"),
        },
    ),
    "nvidia-h100-80gb-hbm3": _H100,
    "nvidia-b200": Peaks(
        links={"hbm": _datasheet(8.0e12, "B200"), "pcie": _datasheet(63e9, "PCIe 5.0 x16")},
        operations={
            "fp4": _datasheet(9000e12, "B200"),
            "fp8": _measured(3432.5e12, _STAS),
            "bf16": _measured(1745e12, _STAS),
            "fp16": _measured(1745e12, f"{_STAS}; bf16 taken"),
            "tf32": _datasheet(1125e12, "B200"),
            "fp32": _datasheet(80e12, "B200"),
        },
    ),
}

# Data-centre GPUs have about these ratios of rates: enough to class a work, never an efficiency.
GENERIC = Peaks(_H100.links, _H100.operations, is_generic=True)


def peaks_of(slug: str) -> Peaks:
    """Return the peaks of a SKU, whatever board and GPU count; generic ones if it is not listed.

    A MIG slice has a part of the product's rates, so it gets the generic ones.
    """
    return PEAKS.get(re.sub(r"(-\d{4}-\d{3})?(-x\d+)?\Z", "", slug), GENERIC)


def bound_us(work: Work, peaks: Peaks) -> float | None:
    """Return the least time of one launch; None if no work is stated or its rate is not known."""
    limits = (*_limits_us(work, peaks), _starts_us(work, peaks))
    return max(limits) if any(limits) else None


def is_held_by_starts(work: Work, peaks: Peaks) -> bool:
    """Say whether starting its kernels takes longer than what they move and compute."""
    return _starts_us(work, peaks) > max(_limits_us(work, peaks))


def efficiency(work: Work, peaks: Peaks, time_us: float) -> float | None:
    """Return bound / time, the share of the ceiling; None where the ceiling is not known."""
    bound = bound_us(work, peaks)
    return None if bound is None or peaks.is_generic else bound / time_us


def work_class(work: Work | None, peaks: Peaks, time_us: float | None = None) -> str:
    """Say what limits a launch: compute, memory, mixed, transfer, host copy or unknown.

    With its time given, work far below its bound is unknown: something else holds it up.
    """
    if work is None:
        return UNKNOWN
    compute, memory = _limits_us(work, peaks)
    if work.link in OFF_CHIP and work.bytes:
        return HOST_COPY if time_us and memory < WIRED * time_us else TRANSFER
    if not (compute or memory) or _is_unexplained(max(compute, memory), peaks, time_us):
        return UNKNOWN
    if compute >= DOMINATES * memory:
        return COMPUTE
    return MEMORY if memory >= DOMINATES * compute else MIXED


def class_of(variant: Variant, slug: str, time_us: float) -> str:
    """Return the class whose noise a variant of this time has on a SKU."""
    return COLLECTIVE if variant.is_gang else work_class(variant.work, peaks_of(slug), time_us)


def link_of(work: Work, peaks: Peaks) -> str:
    """Return the name of the link; a stream that goes one way may have a rate of its own."""
    if min(work.read_bytes, work.write_bytes) > ONE_WAY * work.bytes:
        return work.link
    own = f"{work.link}_{'read' if work.read_bytes >= work.write_bytes else 'write'}"
    return own if own in peaks.links else work.link


def rates(work: Work, time_us: float, peaks: Peaks) -> tuple[Metric, ...]:
    """Return bytes, operations and kernels per time and the share of the ceiling, where stated."""
    found = []
    if work.bytes:
        found.append(Metric("gb_per_s", work.bytes / time_us / 1e3, "GB/s"))
    if work.flops:
        found.append(Metric("tflop_per_s", work.flops / time_us / 1e6, "TFLOP/s"))
    if work.kernels:
        found.append(Metric("kernels_per_ms", 1e3 * work.kernels / time_us, "kernels/ms"))
    share = efficiency(work, peaks, time_us)
    if share is not None:
        found.append(Metric("ceiling_percent", 100 * share, "% of ceiling"))
    return tuple(found)


def _limits_us(work: Work, peaks: Peaks) -> tuple[float, float]:
    operations = peaks.operations.get(work.rate_dtype or "fp32")
    link = peaks.links.get(link_of(work, peaks))
    compute = 1e6 * work.flops / operations.value if operations else 0.0
    return compute, 1e6 * work.bytes / link.value if link else 0.0


def _starts_us(work: Work, peaks: Peaks) -> float:
    rate = peaks.starts.get(work.start)
    return 1e6 * work.kernels / rate.value if rate else 0.0


def _is_unexplained(bound: float, peaks: Peaks, time_us: float | None) -> bool:
    return time_us is not None and not peaks.is_generic and bound < EXPLAINED * time_us


# Knows what a SKU reaches, by the accepted times of the variants that packs call its ceilings.


# What a ceiling is of.
BYTES, FLOP, STARTS = "bytes", "FLOP", "starts"


def with_measured(peaks: Peaks, entries: Iterable[BaselineEntry], packs: Iterable[Pack]) -> Peaks:
    """Return a product's peaks with what its baselines' ceiling cases reach, where they do.

    One that is not listed keeps the generic ones, since a share of some ceilings would leave out
    others; only of its own device a pack is taken to declare all.
    """
    declared = [
        (name, each)
        for pack in packs
        for name, variants in pack.ceilings.items()
        for each in variants
        if not peaks.is_generic or _is_own(each, pack)
    ]
    # The best stands last.
    reached = sorted(_reached(declared, entries))
    links, operations, starts = (
        {
            name: Rate(rate, measured=True, source=f"{variant}, accepted baseline")
            for rate, variant, name, of in reached
            if of == kind
        }
        for kind in (BYTES, FLOP, STARTS)
    )
    if peaks.is_generic:
        return Peaks(links, operations, starts=starts) if reached else peaks
    return Peaks(
        {**peaks.links, **links},
        {**peaks.operations, **operations},
        starts={**peaks.starts, **starts},
    )


def per_launch(work: Work, ceiling: str) -> tuple[float, str]:
    """Return what a launch has of a ceiling and its kind: bytes on a link, kernels, else FLOP."""
    ways = {"": work.bytes, "_read": work.read_bytes, "_write": work.write_bytes}
    moved = ways.get(ceiling.removeprefix(work.link))
    if moved is not None:
        return moved, BYTES
    return (work.kernels, STARTS) if ceiling == work.start else (work.flops, FLOP)


def _is_own(variant: Variant, pack: Pack) -> bool:
    """Say whether a variant runs on nothing but the device that its pack brings."""
    device = pack.accelerator.name if pack.accelerator else ""
    return any((need.kind, need.value) == ("device", device) for need in variant.needs)


def _reached(
    declared: Iterable[tuple[str, Variant]], entries: Iterable[BaselineEntry]
) -> Iterator[tuple[float, str, str, str]]:
    """Yield what accepted times say: a rate per second, of which variant, and what it is of."""
    known = {(each.variant, each.case_version): each.metrics.get("time_us") for each in entries}
    for name, variant in declared:
        clock = known.get((variant.id, variant.case.version))
        amount, kind = per_launch(variant.work or Work(), name)
        # A rate of 0 would be divided by.
        if clock and clock.center > 0 and amount > 0:
            yield 1e6 * amount / clock.center, variant.id, name, kind
