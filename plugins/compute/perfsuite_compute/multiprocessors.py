"""What launches must know of the GPU's multiprocessors."""

from __future__ import annotations

from typing import Any


def count() -> int:
    """Return how many there are."""
    return int(_properties().multi_processor_count)


def most_threads() -> int:
    """Return how many threads one holds at once."""
    return int(_properties().max_threads_per_multi_processor)


def shared_bytes() -> int:
    """Return the shared memory of one."""
    return int(_properties().shared_memory_per_multiprocessor)


def _properties() -> Any:
    import torch

    return torch.cuda.get_device_properties(0)
