"""Fused multiply-adds in registers: nothing but the CUDA cores and the SM clock."""

from typing import Any

from perfsuite import Work, cuda, operator
from perfsuite.gpu import load

# x -> SCALE x + SHIFT pulls towards 1, so that no chain of any length overflows.
SCALE, SHIFT = 0.999, 0.001
THREADS, CHAINS, BLOCKS_PER_SM = 128, 16, 16
# Elements by implementation. All blocks are resident at once on the 132 multiprocessors of an H100
# or H200; on 108, 114 or 148 the fullest have 2 to 5 % more than their share. And what stays in a
# core's first cache.
_ELEMENTS = {"cuda": 132 * BLOCKS_PER_SM * THREADS * CHAINS, "torch": 2**12}


@operator(
    smoke=[{"steps": 256, "impl": "torch"}, {"steps": 4096, "impl": "cuda"}],
    work=lambda steps, impl: Work(
        4 * _ELEMENTS[impl], 4 * _ELEMENTS[impl], 2 * steps * _ELEMENTS[impl], "fp32"
    ),
    # Rounding errors shrink by SCALE with each step: at most 2**-24 / (1 - SCALE) of the value.
    tolerance=1e-4,
    version=2,
    tags=["cuda-cores"],
    canary={"cuda": {"steps": 4096, "impl": "cuda"}, "cpu": {"steps": 256, "impl": "torch"}},
    ceilings={"fp32": lambda impl, **_: impl == "cuda"},
    source="chains of FMA as in Volkov, 'Understanding Latency Hiding on GPUs' (2016)",
)
def fma(rng: Any, *, steps: int, impl: str) -> tuple[Any, ...]:
    """Take numbers through ``steps`` fused multiply-adds each, x -> 0.999 x + 0.001.

    ``cuda`` keeps sixteen chains a thread in registers: its time is the FP32 pipes' and follows the
    SM clock alone. ``torch`` does the same in two operators a step on numbers that fit a core's
    first cache, which is what a CPU can show of it.
    """
    return rng.randn(_ELEMENTS[impl]), rng.empty(_ELEMENTS[impl])


# Return the chain in closed form: 1 is the point that stays where it is.
fma.reference(lambda x, y, *, steps: 1 + (x.double() - 1) * SCALE**steps)


@fma.impl
def _torch(x: Any, y: Any, *, steps: int) -> None:
    y.copy_(x)
    for _ in range(steps):
        y.mul_(SCALE).add_(SHIFT)


# A loop that is unrolled once too often ends early.
fma.wrong(lambda x, y, *, steps: _torch(x, y, steps=steps // 2))


@fma.impl(needs=[cuda()])
def _cuda(ctx: Any, *, steps: int) -> Any:
    run = load(ctx, __file__, "fma_loop", STEPS=steps, SCALE=f"{SCALE}f", SHIFT=f"{SHIFT}f")
    return lambda x, y: run(_ELEMENTS["cuda"] // (THREADS * CHAINS), THREADS, x, y)
