"""Raw data of a proof: what four H200s were recorded to do, and made-up processes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.model import (
    CaseInfo,
    DeviceFacts,
    Regime,
    Settings,
    Sku,
    Tier,
    Variant,
    Work,
    variant_id,
)
from perfsuite.prove.raw import SCHEMA, Header, Process, Raw, Reading, Wave

RECORDED = json.loads(Path(__file__).with_name("data").joinpath("h200.json").read_text())
# One launch a sample: what perfsuite no longer does.
LEFT_OUT = {"fma_14us_single"}
# Where tiling makes more of the change than the work is; the sequence grew by this much.
STATED = {"attention": 0.0156}
WAVE = 3


def variant(name: str, change: float, work: Work | None) -> Variant:
    info = CaseInfo(
        pack="planted",
        name=name,
        doc="",
        file="",
        line=1,
        source="",
        version=1,
        regime=Regime.PACED,
        cold=True,
        needs=(),
        budgets=(),
        tags=(),
        axes=("change",),
    )
    axes = {"change": change}
    identity = variant_id("planted", name, axes)
    return Variant(id=identity, case=info, axes=axes, tier=Tier.SMOKE, work=work)


def header(variants: Sequence[Variant]) -> Header:
    return Header(
        schema=SCHEMA,
        started="2026-11-21T00:00:00+00:00",
        commit="",
        sku=Sku(slug="nvidia-h200", name="NVIDIA H200"),
        facts=DeviceFacts(
            device="cuda",
            name="NVIDIA H200",
            unit="unit0",
            identity={},
            clocks=("time_us", "cycles"),
        ),
        settings=Settings(),
        variants=tuple(variants),
    )


def waves(identity: str, unit: str, times: Sequence[float], cycles: Sequence[float]) -> list[Wave]:
    """Cut processes into whole waves."""
    each = [Process(time_us=(t,), cycles=(c,)) for t, c in zip(times, cycles, strict=True)]
    return [
        Wave(variant=identity, unit=unit, wall_s=1.0, processes=tuple(each[first : first + WAVE]))
        for first in range(0, len(each) - WAVE + 1, WAVE)
    ]


def recorded() -> Raw:
    """The recorded samples as if `perfsuite prove` had taken them."""
    variants, found, readings = [], [], []
    for name, kernel in RECORDED.items():
        change = STATED.get(name, kernel["change"])
        arms = {"A": 0.0, "B": change} if change else {"A": 0.0}
        if name in LEFT_OUT or not change:
            continue
        for arm, value in arms.items():
            one = variant(name, value, Work(**kernel["work"]))
            variants.append(one)
            for unit, row in kernel["series"]["paced"][arm].items():
                found += waves(one.id, unit, row["time_us"], row["cycles"])
            told: Mapping[str, Any] = kernel["series"].get("do_bench", {}).get(arm, {})
            readings += [
                Reading(variant=one.id, unit=unit, tool="do_bench", time_us=time_us)
                for unit, row in told.items()
                for time_us in row["time_us"]
            ]
    return Raw(headers=(header(variants),), waves=tuple(found), readings=tuple(readings))


def made_up(
    *, between: float = 0.001, changes: Sequence[float] = (0.01,), count: int = 24, seed: int = 1
) -> Raw:
    """Processes of two units whose spread is known, `count` waves of each variant."""
    rnd = random.Random(seed)  # noqa: S311 - made-up noise
    # 0.3 ms at the memory's rate.
    work = Work(read_bytes=6.5e8, write_bytes=6.5e8)
    variants = [variant("copy", change, work) for change in (0.0, *changes)]
    found = []
    for one in variants:
        for unit in ("unit0", "unit1"):
            times = [
                300 * (1 + float(one.axes["change"])) * math.exp(rnd.gauss(0, between))
                for _ in range(WAVE * count)
            ]
            found += waves(one.id, unit, times, [1600 * time for time in times])
    return Raw(headers=(header(variants),), waves=tuple(found))
