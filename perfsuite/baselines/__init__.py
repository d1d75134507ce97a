"""Baselines: the accepted numbers of a SKU, kept in git and reviewed as diffs."""

from perfsuite.baselines.accept import Accepted, accept
from perfsuite.baselines.differences import Difference, differences
from perfsuite.baselines.exceptions import Exceptions
from perfsuite.baselines.lint import Linter
from perfsuite.baselines.load import Baselines
from perfsuite.baselines.moves import moves_of
from perfsuite.baselines.proposal import Finding, Proposal, Terms
from perfsuite.baselines.propose import propose
from perfsuite.baselines.shipped import Root, Shipped, shipped_by

__all__ = [
    "Accepted",
    "Baselines",
    "Difference",
    "Exceptions",
    "Finding",
    "Linter",
    "Proposal",
    "Root",
    "Shipped",
    "Terms",
    "accept",
    "differences",
    "moves_of",
    "propose",
    "shipped_by",
]
