"""A made-up run with every verdict and status, for the report's tests."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import store_data
from msgspec import Struct, structs

from perfsuite import model
from perfsuite.history.store import BaselineMove, ChangePoint, Point, Series, SeriesKey
from perfsuite.model import Status, Word
from perfsuite.report.data import RunView, read

_T = TypeVar("_T")


def replace(one: _T, /, **changes: Any) -> _T:
    """Return a record of the model or of a test with other values."""
    if isinstance(one, Struct):
        return structs.replace(one, **changes)
    return dataclasses.replace(one, **changes)  # type: ignore[type-var]


UNIT, OTHER_UNIT = store_data.UNIT, store_data.OTHER_UNIT
SOURCE_FILE = "plugins/memory/perfsuite_memory/stream.py"
FACTS = replace(
    store_data.FACTS,
    identity={"pci_device": "10de:2335", "sm_count": "132"},
    state={"power_limit_w": "700", "ecc": "on"},
    environment={"driver": "580.159.03", "torch": "2.11.0", "triton": "3.6.0"},
    arch="sm_90a",
)
HEALTH = model.Health(power_w=412, temperature_c=54, sm_clock_mhz=1980)


@dataclass(frozen=True)
class Told:
    """One line of the story: a variant, what happened to it, and how fast it is."""

    case: str
    axes: Mapping[str, model.Scalar]
    time_us: float
    word: Word | Status = Word.SAME
    theta: float = 0.0002
    noise: float = 0.0006
    work: model.Work | None = None
    reason: str = ""


def stream(op: str, n: int, reads: int, time_us: float, *rest: Any) -> Told:
    one = Told("memory.stream", {"op": op, "n": n}, time_us, *rest)
    return replace(one, work=model.Work(read_bytes=4 * n * reads, write_bytes=4 * n))


def gemm(size: int, impl: str, time_us: float, *rest: Any, dtype: str = "bf16") -> Told:
    case = "compute.gemm" if dtype == "bf16" else "compute.gemm_fp8"
    work = model.Work(4 * size**2, 2 * size**2, flops=2 * size**3, rate_dtype=dtype)
    return replace(Told(case, {"size": size, "impl": impl}, time_us, *rest), work=work)


SKIPPED, NEEDS = Status.SKIPPED, "needs arch sm_100a"
STORY = (
    stream("copy", 2**26, 1, 128.31),
    stream("copy", 2**28, 1, 503.9, Word.SLOWER, 0.0213, 0.0004),
    stream("scale", 2**26, 1, 128.4),
    stream("add", 2**26, 2, 190.7, Word.FASTER, -0.0142),
    stream("triad", 2**26, 2, 191.2),
    stream("triad", 2**28, 2, 756.0, Word.NEW),
    Told("memory.coalescing", {"n": 2**26, "impl": "coalesced"}, 131.0),
    Told("memory.coalescing", {"n": 2**26, "impl": "strided"}, 1044.0, noise=0.003),
    Told("memory.transpose", {"n": 8192, "impl": "naive"}, 640.2, noise=0.002),
    Told("memory.transpose", {"n": 8192, "impl": "tiled"}, 152.7, Word.OVER_BUDGET, 0.004),
    Told("memory.transpose", {"n": 8192, "impl": "torch"}, 149.9),
    Told("memory.h2d", {"mb": 256, "pinned": True}, 4830.0, noise=0.001),
    Told("memory.h2d", {"mb": 256, "pinned": False}, 21410.0, Word.UNCLEAR, 0.009, 0.02),
    Told("memory.h2d", {"mb": 1024, "pinned": True}, 0, Status.TIMED_OUT, reason="none in 60 s"),
    gemm(1024, "cublas", 6.214, Word.SAME, 0.0002, 0.004),
    gemm(2048, "cublas", 24.86, Word.SAME, 0.0002, 0.0012),
    gemm(4096, "cublas", 187.4),
    gemm(8192, "cublas", 1399.0, Word.SLOWER, 0.0308, 0.0004),
    gemm(8192, "triton", 1561.0, Word.UNCLEAR, 0.0042, 0.008),
    gemm(4096, "naive", 9120.0, Status.WRONG),
    gemm(8192, "cublas", 742.0, Word.INCOMPARABLE, dtype="fp8"),
    gemm(8192, "triton", 0, SKIPPED, 0, 0, None, "needs feature fp8_triton", dtype="fp8"),
    Told("compute.softmax", {"rows": 4096, "impl": "torch"}, 262.8),
    Told("compute.softmax", {"rows": 4096, "impl": "triton"}, 249.0, Word.FASTER, -0.061),
    Told("compute.softmax", {"rows": 4096, "impl": "cuda"}, 0, Status.CRASHED),
    Told("compute.attention", {"seq": 4096, "impl": "sdpa"}, 801.2),
    Told("compute.attention", {"seq": 4096, "impl": "naive"}, 5210.0, Status.DISTURBED),
    Told("compute.attention", {"seq": 16384, "impl": "sdpa"}, 11920.0, Word.SLOWER, 0.0064),
    Told("compute.attention", {"seq": 16384, "impl": "naive"}, 0, Status.ERROR),
    Told("compute.attention", {"seq": 4096, "impl": "tmem"}, 0, SKIPPED, reason=NEEDS),
    Told("compute.attention", {"seq": 16384, "impl": "tmem"}, 0, SKIPPED, reason=NEEDS),
)
REASONS = {
    Status.CRASHED: "the worker died of SIGSEGV while measuring",
    Status.WRONG: "relative error 0.31, allowed 0.01",
    Status.ERROR: "OutOfMemoryError: tried to allocate 64.00 GiB",
    Status.DISTURBED: "27 % of the samples voided: load by others up to 34 %",
    Word.SLOWER: "{:.2%} slower, threshold 0.25 %",
    Word.FASTER: "{:.2%} faster, threshold 0.25 %",
    Word.UNCLEAR: "a change of {:.2%} is neither inside the fail limit nor beyond the threshold",
    Word.OVER_BUDGET: "152.7 us, budget 150 us",
    Word.NEW: "no baseline for this variant",
}


def variant_of(told: Told) -> model.Variant:
    pack, _, name = told.case.partition(".")
    budget = model.Budget("time_us", 150, "85 % of the copy ceiling")
    made = store_data.made(
        pack,
        name,
        told.axes,
        work=told.work,
        doc=f"{name.capitalize()} as the book's chapter describes it, checked against float64.",
        file=f"plugins/{pack}/perfsuite_{pack}/{name}.py",
        line=24,
        source="https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/",
        needs=(model.Need("device", "cuda"),),
        budgets=(budget,) if name == "transpose" else (),
        tags=("book",),
    )
    return replace(made, tier=model.Tier.NIGHTLY)


def evidence_of(told: Told, slot: int, *, shift: float = 0.0) -> model.Evidence:
    rng = random.Random(f"{told.case}{told.axes}{slot}{shift}")  # noqa: S311 - made-up samples
    mhz = 1975 - 340 * (told.case == "compute.gemm")
    middle = told.time_us * math.exp(rng.gauss(shift, told.noise))
    blocks = []
    for turn in range(3):
        times = tuple(middle * math.exp(rng.gauss(0, 1.5 * told.noise)) for _ in range(16))
        cycles = tuple(time * mhz * math.exp(rng.gauss(0, 0.0008)) for time in times)
        start = (turn * 6 + slot) * 0.05
        blocks.append(model.Block(time_us=times, cycles=cycles, start_s=start, health=HEALTH))
    return model.Evidence(
        slot=slot,
        seed=100 + slot,
        unit=UNIT,
        launches=max(1, round(500 / told.time_us)),
        backend="graph",
        pace=1.0,
        sets=4,
        error=2.1e-4,
        blocks=tuple(blocks),
        exact={"launches": 1.0, "peak_bytes": 536870912.0},
    )


def result_of(told: Told, stage: model.Stage = model.Stage.SCREEN) -> model.Result:
    status = told.word if isinstance(told.word, Status) else Status.OK
    reason = told.reason or REASONS.get(told.word, "") if status is not Status.OK else ""
    slots = range(3 if stage is model.Stage.SCREEN else 6)
    shift = 0.0 if stage is model.Stage.CONFIRM else 1e-9
    is_measured = told.time_us > 0 and status in {Status.OK, Status.DISTURBED}
    has_failed = status in {Status.CRASHED, Status.ERROR, Status.WRONG}
    evidence = (evidence_of(told, slot, shift=shift) for slot in slots if is_measured)
    return model.Result(
        variant=variant_of(told).id,
        status=status,
        stage=stage,
        reason=reason,
        output=f"Traceback (most recent call last):\n  ...\n{reason}" if has_failed else "",
        evidence=tuple(evidence),
        wall_s=1.3,
    )


def change_of(told: Told) -> model.Change:
    half, time_change = 2.4 * told.noise + 0.0003, told.theta + 0.001
    return store_data.moved(
        told.theta, baseline=told.time_us / math.exp(time_change), current=told.time_us,
        low=told.theta - half, high=told.theta + half, detectable=1.3 * half,
        time_change=time_change, clock_change=-0.001, degrees=8,
        beta=1.0 if told.case.startswith("compute") else 0.05,
    )  # fmt: skip


def verdict_of(told: Told) -> model.Verdict | None:
    if isinstance(told.word, Status):
        return None
    has_change = told.word not in {Word.NEW, Word.INCOMPARABLE}
    return model.Verdict(
        variant=variant_of(told).id,
        word=told.word,
        reason=REASONS.get(told.word, "as it is").format(abs(told.theta)),
        changes=(change_of(told),) if has_change else (),
        source="baseline nvidia-h200",
        confirmation=model.Confirmation.FRESH if told.word.moved else model.Confirmation.NONE,
        fails=told.word is Word.OVER_BUDGET or (told.word is Word.SLOWER and told.theta > 0.01),
    )


def entry_of(told: Told) -> model.BaselineEntry:
    center, mhz = change_of(told).baseline, 1977 - 340 * (told.case == "compute.gemm")
    values = tuple(center * (1 + told.noise * step) for step in (-1.1, -0.4, 0.0, 0.5, 1.2))
    by_unit = {UNIT: values, OTHER_UNIT: values[:3]}
    return model.BaselineEntry(
        variant=variant_of(told).id,
        case_version=1,
        run="20261120-020000-77aa",
        metrics={
            "time_us": model.BaselineMetric(
                center=center, unit="us", within=0.001, between=told.noise, values=by_unit
            ),
            "cycles": model.BaselineMetric(center=center * mhz, unit="cycles", between=told.noise),
            "peak_bytes": model.BaselineMetric(center=536870912.0, unit="bytes"),
        },
        state={"driver": "575.57.08", "power_limit_w": "700", "triton": "3.5.1"},
    )


def claim(
    name: str, word: model.ClaimWord, required: float, ratio: float | None, pack: str = "memory"
) -> tuple[model.ClaimInstance, model.ClaimVerdict]:
    """Return a claim that pinned memory is faster, and what became of it."""
    fast, slow = (f"memory.h2d[mb=256,pinned={one}]" for one in ("true", "false"))
    id_, source = f"{pack}.h2d:{name}[mb=256]", f"chapter of {name}"
    declared = model.ClaimInstance(
        id=id_, pack=pack, name=name, faster=fast, than=slow, by=required, source=source,
        file=SOURCE_FILE, line=7,
    )  # fmt: skip
    return declared, model.ClaimVerdict(
        claim=id_, word=word, reason=f"{name} was {word}", required=required, source=source,
        ratio=ratio, low=ratio, high=ratio, fails=word is model.ClaimWord.BROKEN,
    )  # fmt: skip


_CLAIMS = (
    claim("pinned_copy", model.ClaimWord.HELD, 2.0, 4.43),
    claim("streams", model.ClaimWord.HELD, 4.0, 7.97),
    claim("fused_softmax", model.ClaimWord.BROKEN, 1.5, 1.06, "compute"),
    claim("tmem", model.ClaimWord.NOT_APPLICABLE, 1.3, None, "compute"),
)
INSTANCES = tuple(declared for declared, _ in _CLAIMS)
CLAIMS = tuple(verdict for _, verdict in _CLAIMS)


def run_of(story: tuple[Told, ...] = STORY) -> model.Run:
    """Return the whole run; what is not ``same`` was measured again to confirm it."""
    again = {Word.SLOWER, Word.FASTER, Word.UNCLEAR}
    confirmed = [result_of(told, model.Stage.CONFIRM) for told in story if told.word in again]
    return model.Run(
        id="20261121-103000-3f2a",
        started="2026-11-21T10:30:00+00:00",
        command="pytest --perf --perf-tier nightly",
        sku=model.Sku(slug="nvidia-h200", name="NVIDIA H200"),
        facts=FACTS,
        settings=model.Settings(),
        variants=tuple(model.VariantRun(variant=variant_of(told)) for told in story),
        instances=INSTANCES,
        claims=CLAIMS,
        notes=("the copy canary moved by 0.1 % between start and end",),
        finished="2026-11-21T10:31:12+00:00",
        wall_s=72.4,
        commit="9c1e4f70a2b85d3340cc",
    ).having(
        results=(*(result_of(told) for told in story), *confirmed),
        verdicts=(verdict for told in story if (verdict := verdict_of(told))),
    )


def baselines_of(story: tuple[Told, ...] = STORY) -> dict[str, model.BaselineEntry]:
    """Return an entry for every variant that was measured before."""
    without = {Word.NEW, Word.INCOMPARABLE}
    entries = (entry_of(told) for told in story if told.time_us and told.word not in without)
    return {entry.variant: entry for entry in entries}


def previous_of(story: tuple[Told, ...] = STORY) -> model.Run:
    """Return the run of the day before, on another driver."""
    old = run_of(tuple(replace(told, time_us=told.time_us / (1 + told.theta)) for told in story))
    facts = replace(FACTS, environment={**FACTS.environment, "driver": "575.57.08"})
    old = replace(old, id="20261120-020000-77aa", facts=facts, commit="41b7c2d9e6f0")
    return old.having(verdicts=())


# What explains a change: kernels, their code, earlier runs.

DIFF = "--- before\n+++ now\n@@ -1,2 +1,2 @@\n-ld.global.v4.f32 %f1;\n+ld.global.f32 %f1;"
MANGLED = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
SECTION = model.Section(
    title="Batches", text="What a pack adds.", columns=("batch", "rate"), rows=[("8", "12.5 /s")]
)


KEY = SeriesKey(sku="nvidia-h200", variant="a.b[n=1]", metric="time_us", regime="paced", unit="us")
FOUND = ChangePoint(
    run="r3",
    started="2026-11-04T02:00:00+00:00",
    commit_before="aaa",
    commit="bbb",
    before=100.0,
    after=103.0,
    p_value=1e-9,
)
POINTS = tuple(
    Point(
        run=f"r{n}",
        started=f"2026-11-0{n + 1}T02:00:00+00:00",
        commit=f"c{n}",
        center=center,
        why_not="machine-shift" if n == 4 else "",
    )
    for n, center in enumerate((100.0, 100.1, 99.9, 103.0, 250.0, 103.1))
)
MOVE = BaselineMove(
    run="r4", accepted="2026-11-05T09:00:00", by="me", reason="new driver", center=103.0
)


def series(*changes: ChangePoint, move: BaselineMove = MOVE, **key: str) -> Series:
    own = replace(KEY, **key)
    return Series(key=own, points=POINTS, change_points=changes, moves=(move,))


def explained(story: tuple[Told, ...] = STORY, *, sectors: int = 0) -> RunView:
    """Return the run read for reporting; of all that is slower or unclear it is known why.

    With ``sectors``, so many were read by the copy before, and twice as many are now.
    """
    run, entries = run_of(story), baselines_of(story)
    moved = [told for told in story if told.word in {Word.SLOWER, Word.UNCLEAR}]
    traces = []
    for told in moved:
        entry = entries[variant_of(told).id]
        middle = entry.metrics["time_us"].center
        entries[entry.variant] = replace(
            entry, kernels=(_copy(middle, 40, sectors),), codes=(_code("a", 40),)
        )
        fill_us = told.time_us * 0.004
        fill = model.TracedKernel(name=MANGLED, count=2, duration_us=fill_us, block=(128, 1, 1))
        now = (_copy(told.time_us * 0.99, 72, 2 * sectors), fill)
        codes = (replace(_code("b", 72), diff=DIFF),)
        traces.append(model.Trace(variant=entry.variant, kernels=now, codes=codes))
    shift = replace(FOUND, after=FOUND.before * 1.0213)
    past = {told.variant: series(*[shift] * (told.word is Word.SLOWER)) for told in run.verdicts}
    return read(
        run.having(traces=tuple(traces)),
        baselines=entries,
        source="nvidia-h200",
        previous=previous_of(story),
        history=past,
        sections=(SECTION,),
    )


def _copy(time_us: float, registers: int, sectors: int) -> model.TracedKernel:
    return model.TracedKernel(
        name="copy_rows",
        count=1,
        duration_us=time_us,
        grid=(65536, 1, 1),
        block=(256, 1, 1),
        registers=registers,
        counters={"sectors_read": sectors, "l2_sectors_read": sectors / 2} if sectors else {},
    )


def _code(ptx: str, registers: int) -> model.Code:
    return model.Code(
        name="copy_rows", ptx=ptx * 24, facts={"registers": registers, "spill_bytes": 0}
    )
