"""Made-up processes of known truth: what is measured, what is accepted, what is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from store_data import made

from perfsuite import model
from perfsuite.judge.compare import Grounds
from perfsuite.judge.verdict import judge

FACTS = model.DeviceFacts(
    device="cuda", name="NVIDIA H200", unit="a", identity={}, state={"ecc": "on"},
    clocks=("time_us", "cycles"),
)  # fmt: skip
SETTINGS = model.Settings()
GROUNDS = Grounds(facts=FACTS, slug="nvidia-h200", policy=SETTINGS.policy)
HOST = replace(FACTS, device="cpu", clocks=("time_us",))
GEMM = model.Work(flops=2 * 8192**3, rate_dtype="bf16")
COPY = model.Work(read_bytes=2.9e9, write_bytes=2.9e9)
# Ordinary noise between processes, mean 0.
WOBBLE = [0.0004, -0.0007, 0.0002, 0.0009, -0.0008, 0.0001, -0.0003, 0.0002, 0.0006, -0.0006]


def variant(work: model.Work | None = GEMM, name: str = "p.c[]", **info: Any) -> model.Variant:
    return replace(made("p", "c", {}, work=work, **info), id=name)


def clocks(time: float = 0.0, clock: float = 0.0) -> dict[str, float]:
    """Time and cycles of 1400 us at 1600 MHz, moved by these log changes."""
    return {"time_us": 1400 * math.exp(time), "cycles": 1400 * 1600 * math.exp(time + clock)}


def factors(count: int, wobble: float, strays: Mapping[int, float]) -> list[float]:
    shifts = [wobble * WOBBLE[slot % 10] + strays.get(slot, 0.0) for slot in range(count)]
    return [math.exp(shift) for shift in shifts]


def result(  # noqa: PLR0913 - processes have that many sides
    levels: Mapping[str, float] | None = None,
    count: int = 6,
    *,
    unit: str = "a",
    wobble: float = 1.0,
    strays: Mapping[int, float] | None = None,
    exact: Mapping[str, float] | None = None,
    taken: float | None = None,
    **fields: Any,
) -> model.Result:
    """Processes at these levels by metric, of which some are moved by log changes (``strays``).

    Others have ``taken`` so many percent of the device.
    """
    health = model.Health(foreign_percent=taken) if taken else None
    processes = []
    for slot, factor in enumerate(factors(count, wobble, strays or {})):
        values = {name: (level * factor,) * 3 for name, level in (levels or clocks()).items()}
        time, cycles = values.pop("time_us", ()), values.pop("cycles", ())
        block = model.Block(time_us=time, cycles=cycles, metrics=values, health=health)
        blocks = (block,) if time else ()
        processes.append(
            model.Evidence(slot=slot, seed=slot, unit=unit, blocks=blocks, exact=exact or {})
        )
    told = {"variant": "p.c[]", "status": model.Status.OK, "stage": model.Stage.CONFIRM, **fields}
    return model.Result(evidence=tuple(processes), **told)


def entry(  # noqa: PLR0913 - as above
    levels: Mapping[str, float] | None = None,
    count: int = 5,
    *,
    units: str = "a",
    wobble: float = 1.0,
    strays: Mapping[int, float] | None = None,
    exact: Mapping[model.Metric, float] | None = None,
    **fields: Any,
) -> model.BaselineEntry:
    """An entry with these processes on each unit, and these metrics without noise."""
    by = factors(count, wobble, strays or {})
    metrics = {
        name: model.BaselineMetric(
            center=level,
            unit="",
            better="higher" if name.endswith("_rps") else "lower",
            values=dict.fromkeys(units, tuple(level * factor for factor in by)),
        )
        for name, level in (clocks() if levels is None else levels).items()
    }
    for metric, value in (exact or {}).items():
        metrics[metric.name] = model.BaselineMetric(
            center=value, unit=metric.unit, better=metric.better
        )
    told = {"variant": "p.c[]", "case_version": 1, "run": "r", **fields}
    return model.BaselineEntry(metrics=metrics, **told)


def run_of(*ones: model.VariantRun, facts: model.DeviceFacts = FACTS, **fields: Any) -> model.Run:
    return model.Run(
        id="r", started="", command="", sku=model.Sku(slug=GROUNDS.slug, name="H200"), facts=facts,
        variants=ones, **{"settings": SETTINGS, **fields},
    )  # fmt: skip


def watching(moved: float) -> model.VariantRun:
    """A canary whose clock is 1980 MHz in its baseline, and moved by a log change in the run."""
    levels = {"time_us": 1400.0, "cycles": 1400 * 1980.0}
    ended = result(
        {**levels, "cycles": levels["cycles"] * math.exp(moved)}, stage=model.Stage.CANARY_END
    )
    held = model.Expected(entry=entry(levels))
    return model.VariantRun(variant=variant(name="p.canary[]"), expected=held, results=(ended,))


def verdict(  # noqa: PLR0913 - what a variant may be held against
    now: model.Result,
    before: model.BaselineEntry | None,
    *,
    of: model.Variant | None = None,
    facts: model.DeviceFacts = FACTS,
    canary: float | None = None,
    settings: model.Settings = SETTINGS,
    **held: Any,
) -> model.Verdict:
    expected = model.Expected(entry=before, source="baseline nvidia-h200", **held)
    one = model.VariantRun(variant=of or variant(), expected=expected, results=(now,))
    canaries = () if canary is None else (watching(canary),)
    run = run_of(one, facts=facts, canaries=canaries, settings=settings)
    (found,) = judge(run, now.stage)
    return found


def kinds(reasons: tuple[model.Reason, ...]) -> list[str]:
    return [reason.kind for reason in reasons]


def facts(reasons: tuple[model.Reason, ...], kind: str) -> list[Mapping[str, Any]]:
    return [reason.facts for reason in reasons if reason.kind == kind]
