"""Baselines: the accepted numbers of a SKU, kept in git and reviewed as diffs."""

from perfsuite.baselines.accept import Accepted, accept
from perfsuite.baselines.exceptions import Exceptions
from perfsuite.baselines.load import Baselines
from perfsuite.baselines.moves import moves_of
from perfsuite.baselines.propose import Finding, Proposal, Terms, propose
from perfsuite.baselines.shipped import Root, Shipped, shipped_by

__all__ = [
    "Accepted",
    "Baselines",
    "Exceptions",
    "Finding",
    "Proposal",
    "Root",
    "Terms",
    "Shipped",
    "accept",
    "moves_of",
    "propose",
    "shipped_by",
]
