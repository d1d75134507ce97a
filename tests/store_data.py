"""Small made-up runs for the tests of run files and baselines."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfsuite import model
from perfsuite.store.baselines import Acceptance, StoredEntry
from perfsuite.store.runs import RunFile

UNIT, OTHER_UNIT = "3f2a91c04d7e", "b07c55e1a290"
RUN_ID = "20261121-103000-3f2a"
SKU = model.Sku(slug="nvidia-h200", name="NVIDIA H200", facts={"pci": "10de:2335", "sms": "132"})
TWICE = model.ClaimInstance(
    id="memory.twice", pack="memory", name="twice", faster="a", than="b", by=2.0, source="s"
)
FACTS = model.DeviceFacts(
    device="cuda",
    name="NVIDIA H200",
    unit=UNIT,
    arch="sm_90",
    gpus=1,
    identity={"pci": "10de:2335", "sms": "132"},
    state={"ecc": "on", "power_limit_w": "700"},
    environment={"driver": "580.159", "torch": "2.11"},
    clocks=("time_us", "cycles"),
)


def made(
    pack: str, case: str, axes: model.Axes, *, work: model.Work | None = None, **info: Any
) -> model.Variant:
    """Return a variant of a case of which ``info`` says what is to be known."""
    told = {"doc": "", "file": "", "line": 1, "axes": tuple(axes), **info}
    whole, name = model.CaseInfo(pack=pack, name=case, **told), model.variant_id(pack, case, axes)
    return model.Variant(id=name, case=whole, axes=axes, tier=model.Tier.SMOKE, work=work)


def variant(case: str, n: int) -> model.Variant:
    """Return a variant of pack ``memory``, or of the pack named before the dot."""
    pack, _, name = case.rpartition(".")
    pack = pack or "memory"
    return made(
        pack,
        name,
        {"n": n},
        work=model.Work(read_bytes=4 * n, write_bytes=4 * n),
        doc="Copy n floats.",
        file=f"plugins/{pack}/{name}.py",
        line=7,
        source="chapter 5",
        needs=(model.Need("device", "cuda"), model.Need("arch", "sm_90", {"n": (1, 2.0)})),
        tags=("quick",),
    )


def evidence(
    time_us: float, *, slot: int = 0, unit: str = UNIT, samples: int = 4
) -> model.Evidence:
    """Return one process: three blocks within 0.02 % of ``time_us``."""
    blocks = []
    for start in range(3):
        steps = (slot * 48 + start * samples + sample for sample in range(samples))
        times = tuple(time_us * (1 + (step * 17 % 41 - 20) / 1e5) for step in steps)
        cycles = tuple(1980 * time for time in times)
        health = model.Health(power_w=512.5, temperature_c=51.0, sm_clock_mhz=1980.0)
        blocks.append(
            model.Block(time_us=times, cycles=cycles, start_s=1e4 + start / 3, health=health)
        )
    return model.Evidence(
        slot=slot,
        seed=slot,
        unit=unit,
        launches=8,
        backend="graph",
        blocks=tuple(blocks),
        exact={"peak_bytes": 134217729.0},
    )


def result(
    name: str,
    time_us: float,
    *,
    unit: str = UNIT,
    stage: model.Stage = model.Stage.SCREEN,
    status: model.Status = model.Status.OK,
) -> model.Result:
    """Return a result of three processes."""
    processes = tuple(evidence(time_us, slot=slot, unit=unit) for slot in range(3))
    return model.Result(variant=name, status=status, stage=stage, evidence=processes, wall_s=1.5)


def ran(*variants: model.Variant) -> tuple[model.VariantRun, ...]:
    """Return variants as a run has them, with nothing measured yet."""
    return tuple(model.VariantRun(variant=each) for each in variants)


def changed(run: model.Run, **fields: Any) -> model.Run:
    """Return a run with other fields, or other results, verdicts and traces of its variants."""
    parts = {name: fields.pop(name) for name in ("results", "verdicts", "traces") if name in fields}
    return replace(run, **fields).having(**parts)


def stored(run: model.Run) -> model.Run:
    """Return a run as its file has it: what it was held against lies elsewhere."""
    sides = (tuple(replace(one, expected=model.Expected()) for one in each)
             for each in (run.variants, run.canaries))  # fmt: skip
    variants, canaries = sides
    return replace(run, variants=variants, canaries=canaries)


def planned(*variants: model.Variant, run_id: str = RUN_ID) -> model.Run:
    """Return a run that has measured nothing yet."""
    return model.Run(
        id=run_id,
        started="2026-11-21T10:30:00+00:00",
        command="pytest --perf",
        sku=SKU,
        facts=FACTS,
        settings=model.Settings(),
        variants=ran(*variants),
        instances=(TWICE,),
        commit="0" * 40,
    )


def finished(times_us: dict[str, float], *, unit: str = UNIT, run_id: str = RUN_ID) -> model.Run:
    """Return a finished run of cases of one variant each, by their times."""
    variants = {case: variant(case, 1024) for case in times_us}
    results = tuple(result(variants[case].id, time, unit=unit) for case, time in times_us.items())
    run = planned(*variants.values(), run_id=run_id)
    return replace(
        run, finished="2026-11-21T10:40:00+00:00", wall_s=600.0, units={unit: SKU.name}
    ).having(results=results)


def moved(theta: float, **fields: Any) -> model.Change:
    """Return a change of 100 us by a share, of which other fields may be named."""
    told: dict[str, Any] = {
        "metric": "time_us", "unit": "us", "baseline": 100.0, "current": 100 * (1 + theta),
        "low": theta - 0.001, "high": theta + 0.001, "threshold": 0.0025, "gate": 0.01,
        "detectable": 0.004, **fields,
    }  # fmt: skip
    return model.Change(theta=theta, **told)


def kept(folder: Path, run: model.Run) -> model.Run:
    """Store a run in a folder as the runner does; return it as it ended."""
    with RunFile.create(folder, run) as file:
        for each in (*run.results, *run.aside):
            file.append(each)
        for trace in run.traces:
            file.append_trace(trace)
        return file.finish(run)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Fail writes beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def entry_of(name: str) -> StoredEntry:
    """Return what was accepted of a variant: two clocks of three processes, and a count."""
    rows = {UNIT: (12.5, 12.75, 12.25)}
    metrics = {
        "time_us": model.BaselineMetric(center=12.5, unit="us", within=0.001, values=rows),
        "cycles": model.BaselineMetric(center=12.5, unit="", between=0.002, values=rows),
        "peak_bytes": model.BaselineMetric(center=134217729.0, unit="bytes"),
    }
    return StoredEntry(
        variant=name,
        case_version=1,
        run=RUN_ID,
        metrics=metrics,
        sampling=model.Sampling(8, 1),
        kernels=(model.TracedKernel(name="copy", count=1.0, duration_us=12.0),),
        codes=(model.Code(name="copy", ptx="0" * 12),),
        accepted=Acceptance(by="Ann", when="2026-11-21T12:00:00+00:00", reason="first"),
    )
