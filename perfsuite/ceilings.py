"""Knows what a SKU reaches, by the accepted times of the variants that packs call its ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfsuite.model import BaselineEntry, Pack, Variant, Work
from perfsuite.roofline import Peaks, Rate

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
