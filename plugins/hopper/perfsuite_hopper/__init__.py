"""The hopper pack: wgmma, TMA, warp roles and clusters, on sm_90 only."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_hopper import cluster_dsmem, tma_copy, warp_specialization, wgmma_gemm

    return [
        wgmma_gemm.wgmma_gemm,
        warp_specialization.warp_specialization,
        tma_copy.tma_copy,
        cluster_dsmem.cluster_dsmem,
    ]
