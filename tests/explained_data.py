"""The made-up run of ``report_data`` with what explains a change: kernels, code, earlier runs."""

from __future__ import annotations

import random

import report_data as data
from msgspec.structs import replace
from report_data import Told

from perfsuite.history.store import BaselineMove, ChangePoint, Point, Series, SeriesKey
from perfsuite.model import (
    Code,
    Section,
    Trace,
    TracedKernel,
    Word,
)
from perfsuite.report.data import RunView, read

NIGHTS = 40
SHIFT = 24
DIFF = "--- before\n+++ now\n@@ -1,2 +1,2 @@\n-ld.global.v4.f32 %f1;\n+ld.global.f32 %f1;"
MANGLED = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
SECTION = Section(
    title="Batches", text="What a pack adds.", columns=("batch", "rate"), rows=[("8", "12.5 /s")]
)


def explained(story: tuple[Told, ...] = data.STORY, *, sectors: int = 0) -> RunView:
    """Return the run read for reporting; of all that is slower or unclear it is known why.

    With ``sectors``, so many were read by the copy before, and twice as many are now.
    """
    run, entries = data.run_of(story), data.baselines_of(story)
    moved = [told for told in story if told.word in {Word.SLOWER, Word.UNCLEAR}]
    traces = []
    for told in moved:
        entry = entries[data.variant_of(told).id]
        middle = entry.metrics["time_us"].center
        entries[entry.variant] = replace(
            entry, kernels=(_copy(middle, 40, sectors),), codes=(_code("a", 40),)
        )
        now = (_copy(told.time_us * 0.99, 72, 2 * sectors), _fill(told.time_us * 0.008))
        codes = (replace(_code("b", 72), diff=DIFF),)
        traces.append(Trace(variant=entry.variant, kernels=now, codes=codes))
    past = {data.variant_of(told).id: _past(told) for told in story if told.time_us}
    return read(
        run.having(traces=tuple(traces)),
        baselines=entries,
        source="nvidia-h200",
        previous=data.previous_of(story),
        history=past,
        sections=(SECTION,),
    )


def _copy(time_us: float, registers: int, sectors: int) -> TracedKernel:
    return TracedKernel(
        name="copy_rows",
        count=1,
        duration_us=time_us,
        grid=(65536, 1, 1),
        block=(256, 1, 1),
        registers=registers,
        counters={"sectors_read": sectors, "l2_sectors_read": sectors / 2} if sectors else {},
    )


def _fill(time_us: float) -> TracedKernel:
    return TracedKernel(name=MANGLED, count=2, duration_us=time_us / 2, block=(128, 1, 1))


def _code(ptx: str, registers: int) -> Code:
    return Code(name="copy_rows", ptx=ptx * 24, facts={"registers": registers, "spill_bytes": 0})


def _past(told: Told) -> Series:
    key = SeriesKey(
        sku="nvidia-h200",
        variant=data.variant_of(told).id,
        metric="time_us",
        regime="paced",
        unit="us",
    )
    rng = random.Random(5)  # noqa: S311 - made-up noise
    levels = [told.time_us / (1.0 if night >= SHIFT else 1 + told.theta) for night in range(NIGHTS)]
    points = [
        Point(
            run=f"night-{night}",
            started=f"2026-{10 + night // 28}-{night % 28 + 1:02}T02:00:00+00:00",
            commit=f"{night:012x}".ljust(40, "f"),
            center=level * (1 + rng.gauss(0, told.noise)),
            why_not="machine-shift" if night % 17 == 9 else "",
        )
        for night, level in enumerate(levels)
    ]
    before, after = points[SHIFT - 1], points[SHIFT]
    change = ChangePoint(
        run=after.run,
        started=after.started,
        commit_before=before.commit,
        commit=after.commit,
        before=levels[0],
        after=levels[-1],
        p_value=3e-7,
    )
    first, reason = points[8], "the new driver is meant to be so"
    move = BaselineMove(
        run=first.run, accepted=first.started, by="ann", reason=reason, center=levels[0]
    )
    has_shifted = told.word is Word.SLOWER
    return Series(
        key=key,
        points=tuple(points),
        change_points=(change,) if has_shifted else (),
        moves=(move,),
    )
