"""How reads by the host are counted."""

from typing import Any

import perfsuite

READS = perfsuite.Metric("host_reads", better="lower")


def reads(launch: Any, *inputs: Any) -> dict[str, float]:
    """Return how often a launch waits and reads a scalar, or a list of them."""
    seen = perfsuite.count_operators(lambda: launch(*inputs))
    return {"host_reads": seen["item"] + seen["tolist"]}
