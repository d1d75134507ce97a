"""The pack's cases of reducing, gathering and placing data, as one list."""

from __future__ import annotations

import perfsuite
from perfsuite_memory import (
    allocator,
    checkpointing,
    copy_overlap,
    gather_scatter,
    offload,
    reduction,
    scan_sort_topk,
    unified,
)

CASES: tuple[perfsuite.Case | perfsuite.Claim, ...] = (
    reduction.reduction,
    *reduction.CLAIMS,
    gather_scatter.gather_scatter,
    scan_sort_topk.scan_sort_topk,
    copy_overlap.copy_overlap,
    *copy_overlap.CLAIMS,
    allocator.allocator,
    *allocator.CLAIMS,
    checkpointing.checkpointing,
    offload.offload,
    unified.unified,
)
