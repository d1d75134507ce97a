"""Says how many blocks a GPU holds at once."""

from __future__ import annotations

from typing import Any


def resident(ctx: Any, blocks_per_sm: int) -> int:
    """Return the blocks of a grid with so many for each SM; a CPU counts as one SM."""
    import torch

    if torch.device(ctx.place).type != "cuda":
        return blocks_per_sm
    count = int(torch.cuda.get_device_properties(ctx.place).multi_processor_count)
    return blocks_per_sm * count
