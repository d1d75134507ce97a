"""Baselines: the accepted numbers of a SKU, kept in git and reviewed as diffs."""

from perfsuite.baselines.accept import Accepted, accept
from perfsuite.baselines.load import Baselines
from perfsuite.baselines.shipped import Root, Shipped, shipped_by

__all__ = [
    "Accepted",
    "Baselines",
    "Root",
    "Shipped",
    "accept",
    "shipped_by",
]
