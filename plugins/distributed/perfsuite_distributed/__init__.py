"""The distributed pack: collectives, peer copies, bucketing, overlap and communication volume."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_distributed import bucketing, collective, overlap, peer_copy, volume

    return [
        *collective.CASES,
        *peer_copy.CASES,
        *bucketing.CASES,
        *overlap.CASES,
        *volume.CASES,
    ]
