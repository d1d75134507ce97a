"""What the launches must know of the GPU."""

from __future__ import annotations


def sm_count() -> int:
    """Return how many SMs the worker's GPU has."""
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)
