"""Raw data of a proof: what four H200s were recorded to do, and made-up processes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from perfsuite.model import Variant, Work, variant_id
from perfsuite.prove.raw import Process, Raw, Reading, Wave, read_raw

RECORDED = json.loads(Path(__file__).with_name("data").joinpath("h200.json").read_text())
(HEADER,) = read_raw(
    [Path(__file__).parents[1] / "docs/proof/20261121-one-card-1.jsonl.gz"]
).headers
# One launch a sample: what perfsuite no longer does.
LEFT_OUT = {"fma_14us_single"}
# Where tiling makes more of the change than the work is; the sequence grew by this much.
STATED = {"attention": 0.0156}


def variant(name: str, change: float, work: Work | None) -> Variant:
    info, axes = replace(HEADER.variants[0].case, name=name), {"change": change}
    identity = variant_id("planted", name, axes)
    return replace(HEADER.variants[0], id=identity, case=info, axes=axes, work=work)


def waves(one: Variant, unit: str, times: Sequence[float], cycles: Sequence[float]) -> list[Wave]:
    """Cut processes into whole waves of three."""
    each = [Process(time_us=(t,), cycles=(c,)) for t, c in zip(times, cycles, strict=True)]
    return [
        Wave(variant=one.id, unit=unit, wall_s=1.0, processes=tuple(each[first : first + 3]))
        for first in range(0, len(each) - 2, 3)
    ]


def recorded(seed: int | None = None) -> Raw:
    """The recorded samples as if `perfsuite prove` had taken them, processes mixed by a seed."""
    variants, found, readings = [], [], []
    for (name, kernel), side in product(RECORDED.items(), "AB"):
        change = STATED.get(name, kernel["change"])
        if name in LEFT_OUT or not change:
            continue
        one = variant(name, change if side == "B" else 0.0, Work(**kernel["work"]))
        variants.append(one)
        for unit, row in kernel["series"]["paced"][side].items():
            each = list(zip(row["time_us"], row["cycles"], strict=True))
            each = each[: len(each) // 3 * 3]
            if seed is not None:
                random.Random(f"{seed} {one.id} {unit}").shuffle(each)  # noqa: S311
            found += waves(one, unit, *zip(*each, strict=True))
        for unit, row in kernel["series"].get("do_bench", {}).get(side, {}).items():
            told = Reading(variant=one.id, unit=unit, tool="do_bench")
            readings += [replace(told, time_us=time_us) for time_us in row["time_us"]]
    header = replace(HEADER, variants=tuple(variants))
    return Raw(headers=(header,), waves=tuple(found), readings=tuple(readings))


def made_up(*, between: float = 0.001, change: float = 0.01) -> Raw:
    """Processes of two units whose spread is known, 24 waves of each variant."""
    rnd = random.Random(1)  # noqa: S311 - made-up noise
    # 0.3 ms at the memory's rate.
    work = Work(read_bytes=6.5e8, write_bytes=6.5e8)
    variants = [variant("copy", each, work) for each in (0.0, change)]
    found = []
    for one in variants:
        for unit in ("unit0", "unit1"):
            center = 300 * (1 + float(one.axes["change"]))
            times = [center * math.exp(rnd.gauss(0, between)) for _ in range(72)]
            found += waves(one, unit, times, [1600 * time for time in times])
    return Raw(headers=(replace(HEADER, variants=tuple(variants)),), waves=tuple(found))
