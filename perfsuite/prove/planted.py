"""The planted pack: cases whose work rises by a known amount along the axis ``change``.

``change`` is the share of work added to the variant with 0.0; in cases tagged ``structural`` it
counts what was added. The smoke tier is for the CPU and the scripted device, whose noise is larger.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import perfsuite
from perfsuite import cuda
from perfsuite.model import Case, Regime, Work, Workload

STRUCTURAL = "structural"
CHANGES = [0.0, 0.005, 0.01, 0.02]
COARSE_CHANGE = 0.3
COARSE: dict[str, list[Any]] = {"us": [200], "change": [0.0, COARSE_CHANGE]}
# 132 SMs of an H200 with four warps for each scheduler: its FMA units are always busy.
BLOCKS, THREADS = 132, 512
# Eight FMAs a trip: about 0.02 us on an H200 at 1.98 GHz.
FMAS, TRIPS_PER_US = 8, 40
# Floats that an H200 copies, or reads twice and writes once, in about a microsecond.
COPIED, MIXED = 500 << 10, 350 << 10
MIXED_TRIPS = 12  # 96 FMAs take as long as their three floats: 67 TFLOP/s and 4.3 TB/s
SOURCE = "planted: the work rises by a known amount"


def _spending(ctx: Any, us: float) -> Workload:
    """Return a launch of the scripted device, which takes as long as it is told."""

    def fn(values: list[float]) -> list[float]:
        ctx.spend(us)
        return [2 * value for value in values]

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: values,
    )


def _chain(ctx: Any, n: int, trips: int) -> Workload:
    if ctx.device == "cuda":
        kernel = ctx.load_cuda(Path(__file__).with_suffix(".cu"), "chain")
        rest = (n, trips, ctypes.c_float(-1.0))

        def fn(x: Any, y: Any, out: Any) -> None:
            kernel(-(-n // THREADS), THREADS, x, y, out, *rest)
    else:

        def fn(x: Any, y: Any, out: Any) -> None:
            out.copy_(y)
            for _ in range(2 * trips):
                out.neg_().add_(x)

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(n), rng.randn(n), rng.empty(n)),
        reference=lambda _x, y, _out: y.double(),
        wrong=lambda x, _y, out: out.copy_(x),
        # Each step rounds, and the rounding of two neighbours cancels but for its last bit.
        tolerance=1e-5,
    )


def _trips(us: float, change: float) -> int:
    return round(us * TRIPS_PER_US * (1 + change))


def _chain_work(us: float, change: float) -> Work:
    elements = BLOCKS * THREADS
    flops = 2 * FMAS * elements * _trips(us, change)
    return Work(8 * elements, 4 * elements, flops, rate_dtype="fp32")


@perfsuite.case(
    axes={"us": [5, 20, 200, 5000], "change": CHANGES},
    smoke=COARSE,
    work=_chain_work,
    source=SOURCE,
)
def fma(ctx: Any, us: int, change: float) -> Workload:
    """Bound by compute: chains of fused multiply-adds of about ``us`` microseconds."""
    if hasattr(ctx, "spend"):
        return _spending(ctx, us * (1 + change))
    if ctx.device != "cuda":
        return _chain(ctx, 1 << 12, round(us * (1 + change) / 4))
    return _chain(ctx, BLOCKS * THREADS, _trips(us, change))


@perfsuite.case(
    axes={"us": [5, 20, 200, 1000], "change": CHANGES},
    smoke=COARSE,
    work=lambda us, change: Work(*2 * [4 * round(COPIED * us * (1 + change))]),
    memory_bytes=lambda us, change: 24 * round(COPIED * us * (1 + change)),
    source=SOURCE,
)
def stream(ctx: Any, us: int, change: float) -> Workload:
    """Bound by memory: one float read and written for each element."""
    if hasattr(ctx, "spend"):
        return _spending(ctx, us * (1 + change))
    import torch

    n = round((COPIED if ctx.device == "cuda" else 1000) * us * (1 + change))
    return Workload(
        fn=lambda x, out: torch.mul(x, 2.0, out=out),
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, _: x + x,
        wrong=lambda x, out: torch.mul(x, 3.0, out=out),
        tolerance=0.0,
    )


def _mixed_work(us: float, change: float) -> Work:
    n = round(MIXED * us * (1 + change))
    return Work(8 * n, 4 * n, 2 * FMAS * MIXED_TRIPS * n, rate_dtype="fp32")


@perfsuite.case(
    axes={"us": [100], "change": CHANGES},
    needs=[cuda()],
    work=_mixed_work,
    memory_bytes=lambda us, change: 32 * round(MIXED * us * (1 + change)),
    source=SOURCE,
)
def mixed(ctx: Any, us: int, change: float) -> Workload:
    """As many operations as their bytes leave time for."""
    return _chain(ctx, round(MIXED * us * (1 + change)), MIXED_TRIPS)


def _gemm_work(size: int, change: float) -> Work:
    k = round(size * (1 + change))
    return Work(4 * size * k, 2 * size * size, 2 * size * size * k, rate_dtype="bf16")


@perfsuite.case(
    axes={"size": [4096, 8192], "change": [0.0, 2**-7, 2**-6]},
    only=lambda size, change: round(size * change) % 64 == 0,
    needs=[cuda()],
    work=_gemm_work,
    memory_bytes=lambda size, **_: 24 * size * size,
    source=SOURCE,
)
def gemm(ctx: Any, size: int, change: float) -> Workload:
    """Multiply bf16 matrices whose inner dimension grows by 64 or 128."""
    del ctx
    import torch

    k = round(size * (1 + change))

    def make_inputs(rng: Any) -> tuple[Any, ...]:
        a, b = (rng.randn(*shape, dtype="bfloat16") for shape in ((size, k), (k, size)))
        return a, b, rng.empty(size, size, dtype="bfloat16")

    return Workload(
        fn=lambda a, b, out: torch.mm(a, b, out=out),
        make_inputs=make_inputs,
        reference=lambda a, b, _: a.float() @ b.float(),
        wrong=lambda a, b, out: torch.mm(a[:, :-64], b[:-64], out=out),
    )


# The same back to back: at the power cap.
capped = replace(
    gemm, name="capped", axes={"size": (8192,), "change": (0.0, 2**-7)}, regime=Regime.SUSTAINED
)


@perfsuite.case(
    axes={"change": [0.0, 1.0]},
    needs=[cuda()],
    work=lambda **_: _chain_work(96, 0.0),
    tags=[STRUCTURAL],
    source=SOURCE,
)
def launches(ctx: Any, change: float) -> Workload:
    """Twelve kernels of about 8 us in a graph; the change is one more that does nothing."""
    chain = _chain(ctx, BLOCKS * THREADS, _trips(8, 0.0))
    kernel = ctx.load_cuda(Path(__file__).with_suffix(".cu"), "nothing")

    def fn(x: Any, y: Any, out: Any) -> None:
        for _ in range(12):
            chain.fn(x, y, out)
        for _ in range(round(change)):
            kernel(1, 1)

    return replace(chain, fn=fn)


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the planted cases."""
    return [fma, stream, mixed, gemm, capped, launches]
