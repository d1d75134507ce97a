"""Fused multiply-adds in registers: nothing but the CUDA cores and the SM clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite import Work, Workload, cuda, package

# x -> SCALE x + SHIFT pulls towards 1, so that no chain of any length overflows.
SCALE, SHIFT = 0.999, 0.001
# Rounding errors shrink by SCALE with each step: at most 2**-24 / (1 - SCALE) of the value.
_TOLERANCE = 1e-4
THREADS, CHAINS = 256, 4
# Elements by implementation: a GPU full of threads, and what stays in a core's first cache.
_ELEMENTS = {"cuda": 2**22, "torch": 2**12}
_STEPS = {"cuda": 4096, "torch": 256}


def _is_asked(steps: int, impl: str) -> bool:
    return _STEPS[impl] == steps


def _work(steps: int, impl: str) -> Work:
    n = _ELEMENTS[impl]
    return Work(read_bytes=4 * n, write_bytes=4 * n, flops=2 * steps * n, rate_dtype="fp32")


@perfsuite.case(
    axes={"steps": [256, 4096], "impl": ["torch", "cuda"]},
    only=_is_asked,
    needs=(package("torch"), cuda().when(impl="cuda")),
    work=_work,
    tags=["cuda-cores"],
    canary={"cuda": {"steps": 4096, "impl": "cuda"}, "cpu": {"steps": 256, "impl": "torch"}},
    ceilings={"fp32": lambda impl, **_: impl == "cuda"},
    source="chains of FMA as in Volkov, 'Understanding Latency Hiding on GPUs' (2016)",
)
def fma(ctx: Any, steps: int, impl: str) -> Workload:
    """Take numbers through ``steps`` fused multiply-adds each, x -> 0.999 x + 0.001.

    ``cuda`` keeps four chains a thread in registers: its time is the FP32 pipes' and follows the
    SM clock alone. ``torch`` does the same in two operators a step on numbers that fit a core's
    first cache, which is what a CPU can show of it.
    """
    n = _ELEMENTS[impl]
    return Workload(
        fn=_launch_cuda(ctx, steps, n) if impl == "cuda" else _launch_torch(steps),
        make_inputs=lambda rng: (rng.randn(n), rng.empty(n)),
        reference=lambda x, y: _reference(x, steps),
        wrong=_launch_torch(steps // 2),  # a loop that is unrolled once too often ends early
        tolerance=_TOLERANCE,
    )


def cuda_options(steps: int) -> tuple[str, ...]:
    """Return the macros of fma.cu."""
    return (f"-DSTEPS={steps}", f"-DSCALE={SCALE}f", f"-DSHIFT={SHIFT}f")


def _launch_cuda(ctx: Any, steps: int, n: int) -> Callable[..., None]:
    path = Path(__file__).with_name("fma.cu")
    run = ctx.load_cuda(path, "fma_loop", options=cuda_options(steps))
    blocks = -(-n // (THREADS * CHAINS))
    return lambda x, y: run(blocks, THREADS, x, y, n)


def _launch_torch(steps: int) -> Callable[..., None]:
    def launch(x: Any, y: Any) -> None:
        y.copy_(x)
        for _ in range(steps):
            y.mul_(SCALE).add_(SHIFT)

    return launch


def _reference(x: Any, steps: int) -> Any:
    """Return the chain in closed form: 1 is the point that stays where it is."""
    return 1 + (x.double() - 1) * SCALE**steps


CASES: tuple[perfsuite.Case | perfsuite.Claim, ...] = (fma,)
