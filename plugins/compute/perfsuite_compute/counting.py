"""Counts the kernels of a case's launch, on inputs of zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import perfsuite


@dataclass(frozen=True, slots=True)
class Zeros:
    """Hands out zeros where an rng would draw: what starts does not depend on the values."""

    place: str

    def randn(self, *shape: int, dtype: str = "float32") -> Any:
        """Return a tensor of zeros."""
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.place)

    rand = empty = randn


def kernels_of(
    ctx: Any, launch: Callable[..., Any], make_inputs: Callable[[Any], tuple[Any, ...]]
) -> Callable[[], dict[str, float]]:
    """Return what a workload gives as ``exact``: the kernels of one launch."""

    def exact() -> dict[str, float]:
        inputs = make_inputs(Zeros(ctx.place))
        return {"kernels": perfsuite.count_kernels(ctx, lambda: launch(*inputs))}

    return exact
