"""Raw data of a proof: made-up processes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfsuite.model import Block, Evidence, Variant, Work, variant_id
from perfsuite.prove.collect import Night, Raw, Reading, Wave, read_raw

NIGHTS = Path(__file__).parents[1] / "docs/proof/nights"
HEADER = read_raw([NIGHTS / "20261121-one-card-1.jsonl.gz"])[0].header


def variant(name: str, change: float, work: Work | None) -> Variant:
    info, axes = replace(HEADER.variants[0].case, name=name), {"change": change}
    identity = variant_id("planted", name, axes)
    return replace(HEADER.variants[0], id=identity, case=info, axes=axes, work=work)


def night(
    variants: Sequence[Variant], waves: Sequence[Wave], readings: Sequence[Reading] = ()
) -> Night:
    own = replace(HEADER, variants=tuple(variants))
    return Night(name="made up", header=own, waves=tuple(waves), readings=tuple(readings))


def process(time_us: float, cycles: float) -> Evidence:
    block = Block(time_us=(time_us,), cycles=(cycles,))
    return Evidence(slot=0, seed=0, unit="unit0", blocks=(block,))


def made_up(
    *, between: float = 0.0005, changes: Sequence[float] = (0.01,), units: int = 2, many: int = 24
) -> Raw:
    """Processes whose truth is known: so many waves of each variant on each card, and pairs."""
    rnd = random.Random(1)  # noqa: S311 - made-up noise
    # 0.3 ms at the memory's rate.
    work = Work(read_bytes=6.5e8, write_bytes=6.5e8)
    variants = [variant("copy", each, work) for each in (0.0, *changes)]

    def drawn(center: float, unit: str, count: int) -> tuple[Evidence, ...]:
        times = [center * math.exp(rnd.gauss(0, between)) for _ in range(count)]
        return tuple(replace(process(time, 1600 * time), unit=unit) for time in times)

    found = []
    for one in variants:
        center = 300 * (1 + float(one.axes["change"]))
        for unit in (f"unit{number}" for number in range(units)):
            alone = Wave(variant=one.id, unit=unit, wall_s=1.0)
            for _ in range(many):
                found.append(replace(alone, processes=drawn(center, unit, 3)))
                both = {"processes": drawn(center, unit, 6), "beside": drawn(300, unit, 6)}
                found.append(replace(alone, **both))
    return Raw((night(variants, found),))
