"""Makes the pack and the planted kernels importable, installed or not, and plays its graphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent

sys.path[:0] = [str(HERE.parent), str(HERE)]


@pytest.fixture
def ctx(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a played context; what is captured, and the graphs of its driver, are played, too."""
    pytest.importorskip("torch")
    from perfsuite_scheduling import driver_graph
    from sync_played import PlayedContext, PlayedGraph

    import perfsuite

    found = PlayedContext()
    monkeypatch.setattr(driver_graph, "Graph", lambda: found.graph)
    monkeypatch.setattr(perfsuite, "capture", lambda launch: PlayedGraph([launch]))
    return found
