"""Measures one variant on one device: build, check, then samples, plays or counts."""

from perfsuite.engine.quads import Quads
from perfsuite.engine.session import Session
from perfsuite.engine.tracing import dissect

__all__ = ["Quads", "Session", "dissect"]
