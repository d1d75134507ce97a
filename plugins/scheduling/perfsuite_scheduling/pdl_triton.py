"""One smoothing step in Triton, that may be started before the kernel it depends on has ended."""

# mypy: allow-untyped-defs, allow-incomplete-defs
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

BLOCK = 256


@triton.jit
def step_kernel(source, target, n, EARLY: tl.constexpr, BLOCK: tl.constexpr):
    """Write half of source[i] and a quarter of each neighbour on the ring to target[i]."""
    if EARLY:
        # The next kernel may come as soon as there is room; it waits below for this one to end.
        tl_cuda.gdc_launch_dependents()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    before = tl.where(at == 0, n - 1, at - 1)
    after = tl.where(at == n - 1, 0, at + 1)
    if EARLY:
        tl_cuda.gdc_wait()
    beside = tl.load(source + before, mask=inside) + tl.load(source + after, mask=inside)
    value = 0.5 * tl.load(source + at, mask=inside) + 0.25 * beside
    tl.store(target + at, value, mask=inside)


def chain(x: Any, y: Any, scratch: Any, *, steps: int, early: bool) -> None:
    """Take ``steps`` steps from x, a kernel each; the last writes y."""
    n = x.numel()
    grid = (triton.cdiv(n, BLOCK),)
    # The interpreter knows no such option, and needs none.
    options = {"launch_pdl": True} if early else {}
    source = x
    for left in reversed(range(steps)):
        target = scratch if left % 2 else y
        step_kernel[grid](source, target, n, EARLY=early, BLOCK=BLOCK, **options)
        source = target
