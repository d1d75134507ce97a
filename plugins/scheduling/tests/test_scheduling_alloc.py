"""Workspaces: pieces of work that share one, and pieces that are handed the wrong one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perfsuite_scheduling import async_alloc, smoothing


@dataclass
class PlayedContext:
    """A context whose kernel is played by Python."""

    place: str = "cpu"

    def load_cuda(self, path: Path, name: str, *, options: Any = ()) -> Callable[..., None]:
        """Return what plays a step of smoothing."""
        assert (path, name, options) == (smoothing.SOURCE, "step", smoothing.OPTIONS)
        return play_step


def play_step(grid: int, block: int, source: Any, target: Any) -> None:
    assert grid * block == source.numel() == target.numel()
    assert source.data_ptr() != target.data_ptr()
    target.copy_(smoothing.smooth(source, 1))


def test_each_workspace_is_given_back_before_the_next_is_taken() -> None:
    torch = pytest.importorskip("torch")
    events: list[str] = []

    def take() -> Any:
        events.append("take")
        return torch.full((smoothing.N,), float("nan"))

    spaces = async_alloc.Workspaces(take, lambda space: events.append("give"))
    x, y = torch.randn(2, smoothing.N)
    async_alloc._pieces(PlayedContext(), spaces)(x, y)  # noqa: SLF001 - how pieces are put together
    assert events == ["take", "give"] * async_alloc.PIECES
    want = smoothing.reference(x, y, steps=async_alloc.STEPS)
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-6)
