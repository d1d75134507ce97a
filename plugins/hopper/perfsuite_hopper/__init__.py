"""The hopper pack: wgmma, TMA, warp roles and clusters, on sm_90 only."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, "wgmma_gemm warp_specialization tma_copy cluster_dsmem")
