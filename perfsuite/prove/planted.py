"""The planted pack: cases whose work rises by a known amount along the axis ``change``.

``change`` is the share of work added to the variant with 0.0. ``unchanged`` is side A of pairs: the
same cases, to which nothing is ever added. The smoke tier is for the CPU and the scripted device,
whose noise is larger.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import perfsuite
from perfsuite import cuda
from perfsuite.model import Case, Regime, Tier, Work, Workload

CHANGES = [0.0, 0.005, 0.01]
COARSE_CHANGE = 0.3
# 132 SMs of an H200 with four warps for each scheduler: its FMA units are always busy.
BLOCKS, THREADS = 132, 512
# Eight FMAs a trip: about 0.02 us on an H200 at 1.98 GHz.
FMAS, TRIPS_PER_US = 8, 40
# Floats that an H200 copies in about a microsecond.
COPIED = 500 << 10
# The inner dimension of GEMMs: half a percent of it is a tile of 64.
INNER = 12_800
# Of what the host times less cannot be seen.
HOST_CHANGES = [0.0, 0.1, 0.2]
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


def _trips(us: float, change: float) -> int:
    return round(us * TRIPS_PER_US * (1 + change))


def _chain_work(us: float, change: float) -> Work:
    elements = BLOCKS * THREADS
    flops = 2 * FMAS * elements * _trips(us, change)
    return Work(8 * elements, 4 * elements, flops, rate_dtype="fp32")


@perfsuite.case(
    smoke={"us": [5, 20, 200, 5000], "change": CHANGES},
    needs=[cuda()],
    work=_chain_work,
    source=SOURCE,
)
def fma(ctx: Any, *, us: int, change: float) -> Workload:
    """Bound by compute: chains of fused multiply-adds of about ``us`` microseconds."""
    kernel = ctx.load_cuda(Path(__file__).with_suffix(".cu"), "chain")
    n, rest = BLOCKS * THREADS, (_trips(us, change), ctypes.c_float(-1.0))
    return Workload(
        fn=lambda x, y, out: kernel(BLOCKS, THREADS, x, y, out, n, *rest),
        make_inputs=lambda rng: (rng.randn(n), rng.randn(n), rng.empty(n)),
        reference=lambda _x, y, _out: y.double(),
        wrong=lambda x, _y, out: out.copy_(x),
        # Each step rounds, and the rounding of two neighbours cancels but for its last bit.
        tolerance=1e-5,
    )


@perfsuite.case(
    smoke={"us": 200, "change": [0.0, COARSE_CHANGE]},
    nightly={"us": [5, 20, 200, 1000], "change": CHANGES},
    work=lambda us, change: Work(*2 * [4 * round(COPIED * us * (1 + change))]),
    memory_bytes=lambda us, change: 24 * round(COPIED * us * (1 + change)),
    source=SOURCE,
)
def stream(ctx: Any, *, us: int, change: float) -> Workload:
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


def _depth(change: float) -> int:
    return round(INNER * (1 + change))


def _gemm_work(size: int, change: float) -> Work:
    k = _depth(change)
    return Work(4 * size * k, 2 * size * size, 2 * size * size * k, rate_dtype="bf16")


@perfsuite.case(
    smoke={"size": [4096, 8192], "change": CHANGES},
    needs=[cuda()],
    work=_gemm_work,
    memory_bytes=lambda size, **_: 12 * size * (size + 2 * INNER),
    source=SOURCE,
)
def gemm(ctx: Any, *, size: int, change: float) -> Workload:
    """Multiply bf16 matrices whose inner dimension grows by 64 for each half percent."""
    del ctx
    import torch

    k = _depth(change)

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
    gemm,
    name="capped",
    axes={"size": (8192,), "change": (0.0, 0.01)},
    points=tuple((Tier.SMOKE, {"size": 8192, "change": change}) for change in (0.0, 0.01)),
    regime=Regime.SUSTAINED,
)


@perfsuite.case(
    smoke={"burst": 100, "change": [0.0, COARSE_CHANGE]},
    nightly={"burst": [100, 1000], "change": HOST_CHANGES},
    regime=Regime.END_TO_END,
    cold=False,
    source=SOURCE,
)
def issued(ctx: Any, *, burst: int, change: float) -> Workload:
    """Timed by the host: a burst of operators issued one by one, of which the last is awaited."""
    count = round(burst * (1 + change))
    if hasattr(ctx, "spend"):
        return _spending(ctx, count)

    def fn(x: Any, out: Any) -> None:
        out.copy_(x)
        for _ in range(count):
            out.neg_()

    return Workload(
        fn=fn,
        make_inputs=lambda rng: (rng.randn(64), rng.empty(64)),
        reference=lambda x, _: x if count % 2 == 0 else -x,
        wrong=lambda x, out: out.copy_(2 * x),
        tolerance=0.0,
        captures=False,
    )


CASES = [fma, stream, gemm, capped, issued]


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the planted cases."""
    return CASES


def _without(build: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(build)
    def built(*args: Any, **axes: Any) -> Any:
        return build(*args, **axes | {"change": 0.0})

    return built


class Unchanged:
    """The pack of side A."""

    @perfsuite.hookimpl
    def perf_cases(self) -> Sequence[Case]:
        """Return the planted cases, to which nothing is added."""
        return [replace(case, build=_without(case.build)) for case in CASES]


unchanged = Unchanged()
