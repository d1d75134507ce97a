"""The memory pack: what it costs to move bytes, and which access patterns cost more."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite
from perfsuite_memory import (
    allocator,
    async_prefetch,
    atomics,
    bank_conflicts,
    checkpointing,
    coalescing,
    copy_overlap,
    gather_scatter,
    h2d,
    l2_sweep,
    offload,
    pointer_chase,
    readonly_cache,
    reduction,
    scan_sort_topk,
    spill,
    stream,
    tiled_matmul,
    transpose,
    unified,
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
        h2d.h2d,
        vectorized.vectorized,
        bank_conflicts.bank_conflicts,
        l2_sweep.l2_sweep,
        pointer_chase.pointer_chase,
        tiled_matmul.tiled_matmul,
        async_prefetch.async_prefetch,
        async_prefetch.OVER_SYNC,
        atomics.atomics,
        readonly_cache.readonly_cache,
        spill.spill,
        reduction.reduction,
        gather_scatter.gather_scatter,
        scan_sort_topk.scan_sort_topk,
        copy_overlap.copy_overlap,
        allocator.allocator,
        allocator.OVER_CUDA_MALLOC,
        checkpointing.checkpointing,
        offload.offload,
        unified.unified,
    ]
