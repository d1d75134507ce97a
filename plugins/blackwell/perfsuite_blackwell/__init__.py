"""The Blackwell pack: tcgen05, block-scaled formats, and what those formats keep of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_blackwell import block_scaled_gemm, numerics, tcgen05_gemm

    return [*tcgen05_gemm.CASES, *block_scaled_gemm.CASES, *numerics.CASES]
