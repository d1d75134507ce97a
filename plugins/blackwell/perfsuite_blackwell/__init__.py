"""The Blackwell pack: tcgen05, block-scaled formats, and what those formats keep of a matrix."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, "tcgen05_gemm block_scaled_gemm numerics")
