"""The memory pack: what it costs to move bytes, and which access patterns cost more."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite
from perfsuite_memory import coalescing, h2d, stream, transpose


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return [
        stream.stream,
        coalescing.coalescing,
        *coalescing.CLAIMS,
        transpose.transpose,
        *transpose.CLAIMS,
        h2d.h2d,
        *h2d.CLAIMS,
    ]
