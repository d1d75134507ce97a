"""A pack whose variants change in planted ways when ``PERFSUITE_TEST_PLANTED`` is set."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import perfsuite
from perfsuite import Case, Workload

LIBRARY_BEFORE = "void cutlass_80_tensorop_s16816gemm_f16_128x128_64x3<float, 4>(float const*)"
LIBRARY_NOW = "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN"
HOSTILE = "<script>alert(1)</script>" * 4


def _slower(ctx: Any, *, is_now: bool) -> None:
    ptx = "mov.u32 %r2;\nst.local" if is_now else "mov.u32 %r1;"
    registers = 128 if is_now else 64
    ctx.run_kernel("scale_rows", 125 if is_now else 100, ptx, grid=(132, 1, 1), registers=registers)
    ctx.run_kernel("reduce_rows", 20, "add.f32", grid=(64, 1, 1))


def _extra(ctx: Any, *, is_now: bool) -> None:
    ctx.run_kernel("scale_rows", 100, "mov.u32 %r1;")
    if is_now:
        ctx.run_kernel("zero_fill", 15, block=(256, 1, 1))


def _throttled(ctx: Any, *, is_now: bool) -> None:
    if is_now:
        ctx.throttle(1840.0, "sw_power_cap")
    ctx.run_kernel("scale_rows", 100, "mov.u32 %r1;")


def _switched(ctx: Any, *, is_now: bool) -> None:
    ctx.run_kernel(LIBRARY_NOW if is_now else LIBRARY_BEFORE, 130 if is_now else 100)
    ctx.run_kernel("bias_kernel", 10)


def _machine(ctx: Any, *, is_now: bool) -> None:
    ctx.run_kernel("scale_rows", 110 if is_now else 100, "mov.u32 %r1;")


def _gaps(ctx: Any, *, is_now: bool) -> None:
    ctx.run_kernel("scale_rows", 100)
    ctx.spend(30 if is_now else 10)


def _hostile(ctx: Any, *, is_now: bool) -> None:
    ctx.run_kernel(HOSTILE, 130 if is_now else 100)


def _lost(ctx: Any, *, is_now: bool) -> None:
    if ctx.owner.kernels is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.run_kernel("scale_rows", 130 if is_now else 100)


KINDS: dict[str, Callable[..., None]] = {
    "slower": _slower,
    "extra": _extra,
    "throttled": _throttled,
    "switched": _switched,
    "machine": _machine,
    "gaps": _gaps,
    "hostile": _hostile,
    "lost": _lost,
}


@perfsuite.case(axes={"kind": list(KINDS)}, source="made up for tests")
def planted(ctx: Any, kind: str) -> Workload:
    """Double eight numbers, in kernels of a planted kind."""
    is_now = bool(os.environ.get("PERFSUITE_TEST_PLANTED"))

    def double(values: list[float]) -> list[float]:
        KINDS[kind](ctx, is_now=is_now)
        return [2 * value for value in values]

    return Workload(
        fn=double,
        make_inputs=lambda rng: (rng.randn(8),),
        reference=lambda values: [value + value for value in values],
        wrong=lambda values: [3 * value for value in values],
    )


@perfsuite.hookimpl
def perf_cases() -> Sequence[Case]:
    """Return the pack's cases."""
    return [planted]
