"""Measures one variant on one device: build, check, then samples, plays or counts."""

from perfsuite.engine.quads import Quads
from perfsuite.engine.session import Session
from perfsuite.engine.tracing import dissect, show_once

__all__ = ["Quads", "Session", "dissect", "show_once"]
