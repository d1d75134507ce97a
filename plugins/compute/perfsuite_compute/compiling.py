"""How the pack's torch.compile variants are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` compiled whole and for fixed sizes, at its first launch.

    Two processes must time the same code: Inductor's choice of a tile by timing is off. It keeps
    no CUDA graphs of its own, so that the engine can capture the launch, and compiles in this
    process, not in a pool that would outlive it.
    """
    import torch
    from torch._inductor import config

    config.compile_threads = 1
    options = {"triton.autotune_pointwise": False}
    made: Callable[..., Any] = torch.compile(fn, fullgraph=True, dynamic=False, options=options)
    return made
