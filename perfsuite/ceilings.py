"""Knows which variants are a SKU's ceilings, and what it reaches by the accepted times of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfsuite.model import BaselineEntry
from perfsuite.roofline import Peaks, Rate

_IMPLS = ("torch", "triton", "cuda")


def _stream(arrays: Mapping[str, int]) -> dict[str, float]:
    return {
        f"memory.stream[op={op},n={2**28},impl={impl}]": 4.0 * 2**28 * count
        for op, count in arrays.items()
        for impl in _IMPLS
    }


def _gemms(
    pattern: str, impls: Iterable[str], sizes: Iterable[int] = (4096, 8192)
) -> dict[str, float]:
    return {
        f"{pattern.format(f'm={m},n={m},k={m}')},impl={impl}]": 2.0 * m**3
        for m in sizes
        for impl in impls
    }


# Variants whose accepted times say what a SKU reaches: torch's, the driver's and our own tuned
# kernels; each with the bytes or operations that its case counts for one launch.
LINK_CEILINGS: Mapping[str, Mapping[str, float]] = {
    "hbm": _stream({"copy": 2, "scale": 2, "add": 3, "triad": 3}),
    "hbm_read": _stream({"dot": 2, "read": 1}),
    "hbm_write": _stream({"init": 1}),
    "l2": {
        f"memory.l2_sweep[kib={kib},impl=cuda]": 1024.0 * kib * (2**20 // kib)
        for kib in (16384, 24576, 32768)
    },
    "shared": {
        f"memory.bank_conflicts[{axes}]": 4.0 * 32 * 256 * 131073
        for axes in ("stride=1,impl=plain", "stride=4,impl=vectors")
    },
    "pcie": {f"memory.h2d[mib=256,direction={way},impl=pinned]": 2.0**28 for way in ("h2d", "d2h")},
}
_BF16 = {
    **_gemms("compute.gemm[dtype=bf16,{}", ("torch", "triton")),
    **_gemms("hopper.wgmma_gemm[{}", ("cublas", "gluon")),
}
OPERATION_CEILINGS: Mapping[str, Mapping[str, float]] = {
    "bf16": _BF16,
    "fp16": _BF16,
    "fp8": _gemms("compute.fp8_gemm[{}", ("fp8_tensorwise", "fp8_rowwise")),
    "tf32": _gemms("compute.gemm[dtype=tf32,{}", ("torch",), (4096,)),
    "fp32": {"compute.fma[steps=4096,impl=cuda]": 2.0**35},
}


def with_measured(peaks: Peaks, entries: Iterable[BaselineEntry]) -> Peaks:
    """Return a listed product's peaks with what its baselines' ceiling cases reach, where they do.

    One that is not listed keeps the generic ones: a share of some ceilings would leave out others.
    """
    if peaks.is_generic:
        return peaks
    clocks = ((each.variant, each.metrics.get("time_us")) for each in entries)
    times = {variant: clock.center for variant, clock in clocks if clock and clock.center > 0}
    links = _best(LINK_CEILINGS, times)
    return Peaks({**peaks.links, **links}, {**peaks.operations, **_best(OPERATION_CEILINGS, times)})


def _best(
    ceilings: Mapping[str, Mapping[str, float]], times: Mapping[str, float]
) -> dict[str, Rate]:
    found = {}
    for name, variants in ceilings.items():
        reached = [(1e6 * n / times[each], each) for each, n in variants.items() if each in times]
        if reached:
            value, variant = max(reached)
            found[name] = Rate(value, measured=True, source=f"{variant}, accepted baseline")
    return found
