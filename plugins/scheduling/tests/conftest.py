"""Plays the pack's graphs."""

from __future__ import annotations

from typing import Any

import pytest


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
