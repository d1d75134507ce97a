"""Measures one variant on one device: build, check, then samples, plays or counts."""

from perfsuite.engine.duel import Duel
from perfsuite.engine.session import Session

__all__ = ["Duel", "Session"]
