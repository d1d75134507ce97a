"""The memory pack: what it costs to move bytes, and which access patterns cost more."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite
from perfsuite_memory import coalescing, h2d, movement, stream, transpose


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
        *movement.CASES,
    ]


@perfsuite.hookimpl
def perf_kernels() -> Sequence[perfsuite.Kernel]:
    """Return the pack's kernels, to be compiled and inspected where no GPU is."""
    from perfsuite_memory.kernels import kernels

    return kernels()
