"""The distributed pack: collectives, peer copies, bucketing, overlap and communication volume."""

from __future__ import annotations

from collections.abc import Sequence

import perfsuite


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    from perfsuite_distributed.bucketing import CASES
    from perfsuite_distributed.collective import collective
    from perfsuite_distributed.overlap import overlap, overlap_share
    from perfsuite_distributed.peer_copy import peer_copy
    from perfsuite_distributed.volume import volume

    return [collective, peer_copy, *CASES, overlap, overlap_share, volume]
