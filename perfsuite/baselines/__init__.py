"""Baselines: the accepted numbers of a SKU, kept in git and reviewed as diffs."""

from perfsuite.baselines.accept import Accepted, accept
from perfsuite.baselines.load import Baselines, stale
from perfsuite.baselines.shipped import Root, Shipped, shipped_by
from perfsuite.codec import Acceptance, RunFacts

__all__ = [
    "Acceptance",
    "Accepted",
    "Baselines",
    "Root",
    "RunFacts",
    "Shipped",
    "accept",
    "shipped_by",
    "stale",
]
