"""Knows what a SKU reaches, by the accepted times of the variants that packs call its ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfsuite.model import BaselineEntry, Pack, Variant, Work
from perfsuite.roofline import Peaks, Rate


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
    links, operations = (
        {
            name: Rate(rate, measured=True, source=f"{variant}, accepted baseline")
            for rate, variant, name, is_link in reached
            if is_link is kind
        }
        for kind in (True, False)
    )
    if peaks.is_generic:
        return Peaks(links, operations) if reached else peaks
    return Peaks({**peaks.links, **links}, {**peaks.operations, **operations})


def per_launch(work: Work, ceiling: str) -> tuple[float, bool]:
    """Return the bytes of a launch on the link that a ceiling is of and True, else its FLOP."""
    ways = {"": work.bytes, "_read": work.read_bytes, "_write": work.write_bytes}
    moved = ways.get(ceiling.removeprefix(work.link))
    return (work.flops, False) if moved is None else (moved, True)


def _is_own(variant: Variant, pack: Pack) -> bool:
    """Say whether a variant runs on nothing but the device that its pack brings."""
    device = pack.accelerator.name if pack.accelerator else ""
    return any((need.kind, need.value) == ("device", device) for need in variant.needs)


def _reached(
    declared: Iterable[tuple[str, Variant]], entries: Iterable[BaselineEntry]
) -> Iterator[tuple[float, str, str, bool]]:
    """Yield what accepted times say: a rate per second, of which variant, and what it is of."""
    known = {(each.variant, each.case_version): each.metrics.get("time_us") for each in entries}
    for name, variant in declared:
        clock = known.get((variant.id, variant.case.version))
        amount, is_link = per_launch(variant.work or Work(), name)
        # A rate of 0 would be divided by.
        if clock and clock.center > 0 and amount > 0:
            yield 1e6 * amount / clock.center, variant.id, name, is_link
