"""The controller's side of measuring: servers, turns, time limits, and every death as a result."""

from perfsuite.panel.inventory import inventory
from perfsuite.panel.lock import UnitLock
from perfsuite.panel.panel import Panel
from perfsuite.panel.site import Site

__all__ = ["Panel", "Site", "UnitLock", "inventory"]
