"""The distributed pack: collectives, peer copies, bucketing, overlap and communication volume."""

from collections.abc import Sequence

import perfsuite
from perfsuite.gpu import declared_in


@perfsuite.hookimpl
def perf_cases() -> Sequence[perfsuite.Case | perfsuite.Operator | perfsuite.Claim]:
    """Return the pack's cases and claims."""
    return declared_in(__name__, "collective peer_copy bucketing overlap volume")
