"""The memory pack: what it costs to move bytes, and which access patterns cost more."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in

CASES = """
stream coalescing transpose h2d vectorized bank_conflicts l2_sweep pointer_chase
tiled_matmul async_prefetch atomics readonly_cache spill reduction gather_scatter
scan_sort_topk copy_overlap allocator checkpointing offload unified
"""


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, CASES)
