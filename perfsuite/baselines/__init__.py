"""Baselines: the accepted numbers of a SKU, kept in git and reviewed as diffs."""

from perfsuite.baselines.accept import Accepted, accept
from perfsuite.baselines.load import Baselines, stale
from perfsuite.codec import Acceptance, RunFacts

__all__ = ["Acceptance", "Accepted", "Baselines", "RunFacts", "accept", "stale"]
