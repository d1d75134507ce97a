"""The controller's side of measuring: servers, turns, time limits, and every death as a result."""

from perfsuite.panel.counter import Counter
from perfsuite.panel.gang import GangPanel
from perfsuite.panel.inventory import inventory
from perfsuite.panel.lock import UnitLock
from perfsuite.panel.merge import gang_unit, merged
from perfsuite.panel.panel import Panel
from perfsuite.panel.site import Code, Site
from perfsuite.panel.tracer import Tracer

__all__ = [
    "Code",
    "Counter",
    "GangPanel",
    "Panel",
    "Site",
    "Tracer",
    "UnitLock",
    "gang_unit",
    "inventory",
    "merged",
]
