"""The memory pack: what it costs to move bytes, and which access patterns cost more."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite
from perfsuite_memory import (
    async_prefetch,
    atomics,
    bank_conflicts,
    coalescing,
    h2d,
    l2_sweep,
    movement,
    pointer_chase,
    readonly_cache,
    spill,
    stream,
    tiled_matmul,
    transpose,
    vectorized,
)


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return [
        stream.stream,
        coalescing.coalescing,
        *coalescing.CLAIMS,
        transpose.transpose,
        *transpose.CLAIMS,
        h2d.h2d,
        *h2d.CLAIMS,
        vectorized.vectorized,
        *vectorized.CLAIMS,
        bank_conflicts.bank_conflicts,
        *bank_conflicts.CLAIMS,
        l2_sweep.l2_sweep,
        pointer_chase.pointer_chase,
        tiled_matmul.tiled_matmul,
        *tiled_matmul.CLAIMS,
        async_prefetch.async_prefetch,
        *async_prefetch.CLAIMS,
        atomics.atomics,
        readonly_cache.readonly_cache,
        *readonly_cache.CLAIMS,
        spill.spill,
        *movement.CASES,
    ]


@perfsuite.hookimpl
def perf_kernels() -> Sequence[perfsuite.Kernel]:
    """Return the pack's kernels, to be compiled and inspected where no GPU is."""
    from perfsuite_memory.kernels import kernels

    return kernels()
